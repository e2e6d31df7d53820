"""Erasing by key: all records of the keys are removed from segments, replicas and, with a purge, from every log dir;
other records keep their offsets, and readers and writers continue.
"""

import signal
import uuid
from unittest import mock

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import TopicPartition

from spark_log import Consumer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_each_store
from spark_log.cluster.lease import unfenced
from spark_log.errors import (
    CorruptRecordError,
    InvalidConfigurationError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    StoreChangedError,
    UnknownTopicOrPartitionError,
)
from spark_log.failpoints import POINTS
from spark_log.log.append.write_ids import Writer
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.erase.erase import erase
from spark_log.metadata import tables as t
from spark_log.replication.controller.log_dir_inspection import inspect_log_dirs
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.replication.replicas.catch_up import catch_up
from spark_log.tables.publication import delta_tables, publish
from tests.support.python_process import run_process
from tests.support.records import append_keyed, rows_of
from tests.support.resources import files_with
from tests.support.s3 import also_on_s3
from tests.support.stores import topics_view
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole
from tests.support.topics import append

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite, pytest.mark.on_data_store]

READABLE = {"compression.type": "none"}
FILES = {**READABLE, "inline.max.bytes": "0"}
GONE, ALSO_GONE, STAYS = b"key-of-somebody-7f3a", b"key-of-nobody-91c2", b"key-that-stays"
PRIVATE = b"private-value-5b1d"


def without(rows, *keys):
    return [row for row in rows if row[2] not in keys]


def fill(log, topic, partition=0):
    """Files, then a tail; values, tombstones and headers of the keys that will be erased, among others."""
    append_keyed(log, topic, (STAYS, b"1"), (GONE, PRIVATE), (None, b"without a key"), partition=partition)
    append_keyed(log, topic, (GONE, None), partition=partition)
    append_keyed(log, topic, (STAYS, GONE[:-1]), (b"", b"empty key"), partition=partition)
    append_keyed(log, topic, (GONE, b"x"), (ALSO_GONE, b"y"), headers=[("h", PRIVATE)], partition=partition)


def test_records_of_the_keys_are_erased_and_others_keep_their_offsets(cluster, log, cluster_address, tmp_path):
    # an append seals tails of this age: it is far more than all appends take
    topic = create_topic(cluster, "t", 3, configs={**READABLE, "delta.max.lag.ms": "600000"})
    for partition in (0, 1):
        fill(log, topic, partition)
        log.seal(topic, [partition])
        fill(log, topic, partition)
    append_keyed(log, topic, (STAYS, b"only others here"), partition=2)
    before, positions = rows_of(log, topic), log.positions(topic)
    version = DeltaTable(delta_tables(cluster, topic).popitem()[1]).version()

    erased = erase(cluster, "t", [GONE, ALSO_GONE, GONE, b"a key that nobody has"])
    assert rows_of(log, topic) == without(before, GONE, ALSO_GONE)
    assert log.positions(topic) == positions
    assert (erased.keys, erased.records, erased.partitions) == (3, 16, 2)
    assert erased.ends == {tp.partition: high_watermark for tp, (_, high_watermark) in positions.items()}
    assert (erased.segments_scanned, erased.before.files, erased.after.files) == (5, 4, 4)
    assert erased.before.records - erased.after.records == 16
    assert erased.notes == () and erased.purged is None
    assert_delta_is_the_log(cluster)
    assert files_with(tmp_path, PRIVATE), "for readers that are on them, the old files stay"
    [location] = delta_tables(cluster, topic).values()
    old = DeltaTable(location, version=version).to_pyarrow_table()["key"].to_pylist()
    assert GONE in old, "and older Delta versions can be read"

    again = erase(cluster, "t", pa.chunked_array([[GONE], [ALSO_GONE]], pa.binary()))
    assert (again.records, again.before.files, again.segments_scanned) == (0, 0, 5)

    append_keyed(log, topic, (GONE, PRIVATE))
    log.close()  # releases its write id: clean-up does not delete files of an active writer
    purged = erase(cluster, "t", [GONE, ALSO_GONE], purge=True)
    assert purged.records == 1
    assert purged.purged.files == 5, "four of the first time, and one more"
    assert (purged.purged.waiting, purged.purged.unreachable) == (0, ())
    postgresql = "://" in cluster_address
    assert [note for note in purged.notes if "PostgreSQL" not in note] == []
    assert files_with(tmp_path, GONE, ALSO_GONE, PRIVATE) == []
    assert len(purged.notes) == postgresql, "what PostgreSQL keeps is told"
    assert rows_of(log, topic) == without(before, GONE, ALSO_GONE)
    assert_delta_is_the_log(cluster)
    assert_replicas_are_whole(cluster)


