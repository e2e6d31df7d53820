"""Retention in a cluster: it drops the right segments, and other work continues."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import sqlalchemy as sa

from spark_log import clock
from spark_log.errors import (
    OffsetOutOfRangeError,
    UnsafePathError,
)
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.append.rules import Appended
from spark_log.log.append.write_ids import Writer
from spark_log.log.log import Records
from spark_log.log.partitions.partition_rows import read_partition
from spark_log.maintenance import TASKS, Amount, run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import SEGMENTS_MAX, apply_retention
from spark_log.maintenance.rewrite.rewrite_plan import plan_rewriting, segments
from spark_log.maintenance.rewrite.segment_rewrite import swap, write
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.replication.controller.topic_operations import alter_configs, create_topic
from tests.support import topics
from tests.support.records import read_all, table
from tests.support.s3 import also_on_s3
from tests.support.stores import change, topics_view
from tests.support.table_checks import everything_fits
from tests.support.topics import tail

FILES = {"inline.max.bytes": "0"}


OLD_MS = 1_000_000_000_000


append = functools.partial(topics.append, timestamp_ms=OLD_MS)


def state_of(cluster, topic, partition=0):
    return topics_view(cluster).store.read(lambda connection: read_partition(connection, (topic.topic_id, partition)))


def rows_of(cluster, table_):
    return topics_view(cluster).store.read(lambda connection: connection.execute(sa.select(table_)).all())


def values(log, topic):
    return [value for _, _, value in read_all(log, topic)]


@pytest.mark.delta
@also_on_s3
def test_old_segments_are_dropped_up_to_the_first_young_one(cluster, log, incremental):
    now_ms = clock.wall_ms()
    topic = create_topic(cluster, "t", 2, configs=FILES)
    for number, timestamp_ms in enumerate([OLD_MS, OLD_MS, now_ms, OLD_MS]):
        append(log, topic, f"{number}", timestamp_ms=timestamp_ms)
        append(log, topic, f"{number}", partition=1, timestamp_ms=now_ms)
    other = create_topic(cluster, "other", configs=FILES)
    append(log, other, "old")
    everything_fits(cluster)
    plan = log.plan({TopicPartition("t", 0): OffsetRange(0, 4)})
    incremental()
    [report] = run_tasks(cluster, ["retention"], topics=["t"])
    assert (report.topic, report.partitions, report.before.files, report.before.records) == ("t", 1, 2, 2)
    assert report.before.bytes == sum(piece.size for piece in plan.slices[:2])
    assert report.after == Amount()
    assert values(log, topic) == ["2", "3", "0", "1", "2", "3"], "in order of time it would not have been whole"
    assert state_of(cluster, topic).log_start_offset == 2
    retired = rows_of(cluster, t.retired_file)
    assert [(row.topic_id, row.partition, row.change) for row in retired] == [
        (topic.topic_id, 0, state_of(cluster, topic).change)
    ] * 2
    assert sorted(row.path.rpartition("/")[2] for row in retired) == sorted(s.name for s in plan.slices[:2])
    everything_fits(cluster)
    assert list(run_tasks(cluster, ["retention"], topics=["t"])) == []
    assert values(log, other) == ["old"]
    [report] = run_tasks(cluster, ["retention"])
    assert report.topic == "other"
    assert values(log, other) == []


@pytest.mark.delta
def test_an_expired_tail_is_dropped_and_appends_continue(cluster, log):
    topic = create_topic(cluster, "t", configs={"delta.max.lag.ms": "-1"})  # only the test seals
    append(log, topic, "a", "b")
    append(log, topic, "c")
    log.seal(topic, [0])
    append(log, topic, "d")
    append(log, topic, "e")
    change_before = state_of(cluster, topic).change
    dropped = apply_retention(topics_view(cluster), topic)
    assert (dropped.segments, dropped.records) == (3, 5)
    state = state_of(cluster, topic)
    assert (state.log_start_offset, state.log_end_offset, state.tail_bytes) == (5, 5, 0)
    assert state.change == change_before + 1
    everything_fits(cluster)
    assert append(log, topic, "f", timestamp_ms=clock.wall_ms()) == Appended(5, 6)
    assert not apply_retention(topics_view(cluster), topic).partitions
    assert values(log, topic) == ["f"]
    append(log, topic, "g", timestamp_ms=clock.wall_ms())
    log.seal(topic, [0])
    everything_fits(cluster)


@pytest.mark.delta
def test_retention_by_size_keeps_at_least_retention_bytes(cluster, log, incremental):
    topic = create_topic(cluster, "t", configs={**FILES, "retention.ms": "-1"})
    for number in range(6):
        append(log, topic, f"{number}")
    sizes = [row.bytes for row in rows_of(cluster, t.segment)]
    alter_configs(cluster, "t", {"retention.bytes": str(sum(sizes[4:]) + 1)})
    incremental()
    dropped = apply_retention(topics_view(cluster), log.find_topic("t"))
    assert (dropped.segments, dropped.bytes) == (3, sum(sizes[:3])), "the fourth would leave a byte too little"
    assert values(log, topic) == ["3", "4", "5"]
    everything_fits(cluster)
    assert not apply_retention(topics_view(cluster), log.find_topic("t")).partitions
    alter_configs(cluster, "t", {"retention.bytes": str(sum(sizes[4:]))})
    assert apply_retention(topics_view(cluster), log.find_topic("t")).segments == 1
    alter_configs(cluster, "t", {"retention.bytes": "0"})
    assert apply_retention(topics_view(cluster), log.find_topic("t")).segments == 2
    everything_fits(cluster)


def test_retention_keeps_topics_whose_policy_or_timestamps_exempt_them(cluster, log):
    kept = {
        "for-ever": {"retention.ms": "-1"},
        "compacted": {"cleanup.policy": "compact", "retention.bytes": "0"},
        "append-time": {"message.timestamp.type": "LogAppendTime"},
        "future": {"message.timestamp.after.max.ms": str(2**62)},
    }
    for name, configs in kept.items():
        topic = create_topic(cluster, name, configs={**FILES, **configs})
        when_ms = clock.wall_ms() + 10**9 if name == "future" else OLD_MS
        log.append(topic, [Records(0, table("first", key=b"k", timestamp_ms=when_ms))])
        log.append(topic, [Records(0, table("second", key=b"k"))])
    both = create_topic(cluster, "both", configs={**FILES, "cleanup.policy": "compact,delete"})
    log.append(both, [Records(0, table("first", key=b"k"))])
    assert [report.topic for report in run_tasks(cluster, ["retention"])] == ["both"]
    assert values(log, both) == []
    for name in kept:
        assert values(log, log.find_topic(name)) == ["first", "second"], name


def test_a_config_applies_as_soon_as_it_is_altered(cluster, log):
    topic = create_topic(cluster, "t")
    append(log, topic, "a")
    alter_configs(cluster, "t", {"retention.ms": "-1"})
    assert not apply_retention(topics_view(cluster), topic).partitions, "although this topic was looked up before"
    assert values(log, topic) == ["a"]


@pytest.mark.delta
def test_a_segment_emptied_by_compaction_expires_by_its_append_time(cluster, log):
    topic = create_topic(cluster, "t", configs=FILES)
    for number in range(3):
        append(log, topic, f"{number}", timestamp_ms=clock.wall_ms())
    with topics_view(cluster).store.snapshot() as connection:
        rewriting = plan_rewriting(connection, topic, 0, segments(connection, topic, 0, inline=False)[:2])
    writer = Writer(topics_view(cluster).store, "test", 60_000)
    write_id, name = writer.file_name()
    written = write(rewriting, name, cluster.log_dirs(), cluster.log_dir, lambda offsets, _: [False] * len(offsets))
    assert swap(topics_view(cluster), write_id, rewriting, written)
    assert not apply_retention(topics_view(cluster), topic).partitions, "as old as its last append"
    change(cluster, t.segment.update().where(SEGMENT.name == name).values(appended_ms=OLD_MS))
    dropped = apply_retention(topics_view(cluster), topic)
    assert (dropped.segments, dropped.records, state_of(cluster, topic).log_start_offset) == (1, 0, 2)
    assert values(log, topic) == ["2"]
    everything_fits(cluster)


@pytest.mark.parametrize("partitions", [1, 250])
def test_many_segments_are_dropped_in_short_transactions(cluster, log, partitions):
    """Rows only: retention does not open the files of dropped segments."""
    topic = create_topic(cluster, "t", partitions)
    each = (2 * SEGMENTS_MAX + 500) // partitions
    facts = {
        "topic_id": topic.topic_id, "record_count": 1, "min_timestamp_ms": 0, "timestamp_type": 0, "leader_epoch": 0,
        "codec": "zstd", "checksum": "0" * 32, "change": 1, "inline": False, "bytes": 10,
    }  # fmt: skip
    rows = [
        {
            **facts, "partition": number, "base_offset": n, "end_offset": n + 1,
            "name": f"{number:016x}{n:016x}-0.parquet",
            "max_timestamp_ms": 0 if n < each - 1 else clock.wall_ms(),
        }
        for number in range(partitions) for n in range(each)
    ]  # fmt: skip
    topics_view(cluster).store.transact(lambda connection: connection.execute(t.segment.insert(), rows))
    ends = {"log_end_offset": each}
    change(cluster, t.partition.update().values(high_watermark=each, change=1, **ends))
    change(cluster, t.replica.update().values(ends))
    dropped = apply_retention(topics_view(cluster), topic)
    assert (len(dropped.partitions), dropped.segments) == (partitions, partitions * (each - 1))
    assert dropped.bytes == 10 * dropped.records == 10 * dropped.segments
    left = rows_of(cluster, t.segment)
    assert sorted((row.partition, row.base_offset) for row in left) == [(n, each - 1) for n in range(partitions)]
    assert len(rows_of(cluster, t.retired_file)) == dropped.segments
    assert {row.log_start_offset for row in rows_of(cluster, t.partition)} == {each - 1}


def test_a_failing_partition_does_not_stop_retention_of_the_others(cluster, log):
    topic = create_topic(cluster, "t", 3, configs=FILES)
    for number in range(3):
        append(log, topic, "a", partition=number)
    change(cluster, t.segment.update().where(SEGMENT.partition == 1).values(name="../x.parquet"))
    found = []
    with pytest.raises(UnsafePathError, match=r"\.\./x\.parquet"):
        found += run_tasks(cluster, ["retention"])  # += keeps the reports before the error
    starts = [state_of(cluster, topic, number).log_start_offset for number in range(3)]
    assert starts == [1, 0, 1]
    dropped = apply_retention(topics_view(cluster), topic)
    assert (dropped.partitions, list(dropped.failed)) == (frozenset(), [1])


@pytest.mark.delta
def test_appends_and_reads_during_retention(cluster, log):
    """Two writers, a reader and retention by size: offsets are dense, and the reader gets the written records."""
    topic = create_topic(cluster, "t", 2, configs={"inline.max.bytes": "600", "retention.bytes": "2000"})
    here = [TopicPartition("t", 0), TopicPartition("t", 1)]
    writers_done = threading.Event()
    acked = {0: {}, 1: {}}

    def write(partition):
        own = ClientLog(cluster)
        for number in range(12):
            long = "x" * (0 if number % 3 else 1000)
            outcome = append(
                own, topic, f"{number}", f"{number}{long}", partition=partition, timestamp_ms=clock.wall_ms()
            )
            acked[partition][outcome.base_offset] = f"{number}"
        own.close()

    def read():
        while not writers_done.is_set():
            for tp, (start, end) in log.positions(topic).items():
                try:
                    rows = [row for batch in log.read({tp: OffsetRange(start, end)}) for row in batch.to_pylist()]
                except OffsetOutOfRangeError:
                    continue  # retention was faster: a consumer would reset its position
                assert [row["offset"] for row in rows] == list(range(start, end))

    def retain():
        while not writers_done.is_set():
            apply_retention(topics_view(cluster), topic)

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, partition) for partition in (0, 1)]
        beside = [pool.submit(read), pool.submit(retain)]
        wait(writers)
        writers_done.set()
    assert [each.result() for each in (*writers, *beside)] == [None] * 4
    apply_retention(topics_view(cluster), topic)
    for tp in here:
        state = state_of(cluster, topic, tp.partition)
        assert sorted(acked[tp.partition]) == list(range(0, 24, 2)) and state.log_end_offset == 24
        assert 0 < state.log_start_offset < 24
    for number, offset, value in read_all(log, topic):
        assert value.rstrip("x") == acked[number][offset - offset % 2]
    for partition in (0, 1):
        mine = [row for row in rows_of(cluster, t.segment) if row.partition == partition]
        total, first = sum(row.bytes for row in mine), min(mine, key=lambda row: row.base_offset)
        assert total - first.bytes < 2000 <= total
    everything_fits(cluster)


def test_a_topic_with_damaged_configs_keeps_its_records_and_stops_no_task_of_the_others(cluster, log):
    """With default configs, retention would delete records that it must keep."""
    for name in ("damaged", "good"):
        topic = create_topic(cluster, name, configs={"retention.ms": "-1" if name == "damaged" else "1000"})
        append(log, topic, "old")
    change(cluster, t.topic.update().where(t.topic.c.name == "damaged").values(configs='{"retention.ms": "-'))
    for task in TASKS:
        list(run_tasks(cluster, [task.name], now=True))
    assert tail(cluster) == 1, "the record of the damaged topic"
    assert state_of(cluster, log.find_topic("good")).log_start_offset == 1
