"""A micro-batch into several topics with the group's offsets: all writes become visible at once, and once."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidOptionError
from spark_log.facts.groups import group_lag
from spark_log.groups.committed_offsets import committed_offsets, read_commits
from spark_log.ids import TopicPartition
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.spark.streams import batch_transaction
from spark_log.spark.streams.micro_batch import BatchLocation, _ConnectCheckpoint, checkpoint_of_batch
from spark_log.spark.streams.transacted_batch import BatchTransaction
from spark_log.transactions import transaction_store
from spark_log.transactions.rules import ProducerRef
from spark_log.transactions.transaction_store import init_producer
from tests.spark.queries import register_as
from tests.support.spark import uncommit
from tests.support.topics import append, fails, make, read_stream, stored

IN = TopicPartition("in", 0)
Seen = tuple[int, int, int]
"""Log end offsets of topics a and b, and the group's committed offset, in one snapshot of the store."""


@pytest.fixture
def topics(cluster: Cluster, log: ClientLog) -> None:
    """Topic `in` with four records; records of `a` are inline, records of `b` are in files."""
    make(cluster, "in")
    make(cluster, "a")
    make(cluster, "b", inline_max_bytes="0")
    append(log, "in", "1", "2", "3", "4")


def numbers(spark: SparkSession, cluster: Cluster, **options: str) -> DataFrame:
    given = {"subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2", **options}
    return read_stream(spark, cluster, **given)


def run(frame: DataFrame, checkpoint: Path, process: Callable[[DataFrame, int], None]) -> None:
    writer = frame.writeStream.foreachBatch(process).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def both(batch: DataFrame, transaction: BatchTransaction) -> None:
    """Writes a record into a and one into b for each input record."""
    transaction.write(batch.select("value"), topic="a")
    transaction.write(batch.select("value", F.lit("b").alias("topic")))


def in_a_transaction(
    address: str, body: Callable[[DataFrame, BatchTransaction], None]
) -> Callable[[DataFrame, int], None]:
    def process(batch: DataFrame, _batch_id: int) -> None:
        with batch_transaction(batch, cluster=address, group_id="g") as transaction:
            body(batch, transaction)

    return process


def read_state(cluster: Cluster) -> Seen:
    with cluster.store.snapshot() as connection:
        query = t.partition.select().join(t.topic, t.topic.c.topic_id == t.partition.c.topic_id)
        rows = connection.execute(query.with_only_columns(t.topic.c.name, t.partition.c.high_watermark))
        ends = {row.name: row.high_watermark for row in rows}
        commit = read_commits(connection, "g").get(IN)
    return ends["a"], ends["b"], commit.offset if commit else -1


@contextmanager
def watched(cluster: Cluster) -> Iterator[set[Seen]]:
    """Collects the states that a continuous reader sees."""
    seen, over = {read_state(cluster)}, Event()

    def watch() -> None:
        while not over.wait(0.1):
            seen.add(read_state(cluster))

    thread = Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
        seen.add(read_state(cluster))


def pending(cluster: Cluster) -> int:
    return len(cluster.store.read(lambda c: c.execute(t.transaction_segment.select()).all()))


def test_topics_and_offsets_become_visible_at_once_and_once(
    spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None, checkpoint: Path
) -> None:
    dones, inside = list[bool](), list[tuple[Seen, int]]()

    def body(batch: DataFrame, transaction: BatchTransaction) -> None:
        both(batch, transaction)
        dones.append(transaction.done)
        inside.append((read_state(cluster), pending(cluster)))

    process = in_a_transaction(str(cluster.store.address), body)
    frame = numbers(spark, cluster, maxOffsetsPerTrigger="4")
    with watched(cluster) as seen:
        run(frame, checkpoint, process)
    assert inside == [((0, 0, -1), 2)]
    assert seen == {(0, 0, -1), (4, 4, 4)}
    uncommit(checkpoint, 0)
    append(log, "in", "5")
    assert [(lag.committed, lag.lag) for lag in group_lag(cluster, "g")] == [(4, 1)]
    with watched(cluster) as seen:
        run(frame, checkpoint, process)
    assert dones == [False, True, False]
    assert seen == {(4, 4, 4), (5, 5, 5)}
    assert stored(cluster, "a") == stored(cluster, "b") == {0: ["1", "2", "3", "4", "5"]}


