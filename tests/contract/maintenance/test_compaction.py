"""Compaction of a real log: effects on readers, followers, producers and Delta tables; interruptions of a pass."""

import pyarrow as pa
import pytest
import sqlalchemy as sa
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log import Consumer
from spark_log.cluster.cluster import Cluster
from spark_log.config import ClusterSettings
from spark_log.facts.groups import group_lag
from spark_log.ids import OffsetRange
from spark_log.ids import TopicPartition as OurPartition
from spark_log.log.append.rules import Appended
from spark_log.log.append.sequence_rules import ProducerSequence
from spark_log.log.append.write_ids import Writer
from spark_log.log.log import Records
from spark_log.log.records.schema import RECORD_SCHEMA
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.compaction import last_offsets
from spark_log.maintenance.compaction import local_compaction as task
from spark_log.maintenance.compaction import passes as compaction_passes
from spark_log.maintenance.compaction.passes import find_due, plan_pass, read_passes
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.removal.retention import delete_records
from spark_log.maintenance.rewrite.rewrite_plan import segments
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.replication.replicas.followers import Followers
from spark_log.tables import publication
from spark_log.tables.seen_offsets import listed_above_tail
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


def keyed(text, timestamp_ms=NOON_MS):
    """`a1`: key a, value a1. `-a`: a tombstone. `~x`: no key."""
    words = text.split()
    return pa.table(
        [
            pa.array([None if word[0] == "~" else word.lstrip("-")[:1].encode() for word in words], pa.binary()),
            pa.array([None if word[0] == "-" else word.encode() for word in words], pa.binary()),
            pa.nulls(len(words), RECORD_SCHEMA.field("headers").type),
            pa.array([timestamp_ms * 1000] * len(words)).cast(RECORD_SCHEMA.field("timestamp").type),
        ],
        schema=RECORD_SCHEMA,
    )


def append(log, topic, *batches, partition=0, **columns):
    for batch in batches:
        [outcome] = log.append(topic, [Records(partition, keyed(batch, **columns))])
        assert isinstance(outcome, Appended), outcome


def read(log, topic, partition=0):
    """`offset:value` of all readable records."""
    where = OurPartition(topic.name, partition)
    found = OffsetRange(*log.positions(topic)[where])
    rows = [row for batch in log.read({where: found}) for row in batch.to_pylist()]
    return " ".join(f"{row['offset']}:{(row['value'] or b'-' + row['key']).decode()}" for row in rows)


def work_on(cluster, **settings):
    view = topics_view(cluster)
    return MaintenanceContext(view, ClusterSettings(**settings), Writer(view.store, "test", 60_000))


def compact(cluster, *, force=True, **settings):
    return list(task.compact(work_on(cluster, **settings), force=force))


def passes(cluster, topic, partition=0):
    return topics_view(cluster).store.read(lambda connection: read_passes(connection, (topic.topic_id, partition)))


@pytest.fixture
def local(tmp_path):
    """A cluster on SQLite, for tests that do not depend on the kind of store."""
    with Cluster.init(str(tmp_path / "local")) as cluster:
        yield cluster


@pytest.fixture
def local_log(local):
    log = ClientLog(local)
    yield log
    log.close()


