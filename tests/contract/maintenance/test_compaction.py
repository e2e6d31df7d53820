"""Compaction of a real log: effects on readers, followers and producers; what a pass does, and interruptions of it."""

import pytest
import sqlalchemy as sa
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log import Consumer
from spark_log.config import ClusterSettings
from spark_log.facts.groups import group_lag
from spark_log.ids import TopicPartition as OurPartition
from spark_log.log.append.sequence_rules import ProducerSequence
from spark_log.log.append.write_ids import Writer
from spark_log.log.log import Records
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.compaction import last_offsets
from spark_log.maintenance.compaction import local_compaction as task
from spark_log.maintenance.compaction.passes import find_due, plan_pass, read_passes
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.removal.retention import delete_records
from spark_log.maintenance.rewrite.rewrite_plan import segments
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.replication.replicas.followers import Followers
from tests.support.compaction_model import append_keyed, keyed, readable
from tests.support.python_process import killed_at
from tests.support.records import NOON_MS
from tests.support.records import keyed as keyed_rows
from tests.support.replicas import bring_back, inspect_and_elect, take_away, topic_on
from tests.support.s3 import also_on_s3
from tests.support.stores import topics_view
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole
from tests.support.topics import make

pytestmark = [pytest.mark.on_sqlite, pytest.mark.on_data_store]


FILES = {"inline_max_bytes": "0", "segment_bytes": "14"}
"""Each append is a file, and each file is a compaction unit of its own."""


def work_on(cluster, **settings):
    view = topics_view(cluster)
    return MaintenanceContext(view, ClusterSettings(**settings), Writer(view.store, "test", 60_000))


def compact(cluster, *, force=True, **settings):
    return list(task.compact(work_on(cluster, **settings), force=force))


def passes(cluster, topic, partition=0):
    return topics_view(cluster).store.read(lambda connection: read_passes(connection, (topic.topic_id, partition)))


