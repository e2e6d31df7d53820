"""Commits of Spark writes to topics of two stores, without Spark: one transaction in each store, and its replay."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest
import sqlalchemy as sa

from spark_log.cluster import each_store
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.stores import add_store
from spark_log.errors import (
    CheckpointMismatchError,
    CrossStoreTransactionError,
    MetadataStoreUnavailableError,
    WriteIdExpiredError,
)
from spark_log.ids import HOME
from spark_log.log.append.spark_batch_rules import TRANSACTED, SparkBatch
from spark_log.log.append.spark_batches import append_once_hook
from spark_log.log.append.write_ids import take
from spark_log.maintenance.removal.unnamed_files import find_unnamed_files
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.datasource.options.source_options import WriteOptions
from spark_log.spark.datasource.write import write_commit
from spark_log.spark.datasource.write.task_writer import TaskWriter
from spark_log.spark.datasource.write.write_commit import abort_write, commit_write, plan_write
from tests.support.topics import stored
from tests.support.waiting import wait_until

EAST = 1
BATCH = SparkBatch("txn:a", "", 1, 4, "", strict=False)
FILES = {"inline.max.bytes": "0"}


@pytest.fixture
def topics(stores):
    create_topic(stores, "near", configs=FILES)
    create_topic(stores, "far", configs=FILES, store="east")


def written(stores, *topics):
    """The output of a task with two rows for each of the topics."""
    address = stores.store.address.with_password
    plan = plan_write(WriteOptions(address, None if len(topics) > 1 else topics[0]), fingerprint=False)
    writer = TaskWriter(plan, f"{plan.write_id}-0", 0)
    names = pa.array([topic for topic in topics for _ in range(2)])
    values = pa.array([b"a", b"b"] * len(topics))
    writer.write(pa.record_batch({"value": values, "topic": names}))
    return address, [writer.finish()], plan.write_id


@pytest.mark.parametrize("target", ["far", ""])
def test_a_micro_batch_that_a_transaction_wrote_is_refused_before_any_store_appends(stores, topics, target):
    """Transactions of foreachBatch are recorded in the home store."""
    transaction = SparkBatch("stream:q", TRANSACTED, 3, 2, "aa", strict=True)
    hook = append_once_hook(transaction, ())
    stores.store.transact(lambda connection: hook(connection, stores.store.clock(connection)))
    address, outputs, write_id = written(stores, "far")
    with pytest.raises(
        CheckpointMismatchError, match=r"batch 3 was written to the former outputs .*: batch 3 would be"
    ):
        commit_write(address, outputs, write_id, replace(transaction, target=target, fingerprint="bb"))
    abort_write(address, outputs, write_id)
    commit_write(*written(stores, "far"), replace(transaction, version=4, target=target, fingerprint="bb"))
    assert stored(stores, "far") == {0: ["a", "b"]}


def test_of_two_drivers_with_different_outputs_only_one_writes_a_batch(stores):
    """The second waits for the transaction of the first."""
    batch, others = SparkBatch("stream:q", "near", 3, 2, "aa", strict=True), []
    locks = "pg_locks JOIN pg_database ON pg_database.oid = database AND datname = current_database()"
    waiting = sa.text(f"SELECT count(*) FROM {locks} WHERE locktype = 'advisory' AND NOT granted")

    def record(connection, batch):
        return append_once_hook(batch, ())(connection, stores.store.clock(connection))

    def write_second():
        stores.store.transact(lambda connection: record(connection, replace(batch, target=TRANSACTED)))

    def write_first(connection):
        record(connection, batch)
        others.append(pool.submit(write_second))
        wait_until(lambda: connection.scalar(waiting) or others[0].done())

    with ThreadPoolExecutor(1) as pool:
        stores.store.transact(write_first)
    with pytest.raises(CheckpointMismatchError, match="the outputs of the query have changed"):
        others[0].result()


def write_ids(stores):
    return [
        view.store.read(lambda c: c.execute(t.write_id.select()).all()) for view in (stores.at(HOME), stores.at(EAST))
    ]


def test_a_replay_appends_in_the_store_that_lacks_the_batch(stores, topics):
    address, outputs, write_id = written(stores, "near", "far")
    stores.store.transact(lambda c: take(c, write_id))  # as if it had expired: the second transaction fails
    with pytest.raises(WriteIdExpiredError):
        commit_write(address, outputs, write_id, BATCH)
    assert (stored(stores, "near"), stored(stores, "far")) == ({}, {0: ["a", "b"]})
    abort_write(address, outputs, write_id)
    for _ in range(2):
        commit_write(*written(stores, "near", "far"), BATCH)
        assert (stored(stores, "near"), stored(stores, "far")) == ({0: ["a", "b"]}, {0: ["a", "b"]})
    assert write_ids(stores) == [[], []]
    assert [each.folder[:4] for each in find_unnamed_files(stores).files] == ["near"], "of the expired id: for clean-up"


def test_a_write_needs_only_the_stores_of_its_topics(postgres_server, own_postgres_server, tmp_path, monkeypatch):
    """A replay appends in a store that was down in the commit, and in no other one again."""
    with Cluster.init(postgres_server.create_prepared_database(), log_dir=str(tmp_path / "log-dir")) as stores:
        add_store(stores, "east", own_postgres_server.create_database())
        create_topic(stores, "near")
        create_topic(stores, "also-near")
        create_topic(stores, "far", store="east")
        address, outputs, write_id = written(stores, "near", "far")
        own_postgres_server.stop()
        with monkeypatch.context() as impatient:  # it refuses connections at once
            impatient.setattr(write_commit, "DEFAULT_TIMEOUT_MS", 200)  # how long a commit waits for a store
            impatient.setattr(each_store, "ASK_TIMEOUT_MS", 100)  # and a plan
            with pytest.raises(MetadataStoreUnavailableError):
                commit_write(address, outputs, write_id, BATCH)
            commit_write(*written(stores, "near", "also-near"), replace(BATCH, application="txn:b"))
            with pytest.raises(MetadataStoreUnavailableError, match="'far'"):
                written(stores, "near", "far")
        own_postgres_server.start()
        for _ in range(2):
            commit_write(*written(stores, "near", "far"), BATCH)
        assert [stored(stores, topic) for topic in ("also-near", "far", "near")] == [
            {0: ["a", "b"]}, {0: ["a", "b"]}, {0: ["a", "b", "a", "b"]},
        ]  # fmt: skip


def test_a_write_to_one_store_uses_no_other(stores, topics):
    commit_write(*written(stores, "far"), None)
    assert stored(stores, "far") == {0: ["a", "b"]}
    address, outputs, write_id = written(stores, "near", "far")
    with pytest.raises(CrossStoreTransactionError):
        commit_write(address, outputs, write_id, None)
    abort_write(address, outputs, write_id)
    assert (stored(stores, "near"), stored(stores, "far")) == ({}, {0: ["a", "b"]})
    assert write_ids(stores) == [[], []] and find_unnamed_files(stores).files == []
