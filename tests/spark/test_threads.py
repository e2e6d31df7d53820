"""Writes from threads other than the one that created the session."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_log import activate_session, write_topic
from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.client_log import ClientLog
from spark_log.spark.streams import TopicOutput, batch_transaction, write_stream, write_table
from tests.support.topics import all_stored, append, fails, make, read_stream, write

WRITES, THREADS = 12, 4


def numbers(spark: SparkSession, n: int) -> DataFrame:
    """Ten records `n/0` to `n/9` in two tasks."""
    return spark.range(0, 10, 1, 2).selectExpr(f"concat('{n}/', id) AS value", "CAST(id AS string) AS key")


def expected(writes: int) -> list[str]:
    return sorted(f"{n}/{row}" for n in range(writes) for row in range(10))


def in_a_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


def test_concurrent_writes_of_a_thread_pool_are_each_stored_once(spark: SparkSession, cluster: Cluster) -> None:
    make(cluster, "t", 2)
    with ThreadPoolExecutor(THREADS, initializer=activate_session, initargs=(spark,)) as pool:
        list(pool.map(lambda n: write(numbers(spark, n), cluster, topic="t"), range(WRITES)))
    assert all_stored(cluster, "t") == expected(WRITES)


def test_write_topic_needs_no_preparation_of_its_thread(spark: SparkSession, cluster: Cluster) -> None:
    make(cluster, "t")
    address = str(cluster.store.address)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda n: write_topic(numbers(spark, n), address, "t"), range(THREADS)))
    assert all_stored(cluster, "t") == expected(THREADS)
    named = numbers(spark, 0).selectExpr("value", "'u' AS topic")
    make(cluster, "u")
    for _ in range(2):
        in_a_thread(lambda: write_topic(named, cluster, txn=("app", 1)))
    assert all_stored(cluster, "u") == expected(1)


def test_a_thread_without_an_active_session_does_not_find_the_format(spark: SparkSession, cluster: Cluster) -> None:
    """Spark's own behaviour, which the README explains."""
    make(cluster, "t")
    with fails("DATA_SOURCE_NOT_FOUND"):
        in_a_thread(lambda: write(numbers(spark, 0), cluster, topic="t"))


def test_an_active_session_is_not_replaced(spark: SparkSession) -> None:
    def call() -> bool:
        other = spark.newSession()
        activate_session(other)
        activate_session(spark)
        jvm: Any = spark._jvm
        return bool(jvm.org.apache.spark.sql.SparkSession.active().equals(other._jsparkSession))

    assert in_a_thread(call)


def test_tables_and_streams_are_written_from_any_thread(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path
) -> None:
    address = str(cluster.store.address)
    make(cluster, "table", cleanup_policy="compact")
    make(cluster, "in")
    make(cluster, "out")
    append(log, "in", "a", "b")
    in_a_thread(lambda: write_table(numbers(spark, 0), address, "table", key="key", value="value"))
    assert all_stored(cluster, "table") == expected(1)

    def stream() -> None:
        frame = read_stream(spark, cluster, subscribe="in", startingOffsets="earliest").select("value")
        checkpoint = str(tmp_path / "checkpoint")
        output = TopicOutput(address, "out")
        write_stream(frame, output, checkpoint=checkpoint, trigger="available-now").awaitTermination()

    in_a_thread(stream)
    assert all_stored(cluster, "out") == ["a", "b"]


def test_the_writes_of_a_batch_transaction_may_be_concurrent(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path
) -> None:
    for name in ("in", "out"):
        make(cluster, name)
    append(log, "in", "a", "b")

    def process(batch: DataFrame, _batch_id: int) -> None:
        with (
            batch_transaction(batch, cluster=str(cluster.store.address)) as transaction,
            ThreadPoolExecutor(2) as pool,
        ):
            list(pool.map(lambda _: transaction.write(batch.select("value"), "out"), range(2)))

    frame = read_stream(spark, cluster, subscribe="in", startingOffsets="earliest")
    writer = frame.writeStream.foreachBatch(process).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert all_stored(cluster, "out") == ["a", "a", "b", "b"]
