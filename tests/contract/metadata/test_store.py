"""Guarantees of every metadata store: a cluster, its topics, the append transaction; and failures of the database."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from spark_log import Admin, Consumer, Producer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topic, list_topics
from spark_log.errors import (
    CheckpointMismatchError,
    ClusterAlreadyExistsError,
    ClusterNotFoundError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    LogDirMismatchError,
    MetadataStoreUnavailableError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceNumberError,
    PolicyViolationError,
    ProducerFencedError,
    SparkLogError,
    TopicAlreadyExistsError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
    UnsupportedStoreError,
    UnsupportedVersionError,
    WriteIdExpiredError,
    redact,
)
from spark_log.facts.topics import describe_topics
from spark_log.ids import BrokerId, OffsetRange, TopicPartition
from spark_log.log.append.append_transaction import AppendRequest, run_append_transaction
from spark_log.log.append.encoding import Encoding, blob_batch, encode_inline
from spark_log.log.append.rules import (
    Appended,
    Rejected,
)
from spark_log.log.append.sequence_rules import ProducerSequence
from spark_log.log.append.spark_batch_rules import SparkBatch
from spark_log.log.append.spark_batches import append_once_hook
from spark_log.log.append.write_ids import register, release, renew
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import delete_records
from spark_log.metadata import (
    commit_tokens,
    migrations,
)
from spark_log.metadata import store as store_module
from spark_log.metadata import tables as t
from spark_log.metadata.address import Address, refuse_network_file_system
from spark_log.metadata.connections import write_ahead_log
from spark_log.metadata.prepared import Prepared, one_message
from spark_log.metadata.store import Store, create_store, open_store
from spark_log.metadata.store_schema import revision_of
from spark_log.replication.controller.topic_operations import add_partitions, alter_configs, create_topic, delete_topic
from tests.support.python_process import PythonProcess, output_of
from tests.support.records import read_all, table

SMALL_BLOBS = {"inline.max.bytes": "2000"}
LARGE = random.Random(0).randbytes(10_000).hex()
"""A record that becomes a file even when compressed."""


def rows_of(cluster, *tables):
    """All rows of these tables (by default all tables except the commit tokens), to show that nothing was written."""
    with cluster.store.snapshot() as connection:
        return {
            found.name: sorted(map(repr, connection.execute(sa.select(found)).all()))
            for found in tables or set(t.metadata.sorted_tables) - {t.commit_token}
        }


# A cluster


@pytest.fixture(params=["sqlite", "postgres"])
def cluster_address(request, tmp_path):
    """An empty store: the tests of this file create the tables."""
    if request.param == "sqlite":
        return str(tmp_path / "cluster")
    return request.getfixturevalue("postgres_server").create_database()


def test_a_cluster_is_created_once_and_opened_by_its_address(cluster, cluster_address, tmp_path):
    with Cluster.open(cluster_address) as again:
        assert again.cluster_id == cluster.cluster_id
        (info,) = again.log_dirs().values()
        assert info.broker_id == 1
        assert again.log_dir(info).read_marker().cluster_id == cluster.cluster_id
    create_topic(cluster, "kept", configs=SMALL_BLOBS)
    ClientLog(cluster).append(find(cluster, "kept"), [Records(0, table(LARGE))])
    for log_dir in (None, str(tmp_path / "log-dir"), str(tmp_path / "elsewhere")):
        if log_dir or "://" not in cluster_address:
            with pytest.raises(ClusterAlreadyExistsError):
                Cluster.init(cluster_address, log_dir=log_dir)
    assert [topic.name for topic in list_topics(cluster)] == ["kept"]


def find(cluster, name):
    return cluster.store.read(lambda connection: find_topic(connection, name))


def test_two_concurrent_inits_create_one_cluster(cluster_address, tmp_path):
    start, outcomes = threading.Barrier(2), []

    def init(number):
        start.wait(timeout=60)
        log_dir = str(tmp_path / f"dir-{number}") if "://" in cluster_address else None
        try:
            with Cluster.init(cluster_address, log_dir=log_dir) as made:
                outcomes.append(made.cluster_id)
        except ClusterAlreadyExistsError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=init, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    (made,) = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert len(outcomes) == 2
    with Cluster.open(cluster_address) as cluster:
        assert cluster.cluster_id == made
        (info,) = cluster.log_dirs().values()
        assert cluster.log_dir(info).read_marker().cluster_id == made, "the loser's marker is not in the winner's place"


def test_a_missing_cluster_is_an_error(cluster_address, tmp_path):
    with pytest.raises(ClusterNotFoundError, match="spark-log init"):
        Cluster.open(cluster_address)
    assert list(tmp_path.iterdir()) == [], "looking for a cluster makes nothing"


def test_a_database_with_tables_but_without_a_cluster_says_how_to_create_one(cluster, cluster_address):
    cluster.store.transact(lambda connection, _: connection.execute(t.cluster.delete()))
    command = f"spark-log init {cluster.store.address.without_password}"
    if "://" in cluster_address:
        command += " --log-dir FOLDER-OR-URI"
    with pytest.raises(ClusterNotFoundError) as raised:
        Cluster.open(cluster_address)
    assert str(raised.value) == f"no cluster at {cluster.store.address}: create one with `{command}`"


def test_init_opens_an_existing_cluster_if_asked(cluster_address, tmp_path):
    log_dir = str(tmp_path / "log-dir") if "://" in cluster_address else None
    with Cluster.init(cluster_address, log_dir=log_dir, if_not_exists=True) as made:
        create_topic(made, "kept")
        before = rows_of(made)
        with Cluster.init(cluster_address, log_dir=log_dir, if_not_exists=True) as again:
            assert again.cluster_id == made.cluster_id
        assert rows_of(made) == before


@pytest.mark.parametrize(
    ("revision", "message"), [("v9", r"'v9'.*newer"), ("0013", r"before the first release.*spark-log init")]
)
def test_store_of_an_unknown_revision_is_refused_and_left_unchanged(cluster, cluster_address, revision, message):
    cluster.store.transact(lambda c, _: c.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'"))
    before = rows_of(cluster)
    with pytest.raises(UnsupportedVersionError, match=message):
        Cluster.open(cluster_address)
    assert rows_of(cluster) == before


def test_schema_revision_is_the_head_of_the_migrations(cluster):
    assert ScriptDirectory.from_config(migrations._config()).get_heads() == [t.SCHEMA_REVISION]
    with cluster.store.snapshot() as connection:
        assert MigrationContext.configure(connection).get_current_revision() == t.SCHEMA_REVISION


FIRST_RELEASE_LACKS = [
    ("partition", "rewrites"),
    ("producer", "owner"),
    ("group_member", "rebalance_timeout_ms"),
    ("group_member", "rejoin_by_ms"),
    ("cluster", "beat"),
    ("cluster", "beat_ms"),
    ("cluster", "synchronous"),
    ("cluster", "promoted_ms"),
]


@pytest.fixture
def newer_version(tmp_path, monkeypatch):
    """From now on this process is a version of spark-log with one more migration: table broker has a column zone."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrations.FOLDER, folder)
    (folder / "versions" / "next_zone.py").write_text(
        f"""
import sqlalchemy as sa
from alembic import op

revision = "next"
down_revision = "{t.SCHEMA_REVISION}"


def upgrade():
    op.add_column("broker", sa.Column("zone", sa.Text(), nullable=False, server_default="none"))
"""
    )

    def become():
        monkeypatch.setattr(migrations, "FOLDER", folder)
        monkeypatch.setattr(t, "SCHEMA_REVISION", "next")

    return become