@pytest.mark.slow
def test_failed_batches_are_aborted_and_fenced_drivers_write_nothing(
    spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None, checkpoint: Path
) -> None:
    address, folder = str(cluster.store.address), checkpoint.parent / "cluster"

    def another_driver(batch: DataFrame) -> None:
        init_producer(
            cluster, f"spark-{checkpoint_of_batch(batch.sparkSession, BatchLocation()).batch.query_id}", 60_000
        )

    def trips(batch: DataFrame, transaction: BatchTransaction) -> None:
        transaction.write(batch, topic="b")
        raise ValueError("tripped")

    def swallows_an_error(batch: DataFrame, transaction: BatchTransaction) -> None:
        transaction.write(batch, topic="b")
        with pytest.raises(Exception, match="unknown topic"):
            transaction.write(batch, topic="missing")

    def is_fenced(batch: DataFrame, transaction: BatchTransaction) -> None:
        another_driver(batch)
        transaction.write(batch, topic="b")

    def is_fenced_at_the_end(batch: DataFrame, transaction: BatchTransaction) -> None:
        transaction.write(batch, topic="a")
        another_driver(batch)

    def is_aborted(batch: DataFrame, transaction: BatchTransaction) -> None:
        transaction.write(batch, topic="b")
        [listed] = cluster.store.read(lambda c: c.execute(t.transaction.select()).all())
        transaction_store.abort(cluster, ProducerRef(listed.producer_id, listed.producer_epoch))

    frame = numbers(spark, cluster, maxOffsetsPerTrigger="4")
    for body, said in [
        (trips, "tripped"),
        (swallows_an_error, "1 of its writes failed"),
        (is_fenced, "is fenced by"),
        (is_fenced_at_the_end, "is fenced by"),
        (is_aborted, "has been aborted"),
    ]:
        with fails(said):
            run(frame, checkpoint, in_a_transaction(address, body))
        assert (read_state(cluster), pending(cluster)) == ((0, 0, -1), 0)
    assert not list(folder.rglob("*.parquet")), "what was pending is deleted"

    def tries_again(batch: DataFrame, batch_id: int) -> None:
        with pytest.raises(ValueError, match="tripped"):
            in_a_transaction(address, trips)(batch, batch_id)
        in_a_transaction(address, both)(batch, batch_id)
        with pytest.raises(InvalidOptionError, match="has been committed in this run"):
            in_a_transaction(address, both)(batch, batch_id)
        another_driver(batch)

    append(log, "in", "5")
    with fails("is fenced by"):  # in the next batch too: fencing is final
        run(frame, checkpoint, tries_again)
    assert read_state(cluster) == (4, 4, 4)


@pytest.mark.slow
def test_copied_checkpoints_and_foreign_sources_are_refused(
    spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None, checkpoint: Path
) -> None:
    """The copy of a checkpoint continues with other batches under the same ids: an error, as for the sink."""
    address = str(cluster.store.address)
    process = in_a_transaction(address, lambda batch, transaction: transaction.write(batch, topic="a"))
    frame = numbers(spark, cluster, maxOffsetsPerTrigger="4")
    run(frame, checkpoint, process)
    twin = checkpoint.with_name("twin")
    shutil.copytree(checkpoint, twin)
    append(log, "in", "5")
    run(frame, checkpoint, process)
    append(log, "in", "6")
    with fails("batch 1 was written with 1 rows and comes with other rows now", "The checkpoint was copied"):
        run(frame, twin, process)
    shutil.rmtree(twin)
    shutil.copytree(checkpoint, twin)
    run(frame, checkpoint, process)
    uncommit(twin, 1)
    with fails("batch 1 comes after batch 2 was written"):
        run(frame, twin, process)
    with Cluster.init(str(checkpoint.parent / "other")) as other:
        make(other, "in")
        other_log = ClientLog(other)
        append(other_log, "in", "1")
        other_log.close()
        with fails("group.id 'g': no spark_log source of the query reads from this cluster"):
            run(numbers(spark, other), checkpoint.with_name("others"), process)
    assert read_state(cluster) == (6, 0, 6)
    with pytest.raises(InvalidOptionError, match="inside foreachBatch"):
        batch_transaction(spark.range(1), cluster=address)
    with pytest.raises(InvalidOptionError, match="transaction_timeout_ms 0: expected more than 0"):
        batch_transaction(spark.range(1), cluster=address, transaction_timeout_ms=0)


