"""Batch writes: every row of the contract's write table, and atomicity."""

import contextlib
from pathlib import Path

import pytest
import sqlalchemy as sa
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.spark.datasource.write import address_handoff
from tests.spark.queries import left_behind
from tests.support.data_source import write_frame
from tests.support.records import NOON_MS
from tests.support.topics import all_stored, append, fails, make, read, stored, write

TOPIC_NEEDED = "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."


# --- columns and their types ----------------------------------------------------------------------------------------


INVALID: list[tuple[str, dict[str, str], str]] = [
    ("'v' AS value", {}, TOPIC_NEEDED),
    ("'v' AS value, 't' AS Topic", {}, TOPIC_NEEDED),  # names are case-sensitive
    ("'v' AS Value", {"topic": "t"}, "Required attribute 'value' not found"),
    ("'k' AS key", {"topic": "t"}, "Required attribute 'value' not found"),
    ("1 AS value", {"topic": "t"}, "value attribute unsupported type int. value must be a(n) string or binary"),
    ("'v' AS value, 1 AS key", {"topic": "t"}, "key attribute unsupported type int. key must be a(n) string or"),
    ("'v' AS value, 1 AS topic", {}, "topic attribute unsupported type int. topic must be a string"),
    ("'v' AS value, 1 AS topic", {"topic": "t"}, "topic attribute unsupported type int"),
    ("'v' AS value, 1L AS partition", {"topic": "t"}, "partition attribute unsupported type bigint"),
    ("'v' AS value, map('a', 'b') AS headers", {"topic": "t"}, "headers attribute unsupported type map"),
    (
        "'v' AS value, array(struct('a' AS key, 'b' AS value)) AS headers",
        {"topic": "t"},
        "headers must be a(n) array<struct<key:string,value:binary>>",
    ),
    ("'v' AS value, 'now' AS timestamp", {"topic": "t"}, "timestamp attribute unsupported type string"),
    ("'v' AS value, CAST(NULL AS string) AS topic", {}, "null topic present in the data"),
    ("'v' AS value, 'nowhere' AS topic", {}, "'nowhere': unknown topic or partition"),
    ("repeat('v', 3000) AS value", {"topic": "t"}, "max.message.bytes is 2000"),
]