def test_opening_a_store_of_an_earlier_release_upgrades_it(cluster, cluster_address, newer_version):
    topic = create_topic(cluster, "t")
    newer_version()
    with Cluster.open(cluster_address) as upgraded:
        assert upgraded.store.read(revision_of) == "next"
        assert find(upgraded, "t") == topic
        with upgraded.store.snapshot() as connection:
            assert connection.exec_driver_sql("SELECT zone FROM broker").scalars().all() == ["none"]


def test_store_of_the_first_release_gets_the_columns_of_this_one(cluster, cluster_address):
    def columns():
        inspector = sa.inspect(cluster.store.engine)
        return {
            (table, column["name"]): (str(column["type"]), column["nullable"], column["default"], column.get("comment"))
            for table in t.metadata.tables
            for column in inspector.get_columns(table)
        }

    made = columns()
    with cluster.store.engine.begin() as connection:
        connection.exec_driver_sql('ALTER TABLE "transaction" RENAME COLUMN previous_epoch TO bumped_from')
        connection.exec_driver_sql('ALTER TABLE "transaction" ADD COLUMN number BIGINT')
        connection.exec_driver_sql('ALTER TABLE "transaction" ADD COLUMN numbered BOOLEAN')
        for table, column in FIRST_RELEASE_LACKS:
            connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'v1'")
    with Cluster.open(cluster_address):
        assert columns() == made


def test_processes_that_open_an_old_store_at_once_upgrade_it_once(postgres_server, newer_version, monkeypatch):
    address = Address.parse(postgres_server.create_database())
    old = create_store(address, "c")
    newer_version()
    upgrade, deadline_s, outcomes = migrations.upgrade, time.monotonic() + 20, []

    def upgrade_until_another_waits(connection):
        """Commits only when another thread that opens the store waits for this transaction."""
        upgrade(connection)
        waiting = "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted"
        here = " AND datname = current_database()"
        while not old.read(lambda connection: connection.exec_driver_sql(waiting + here).scalar_one()):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    monkeypatch.setattr(migrations, "upgrade", upgrade_until_another_waits)

    def open_it():
        try:
            open_store(address).close()
            outcomes.append(None)
        except SparkLogError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert outcomes == [None] * 3
    assert old.read(revision_of) == "next"
    old.close()


def test_a_log_dir_of_an_unknown_broker_is_refused(cluster, tmp_path):
    before = rows_of(cluster)
    with pytest.raises(InvalidConfigurationError, match="no broker 7"):
        cluster.add_log_dir(BrokerId(7), str(tmp_path / "more"))
    assert rows_of(cluster) == before
    assert not (tmp_path / "more").exists()


# Topics


BAD_TOPICS = {
    "empty": ("", {}, InvalidTopicError),
    "dot": (".", {}, InvalidTopicError),
    "climbs": ("../x", {}, InvalidTopicError),
    "slash": ("a/b", {}, InvalidTopicError),
    "NUL": ("a\0b", {}, InvalidTopicError),
    "250 characters": ("a" * 250, {}, InvalidTopicError),
    "newline": ("a\n", {}, InvalidTopicError),
    "not text": (5, {}, InvalidTopicError),
    "internal": ("__consumer_offsets", {}, PolicyViolationError),
    "taken": ("taken.name", {}, TopicAlreadyExistsError),
    "collides": ("taken_name", {}, TopicAlreadyExistsError),
    "no partitions": ("t", {"partitions": 0}, InvalidPartitionsError),
    "partitions true": ("t", {"partitions": True}, InvalidPartitionsError),
    "partitions text": ("t", {"partitions": "3"}, InvalidPartitionsError),
    "partitions without end": ("t", {"partitions": 10**9}, InvalidPartitionsError),
    "factor 0": ("t", {"replication_factor": 0}, InvalidReplicationFactorError),
    "factor above the brokers": ("t", {"replication_factor": 2}, InvalidReplicationFactorError),
    "factor text": ("t", {"replication_factor": "1"}, InvalidReplicationFactorError),
    "unknown config": ("t", {"configs": {"retention": "1"}}, InvalidConfigurationError),
    "bad config": ("t", {"configs": {"retention.ms": "1e99"}}, InvalidConfigurationError),
    "retention overflow": ("t", {"configs": {"retention.ms": str(2**63)}}, InvalidConfigurationError),
    "min ISR above the factor": ("t", {"configs": {"min.insync.replicas": "2"}}, InvalidConfigurationError),
}