def test_a_batch_in_progress_is_not_written_again_to_changed_outputs(
    spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None, checkpoint: Path
) -> None:
    """The sink wrote it, and a transaction would write it again, or the reverse."""
    frame, transact = numbers(spark, cluster), in_a_transaction(str(cluster.store.address), both)
    options = {"checkpointLocation": str(checkpoint)}
    sink(frame, cluster, **options)
    uncommit(checkpoint, 1)
    with fails("the outputs of the query have changed", "Run the query with its former outputs"):
        run(frame, checkpoint, transact)
    sink(frame, cluster, **options)
    append(log, "in", "5")
    run(frame, checkpoint, transact)
    uncommit(checkpoint, 2)
    with fails("the outputs of the query have changed", "Run the query with its former outputs"):
        sink(frame, cluster, **options, topic="a")
    run(frame, checkpoint, transact)
    assert stored(cluster, "a") == stored(cluster, "b") == {0: ["1", "2", "3", "4", "5"]}


# --- the sink -------------------------------------------------------------------------------------------------------


def sink(frame: DataFrame, cluster: Cluster, name: str = "spark_log", **options: str) -> None:
    """Writes each record to a and to b, by the column topic."""
    rows = frame.select("value", F.explode(F.array(F.lit("a"), F.lit("b"))).alias("topic"))
    writer = rows.writeStream.format(name).option("cluster", str(cluster.store.address)).option("group.id", "g")
    writer.options(**options).trigger(availableNow=True).start().awaitTermination()


@pytest.mark.slow
def test_the_sink_commits_offsets_with_its_rows(
    spark: SparkSession,
    cluster: Cluster,
    log: ClientLog,
    topics: None,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its commit runs in a Python worker, which is killed after the commit."""
    monkeypatch.setitem(spark.sparkContext.environment, "SPARK_LOG_FAILPOINT", "append.committed")
    doomed = register_as(spark, "spark_log_doomed_in_a_group")
    with fails("worker"):
        sink(numbers(spark, cluster), cluster, doomed, checkpointLocation=str(checkpoint))
    assert read_state(cluster) == (2, 2, 2)
    with watched(cluster) as seen:
        sink(numbers(spark, cluster), cluster, checkpointLocation=checkpoint.as_uri())
    assert seen == {(2, 2, 2), (4, 4, 4)}
    assert stored(cluster, "a") == stored(cluster, "b") == {0: ["1", "2", "3", "4"]}


def test_the_sink_commits_the_offsets_of_every_spark_log_source(
    spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None, checkpoint: Path
) -> None:
    make(cluster, "too", 2)
    append(log, "too", "x", partition=1)
    too = read_stream(spark, cluster, subscribe="too", startingOffsets="earliest")
    rate = spark.readStream.format("rate").load().select(F.col("value").cast("string").cast("binary"))
    frame = numbers(spark, cluster).select("value").union(too.select("value")).union(rate)
    sink(frame, cluster, checkpointLocation=str(checkpoint))
    assert committed_offsets(cluster.store, "g") == {
        IN: 4, TopicPartition("too", 0): 0, TopicPartition("too", 1): 1,
    }  # fmt: skip


def test_a_checkpoint_over_connect_is_of_the_query_that_runs_the_batch(spark, tmp_path):
    """The session is a classic one: both read files."""
    files = {"metadata": '{"id": "q"}', "offsets/0": "v1", "commits/0": "v1", "offsets/1": "v1 of batch 1"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    checkpoint = _ConnectCheckpoint(spark, BatchLocation(1, str(tmp_path)))
    assert (checkpoint.batch.query_id, checkpoint.offset_log()) == ("q", "v1 of batch 1")
    for batch_id, folder in ((0, tmp_path), (1, tmp_path / "other")):
        with pytest.raises(InvalidOptionError, match=f"of no query that runs batch {batch_id}"):
            _ConnectCheckpoint(spark, BatchLocation(batch_id, str(folder)))
