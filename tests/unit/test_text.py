"""Counts in messages: the noun is singular after 1."""

from spark_log.maintenance import Amount, Report
from spark_log.maintenance.erase.erase import Erased
from spark_log.maintenance.erase.purge import Purged
from spark_log.spark.jobs.summary import BatchProgress, Stages, Summary, progress_line, summary_lines
from spark_log.spark.streams.transactional_loop import Totals
from spark_log.text import count_of, exact_duration_of, rate_of, some_of


def test_counts_and_durations() -> None:
    assert [count_of(n, "record") for n in (0, 1, 2_000)] == ["0 records", "1 record", "2,000 records"]
    assert (some_of([*"abcde"]), some_of([*"abcdefg"])) == ("a, b, c, d, e", "a, b, c, d, e and 2 more")
    assert [count_of(n, "batch", "batches") for n in (1, 2)] == ["1 batch", "2 batches"]
    told = [exact_duration_of(ms) for ms in (604_800_000, 86_400_000, 129_600_000, 60_000, 1_000, 1_500, 0)]
    assert told == ["7 days", "1 day", "36 hours", "1 minute", "1 second", "1,500 ms", "0 ms"]


def test_one_is_singular_in_every_summary() -> None:
    purged = Purged(1, 10, 1, 0, (), ())
    erased = Erased("t", 1, {}, 1, 1, 1, Amount(1, 20, 2), Amount(1, 10, 1), purged, ())
    first, second, *_ = erased.lines()
    assert first == "Erased 1 record of 1 key from t: replaced 1 of 1 segment in 1 partition (20 -> 10 bytes)."
    assert second == "Purged 1 old file (10 bytes), and 1 replica that had moved away."
    assert str(Report("merge", "t", 1)) == "merge t: 1 partition"
    assert str(Totals(1, 1, 1)) == "1 record in 1 transaction, 1 aborted"
    assert progress_line(BatchProgress(0, 1, 2, 3.0, None), False) == "batch 0: 1 record, 3 records/s"
    summary = Summary("transform", 1, 1, 0.0, {}, {}, malformed=1, late=1)
    assert summary_lines(summary, False) == [
        "transform: 1 record, 1 byte, 0.0 s",
        "  1 value is not of --value-schema: it went to --dead-letter-topic",
        "  1 row was later than the watermark, and dropped",
    ]


def test_a_rate_is_shown_of_runs_that_are_long_enough() -> None:
    assert [rate_of(5_000_000, 2.5), rate_of(1_000, 1.0)] == [", 2,000,000 records/s", ", 1,000 records/s"]
    assert [rate_of(2, 0.3), rate_of(300, 100.0), rate_of(50_000, 0.9)] == ["", "", ""]


def test_the_rate_of_a_summary_is_that_of_the_writing() -> None:
    stages = Stages(start=4.0, planning=1.5, writing=2.0, commit=0.25)
    assert summary_lines(Summary("produce", 1_000, 2**20, 3.75, {}, {}, stages=stages), False) == [
        "produce: 1,000 records, 1.0 MiB, 3.8 s",
        "  planning 1.5 s, writing 2.0 s (500 records/s), commit 0.2 s, before that 4.0 s to start Spark",
    ]
    ours = Stages(planning=0.5, writing=1.0, commit=0.5)
    assert summary_lines(Summary("produce", 0, 0, 2.0, {}, {}, stages=ours), False)[1] == (
        "  planning 0.5 s, writing 1.0 s, commit 0.5 s"
    )