def test_bad_topics_are_refused_by_name_and_nothing_is_written(cluster):
    create_topic(cluster, "taken.name")
    before = rows_of(cluster)
    for case, (name, arguments, error) in BAD_TOPICS.items():
        with pytest.raises(error) as raised:
            create_topic(cluster, name, **arguments)
        assert type(raised.value) is error, case
    assert rows_of(cluster) == before


@pytest.mark.parametrize("name", ["no-such", "", "a\0b", "\ud800", "x" * 300, None, 5])
def test_an_impossible_topic_name_is_an_unknown_topic(cluster, name):
    with pytest.raises(UnknownTopicOrPartitionError):
        find(cluster, name)
    with pytest.raises(UnknownTopicOrPartitionError):
        describe_topics(cluster, [name])


def test_the_life_of_a_topic(cluster):
    made = create_topic(cluster, "t", 2, configs={"retention.ms": "1000"})
    assert create_topic(cluster, "u", 2, validate_only=True) is None
    assert [topic.name for topic in list_topics(cluster)] == ["t"]
    (described,) = describe_topics(cluster, ["t"])
    assert described.topic == made
    assert [(p.partition, p.leader, p.isr, p.high_watermark) for p in described.partitions] == [
        (0, 1, (1,), 0),
        (1, 1, (1,), 0),
    ]

    assert alter_configs(cluster, "t", {"segment.bytes": "2000000", "retention.ms": None}).overrides == {
        "segment.bytes": "2000000"
    }
    for changes in ({"segment.bytes": "x"}, {"nope": "1"}, {"nope": None}, {"min.insync.replicas": "2"}):
        with pytest.raises(InvalidConfigurationError):
            alter_configs(cluster, "t", changes)
    assert find(cluster, "t").overrides == {"segment.bytes": "2000000"}

    assert add_partitions(cluster, "t", 4).partition_count == 4
    for total in (4, 3, 0, -1, True, "5", 10**9):
        with pytest.raises(InvalidPartitionsError):
            add_partitions(cluster, "t", total)
    assert len(describe_topics(cluster, ["t"])[0].partitions) == 4

    delete_topic(cluster, "t")
    assert list_topics(cluster) == []
    for gone in (delete_topic, lambda c, n: add_partitions(c, n, 9), lambda c, n: alter_configs(c, n, {})):
        with pytest.raises(UnknownTopicOrPartitionError):
            gone(cluster, "t")
    assert create_topic(cluster, "t").topic_id != made.topic_id, "a recreated topic is another one"


def test_a_deleted_topic_leaves_only_a_folder_for_clean_up(cluster, log):
    empty = rows_of(cluster)
    topic = create_topic(cluster, "t", 2, configs=SMALL_BLOBS)
    log.append(topic, [Records(0, table("a")), Records(1, table(LARGE))])
    log.seal(topic, [0])
    log.close()
    delete_topic(cluster, "t")
    after = rows_of(cluster)
    assert len(after.pop("retired_file")) == 1
    empty.pop("retired_file")
    assert after == empty


def test_an_append_to_a_topic_that_was_deleted_and_created_again_is_refused(cluster, log):
    old = create_topic(cluster, "t", configs=SMALL_BLOBS)
    delete_topic(cluster, "t")
    new = create_topic(cluster, "t")
    (outcome,) = log.append(old, [Records(0, table("late"))])
    assert isinstance(outcome.error, UnknownTopicOrPartitionError)
    with pytest.raises(UnknownTopicOrPartitionError):
        log.append(old, [Records(0, table(LARGE))])
    assert read_all(log, new) == []


def test_delete_records_moves_the_log_start_offset(cluster, log):
    topic = create_topic(cluster, "t", 2)
    log.append(topic, [Records(0, table(*"abcde")), Records(1, table("x"))])
    here, there = TopicPartition("t", 0), TopicPartition("t", 1)
    assert delete_records(cluster, {here: 3}) == {here: 3}
    assert delete_records(cluster, {here: 1}) == {here: 3}, "it never goes back"
    assert read_all(log, topic) == [(0, 3, "d"), (0, 4, "e"), (1, 0, "x")]
    with pytest.raises(OffsetOutOfRangeError, match="t-0"):
        log.plan({here: OffsetRange(2, 5)})
    before = rows_of(cluster)
    for offset in (6, -2, 2**63, True, "3", 2.5, None):
        with pytest.raises(OffsetOutOfRangeError, match="before_offset"):
            delete_records(cluster, {there: 1, here: offset})
    for unknown in (TopicPartition("t", 2), TopicPartition("t", -1), TopicPartition("no", 0)):
        with pytest.raises(UnknownTopicOrPartitionError):
            delete_records(cluster, {there: 1, unknown: 0})
    assert rows_of(cluster) == before, "one bad partition, and none is changed"
    assert delete_records(cluster, {here: -1, there: -1}) == {here: 5, there: 1}
    assert read_all(log, topic) == []
    assert log.append(topic, [Records(0, table("f"))]) == [Appended(5, 6)]


