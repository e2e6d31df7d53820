"""Spark reads and writes topics of several metadata stores in one query."""

import json
from functools import partial

import pytest
import sqlalchemy as sa
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.stores import add_store
from spark_log.errors import DataLossError, InvalidConfigurationError, TransactionCommitPendingError
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import add_partitions, alter_configs, create_topic
from spark_log.spark.datasource.read.read_topic import read_topic
from spark_log.spark.datasource.write import write_commit
from spark_log.spark.streams import batch_transaction, transacted_batch
from spark_log.spark.streams.topic_stream import stream_topic
from spark_log.transactions import transaction_parts
from tests.spark.queries import in_parquet
from tests.support.replicas import truncate
from tests.support.spark import uncommit
from tests.support.topics import fails, fill, read, read_stream, stored, values

TOPICS = {"near": None, "far": "east", "near-out": None, "far-out": "east"}


@pytest.fixture
def stores(postgres_server, tmp_path):
    with Cluster.init(postgres_server.create_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        add_store(cluster, "east", postgres_server.create_database())
        for name, store in TOPICS.items():
            create_topic(cluster, name, 2, configs={"delta.max.lag.ms": "-1"}, store=store)  # only tests seal tails
        log = ClientLog(cluster)
        for name in ("near", "far"):
            fill(log, name, [5, 3])
        log.close()
        yield cluster


def test_batch_reads_topics_of_both_stores(spark, stores):
    expected = sorted(f"{n}/{k}" for n, count in enumerate((5, 3)) for k in range(count))
    frame = read(spark, stores, subscribePattern="near|far", minPartitions=6)
    assert frame.rdd.getNumPartitions() >= 6
    rows = frame.select("topic", F.col("value").cast("string")).collect()
    for topic in ("near", "far"):
        assert sorted(row.value for row in rows if row.topic == topic) == expected
    starts = json.dumps({"near": {"0": 4, "1": 3}, "far": {"0": 5, "1": 2}})
    some = read(spark, stores, subscribe="near,far", startingOffsets=starts).select("topic", "partition", "offset")
    assert sorted(tuple(row) for row in some.collect()) == [("far", 1, 2), ("near", 0, 4)]
    assert sorted(bytes(row.value).decode() for row in read_topic(spark, stores, "far").collect()) == expected


@pytest.mark.delta
def test_a_topic_of_a_data_store_is_streamed_with_its_history(spark, stores, tmp_path):
    log, history = ClientLog(stores), str(tmp_path / "history")
    log.seal(log.find_topic("far"), [0, 1])
    fill(log, "far", [1, 1], first=5)
    frame = stream_topic(spark, stores, "far", history=history)
    assert (tmp_path / "history/_delta_log" / f"{0:020d}.json").read_text().count('{"add"') == 2
    assert values(in_parquet(frame, tmp_path)) == stored(stores, "far")
    add_partitions(stores, "far", 3)
    fill(log, "far", [1, 0, 2], first=6)
    log.close()
    again = stream_topic(spark, stores.store.address.with_password, "far", history=history)
    assert values(in_parquet(again, tmp_path)) == stored(stores, "far")
    truncate(stores, "far", 0)
    with pytest.raises(DataLossError, match="begin again with a new checkpoint and history"):
        stream_topic(spark, stores, "far", history=history)


@pytest.mark.delta
def test_typed_columns_that_files_of_a_topic_of_a_data_store_lack_are_refused(spark, stores, tmp_path):
    log, history = ClientLog(stores), str(tmp_path / "history")
    with pytest.raises(InvalidConfigurationError, match="topic 'far' has no typed columns"):
        stream_topic(spark, stores, "far", history=history, record=True)
    log.seal(log.find_topic("far"), [0, 1])
    log.close()
    alter_configs(stores, "far", {"value.format": "json", "value.schema": "n INT"})
    with pytest.raises(InvalidConfigurationError, match="spark-log maintenance columns --topic far` first"):
        stream_topic(spark, stores, "far", history=history, record=True)
    for _ in run_tasks(stores, ["columns"], topics=["far"]):
        pass
    rows = in_parquet(stream_topic(spark, stores, "far", history=history, record=True), tmp_path)
    assert rows.filter("record_error IS NOT NULL").count() == 8


def to_outputs(frame):
    return frame.select("value", "partition", F.concat("topic", F.lit("-out")).alias("topic"))


def copy(spark, stores, checkpoint, topics="near,far"):
    frame = read_stream(spark, stores, subscribe=topics, startingOffsets="earliest", maxOffsetsPerTrigger=7)
    frame = to_outputs(frame)
    options = {"cluster": stores.store.address.with_password, "checkpointLocation": str(checkpoint)}
    frame.writeStream.format("spark_log").options(**options).trigger(availableNow=True).start().awaitTermination()


@pytest.mark.slow
def test_a_stream_copies_topics_of_both_stores_once(spark, stores, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    copy(spark, stores, checkpoint)
    log = ClientLog(stores)
    fill(log, "far", [1], first=5)
    log.close()
    copy(spark, stores, checkpoint)
    uncommit(checkpoint, max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")))
    copy(spark, stores, checkpoint)  # replays the last batch
    for name in ("near", "far"):
        assert stored(stores, f"{name}-out") == stored(stores, name)


def copy_in_transactions(
    spark, stores, checkpoint, topics="near,far", writes=("partition = 0", "partition = 1"), then=lambda: None
):
    def process(batch, _batch_id):
        address = stores.store.address.with_password
        with batch_transaction(batch, cluster=address, group_id="g") as transaction:
            for condition in writes:
                transaction.write(to_outputs(batch.filter(condition)))
            then()

    frame = read_stream(spark, stores, subscribe=topics, startingOffsets="earliest")
    writer = frame.writeStream.foreachBatch(process).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def pending(stores):
    count = sa.select(sa.func.count()).select_from(t.transaction_segment)
    return [each.store.read(lambda c: c.execute(count).scalar_one()) for each in (stores, stores.at(1))]


@pytest.mark.slow
def test_a_transacted_batch_of_both_stores_is_refused_unless_allowed(spark, stores, tmp_path):
    with fails("allow that with the cluster setting transaction.cross.store=allow"):
        copy_in_transactions(spark, stores, tmp_path / "refused", writes=["topic = 'far'", "topic = 'near'"])
    copy_in_transactions(spark, stores, tmp_path / "one-store", topics="far")
    assert stored(stores, "far-out") == stored(stores, "far") and pending(stores) == [0, 0]

    alter_settings(stores, {"transaction.cross.store": "allow"})
    with fails("division by zero"):
        copy_in_transactions(spark, stores, tmp_path / "failed", then=lambda: 1 / 0)
    assert pending(stores) == [0, 0] and stored(stores, "near-out") == {}


def test_a_batch_that_the_sink_wrote_in_a_data_store_is_not_written_again_in_a_transaction(spark, stores, tmp_path):
    copy(spark, stores, tmp_path / "checkpoint", "far")
    uncommit(tmp_path / "checkpoint", 1)
    with fails("the outputs of the query have changed"):
        copy_in_transactions(spark, stores, tmp_path / "checkpoint", topics="far")
    assert stored(stores, "far-out") == stored(stores, "far") and pending(stores) == [0, 0]


@pytest.mark.slow
def test_a_transacted_batch_whose_part_has_not_followed_is_completed_by_its_replay(
    spark, stores, tmp_path, monkeypatch
):
    """The batch is committed at home, and its part in the data store is only prepared."""
    copy_once = partial(copy_in_transactions, spark, stores, tmp_path / "checkpoint")
    alter_settings(stores, {"transaction.cross.store": "allow"})

    def silent(*_, **_options):
        raise TransactionCommitPendingError("east does not answer")

    with monkeypatch.context() as away, fails("east does not answer"):
        away.setattr(write_commit, "DEFAULT_TIMEOUT_MS", 0)
        away.setattr(transaction_parts, "complete", silent)
        copy_once()
    assert stored(stores, "near-out") == stored(stores, "near") and stored(stores, "far-out") == {}
    assert [count > 0 for count in pending(stores)] == [False, True]
    assert sum(committed_offsets(stores.store, "g").values()) == 16
    log = ClientLog(stores)
    fill(log, "far", [1], first=5)
    log.close()
    copy_once()
    uncommit(tmp_path / "checkpoint", 1)
    copy_once()
    for name in ("near", "far"):
        assert stored(stores, f"{name}-out") == stored(stores, name)
    assert pending(stores) == [0, 0] and sum(committed_offsets(stores.store, "g").values()) == 17


@pytest.mark.parametrize("point", ["part.prepared", "part.decided"])
def test_a_driver_is_killed_in_the_end_of_a_transacted_batch(spark, stores, tmp_path, monkeypatch, point):
    """Simulates it: nothing is done after the failpoint. The next run of the query goes on."""
    alter_settings(stores, {"transaction.cross.store": "allow"})

    def killed(reached):
        if reached == point:
            raise KeyError(point)

    with monkeypatch.context() as kill, fails(point):
        for module in (transaction_parts, transacted_batch):
            kill.setattr(module, "failpoint", killed)
        kill.setattr(transacted_batch.BatchTransaction, "_abort", lambda _: None)
        copy_in_transactions(spark, stores, tmp_path / "checkpoint")
    copy_in_transactions(spark, stores, tmp_path / "checkpoint")
    for name in ("near", "far"):
        assert stored(stores, f"{name}-out") == stored(stores, name)
    assert pending(stores) == [0, 0] and sum(committed_offsets(stores.store, "g").values()) == 16