@also_on_s3
def test_an_erase_ends_at_the_given_offsets_and_refuses_invalid_arguments(cluster, log):
    topic = create_topic(cluster, "t", 2, configs=FILES)
    for partition in (0, 1):
        append_keyed(log, topic, (GONE, b"0"), (GONE, b"1"), (STAYS, b"2"), partition=partition)
    erased = erase(cluster, "t", [GONE], ends={0: 1})
    assert erased.ends == {0: 1, 1: 3}
    assert [(p, o) for p, o, _, _ in rows_of(log, topic)] == [(0, 1), (0, 2), (1, 2)], "a segment is cut in the middle"
    with pytest.raises(InvalidConfigurationError, match="keys: expected at least one"):
        erase(cluster, "t", [])
    with pytest.raises(OffsetOutOfRangeError, match=r"end: offset 4 of t-0 .* high watermark 3"):
        erase(cluster, "t", [GONE], ends={0: 4})
    with pytest.raises(UnknownTopicOrPartitionError, match="end: partition t-2"):
        erase(cluster, "t", [GONE], ends={2: 0})
    with pytest.raises(UnknownTopicOrPartitionError, match="'u'"):
        erase(cluster, "u", [GONE])
    with pytest.raises(PolicyViolationError):
        erase(cluster, "__consumer_offsets", [GONE])


def test_a_restored_store_purges_nothing(postgres_url, tmp_path):
    with Cluster.init(postgres_url, log_dir=str(tmp_path / "d")) as cluster:
        topic, log = create_topic(cluster, "t", configs=FILES), ClientLog(cluster)
        append_keyed(log, topic, (GONE, PRIVATE))
        log.close()
        cluster.store.transact(lambda c: c.execute(t.cluster.update().values(timeline=0)))
    with Cluster.open(postgres_url) as cluster:
        log = ClientLog(cluster)
        with pytest.raises(StoreChangedError):
            erase(cluster, "t", [GONE], purge=True)
        assert rows_of(log, topic) and files_with(tmp_path, PRIVATE)
        log.close()


def test_every_replica_is_erased_and_an_offline_one_later(three_brokers, log_of, tmp_path):
    cluster, log = three_brokers, log_of(three_brokers)
    topic = create_topic(cluster, "t", replication_factor=3, configs=FILES)
    append_keyed(log, topic, (GONE, PRIVATE), (STAYS, b"a"))
    append_keyed(log, topic, (STAYS, b"b"))
    append_keyed(log, topic, (GONE, PRIVATE), headers=[("h", PRIVATE)])
    before = rows_of(log, topic)
    leader = topics_view(cluster).store.read(lambda c: c.execute(sa.select(t.partition.c.leader)).scalar_one())
    gone = next(broker for broker in (1, 2, 3) if broker != leader)
    (tmp_path / f"d{gone}").rename(tmp_path / "away")
    # not detected yet: it is in the ISR, and holds the high watermark back
    append_keyed(log, topic, (GONE, b"above the high watermark"), acks=1)

    erased = erase(cluster, "t", [GONE], purge=True)
    assert erased.ends == {0: 4}
    assert any("1 offset above the high watermark" in note for note in erased.notes)
    assert erased.records == 2
    assert erased.purged.files == 4, "two files in two log dirs"
    [away] = erased.purged.unreachable
    assert away.endswith(f"d{gone}") and any(away in note for note in erased.notes)
    here = [tmp_path / f"d{broker}" for broker in (1, 2, 3) if broker != gone]
    assert not any(files_with(folder, PRIVATE) for folder in here)
    assert files_with(tmp_path / "away", PRIVATE)
    erased = erase(cluster, "t", [GONE], purge=True)
    assert erased.records == 1, "what was above the high watermark then"

    (tmp_path / "away").rename(tmp_path / f"d{gone}")
    in_each_store(cluster, lambda view: inspect_log_dirs(view, unfenced))
    catch_up(cluster.of(topic), topic, 0, gone)
    log.close()  # releases its write id: clean-up does not delete files of an active writer
    reports = list(run_tasks(cluster, ["files"], topics=["t"]))
    assert sum(report.before.files for report in reports) == 2
    assert files_with(tmp_path, PRIVATE, GONE) == [], "clean-up has finished the purge where it could not reach"
    files = [
        {p.name: p.read_bytes() for p in (tmp_path / f"d{n}").rglob("*.parquet") if "_segments" in str(p)}
        for n in (1, 2, 3)
    ]
    assert files[0] == files[1] == files[2] and len(files[0]) == 4
    assert rows_of(log, topic) == without(before, GONE)
    publish(cluster, topic)
    assert_delta_is_the_log(cluster)
    assert_replicas_are_whole(cluster)


@pytest.fixture
def log_of():
    made = []

    def make(cluster):
        made.append(ClientLog(cluster))
        return made[-1]

    yield make
    for log in made:
        log.close()


def run_erase(address, keys, failpoint=None):
    command = ["-m", "spark_log", "topic", "erase", "t", "--cluster", address, "--purge", "--yes", "--keys-file", "-"]
    return run_process(*command, failpoint=failpoint, given=b"\n".join(keys).decode())