def test_statements_do_not_grow_with_the_partitions(cluster, log):
    """10,000 partitions take only seconds because the number of statements is constant."""
    statements = []
    sa.event.listen(cluster.store.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))

    def count(action):
        statements.clear()
        result = action()
        # ANALYZE runs once, for many partitions; cluster settings are read again after some seconds
        return len([each for each in statements if not each.startswith("ANALYZE") and ".settings" not in each]), result

    small, _ = count(lambda: create_topic(cluster, "small", 10))
    large, topic = count(lambda: create_topic(cluster, "large", 10_000))
    assert large == small
    small, _ = count(lambda: describe_topics(cluster, ["small"]))
    large, (description,) = count(lambda: describe_topics(cluster, ["large"]))
    assert large == small
    assert len(description.partitions) == 10_000
    encoding, blob = Encoding.of(topic), encode_inline(table("x"), Encoding.of(topic))

    def flush(partitions):
        names = [uuid.uuid4().hex for _ in range(partitions)]
        batches = [blob_batch(topic.topic_id, i, name, blob.facts, encoding) for i, name in enumerate(names)]
        return run_append_transaction(cluster.store, AppendRequest(batches, dict.fromkeys(names, blob.data)))

    small, _ = count(lambda: flush(100))  # SQLite inserts a few rows one by one
    large, result = count(lambda: flush(10_000))
    assert large <= small + 2, "partitions are locked in chunks of 5,000"
    assert len([outcome for outcome in result.outcomes if isinstance(outcome, Appended)]) == 10_000
    ranges = {TopicPartition("large", i): OffsetRange(0, 1) for i in range(10_000)}
    small, _ = count(lambda: log.plan({tp: ranges[tp] for tp in list(ranges)[:10]}))
    large, plan = count(lambda: log.plan(ranges))
    assert large <= small + 2, "blobs are read in chunks of 5,000"
    assert len(plan.slices) == 10_000


# The append transaction


def producer(cluster, epoch=0):
    """A producer id that the cluster knows, with this epoch."""
    values = {"transactional_id": None, "epoch": epoch, "last_used_ms": 0, "transaction_timeout_ms": 0}
    insert = t.producer.insert().returning(t.producer.c.producer_id).values(values)
    return cluster.store.transact(lambda connection, _: connection.execute(insert).scalar_one())


def test_appended_records_are_read_in_order_with_dense_offsets(cluster, log):
    topic = create_topic(cluster, "t", 2, configs=SMALL_BLOBS)
    assert log.append(topic, [Records(0, table("a", "b")), Records(1, table("x")), Records(0, table("c"))]) == [
        Appended(0, 2),
        Appended(0, 1),
        Appended(2, 3),
    ]
    large = ["large" + LARGE, "larger" + LARGE]
    assert log.append(topic, [Records(0, table(*large)), Records(1, table("y"))]) == [Appended(3, 5), Appended(1, 2)]
    expected = [(0, 0, "a"), (0, 1, "b"), (0, 2, "c"), (0, 3, large[0]), (0, 4, large[1]), (1, 0, "x"), (1, 1, "y")]
    assert read_all(log, topic) == expected
    assert log.append(topic, [Records(0, table("d"))]) == [Appended(5, 6)]
    assert log.seal(topic, [0, 1]) == 3, "in partition 0 a file lies between two runs"
    assert read_all(log, topic) == [*expected[:5], (0, 5, "d"), *expected[5:]]
    assert log.seal(topic, [0, 1]) == 0


def test_all_fields_of_a_record_are_read_back(cluster, log):
    topic = create_topic(cluster, "t")
    headers = [("h", b"1"), ("h", None), ("", b"")]
    sent = table("v", key=b"k\0", headers=headers, timestamp_ms=1_234_567_890_123)
    for _ in range(2):
        log.append(topic, [Records(0, sent)])
    log.seal(topic, [0])
    log.append(topic, [Records(0, sent)])
    for offset, row in enumerate(
        r for b in log.read({TopicPartition("t", 0): OffsetRange(0, 3)}) for r in b.to_pylist()
    ):
        assert (row["key"], row["value"], row["topic"], row["offset"]) == (b"k\0", b"v", "t", offset)
        assert [(h["key"], h["value"]) for h in row["headers"]] == headers
        assert (row["timestamp"].timestamp(), row["timestampType"]) == (1_234_567_890.123, 0)


def test_empty_batches_and_unknown_partitions_are_refused_without_side_effects(cluster, log):
    topic = create_topic(cluster, "t", configs=SMALL_BLOBS)
    (refused,) = log.append(topic, [Records(0, table())])
    assert isinstance(refused, Rejected)
    for partition in (1, -1, 2**31 - 1):
        (refused,) = log.append(topic, [Records(partition, table("x"))])
        assert isinstance(refused.error, UnknownTopicOrPartitionError)
        with pytest.raises(UnknownTopicOrPartitionError, match=f"t-{partition}"):
            log.append(topic, [Records(partition, table(LARGE))])
    assert log.append(topic, [Records(0, table("a"))]) == [Appended(0, 1)]
    assert log.append(topic, [Records(0, table("b"))]) == [Appended(1, 2)]
    assert read_all(log, topic) == [(0, 0, "a"), (0, 1, "b")]


