"""A compacted topic as a DataFrame, changes of it, and one row per key."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidOptionError, PolicyViolationError
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import add_partitions
from spark_log.spark.streams.compacted_tables import read_table, table_changes, write_table
from spark_log.spark.streams.deduplication import deduplicated, keep_first, keep_last
from tests.spark.queries import running
from tests.support.records import NOON_MS, append_keyed
from tests.support.spark import assert_same_rows
from tests.support.topics import append, compact_now, fails, make, read, read_stream

ROWS = "key string, value string, partition int, offset bigint"


def shown(spark: SparkSession, cluster: Cluster, topic: str):
    table = read_table(spark, cluster, topic)
    return table.selectExpr("CAST(key AS string)", "CAST(value AS string)", "partition", "offset")


def test_a_table_has_the_last_value_of_each_key(spark: SparkSession, cluster: Cluster, log: ClientLog) -> None:
    topic = make(cluster, "planes", 2, cleanup_policy="compact", inline_max_bytes="0")
    append_keyed(log, topic, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"gone", b"1"))
    append_keyed(log, topic, (b"c", b"1"), (b"c", b"2"), partition=1)
    append_keyed(log, topic, (b"gone", None), (b"b", b"3"))
    expected = spark.createDataFrame([("a", "2", 0, 2), ("b", "3", 0, 5), ("c", "2", 1, 1)], ROWS)
    assert_same_rows(shown(spark, cluster, "planes"), expected)
    compact_now(cluster, "planes")
    assert_same_rows(shown(spark, cluster, "planes"), expected)
    append_keyed(log, topic, (b"gone", b"back"), headers=[("h", b"1")])
    [row] = read_table(spark, cluster, "planes", include_headers=True).where("key = 'gone'").collect()
    assert (row.value, row.offset, row.headers[0].key) == (b"back", 6, "h")
    assert row.timestamp.timestamp() * 1000 == NOON_MS


def test_a_key_that_moved_to_a_new_partition(spark: SparkSession, cluster: Cluster, log: ClientLog) -> None:
    make(cluster, "t", cleanup_policy="compact")
    append(log, "t", "old", "older", key=b"k", timestamp_ms=NOON_MS)
    add_partitions(cluster, "t", 2)
    append(log, "t", "new", key=b"k", timestamp_ms=NOON_MS + 1, partition=1)
    assert [row.value for row in read_table(spark, cluster, "t").collect()] == [b"new"]


def test_a_topic_without_records_and_records_without_keys(
    spark: SparkSession, cluster: Cluster, log: ClientLog
) -> None:
    make(cluster, "t")
    assert read_table(spark, cluster, "t").collect() == []
    append(log, "t", "x", key=None)
    assert read_table(spark, cluster, "t").collect() == []


def test_changes_upsert_and_delete(spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path) -> None:
    address = str(cluster.store.address)
    make(cluster, "planes", cleanup_policy="compact")
    rows = "tailnum string, seats int, gone boolean"
    first = spark.createDataFrame([("a", 1, False), ("b", 2, None), ("c", 3, True)], rows)
    write_table(first, address, "planes", key="tailnum", deleted="gone")
    expected = spark.createDataFrame([("a", '{"seats":1}'), ("b", '{"seats":2}')], "key string, value string")
    found = shown(spark, cluster, "planes").select("key", "value")
    assert_same_rows(found, expected)
    make(cluster, "updates")
    append(log, "updates", "a", key=b"x")
    append(log, "updates", "c", key=b"y")
    updates = read_stream(spark, cluster, subscribe="updates", startingOffsets="earliest").select(
        "value", sf.when(sf.expr("value != 'a'"), sf.col("key")).alias("content")
    )
    query = write_table(updates, address, "planes", key="value", value="content", checkpoint=str(tmp_path / "c"))
    assert query is not None
    query.awaitTermination()
    expected = spark.createDataFrame([("b", '{"seats":2}'), ("c", "y")], "key string, value string")
    found = shown(spark, cluster, "planes").select("key", "value")
    assert_same_rows(found, expected)


def test_changes_that_are_refused(spark: SparkSession, cluster: Cluster, log: ClientLog) -> None:
    address = str(cluster.store.address)
    make(cluster, "plain")
    topic = make(cluster, "planes", cleanup_policy="compact,delete")
    frame = spark.createDataFrame([("a", 1, [1])], "k string, n int, l array<int>")
    with pytest.raises(PolicyViolationError, match=r"'plain' is not compacted .*--config cleanup.policy=compact"):
        write_table(frame, address, "plain", key="k")
    for message, wrong in {
        "key 'x': no such column": {"key": "x"},
        "key 'l' is array<int>": {"key": "l"},
        "value 'n' is int, expected text or bytes; for JSON": {"key": "k", "value": "n"},
        "value 'y': no such column": {"key": "k", "value": ["n", "y"]},
        "deleted 'n' is int, expected boolean": {"key": "k", "deleted": "n"},
        "timestamp 'n' is int": {"key": "k", "timestamp": "n"},
    }.items():
        with pytest.raises(InvalidOptionError, match=message):
            table_changes(frame, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="value: no columns are left"):
        table_changes(frame.select("k"), "k")
    with pytest.raises(InvalidOptionError, match="checkpoint '/c': only for a streaming frame"):
        write_table(frame, address, "planes", key="k", checkpoint="/c")
    with fails("key: column 'k' is null in a row"):
        write_table(frame.union(spark.createDataFrame([(None, 2, [2])], frame.schema)), address, "planes", key="k")
    assert log.positions(topic) == {("planes", 0): (0, 0)}


def test_changes_keep_microseconds(spark: SparkSession) -> None:
    rows = spark.sql("SELECT 'a' AS k, timestamp_micros(1) AS at")
    assert [row.value for row in table_changes(rows, "k").collect()] == ['{"at":"1970-01-01T00:00:00.000001Z"}']


def test_keep_last_and_first(spark: SparkSession, cluster: Cluster, log: ClientLog) -> None:
    make(cluster, "t")
    append(log, "t", "a1", "a2", key=b"a")
    append(log, "t", "b1", key=b"b")
    append(log, "t", "a3", key=b"a")
    rows = read(spark, cluster, subscribe="t")
    assert {row.value: row.offset for row in keep_last(rows, "key").collect()} == {b"a3": 3, b"b1": 2}
    assert {row.value: row.offset for row in keep_first(rows, "key", "topic").collect()} == {b"a1": 0, b"b1": 2}
    assert keep_last(rows, "key").columns == rows.columns
    for message, call in {
        "keys: at least one": lambda: keep_last(rows),
        "key 'x': no such column": lambda: keep_first(rows, "x"),
        "order 'x': no such column": lambda: keep_last(rows, "key", order=["x"]),
        "deduplicated: not a streaming frame": lambda: deduplicated(rows, "key", within="1 hour"),
    }.items():
        with pytest.raises(InvalidOptionError, match=message):
            call()


def test_duplicates_within_a_time(spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path) -> None:
    """Keeps the first row of each key; a repetition after the interval counts as new, and a late row is dropped."""
    make(cluster, "t")
    minute = 60_000
    found: list[tuple[str, int]] = []
    stream = read_stream(spark, cluster, subscribe="t", startingOffsets="earliest")
    once = deduplicated(stream, "key", within="10 minutes")
    with pytest.raises(InvalidOptionError, match="keep_last: a streaming frame"):
        keep_last(stream, "key")

    def collect(batch, _id):
        found.extend((row.value.decode(), row.offset) for row in batch.orderBy("offset").collect())

    writer = once.writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path / "c"))
    with running(writer.start()) as query:
        append(log, "t", "a", "a again", key=b"a", timestamp_ms=NOON_MS)
        query.processAllAvailable()
        append(log, "t", "a once more", key=b"a", timestamp_ms=NOON_MS + 5 * minute)
        append(log, "t", "b", key=b"b", timestamp_ms=NOON_MS + 30 * minute)
        query.processAllAvailable()
        append(log, "t", "a anew", key=b"a", timestamp_ms=NOON_MS + 31 * minute)
        append(log, "t", "late", key=b"c", timestamp_ms=NOON_MS)
        query.processAllAvailable()
    assert found == [("a", 0), ("b", 3), ("a anew", 4)]