def test_invalid_writes_are_named_and_nothing_is_written(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    """In this process; that errors of plans and tasks pass through Spark's is shown below."""
    make(cluster, "t", 2, max_message_bytes="2000")
    for columns, options, message in INVALID:
        with fails(message):
            write_frame(spark.sql(f"SELECT {columns}"), cluster, **options)
        assert stored(cluster, "t") == {}, message
        assert left_behind(cluster, tmp_path) == (0, 0), message


def test_errors_of_plans_and_tasks_reach_the_user(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    make(cluster, "t", 2)
    for columns, topic, message in [
        ("1 AS value", "t", "value attribute unsupported type int. value must be a(n) string or binary"),
        ("'v' AS value", "nowhere", "unknown topic or partition"),
        ("'v' AS value, 2 AS partition", "t", "partition: 2 does not exist, the topic has 2 partitions"),
    ]:
        with fails(message):
            write(spark.sql(f"SELECT {columns}"), cluster, topic=topic)
        assert stored(cluster, "t") == {}
        assert left_behind(cluster, tmp_path) == (0, 0)


def test_save_modes(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    make(cluster, "t")
    frame = spark.sql("SELECT 'v' AS value")
    with fails('Save mode Overwrite not allowed for spark_log. Allowed save mode is Append: use .mode("append")'):
        write(frame, cluster, mode="overwrite", topic="t")
    for mode in ("ignore", "errorifexists"):
        with fails("cannot be written in the", '"Append"'):  # Spark's own, before any of our code runs
            write(frame, cluster, mode=mode, topic="t")
    with fails('cannot be written in the "ErrorIfExists" mode', '"Append"'):  # the default mode, as in the README
        frame.write.format("spark_log").option("cluster", str(cluster.store.address)).option("topic", "t").save()
    assert stored(cluster, "t") == {}
    write(frame, cluster, topic="t")
    assert stored(cluster, "t") == {0: ["v"]}
    assert left_behind(cluster, tmp_path) == (0, 0)


def test_compression_of_a_write_applies_to_topics_without_their_own(spark: SparkSession, cluster: Cluster) -> None:
    make(cluster, "default", inline_max_bytes="0")
    make(cluster, "set", inline_max_bytes="0", compression_type="snappy")
    frame = spark.sql("SELECT 'v' AS value, topic FROM VALUES ('default'), ('set') AS topics(topic)")
    write(frame, cluster, kafka__compression__type="gzip", kafka__acks="1")
    query = sa.select(tables.topic.c.name, SEGMENT.codec).join(
        tables.segment, SEGMENT.topic_id == tables.topic.c.topic_id
    )
    rows = cluster.store.read(lambda connection: connection.execute(query).all())
    assert sorted(map(tuple, rows)) == [("default", "gzip"), ("set", "snappy")]


def test_columns_of_every_kind_are_read_back(spark: SparkSession, cluster: Cluster) -> None:
    make(cluster, "t", 2)
    frame = spark.createDataFrame(
        [
            Row(value="text", key="k", partition=1, headers=[("a", b"1"), ("a", None)], other=1),
            Row(value=None, key=None, partition=1, headers=None, other=2),
            Row(value="ünï", key="", partition=1, headers=[], other=3),
        ],
        "value string, key string, partition int, headers array<struct<key:string,value:binary>>, other int",
    ).coalesce(1)
    write(frame, cluster, topic=" t ")
    rows = read(spark, cluster, subscribe="t", includeHeaders=True).orderBy("offset").collect()
    assert [(row.partition, row.key, row.value) for row in rows] == [
        (1, b"k", b"text"),
        (1, None, None),
        (1, b"", "ünï".encode()),
    ]
    assert [row.headers for row in rows] == [[Row(key="a", value=b"1"), Row(key="a", value=None)], None, None]
    assert rows[0].timestamp == rows[2].timestamp  # the time of the write


def test_binary_columns_and_the_rows_of_a_read_can_be_written(spark: SparkSession, cluster: Cluster) -> None:
    make(cluster, "a")
    make(cluster, "b")
    frame = spark.createDataFrame([(b"\xff\x00", b"\x80")], "value binary, key binary")
    write(frame, cluster, topic="a")
    write(read(spark, cluster, subscribe="a", includeHeaders=True), cluster, topic="b")
    [copied] = read(spark, cluster, subscribe="b").collect()
    [original] = read(spark, cluster, subscribe="a").collect()
    assert (copied.key, copied.value) == (b"\x80", b"\xff\x00")
    assert copied.timestamp == original.timestamp


def test_timestamps(spark: SparkSession, cluster: Cluster) -> None:
    make(cluster, "t")
    given = spark.sql(f"SELECT '1' AS value, timestamp_millis({NOON_MS}) AS timestamp")
    write(given, cluster, topic="t")
    write(spark.sql("SELECT '2' AS value, CAST(NULL AS timestamp) AS timestamp"), cluster, topic="t")
    alter_configs(cluster, "t", {"message.timestamp.type": "LogAppendTime"})
    write(given, cluster, topic="t")
    first, second, third = read(spark, cluster, subscribe="t").orderBy("offset").collect()
    assert (first.timestamp.timestamp() * 1000, first.timestampType) == (NOON_MS, 0)
    assert (second.timestamp.timestamp() * 1000 > NOON_MS + 86_400_000, second.timestampType) == (True, 0)
    assert (third.timestamp >= second.timestamp, third.timestampType) == (True, 1)


def test_column_and_option_topic(spark: SparkSession, cluster: Cluster) -> None:
    make(cluster, "a")
    make(cluster, "b")
    frame = spark.sql("SELECT * FROM VALUES ('1', 'a'), ('2', 'b'), ('3', 'a') AS t(value, topic)").coalesce(1)
    write(frame, cluster)
    assert (stored(cluster, "a"), stored(cluster, "b")) == ({0: ["1", "3"]}, {0: ["2"]})
    write(frame, cluster, topic="b")  # the option takes precedence over the column
    assert stored(cluster, "b") == {0: ["2", "1", "2", "3"]}


def test_an_empty_frame_writes_nothing(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    make(cluster, "t")
    write(spark.sql("SELECT 'v' AS value WHERE false"), cluster, topic="t")
    assert stored(cluster, "t") == {} and left_behind(cluster, tmp_path) == (0, 0)


# --- all or nothing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inline", ["65536", "0"])
def test_one_failing_task_fails_the_whole_write(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, inline: str
) -> None:
    make(cluster, "t", 2, inline_max_bytes=inline)

    @F.udf("string")
    def trip(n):
        if n == 3_500:
            raise ValueError("tripped over row 3500")
        return str(n)

    frame = spark.range(0, 4_000, 1, 4).select(trip("id").alias("value"))
    with fails("tripped over row 3500"):
        write(frame, cluster, topic="t")
    assert stored(cluster, "t") == {}
    _, write_ids = left_behind(cluster, tmp_path)  # clean-up deletes the files of tasks that Spark killed
    assert write_ids == 0


def test_one_bad_row_fails_the_whole_write(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    make(cluster, "t", 1, inline_max_bytes="0")
    frame = spark.range(0, 100, 1, 4).selectExpr("CAST(id AS string) AS value", "int(id) div 99 AS partition")
    frame = frame.withColumn("partition", F.col("partition").cast("int"))
    with fails("partition: 1 does not exist"):
        write(frame.coalesce(1), cluster, topic="t")
    assert stored(cluster, "t") == {} and left_behind(cluster, tmp_path) == (0, 0)


def test_no_address_hand_off_file_is_left(spark: SparkSession, cluster: Cluster) -> None:
    make(cluster, "t")
    write(spark.sql("SELECT 'v' AS value"), cluster, topic="t")
    with fails("does not exist"):
        write(spark.sql("SELECT 'v' AS value, 5 AS partition"), cluster, topic="t")
    contents = []
    for file in address_handoff._folder().glob("*"):  # other programs of this user write there too
        with contextlib.suppress(FileNotFoundError):
            contents.append(file.read_text())
    assert str(cluster.store.address) not in contents


def test_a_write_into_the_topic_that_it_reads(spark: SparkSession, cluster: Cluster, log: ClientLog) -> None:
    """The plan of the read is a snapshot: it does not include the rows that the write appends."""
    make(cluster, "t")
    append(log, "t", "a", "b")
    write(read(spark, cluster, subscribe="t"), cluster, topic="t")
    assert stored(cluster, "t") == {0: ["a", "b", "a", "b"]}


# --- idempotence ----------------------------------------------------------------------------------------------------


def test_a_version_is_written_once_for_each_target(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    for name in ("a", "b"):
        make(cluster, name, 1, inline_max_bytes="0")
    frame = spark.sql("SELECT 'v' AS value")

    def once(version: int, **options: str) -> None:
        write(frame, cluster, txnAppId="app", txnVersion=version, **options)

    once(5, topic="a")
    once(5, topic="a")
    once(4, topic="a")
    assert stored(cluster, "a") == {0: ["v"]}
    once(5, topic="b")
    assert stored(cluster, "b") == {0: ["v"]}
    once(6, topic="a")
    write(frame, cluster, txnAppId="other", txnVersion=1, topic="a")
    write(frame, cluster, topic="a")
    assert stored(cluster, "a") == {0: ["v"] * 4}
    assert left_behind(cluster, tmp_path) == (0, 0)


def test_a_failed_version_can_be_written_again(spark: SparkSession, cluster: Cluster) -> None:
    make(cluster, "t")
    with fails("does not exist"):
        write(spark.sql("SELECT 'v' AS value, 9 AS partition"), cluster, topic="t", txnAppId="a", txnVersion=1)
    write(spark.sql("SELECT 'v' AS value"), cluster, topic="t", txnAppId="a", txnVersion=1)
    assert all_stored(cluster, "t") == ["v"]