def test_a_repeated_producer_batch_returns_the_first_offsets(cluster, log):
    topic = create_topic(cluster, "t", 2)
    who = producer(cluster)

    def send(partition, first, *values, epoch=0):
        sequence = ProducerSequence(who, epoch, first)
        (outcome,) = log.append(topic, [Records(partition, table(*values), sequence)])
        return outcome

    assert send(0, 0, "a", "b") == Appended(0, 2)
    log.append(topic, [Records(0, table("somebody else"))])
    assert send(0, 0, "a", "b") == Appended(0, 2, duplicate=True)
    assert send(0, 2, "c") == Appended(3, 4)
    log.seal(topic, [0])
    assert send(0, 0, "a", "b") == Appended(0, 2, duplicate=True), "sealing does not forget"
    assert send(1, 0, "x") == Appended(0, 1), "each partition counts for itself"
    assert isinstance(send(0, 4, "e").error, OutOfOrderSequenceNumberError)
    assert isinstance(send(1, 0, "x", epoch=-1).error, ProducerFencedError)

    bump = t.producer.update().where(t.producer.c.producer_id == who).values(epoch=1)
    cluster.store.transact(lambda connection, _: connection.execute(bump))
    assert isinstance(send(0, 3, "zombie").error, ProducerFencedError)
    assert isinstance(send(0, 3, "d", epoch=1).error, UnknownProducerIdError)
    assert send(0, 0, "d", epoch=1) == Appended(4, 5)
    who = 10**9
    assert isinstance(send(0, 0, "nobody").error, UnknownProducerIdError)
    assert [value for _, _, value in read_all(log, topic)] == ["a", "b", "somebody else", "c", "d", "x"]


def test_several_batches_of_a_producer_in_one_flush(cluster, log):
    topic = create_topic(cluster, "t")
    who = producer(cluster)
    flush = [Records(0, table(f"{n}"), ProducerSequence(who, 0, n)) for n in range(7)]
    assert log.append(topic, flush) == [Appended(n, n + 1) for n in range(7)]
    repeated = log.append(topic, [*flush[2:], *flush[2:]])
    assert repeated == [Appended(n, n + 1, duplicate=True) for n in (2, 3, 4, 5, 6)] * 2
    with cluster.store.snapshot() as connection:
        assert len(connection.execute(sa.select(t.producer_batch)).all()) == 5


def test_each_partition_has_its_own_outcome_unless_the_request_is_atomic(cluster, log):
    topic = create_topic(cluster, "t", 2)
    encoding = Encoding.of(topic)
    blob = encode_inline(table("x"), encoding)

    def request(atomic):
        names = [uuid.uuid4().hex for _ in range(3)]
        batches = [
            blob_batch(topic.topic_id, partition, name, blob.facts, encoding)
            for partition, name in zip((0, 9, 1), names, strict=True)
        ]
        return AppendRequest(batches, dict.fromkeys(names, blob.data), atomic=atomic)

    before = rows_of(cluster)
    outcomes = run_append_transaction(cluster.store, request(atomic=True)).outcomes
    assert isinstance(outcomes[1], Rejected)
    assert rows_of(cluster) == before, "nothing of it"
    outcomes = run_append_transaction(cluster.store, request(atomic=False)).outcomes
    assert [type(outcome) for outcome in outcomes] == [Appended, Rejected, Appended]
    assert read_all(log, topic) == [(0, 0, "x"), (1, 0, "x")]


def test_a_file_whose_write_id_was_removed_is_not_appended(cluster, log):
    topic = create_topic(cluster, "t", configs={"inline.max.bytes": "0"})
    log.append(topic, [Records(0, table("a"))])
    cluster.store.transact(lambda connection, _: connection.execute(t.write_id.delete()))
    with pytest.raises(WriteIdExpiredError):
        log.append(topic, [Records(0, table("b"))])
    assert read_all(log, topic) == [(0, 0, "a")]
    another = ClientLog(cluster)
    assert another.append(topic, [Records(0, table("c"))]) == [Appended(1, 2)]
    another.close()


def test_a_write_id_is_registered_renewed_and_released(cluster):
    write_id = register(cluster.store, "a test", 1_000)
    assert renew(cluster.store, write_id, 60_000)
    release(cluster.store, write_id)
    assert not renew(cluster.store, write_id, 60_000)


def spark_write(cluster, topic, batch, *values):
    encoding = Encoding.of(topic)
    blob = encode_inline(table(*values), encoding)
    name = uuid.uuid4().hex
    request = AppendRequest(
        [blob_batch(topic.topic_id, 0, name, blob.facts, encoding)],
        {name: blob.data},
        atomic=True,
        hooks=[append_once_hook(batch, [topic.topic_id])],
    )
    return run_append_transaction(cluster.store, request)


def test_a_spark_batch_is_appended_once_and_a_copied_checkpoint_is_an_error(cluster, log):
    topic = create_topic(cluster, "t")
    first = SparkBatch("stream:q", "t", 0, 1, "aa", strict=True)
    assert not spark_write(cluster, topic, first, "a").committed_before
    assert spark_write(cluster, topic, first, "a").committed_before
    second = replace(first, version=1, fingerprint="bb")
    assert not spark_write(cluster, topic, second, "b").committed_before
    for other in (replace(second, fingerprint="cc"), replace(second, record_count=2), first):
        before = rows_of(cluster)
        with pytest.raises(CheckpointMismatchError, match="stream:q"):
            spark_write(cluster, topic, other, "c")
        assert rows_of(cluster) == before
    assert read_all(log, topic) == [(0, 0, "a"), (0, 1, "b")]