def test_a_killed_erase_can_be_repeated(cluster, log, cluster_address, tmp_path):
    topic = create_topic(cluster, "t", 2, configs=READABLE)
    stays = []
    for point in [point for point in POINTS if point.startswith("erase.")]:
        for partition in (0, 1):
            fill(log, topic, partition)
        before = rows_of(log, topic)
        stays = without(before, GONE, ALSO_GONE)
        done = run_erase(cluster_address, [GONE, ALSO_GONE], point)
        assert done.returncode == -signal.SIGKILL, (point, done.stderr)
        left = rows_of(log, topic)
        assert without(left, GONE, ALSO_GONE) == stays, point
        assert set(left) <= set(before), point
        publish(cluster, topic)
        assert_delta_is_the_log(cluster)
    log.close()
    done = run_erase(cluster_address, [GONE, ALSO_GONE])
    assert done.returncode == 0, done.stderr
    assert GONE.decode() not in done.stdout + done.stderr
    assert rows_of(log, topic) == stays
    assert files_with(tmp_path, GONE, ALSO_GONE, PRIVATE) == []
    assert_delta_is_the_log(cluster)


def test_an_erase_keeps_its_write_id_while_it_writes(cluster, log, monkeypatch):
    """Else clean-up would take the new files of a long erase for those of a process that has ended."""
    topic = create_topic(cluster, "t", 1, configs={"inline.max.bytes": "0"})
    for _ in range(3):
        append(log, topic, "v", key=GONE)
    kept = mock.Mock(wraps=Writer.keep)
    monkeypatch.setattr(Writer, "keep", lambda writer: kept(writer))
    assert erase(cluster, "t", [GONE]).records == 3
    assert kept.call_count >= 3


def test_a_consumer_continues_over_erased_files(cluster, log, cluster_address):
    """Files are replaced, and files are purged, before the consumer reaches them."""
    topic = create_topic(cluster, "t", configs=FILES)
    for number in range(20):
        append_keyed(log, topic, (STAYS, b"%d" % number), (GONE, PRIVATE))
    log.close()
    consumer = Consumer(cluster=cluster_address, auto_offset_reset="earliest", group_id=None)
    partition = TopicPartition("t", 0)
    consumer.assign([partition])
    read = []
    missing = 0

    def poll():
        nonlocal missing
        try:
            for records in consumer.poll(timeout_ms=10_000, max_records=5).values():
                read.extend(records)
        except CorruptRecordError:
            missing += 1

    poll()
    erase(cluster, "t", [GONE])
    poll()
    assert len(read) == 10, "what was planned before is read to its end"
    erase(cluster, "t", [GONE], purge=True)
    while read[-1].value != b"19":  # the position stays at 39: a poll would wait for a record after the erased one
        poll()
    consumer.close()
    assert missing <= 1, "the plan that was purged, if it had not opened the file, and not the next one"
    assert [record.value for record in read if record.key == STAYS] == [b"%d" % number for number in range(20)]
    assert sum(record.key == GONE for record in read) < 10, "most went before the consumer came to them"


KEYS = st.sampled_from([b"a", b"b", b"c", b"", None])
BATCHES = st.lists(st.lists(st.tuples(KEYS, st.sampled_from([b"v", None])), min_size=1, max_size=4), max_size=4)
ERASES = st.tuples(st.sets(KEYS.filter(lambda key: key is not None), min_size=1, max_size=2), st.integers(0, 16))


@pytest.fixture(scope="module")
def small_cluster(tmp_path_factory):
    with Cluster.init(str(tmp_path_factory.mktemp("erase") / "cluster")) as cluster:
        yield cluster


@given(BATCHES, st.sets(st.integers(0, 3)), BATCHES, st.lists(ERASES, min_size=1, max_size=2))
@settings(max_examples=12)
def test_the_remaining_records_are_those_of_a_list_model(small_cluster, batches, seals, more, erases):
    """Compared with a plain list: batches, some sealed, erases up to some offset, and more batches in between."""
    topic = create_topic(small_cluster, f"t{uuid.uuid4().hex}")
    log = ClientLog(small_cluster)
    model = []

    def append(rows):
        append_keyed(log, topic, *rows)
        end = log.positions(topic).popitem()[1].high_watermark
        model.extend((0, end - len(rows) + at, key, value) for at, (key, value) in enumerate(rows))

    for number, rows in enumerate(batches):
        append(rows)
        if number in seals:
            log.seal(topic, [0])
    for keys, end in erases:
        limit = min(end, log.positions(topic).popitem()[1].high_watermark)
        erased = erase(small_cluster, topic.name, keys, ends={0: limit})
        left = [row for row in model if row[2] not in keys or row[1] >= limit]
        assert erased.records == len(model) - len(left)
        model[:] = left
        assert rows_of(log, topic) == model
        for rows in more:
            append(rows)
    assert rows_of(log, topic) == model
    log.close()