@pytest.mark.delta
@also_on_s3
def test_readers_skip_gaps_and_empty_segments(cluster, cluster_address, log):
    topic = make(cluster, "t", 2, cleanup_policy="compact", delete_retention_ms="0", **FILES)
    append_keyed(log, topic, "a1 b1", "a2 b2", timestamp_ms=NOON_MS)
    append_keyed(log, topic, "a3", "b3", timestamp_ms=NOON_MS + 1_000)
    append_keyed(log, topic, "c1 -c", timestamp_ms=NOON_MS + 2_000)
    append_keyed(log, topic, "x1 -x", partition=1)
    consumer = Consumer(cluster=cluster_address, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    p0, p1 = TopicPartition("t", 0), TopicPartition("t", 1)
    consumer.assign([p0, p1])
    [first] = compact(cluster)
    assert readable(log, topic) == "4:a3 5:b3 7:-c"
    [second] = compact(cluster)  # tombstones are dropped one pass after delete.retention.ms, which is 0 here
    assert readable(log, topic) == "4:a3 5:b3"
    assert readable(log, topic, 1) == ""
    assert (first.partitions, first.before.files, first.before.records, first.after.records) == (2, 4, 8, 2)
    assert (second.after.records, second.notes) == (0, ("2 tombstones dropped",))
    assert compact(cluster) == [], "nothing is left to do"

    counts = topics_view(cluster).store.read(lambda c: c.execute(sa.select(t.segment.c.record_count)).scalars().all())
    assert sorted(counts) == [0, 0, 0, 0, 1, 1]
    while consumer.position(p0) < 8 or consumer.position(p1) < 2:
        for records in consumer.poll(timeout_ms=1_000).values():
            assert {(record.offset, record.value) for record in records} <= {(4, b"a3"), (5, b"b3")}
    consumer.commit({p0: OffsetAndMetadata(8, "", -1), p1: OffsetAndMetadata(2, "", -1)})
    assert [lag.lag for lag in group_lag(cluster, "g")] == [0, 0]
    consumer.seek(p0, 1)  # into a segment without remaining records
    arrow = []
    while consumer.position(p0) < 8:
        arrow += [offset for batch in consumer.poll_arrow(timeout_ms=1_000).values() for offset in batch["offset"]]
    assert [offset.as_py() for offset in arrow] == [4, 5]
    consumer.close()
    found = log.offsets_for_times(topic, {0: NOON_MS, 1: NOON_MS})
    assert found == {0: 4, 1: None}
    assert log.offsets_for_times(topic, {0: NOON_MS + 2_000}) == {0: None}
    assert log.offsets_for_times(topic, {0: 0}) == {0: 4}

    append_keyed(log, topic, "a4")
    assert readable(log, topic) == "4:a3 5:b3 8:a4"
    assert_delta_is_the_log(cluster)
    assert_replicas_are_whole(cluster)


@pytest.mark.delta
def test_a_follower_copies_the_compacted_files(three_brokers):
    """It was offline, and still has the files from before the pass."""
    cluster = three_brokers
    log = ClientLog(cluster)
    topic = topic_on(cluster, "t", [[1, 2, 3]], cleanup_policy="compact", inline_max_bytes="0")
    append_keyed(log, topic, "a1 b1", "a2")
    take_away(cluster, 3)
    append_keyed(log, topic, "a3 c1")
    compact(cluster)
    bring_back(cluster, 3)
    followers = Followers(topics_view(cluster))
    followers.drain(30)
    followers.close()
    ends = topics_view(cluster).store.read(lambda c: c.execute(sa.select(t.replica.c.log_end_offset)).scalars().all())
    assert ends == [5, 5, 5]
    assert_replicas_are_whole(cluster)
    assert readable(log, topic) == "1:b1 3:a3 4:c1"
    append_keyed(log, topic, "d1")
    assert_delta_is_the_log(cluster)
    log.close()


def test_an_unclean_election_forgets_the_passes_over_truncated_records(three_brokers):
    cluster = three_brokers
    log = ClientLog(cluster)
    configs = {"cleanup_policy": "compact", "delete_retention_ms": "0", "inline_max_bytes": "0"}
    topic = topic_on(cluster, "t", [[2, 3]], unclean_leader_election_enable="true", **configs)
    append_keyed(log, topic, "a1 a2")
    take_away(cluster, 3)
    append_keyed(log, topic, "b1 b2")
    compact(cluster)
    assert [each.end_offset for each in passes(cluster, topic)] == [4]
    take_away(cluster, 2)
    bring_back(cluster, 3)
    inspect_and_elect(cluster)
    assert passes(cluster, topic) == []
    start = log.positions(topic)[OurPartition("t", 0)].high_watermark
    append_keyed(log, topic, "c1 -c")
    compact(cluster)
    assert readable(log, topic).endswith(f"{start + 1}:-c"), "a new tombstone waits, though its offset was clean before"
    log.close()


def test_a_pass_ends_when_the_isr_changes(three_brokers, monkeypatch):
    cluster = three_brokers
    log = ClientLog(cluster)
    topic = topic_on(cluster, "t", [[1, 2]], cleanup_policy="compact", **FILES)
    append_keyed(log, topic, "a1 b1", "a2 b2 c1", "c2")
    compact_unit = task.compact_unit

    def meanwhile(unit, *arguments):
        if unit.rewriting.base_offset == 2:
            take_away(cluster, 2)
        return compact_unit(unit, *arguments)

    monkeypatch.setattr(task, "compact_unit", meanwhile)
    [report] = compact(cluster)
    assert report.notes == ("t-0: the log or its replicas changed meanwhile; the next pass continues",)
    assert (report.before.files, passes(cluster, topic)) == (1, [])
    monkeypatch.setattr(task, "compact_unit", compact_unit)
    compact(cluster)
    assert readable(log, topic) == "2:a2 3:b2 5:c2"
    assert len(passes(cluster, topic)) == 1
    log.close()


@pytest.mark.delta
@pytest.mark.parametrize("point", ["compact.file-written", "compact.swapped:2", "compact.before-noted"])
def test_a_killed_pass_loses_nothing_and_the_next_one_continues(cluster, cluster_address, log, point):
    """No record is lost, no removed record returns, and the killed pass is not recorded; the next pass continues."""
    topic = make(cluster, "t", cleanup_policy="compact", delete_retention_ms="0", **FILES)
    append_keyed(log, topic, "a1 b1", "a2 -b", "c1")
    compact(cluster)
    append_keyed(log, topic, "a3 c2", "d1 d2")
    noted = passes(cluster, topic)
    before = readable(log, topic)
    assert before == "2:a2 3:-b 4:c1 5:a3 6:c2 7:d1 8:d2"
    program = "import sys; from spark_log.maintenance import run_tasks; list(run_tasks(sys.argv[1], ['compact']))"
    killed_at(point, "-c", program, cluster_address)
    whole = "5:a3 6:c2 8:d2"
    assert set(whole.split()) <= set(readable(log, topic).split()) <= set(before.split())
    assert passes(cluster, topic) == noted
    assert_replicas_are_whole(cluster)
    compact(cluster, force=False)
    assert readable(log, topic) == whole
    assert_delta_is_the_log(cluster)


def test_a_retried_append_is_a_duplicate_although_its_records_were_compacted_away(cluster, log):
    topic = make(cluster, "t", cleanup_policy="compact")
    producer_id = cluster.store.transact(
        lambda c: c.execute(
            t.producer.insert().returning(t.producer.c.producer_id),
            {"epoch": 0, "last_used_ms": cluster.store.clock(c).wall_ms, "transaction_timeout_ms": 0},
        ).scalar_one()
    )
    retried = Records(0, keyed("a1 b1"), ProducerSequence(producer_id, 0, 0))
    log.append(topic, [retried])
    append_keyed(log, topic, "a2 b2")
    compact(cluster)
    [outcome] = log.append(topic, [retried])
    assert (outcome.base_offset, outcome.end_offset, outcome.duplicate) == (0, 2, True)
    [outcome] = log.append(topic, [Records(0, keyed("a3"), ProducerSequence(producer_id, 0, 2))])
    assert readable(log, topic) == "2:a2 3:b2 4:a3"


def test_records_within_min_compaction_lag_stay_and_their_tail_is_not_sealed(local, local_log):
    topic = make(local, "t", cleanup_policy="compact", min_compaction_lag_ms="600000", delta_max_lag_ms="-1")
    now_ms = local.store.now().wall_ms
    append_keyed(local_log, topic, "a1 a2 b1", timestamp_ms=now_ms - 700_000)
    append_keyed(local_log, topic, "b2 b3", timestamp_ms=now_ms)
    append_keyed(local_log, topic, "a3", timestamp_ms=now_ms - 700_000)
    compact(local)
    assert readable(local_log, topic) == "1:a2 2:b1 3:b2 4:b3 5:a3"
    tail = local.store.read(lambda c: segments(c, topic, 0, inline=True))
    assert [each.base_offset for each in tail] == [3, 5]
    alter_configs(local, "t", {"min.compaction.lag.ms": None})
    compact(local)
    assert readable(local_log, topic) == "4:b3 5:a3"


def test_a_pass_runs_when_it_is_due(local, local_log):
    topic = make(local, "t", cleanup_policy="compact", **FILES)
    append_keyed(local_log, topic, "a1 a2")
    [report] = compact(local, force=False)
    assert str(report).startswith("compact t: 1 partition, 1 -> 1 files, ")
    append_keyed(local_log, topic, *["b1 c1", "d1 e1", "f1 g1", "h1 i1"])
    assert compact(local, force=False) == []  # the pass found nothing to remove
    assert [each.end_offset for each in passes(local, topic)] == [2, 10]
    append_keyed(local_log, topic, "b2")
    assert compact(local, force=False) == []
    assert passes(local, topic)[-1].end_offset == 10, "too little is new"
    alter_configs(local, "t", {"max.compaction.lag.ms": "1"})
    compact(local, force=False)
    assert passes(local, topic)[-1].end_offset == 11
    assert readable(local_log, topic) == "1:a2 3:c1 4:d1 5:e1 6:f1 7:g1 8:h1 9:i1 10:b2"


def test_a_damaged_topic_does_not_stop_the_compaction_of_the_others(local, local_log, monkeypatch):
    topics = [make(local, name, cleanup_policy="compact", **FILES) for name in ("damaged", "t")]
    for topic in topics:
        append_keyed(local_log, topic, "a1 a2")

    def failing(context, topic, partition, *, force):
        if topic.name == "damaged":
            raise KeyError("damaged")
        return find_due(context, topic, partition, force=force)

    monkeypatch.setattr(task, "find_due", failing)
    with pytest.raises(KeyError):
        compact(local)
    assert [readable(local_log, topic) for topic in topics] == ["0:a1 1:a2", "1:a2"]


def test_a_large_partition_is_left_to_spark(local, local_log):
    topic = make(local, "t", 2, cleanup_policy="compact", **FILES)
    append_keyed(local_log, topic, "a1 a2")
    [report] = compact(local, log_cleaner_local_bytes_max=10)
    [note] = report.notes
    assert note.startswith("t-0: ") and note.endswith("log.cleaner.local.bytes.max: left to jobs/maintenance.py")
    assert (report.partitions, readable(local_log, topic), passes(local, topic)) == (0, "0:a1 1:a2", [])


def test_keys_that_do_not_fit_into_memory_are_processed_in_buckets(local, local_log, monkeypatch):
    topic = make(local, "t", cleanup_policy="compact", **FILES)
    append_keyed(
        local_log, topic, *[" ".join(f"{chr(97 + (n * 8 + m) * 7 % 26)}{n}" for m in range(8)) for n in range(12)]
    )
    monkeypatch.setattr(last_offsets, "_BUCKET_RECORDS", 16)
    monkeypatch.setattr(last_offsets, "_WAITING_BYTES", 30)
    buckets = []
    of_bucket = last_offsets._last_of_bucket

    def looked(batches, schema, bucket, count):
        found = of_bucket(batches, schema, bucket, count)
        buckets.append((bucket, count, len(found)))
        return found

    monkeypatch.setattr(last_offsets, "_last_of_bucket", looked)
    expected = {}
    for word in readable(local_log, topic).split():
        expected[word.partition(":")[2][0]] = word
    compact(local)
    assert sorted(readable(local_log, topic).split()) == sorted(expected.values())
    assert [(bucket, count) for bucket, count, _ in buckets] == [(n, 7) for n in range(7)]
    assert max(keys for _, _, keys in buckets) < len(expected) / 2, "keys of one partition fall into all buckets"


def test_the_memory_of_a_pass_does_not_depend_on_the_length_of_keys(local, local_log, monkeypatch):
    """Long keys that compress well are small in a file."""
    topic = make(local, "t", cleanup_policy="compact", **FILES)
    for value in (b"1", b"2"):
        rows = [(b"%d" % number + b"\0" * 100_000, value) for number in range(50)]
        local_log.append(topic, [Records(0, keyed_rows(rows))])
    sizes, last_of = [], last_offsets._last_of

    def measured(tables):
        sizes.append(sum(each.nbytes for each in tables))
        return last_of(tables)

    monkeypatch.setattr(last_offsets, "_last_of", measured)
    compact(local)
    assert max(sizes) < 100 * 100
    assert readable(local_log, topic) == " ".join(f"{offset}:2" for offset in range(50, 100))


def test_records_below_the_log_start_are_removed_and_replace_no_other(local, local_log):
    """Records below the log start are removed by the next pass, and replace no value of their key."""
    topic = make(local, "t", cleanup_policy="compact,delete", inline_max_bytes="0")
    append_keyed(local_log, topic, "a1 b1 c1 d1", "a2 e1")
    delete_records(local, {OurPartition("t", 0): 2})
    compact(local)
    assert readable(local_log, topic) == "2:c1 3:d1 4:a2 5:e1"
    [file] = local.store.read(lambda c: segments(c, topic, 0, inline=False))
    assert (file.base_offset, file.end_offset, file.record_count) == (0, 6, 4)


def test_tombstones_stay_while_the_clock_was_set(local, local_log, monkeypatch):
    """After a jump ahead they would be dropped before delete.retention.ms, which consumers that begin may need."""
    topic = make(local, "t", cleanup_policy="compact", delete_retention_ms="0", inline_max_bytes="0")
    append_keyed(local_log, topic, "a1 b1", "-a")
    compact(local)
    with monkeypatch.context() as patch:
        patch.setattr(type(local.store), "clock_is_steady", lambda _: False)
        compact(local)
        assert readable(local_log, topic) == "1:b1 2:-a"
    compact(local)
    assert readable(local_log, topic) == "1:b1"


def test_compaction_and_retention_of_one_topic(local, local_log):
    day_ms = 24 * 60 * 60 * 1000
    topic = make(local, "t", cleanup_policy="compact,delete", retention_ms=str(day_ms), **FILES)
    now_ms = local.store.now().wall_ms
    append_keyed(local_log, topic, "a1 b1", timestamp_ms=now_ms - 2 * day_ms)
    append_keyed(local_log, topic, "c1 c2", "d1", timestamp_ms=now_ms)
    reports = list(run_tasks(local, ["retention", "compact"]))
    assert [report.task for report in reports] == ["retention", "compact"]
    assert readable(local_log, topic) == "3:c2 4:d1"
    assert local_log.positions(topic)[OurPartition("t", 0)].log_start_offset == 2


def test_two_concurrent_passes_have_the_result_of_one(local, local_log):
    """The second pass was planned before the swaps of the first, and ends without a swap."""
    topic = make(local, "t", cleanup_policy="compact", **FILES)
    append_keyed(local_log, topic, "a1 b1", "a2 b2")
    context = work_on(local)
    late = plan_pass(context, find_due(context, topic, 0))
    compact(local)
    compacting = task.Compacting(context, topic)
    task._run(context, late, compacting)
    assert compacting.report().notes == ("t-0: the log or its replicas changed meanwhile; the next pass continues",)
    assert readable(local_log, topic) == "2:a2 3:b2"
    assert_replicas_are_whole(local)