@pytest.mark.delta
@also_on_s3
def test_readers_skip_gaps_and_empty_segments(cluster, cluster_address, log):
    topic = make(cluster, "t", 2, cleanup_policy="compact", delete_retention_ms="0", **FILES)
    append(log, topic, "a1 b1", "a2 b2", timestamp_ms=NOON_MS)
    append(log, topic, "a3", "b3", timestamp_ms=NOON_MS + 1_000)
    append(log, topic, "c1 -c", timestamp_ms=NOON_MS + 2_000)
    append(log, topic, "x1 -x", partition=1)
    consumer = Consumer(cluster=cluster_address, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    p0, p1 = TopicPartition("t", 0), TopicPartition("t", 1)
    consumer.assign([p0, p1])
    [first] = compact(cluster)
    assert read(log, topic) == "4:a3 5:b3 7:-c"
    [second] = compact(cluster)  # tombstones are dropped one pass after delete.retention.ms, which is 0 here
    assert read(log, topic) == "4:a3 5:b3"
    assert read(log, topic, 1) == ""
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

    append(log, topic, "a4")
    assert read(log, topic) == "4:a3 5:b3 8:a4"
    assert_delta_is_the_log(cluster)
    assert_replicas_are_whole(cluster)


@pytest.mark.delta
def test_a_follower_copies_the_compacted_files(three_brokers):
    """It was offline, and still has the files from before the pass."""
    cluster = three_brokers
    log = ClientLog(cluster)
    topic = topic_on(cluster, "t", [[1, 2, 3]], cleanup_policy="compact", inline_max_bytes="0")
    append(log, topic, "a1 b1", "a2")
    take_away(cluster, 3)
    append(log, topic, "a3 c1")
    compact(cluster)
    bring_back(cluster, 3)
    followers = Followers(topics_view(cluster))
    followers.drain(30)
    followers.close()
    ends = topics_view(cluster).store.read(lambda c: c.execute(sa.select(t.replica.c.log_end_offset)).scalars().all())
    assert ends == [5, 5, 5]
    assert_replicas_are_whole(cluster)
    assert read(log, topic) == "1:b1 3:a3 4:c1"
    append(log, topic, "d1")
    assert_delta_is_the_log(cluster)
    log.close()


def test_an_unclean_election_forgets_the_passes_over_truncated_records(three_brokers):
    cluster = three_brokers
    log = ClientLog(cluster)
    configs = {"cleanup_policy": "compact", "delete_retention_ms": "0", "inline_max_bytes": "0"}
    topic = topic_on(cluster, "t", [[2, 3]], unclean_leader_election_enable="true", **configs)
    append(log, topic, "a1 a2")
    take_away(cluster, 3)
    append(log, topic, "b1 b2")
    compact(cluster)
    assert [each.end_offset for each in passes(cluster, topic)] == [4]
    take_away(cluster, 2)
    bring_back(cluster, 3)
    inspect_and_elect(cluster)
    assert passes(cluster, topic) == []
    start = log.positions(topic)[OurPartition("t", 0)].high_watermark
    append(log, topic, "c1 -c")
    compact(cluster)
    assert read(log, topic).endswith(f"{start + 1}:-c"), "a new tombstone waits, though its offset was clean before"
    log.close()


def test_a_pass_ends_when_the_isr_changes(three_brokers, monkeypatch):
    cluster = three_brokers
    log = ClientLog(cluster)
    topic = topic_on(cluster, "t", [[1, 2]], cleanup_policy="compact", **FILES)
    append(log, topic, "a1 b1", "a2 b2 c1", "c2")
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
    assert read(log, topic) == "2:a2 3:b2 5:c2"
    assert len(passes(cluster, topic)) == 1
    log.close()


@pytest.mark.delta
@pytest.mark.parametrize("point", ["compact.file-written", "compact.swapped:2", "compact.before-noted"])
def test_a_killed_pass_loses_nothing_and_the_next_one_continues(cluster, cluster_address, log, point):
    """No record is lost, no removed record returns, and the killed pass is not recorded; the next pass continues."""
    topic = make(cluster, "t", cleanup_policy="compact", delete_retention_ms="0", **FILES)
    append(log, topic, "a1 b1", "a2 -b", "c1")
    compact(cluster)
    append(log, topic, "a3 c2", "d1 d2")
    noted = passes(cluster, topic)
    before = read(log, topic)
    assert before == "2:a2 3:-b 4:c1 5:a3 6:c2 7:d1 8:d2"
    program = "import sys; from spark_log.maintenance import run_tasks; list(run_tasks(sys.argv[1], ['compact']))"
    killed_at(point, "-c", program, cluster_address)
    whole = "5:a3 6:c2 8:d2"
    assert set(whole.split()) <= set(read(log, topic).split()) <= set(before.split())
    assert passes(cluster, topic) == noted
    assert_replicas_are_whole(cluster)
    compact(cluster, force=False)
    assert read(log, topic) == whole
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
    append(log, topic, "a2 b2")
    compact(cluster)
    [outcome] = log.append(topic, [retried])
    assert (outcome.base_offset, outcome.end_offset, outcome.duplicate) == (0, 2, True)
    [outcome] = log.append(topic, [Records(0, keyed("a3"), ProducerSequence(producer_id, 0, 2))])
    assert read(log, topic) == "2:a2 3:b2 4:a3"


def test_records_within_min_compaction_lag_stay_and_their_tail_is_not_sealed(local, local_log):
    topic = make(local, "t", cleanup_policy="compact", min_compaction_lag_ms="600000", delta_max_lag_ms="-1")
    now_ms = local.store.now().wall_ms
    append(local_log, topic, "a1 a2 b1", timestamp_ms=now_ms - 700_000)
    append(local_log, topic, "b2 b3", timestamp_ms=now_ms)
    append(local_log, topic, "a3", timestamp_ms=now_ms - 700_000)
    compact(local)
    assert read(local_log, topic) == "1:a2 2:b1 3:b2 4:b3 5:a3"
    tail = local.store.read(lambda c: segments(c, topic, 0, inline=True))
    assert [each.base_offset for each in tail] == [3, 5]
    alter_configs(local, "t", {"min.compaction.lag.ms": None})
    compact(local)
    assert read(local_log, topic) == "4:b3 5:a3"


def test_a_pass_runs_when_it_is_due(local, local_log):
    topic = make(local, "t", cleanup_policy="compact", **FILES)
    append(local_log, topic, "a1 a2")
    [report] = compact(local, force=False)
    assert str(report).startswith("compact t: 1 partition, 1 -> 1 files, ")
    append(local_log, topic, *["b1 c1", "d1 e1", "f1 g1", "h1 i1"])
    assert compact(local, force=False) == []  # the pass found nothing to remove
    assert [each.end_offset for each in passes(local, topic)] == [2, 10]
    append(local_log, topic, "b2")
    assert compact(local, force=False) == []
    assert passes(local, topic)[-1].end_offset == 10, "too little is new"
    alter_configs(local, "t", {"max.compaction.lag.ms": "1"})
    compact(local, force=False)
    assert passes(local, topic)[-1].end_offset == 11
    assert read(local_log, topic) == "1:a2 3:c1 4:d1 5:e1 6:f1 7:g1 8:h1 9:i1 10:b2"


def test_a_damaged_topic_does_not_stop_the_compaction_of_the_others(local, local_log, monkeypatch):
    topics = [make(local, name, cleanup_policy="compact", **FILES) for name in ("damaged", "t")]
    for topic in topics:
        append(local_log, topic, "a1 a2")

    def failing(context, topic, partition, *, force):
        if topic.name == "damaged":
            raise KeyError("damaged")
        return find_due(context, topic, partition, force=force)

    monkeypatch.setattr(task, "find_due", failing)
    with pytest.raises(KeyError):
        compact(local)
    assert [read(local_log, topic) for topic in topics] == ["0:a1 1:a2", "1:a2"]


def test_a_large_partition_is_left_to_spark(local, local_log):
    topic = make(local, "t", 2, cleanup_policy="compact", **FILES)
    append(local_log, topic, "a1 a2")
    [report] = compact(local, log_cleaner_local_bytes_max=10)
    [note] = report.notes
    assert note.startswith("t-0: ") and note.endswith("log.cleaner.local.bytes.max: left to jobs/maintenance.py")
    assert (report.partitions, read(local_log, topic), passes(local, topic)) == (0, "0:a1 1:a2", [])


def test_keys_that_do_not_fit_into_memory_are_processed_in_buckets(local, local_log, monkeypatch):
    topic = make(local, "t", cleanup_policy="compact", **FILES)
    append(local_log, topic, *[" ".join(f"{chr(97 + (n * 8 + m) * 7 % 26)}{n}" for m in range(8)) for n in range(12)])
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
    for word in read(local_log, topic).split():
        expected[word.partition(":")[2][0]] = word
    compact(local)
    assert sorted(read(local_log, topic).split()) == sorted(expected.values())
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
    assert read(local_log, topic) == " ".join(f"{offset}:2" for offset in range(50, 100))


def test_records_below_the_log_start_are_removed_and_replace_no_other(local, local_log):
    """Records below the log start are removed by the next pass, and replace no value of their key."""
    topic = make(local, "t", cleanup_policy="compact,delete", inline_max_bytes="0")
    append(local_log, topic, "a1 b1 c1 d1", "a2 e1")
    delete_records(local, {OurPartition("t", 0): 2})
    compact(local)
    assert read(local_log, topic) == "2:c1 3:d1 4:a2 5:e1"
    [file] = local.store.read(lambda c: segments(c, topic, 0, inline=False))
    assert (file.base_offset, file.end_offset, file.record_count) == (0, 6, 4)


def test_tombstones_stay_while_the_clock_was_set(local, local_log, monkeypatch):
    """After a jump ahead they would be dropped before delete.retention.ms, which consumers that begin may need."""
    topic = make(local, "t", cleanup_policy="compact", delete_retention_ms="0", inline_max_bytes="0")
    append(local_log, topic, "a1 b1", "-a")
    compact(local)
    with monkeypatch.context() as patch:
        patch.setattr(type(local.store), "clock_is_steady", lambda _: False)
        compact(local)
        assert read(local_log, topic) == "1:b1 2:-a"
    compact(local)
    assert read(local_log, topic) == "1:b1"


@pytest.mark.delta
def test_no_file_spans_the_end_of_the_published_offsets(local, local_log):
    """A stream of the Delta table would see such a file as old and new data at once."""
    topic = make(local, "t", cleanup_policy="compact", inline_max_bytes="0")
    append(local_log, topic, "a1 b1", "a2 c1", "a3 c2")
    seen = t.publication_cursor.update().values(seen_offset=4, high_watermark=4)
    local.store.transact(lambda connection: connection.execute(seen))
    compact(local)
    files = local.store.read(lambda c: segments(c, topic, 0, inline=False))
    assert [(file.base_offset, file.end_offset) for file in files] == [(0, 4), (4, 6)]
    assert read(local_log, topic) == "1:b1 4:a3 5:c2"


@pytest.mark.delta
def test_a_pass_skips_the_files_that_an_offline_table_lists_above_a_tail(local, local_log, monkeypatch):
    """It listed them before it went offline: streams of the table would read them again. The pass drops records above
    them, but tombstones there have to wait, since the skipped files may have earlier records of their keys.
    """
    topic = make(local, "t", cleanup_policy="compact", delete_retention_ms="0", inline_max_bytes="0")
    append(local_log, topic, "a1 b1", "a2 c1", "a3 c2")
    away, in_table_there = t.log_dir.c.log_dir_id == 99, t.publication_cursor.c.log_dir_id == 99

    def list_elsewhere(connection):
        """The table of a log dir that is offline has the last two files, above a tail."""
        for table, values in (
            (t.log_dir, {"uri": "file:///away", "uuid": "u", "online": False}),
            (t.publication_cursor, {"high_watermark": 6, "seen_offset": 2}),
        ):
            [row] = connection.execute(sa.select(table)).all()
            connection.execute(table.insert().values(row._asdict() | values | {"log_dir_id": 99}))

    def shape():
        files = local.store.read(lambda c: segments(c, topic, 0, inline=False))
        return [(file.base_offset, file.end_offset, file.record_count) for file in files]

    local.store.transact(list_elsewhere)
    published = []
    monkeypatch.setattr(publication, "try_publish", lambda *_, **__: published.append(1))
    compact(local)
    assert shape() == [(0, 2, 2), (2, 4, 2), (4, 6, 2)]
    assert find_due(work_on(local), topic, 0) is None, "nothing more can be done"
    append(local_log, topic, "a4 b2", "-b c3")
    compact(local, force=False)
    assert read(local_log, topic) == "2:a2 3:c1 4:a3 5:c2 6:a4 8:-b 9:c3"
    assert shape() == [(0, 2, 0), (2, 4, 2), (4, 6, 2), (6, 10, 3)]
    assert [each.end_offset for each in passes(local, topic)] == [2]
    assert find_due(work_on(local), topic, 0) is None, "nothing more can be done"
    compact(local)
    assert read(local_log, topic).endswith("8:-b 9:c3")
    assert published == [], "the table of an offline log dir cannot be published"
    monkeypatch.undo()
    local.store.transact(lambda connection: connection.execute(t.publication_cursor.delete().where(in_table_there)))
    local.store.transact(lambda connection: connection.execute(t.log_dir.delete().where(away)))
    compact(local, force=False)
    assert read(local_log, topic) == "6:a4 8:-b 9:c3"
    assert [each.end_offset for each in passes(local, topic)] == [2, 10]
    compact(local)
    assert read(local_log, topic) == "6:a4 9:c3"
    assert_delta_is_the_log(local)


@pytest.mark.delta
def test_a_log_dir_that_returns_lists_what_was_compacted_above_its_files(three_brokers):
    cluster = three_brokers
    log = ClientLog(cluster)
    configs = {"cleanup_policy": "compact", "delta_max_lag_ms": "-1", "retention_ms": "-1"}
    topic = topic_on(cluster, "t", [[1, 2, 3]], inline_max_bytes="1000", **configs)
    append(log, topic, "a1 b1")
    topic = alter_configs(cluster, "t", {"inline.max.bytes": "0"})
    append(log, topic, "a2 c1")
    take_away(cluster, 3)
    append(log, topic, "a3 b2", "a4 b3")
    compact(cluster)
    assert read(log, topic) == "0:a1 1:b1 2:a2 3:c1 6:a4 7:b3"
    bring_back(cluster, 3)
    followers = Followers(topics_view(cluster))
    followers.drain(30)
    followers.close()
    compact(cluster)
    assert read(log, topic) == "3:c1 6:a4 7:b3"
    append(log, topic, "d1")
    assert_replicas_are_whole(cluster)
    assert_delta_is_the_log(cluster)
    log.close()


@pytest.mark.delta
def test_a_pass_seals_tails_below_files_and_covers_both(local, local_log):
    make(local, "t", cleanup_policy="compact", delta_max_lag_ms="-1", retention_ms="-1")
    for inline_max_bytes, batch in (("1000", "a1 b1"), ("0", "a2 c1"), ("1000", "c2"), ("0", "b2 d1")):
        append(local_log, alter_configs(local, "t", {"inline.max.bytes": inline_max_bytes}), batch)
    topic = local_log.find_topic("t")
    assert local.store.read(lambda c: listed_above_tail(c, topic, 0)) == [(0, 7)]
    compact(local)
    assert [each.end_offset for each in passes(local, topic)] == [7]
    assert read(local_log, topic) == "2:a2 4:c2 5:b2 6:d1"
    assert_delta_is_the_log(local)


@pytest.mark.delta
def test_a_pass_that_waits_for_a_publication_is_not_repeated_meanwhile(local, local_log, monkeypatch):
    topic = make(local, "t", cleanup_policy="compact", delta_max_lag_ms="-1", retention_ms="-1", **FILES)
    append(local_log, topic, "a1 a2")
    compact(local, force=False)
    assert passes(local, topic)[-1].end_offset == 2
    append(local_log, alter_configs(local, "t", {"inline.max.bytes": "1000"}), "b1 b2")
    append(local_log, alter_configs(local, "t", {"inline.max.bytes": "0"}), "c1 c2 c3 c4")
    with monkeypatch.context() as publications_fail:
        publications_fail.setattr(compaction_passes, "publish_above_tails", lambda *_: None)
        due = find_due(work_on(local), topic, 0)
        assert due is not None and due.end_offset == 8
        assert plan_pass(work_on(local), due) is None
    compact(local, force=False)
    assert passes(local, topic)[-1].end_offset == 8
    assert read(local_log, topic) == "1:a2 3:b2 7:c4"


def test_compaction_and_retention_of_one_topic(local, local_log):
    day_ms = 24 * 60 * 60 * 1000
    topic = make(local, "t", cleanup_policy="compact,delete", retention_ms=str(day_ms), **FILES)
    now_ms = local.store.now().wall_ms
    append(local_log, topic, "a1 b1", timestamp_ms=now_ms - 2 * day_ms)
    append(local_log, topic, "c1 c2", "d1", timestamp_ms=now_ms)
    reports = list(run_tasks(local, ["retention", "compact"]))
    assert [report.task for report in reports] == ["retention", "compact"]
    assert read(local_log, topic) == "3:c2 4:d1"
    assert local_log.positions(topic)[OurPartition("t", 0)].log_start_offset == 2


def test_two_concurrent_passes_have_the_result_of_one(local, local_log):
    """The second pass was planned before the swaps of the first, and ends without a swap."""
    topic = make(local, "t", cleanup_policy="compact", **FILES)
    append(local_log, topic, "a1 b1", "a2 b2")
    context = work_on(local)
    late = plan_pass(context, find_due(context, topic, 0))
    compact(local)
    compacting = task.Compacting(context, topic)
    task._run(context, late, compacting)
    assert compacting.report().notes == ("t-0: the log or its replicas changed meanwhile; the next pass continues",)
    assert read(local_log, topic) == "2:a2 3:b2"
    assert_replicas_are_whole(local)