def test_the_same_first_spark_batch_from_two_drivers_at_once_is_appended_once(cluster, log):
    topic = create_topic(cluster, "t")
    outcomes = []
    start = threading.Barrier(4)

    def write(number):
        start.wait(timeout=60)
        for version in range(10):
            batch = SparkBatch("stream:q", f"{version}", 0, 1, "aa", strict=True)
            outcomes.append(spark_write(cluster, topic, batch, f"{version}").committed_before)

    threads = [threading.Thread(target=write, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert (outcomes.count(False), outcomes.count(True)) == (10, 30)
    assert sorted(value for _, _, value in read_all(log, topic)) == [f"{version}" for version in range(10)]


def recovery_point(cluster):
    return cluster.store.read(lambda c: c.execute(sa.select(t.partition.c.recovery_point)).scalar_one())


def test_flush_messages_limits_the_unforced_records(cluster, log, monkeypatch):
    topic = create_topic(cluster, "t", configs={"flush.messages": "10"})
    unforced = []

    def watch(connection, token, *, durable, always):
        commit(connection, token, durable=durable, always=always)
        if not durable:
            unforced.append(token)

    commit = commit_tokens.commit
    monkeypatch.setattr(commit_tokens, "commit", watch)
    for count in (4, 5):
        log.append(topic, [Records(0, table(*"x" * count))])
        assert recovery_point(cluster) == 0
    log.append(topic, [Records(0, table("x"))])
    assert recovery_point(cluster) == 10, "ten records: forced to disk"
    log.append(topic, [Records(0, table("x"))])
    assert recovery_point(cluster) == 10
    assert len(unforced) == (0 if cluster.store.sqlite else 4)
    if cluster.store.sqlite:
        with cluster.store.snapshot() as connection:
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2, "FULL again"
    alter_configs(cluster, "t", {"flush.messages": None})
    log.append(find(cluster, "t"), [Records(0, table("x"))])
    assert recovery_point(cluster) == 12, "by default every append is on disk when it is acknowledged"


# Failures of the database


@pytest.fixture
def postgres_cluster(postgres_url, tmp_path):
    with Cluster.init(postgres_url, log_dir=str(tmp_path / "log-dir")) as cluster:
        yield cluster


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03", "57P01"])
def test_transactions_that_the_database_asks_to_repeat_are_repeated(postgres_cluster, state):
    tries = []

    def body(connection, attempt):
        tries.append(attempt.number)
        if len(tries) <= 3:
            connection.exec_driver_sql(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$")
        return "done"

    assert postgres_cluster.store.transact(body) == "done"
    assert tries == [0, 1, 2, 3]
    tries.clear()
    with pytest.raises(MetadataStoreUnavailableError, match="no"):
        postgres_cluster.store.transact(body, timeout_ms=0)


def test_a_deadlock_costs_a_retry(postgres_cluster):
    store, both = postgres_cluster.store, threading.Barrier(2)
    topic = create_topic(postgres_cluster, "t", 2)
    done = []

    def work(order):
        def body(connection, attempt):
            for number in order:
                here = (t.partition.c.topic_id == topic.topic_id) & (t.partition.c.partition == number)
                connection.execute(t.partition.update().where(here).values(change=t.partition.c.change + 1))
                if attempt.number == 0 and number == order[0]:
                    both.wait(timeout=60)
            return attempt.number

        done.append(store.transact(body))

    threads = [threading.Thread(target=work, args=[order]) for order in ((0, 1), (1, 0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(done) == 2 and max(done) >= 1, "the second attempt may meet the other's first once more"
    changes = store.read(lambda c: c.execute(sa.select(t.partition.c.change)).scalars().all())
    assert changes == [2, 2]


def test_postgresql_has_statistics_of_a_new_large_topic_at_once(postgres_cluster):
    """With the statistics of the small cluster, publication of the large topic would take seconds per append."""
    create_topic(postgres_cluster, "small")
    postgres_cluster.store.transact(lambda connection, _: connection.execute(sa.text("ANALYZE")))
    create_topic(postgres_cluster, "large", 1_000)
    rows = sa.text("SELECT reltuples FROM pg_class WHERE oid IN ('partition'::regclass, 'replica'::regclass)")
    assert postgres_cluster.store.read(lambda c: c.execute(rows).scalars().all()) == [1_001, 1_001]


def test_process_stopped_while_it_sends_statements_is_ended_by_one_that_waits(postgres_cluster, monkeypatch):
    """The server itself would wait for the rest of the message, and keep the locks, for ever."""
    monkeypatch.setattr(store_module, "SILENT_MS", 50)
    store = postgres_cluster.store
    create_topic(postgres_cluster, "t")
    change = Prepared(sa.text("UPDATE partition SET change = change + 1"))

    def change_soon(connection, _attempt):
        connection.execute(sa.text("SET LOCAL lock_timeout = 100"))  # instead of 15 s
        change.run(connection, [{}])

    other = threading.Thread(target=lambda: store.transact(change_soon))

    def stopped(connection, attempt):
        with one_message(connection):
            change.run(connection, [{}])
            if attempt.number == 0:
                other.start()
                other.join(timeout=60)
                assert not other.is_alive()
        return attempt.number

    assert store.transact(stopped) == 1, "the second try is the one that counts"
    assert store.read(lambda c: c.execute(sa.select(t.partition.c.change)).scalar_one()) == 2


@pytest.mark.parametrize("together", [False, True])
def test_locks_of_a_process_stopped_inside_a_transaction_expire(postgres_cluster, together):
    """The server ends its transaction; here after 50 ms instead of the usual 10 s of our connections.

    `together`: its last statement was sent in a pipeline, and took longer than sending it.
    """
    store = postgres_cluster.store
    topic = create_topic(postgres_cluster, "t")
    setting = sa.text("SELECT current_setting('idle_in_transaction_session_timeout')")
    assert store.read(lambda connection: connection.execute(setting).scalar_one()) == "10s"
    here = t.partition.c.topic_id == topic.topic_id
    change = t.partition.update().where(here).values(change=t.partition.c.change + 1)
    other = threading.Thread(target=lambda: store.transact(lambda connection, _: connection.execute(change)))

    def stopped(connection, attempt):
        connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 50"))
        with one_message(connection) if together else contextlib.nullcontext():
            Prepared(sa.text("UPDATE partition SET change = change + 1 FROM pg_sleep(0.1)")).run(connection, [{}])
        if attempt.number == 0:
            other.start()
            other.join(timeout=60)  # it gets the lock only when the server has ended our transaction
        return connection.execute(change).rowcount, attempt.number

    assert store.transact(stopped) == (1, 1), "the second try is the one that counts"
    assert store.read(lambda c: c.execute(sa.select(t.partition.c.change)).scalar_one()) == 3


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_timeout_names_the_process_that_holds_the_lock(cluster, cluster_address):
    """The holder may be stopped. Waiting calls name it in their errors, and block no later call after that."""
    there, go_on = threading.Event(), threading.Event()
    name = sa.text("UPDATE cluster SET cluster_id = :name")

    def stopped(connection, _attempt):
        connection.execute(name, {"name": "one"})
        there.set()
        go_on.wait(timeout=60)

    with Cluster.open(cluster_address) as one:
        holder = threading.Thread(target=lambda: one.store.transact(stopped))
        holder.start()
        there.wait(timeout=60)
        held = f"was held by process {os.getpid()} for 0.[0-9] s; if that process is stopped"
        for timeout_ms in (100, 0):
            with pytest.raises(MetadataStoreUnavailableError, match=held):
                cluster.store.transact(lambda connection, _: None, timeout_ms=timeout_ms)
        assert sum(thread.name == "spark-log-writer-queue" for thread in threading.enumerate()) == 1, "not one a try"
        waiting = threading.Thread(target=lambda: cluster.store.transact(lambda connection, _: go_on.wait(60)))
        waiting.start()
        with pytest.raises(
            MetadataStoreUnavailableError, match="the lock that writers"
        ):  # the waiting thread of this store is first in the queue
            cluster.store.transact(lambda connection, _: None, timeout_ms=100)
        go_on.set()
        for thread in (holder, waiting):
            thread.join(timeout=60)
        cluster.store.transact(lambda connection, _: connection.execute(name, {"name": "two"}), timeout_ms=10_000)
        one.store.transact(lambda connection, _: connection.execute(name, {"name": "three"}), timeout_ms=10_000)


@pytest.mark.parametrize("kind", ["nfs4", "9p", "virtiofs", "vboxsf", "fuse.juicefs", "fuse.gcsfuse"])
def test_sqlite_is_refused_on_a_network_file_system(kind, tmp_path):
    mounts = f"/dev/root / ext4 rw 0 0\nshare {tmp_path} {kind} rw 0 0\n"
    with pytest.raises(UnsupportedStoreError, match=f"network file system .{kind} at"):
        refuse_network_file_system(tmp_path / "cluster", mounts)


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_overlapping_readers_do_not_let_the_write_ahead_log_grow_for_ever(cluster, cluster_address, monkeypatch):
    monkeypatch.setattr(write_ahead_log, "BYTES_MAX", 500_000)
    monkeypatch.setattr(write_ahead_log, "_AGAIN_AFTER_S", 0.0)  # a reader may be stopped for long on a busy machine
    log, done = Path(f"{cluster_address}/metadata.sqlite-wal"), threading.Event()
    cluster.store.transact(lambda c, _: c.exec_driver_sql("CREATE TABLE filler AS SELECT zeroblob(50000) AS data"))

    def read():
        while not done.is_set():
            with cluster.store.snapshot() as connection:
                connection.exec_driver_sql("SELECT count(*) FROM filler").all()
                done.wait(0.01)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    longest = 0
    try:
        for _ in range(1_000):
            cluster.store.transact(lambda c, _: c.exec_driver_sql("UPDATE filler SET data = ?", (os.urandom(50_000),)))
            longest = max(longest, log.stat().st_size)
            if log.stat().st_size < longest:
                break
    finally:
        done.set()
        for reader in readers:
            reader.join(timeout=60)
    assert log.stat().st_size < longest, "it was never cut"


FORK_IN_THE_MIDST = """
import os, signal, sys
from spark_log import Cluster

def body(connection, attempt):
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        signal.pause()
    signal.pause()

with Cluster.open(sys.argv[1]) as cluster:
    cluster.store.transact(body)
"""


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_a_forked_child_does_not_hold_the_lock_of_its_dead_parent(cluster, cluster_address):
    process = PythonProcess("-c", FORK_IN_THE_MIDST, cluster_address, stdout=subprocess.PIPE)
    with process:
        child = int(process.stdout.readline())
        try:
            with pytest.raises(MetadataStoreUnavailableError):
                cluster.store.transact(lambda connection, _: None, timeout_ms=100)
            process.kill()
            cluster.store.transact(lambda connection, _: None, timeout_ms=30_000)
        finally:
            os.kill(child, signal.SIGKILL)
            process.kill()


OPEN_AND_CLOSE = """
import os, sys, threading, time
from spark_log import Cluster, Consumer, Producer, create_topic
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from tests.support.records import read_all, table

address, folder = sys.argv[1:]

def use(number):
    database = "://" in address
    here = address if database else f"{address}-{number}"
    if number == 0 or not database:
        Cluster.init(here, log_dir=f"{folder}/log-dir" if database else None).close()
    with Cluster.open(here) as opened:
        topic = create_topic(opened, f"t{number}", configs={"inline.max.bytes": "0"})
        log = ClientLog(opened)
        log.append(topic, [Records(0, table("a"))])
        assert len(read_all(log, topic)) == 1
        log.close()
    with Producer(cluster=here) as producer:
        producer.send(f"t{number}", b"b").get(timeout=60)
    with Consumer(f"t{number}", cluster=here, auto_offset_reset="earliest") as consumer:
        assert consumer.poll(timeout_ms=60_000)
    while any(thread.name == "spark-log-listen" for thread in threading.enumerate()):  # they end by themselves
        time.sleep(0.01)
    return len(os.listdir("/proc/self/fd"))

print(*[use(number) for number in range(4)])
"""


def test_closed_objects_leave_no_file_open(cluster_address, tmp_path):
    """A program may open any number of clusters, producers and consumers, one after the other."""
    counts = output_of(OPEN_AND_CLOSE, cluster_address, tmp_path).split()
    assert len(set(counts[2:])) == 1, "what libraries open once, they have opened by then"


def test_a_failed_transaction_body_writes_nothing(cluster):
    before = rows_of(cluster)

    def body(connection, _attempt):
        connection.execute(t.write_id.insert(), {"write_id": "w", "holder": "h", "until_ms": 0, "clock_epoch": ""})
        raise SparkLogError("no")

    with pytest.raises(SparkLogError, match=r"^no$"):
        cluster.store.transact(body)
    assert rows_of(cluster) == before


PASSWORDS = [
    "postgresql+psycopg://me:hunter2@127.0.0.1:1/db",
    "postgresql+psycopg://me:hunter2:hunter2@127.0.0.1:1/db",
    "postgresql+psycopg://:hunter2@127.0.0.1:1/db",
    "postgresql+psycopg://127.0.0.1:1/db?user=me&password=hunter2",
    "postgresql+psycopg://127.0.0.1:1/db?sslpassword=hunter2&user=me",
    "postgres://me:hunter2@127.0.0.1:1/db",
]


@pytest.mark.parametrize("url", PASSWORDS)
def test_a_password_is_in_no_repr_and_no_error(url):
    store = Store(Address.parse(url))
    with pytest.raises(MetadataStoreUnavailableError) as raised:
        store.read(lambda connection: None, timeout_ms=0)
    shown = [raised.value, store.address, repr(store.address), repr(Cluster(store))]
    assert "hunter2" not in " ".join(map(str, shown))
    with pytest.raises(MetadataStoreUnavailableError) as raised:
        store.transact(lambda connection, _: None, timeout_ms=0)
    assert "hunter2" not in str(raised.value)


REFUSED = [
    "mysql://me:hunter2@h/db",
    "s3://key:hunter2@bucket/x",
    "sqlite://u:hunter2@/x",
    "postgresql://me:p@hunter2@h/db",
    "postgresql://me:p/hunter2@h/db",
]


@pytest.mark.parametrize("text", REFUSED)
def test_an_address_of_another_kind_is_refused_without_its_password(text):
    with pytest.raises(InvalidConfigurationError) as raised:
        Address.parse(text)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["localhost:9092", " b1.example.com:9092, b2:9093 ", "SASL_SSL://b:9093", "[::1]:9092"]
)
def test_the_address_of_a_kafka_broker_is_recognised(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfigurationError) as raised:
        Address.parse(text)
    assert str(raised.value).startswith(f"cluster: {text.strip()!r} is the address of a Kafka broker.")
    assert "folder" in str(raised.value) and "postgresql+psycopg://" in str(raised.value)


@pytest.mark.parametrize("servers", ["b1:9092", ["b1:9092"], ["b1:9092", "b2:9092"], ("b1:9092", "b2:9092")])
def test_a_client_with_broker_addresses_gets_a_clear_error(servers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for make in (Producer, Consumer, Admin):
        with pytest.raises(InvalidConfigurationError, match=r"'b1:9092(,b2:9092)?' is the address of a Kafka broker"):
            make(bootstrap_servers=servers)


def test_a_folder_that_is_named_like_a_broker_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "localhost:9092").mkdir()
    Cluster.init("localhost:9092").close()
    assert Cluster.open("localhost:9092").store.address.folder == tmp_path / "localhost:9092"
    for folder in ("./b:9092", "/data/b:9092", "b:port", "a b:9092", "/a:1,/b:2"):
        assert Address.parse(folder).folder is not None


def test_an_address_without_its_password_can_be_repeated():
    assert Address.parse("postgresql://me:x@h/db").without_password == "postgresql+psycopg://me@h/db"
    assert Address.parse("postgresql+psycopg://me@h/db").without_password == "postgresql+psycopg://me@h/db"
    assert Address.parse("/a:***@b").without_password == "/a:***@b"


def test_redact_changes_only_passwords():
    assert redact("see postgresql://me:x@h/db and s3://k:y@b/z?region=r") == (
        "see postgresql://me:***@h/db and s3://k:***@b/z?region=r"
    )
    assert redact("file:///a b/c:d and http://h:80/x?a=b") == "file:///a b/c:d and http://h:80/x?a=b"


def test_a_log_dir_of_another_cluster_is_refused(cluster, postgres_server, tmp_path):
    (info,) = cluster.log_dirs().values()
    marker = cluster.log_dir(info).read_marker()
    for take in (
        lambda: Cluster.init(str(tmp_path / "other"), log_dir=info.uri),
        lambda: Cluster.init(postgres_server.create_database(), log_dir=info.uri),
    ):
        with pytest.raises(LogDirMismatchError, match=marker.cluster_id):
            take()
    assert cluster.log_dir(info).read_marker() == marker


def test_the_time_of_the_store_is_its_own_and_continues(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose wall clock is wrong by a day still stamps records with PostgreSQL's time."""
    store = cluster.store
    in_transaction = store.transact(lambda connection, _attempt: store.clock(connection)).wall_ms
    if not store.sqlite:
        monkeypatch.setattr("spark_log.clock.wall_ms", lambda: in_transaction + 86_400_000)
    first = store.now().wall_ms
    assert abs(first - in_transaction) < 60_000
    assert first <= store.now().wall_ms <= first + 60_000


def test_the_time_of_the_store_continues_while_the_store_is_down(own_postgres_server, tmp_path):
    with Cluster.init(own_postgres_server.create_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        before = cluster.store.now()
        own_postgres_server.kill()
        asked_ms, ahead_ms = cluster.store._ahead
        # long enough ago that the store is due to be queried again
        cluster.store._ahead = (max(0, asked_ms - 10_000), ahead_ms)
        assert 0 <= cluster.store.now().wall_ms - before.wall_ms < 60_000
