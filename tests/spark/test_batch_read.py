"""Batch reads: every read option of the contract."""

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType

from spark_log.cluster.cluster import Cluster
from spark_log.groups.committed_offsets import Commit, commit_offsets
from spark_log.ids import TopicPartition
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import delete_records
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.datasource.read.batch_reader import BatchReader
from spark_log.spark.datasource.read.read_task import ReadColumns
from tests.spark.queries import configured
from tests.support.data_source import read_values
from tests.support.records import NOON_MS, table
from tests.support.topics import append, fails, fill, make, read, values

COLUMNS = [
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
]
HEADERS = ("headers", "array<struct<key:string,value:binary>>")


@pytest.fixture
def t(cluster: Cluster, log: ClientLog) -> None:
    """Topic t: 5 records in partition 0, 3 in 1, none in 2."""
    make(cluster, "t", 3)
    fill(log, "t", [5, 3])


# --- columns --------------------------------------------------------------------------------------------------------


def test_the_format_needs_no_registration_and_has_the_columns_of_the_kafka_source(
    spark: SparkSession, cluster: Cluster, log: ClientLog, t: None
) -> None:
    frame = read(spark, cluster, subscribe="t")
    assert frame.dtypes == COLUMNS and all(field.nullable for field in frame.schema)
    assert values(frame) == {0: [f"0/{n}" for n in range(5)], 1: [f"1/{n}" for n in range(3)]}
    [row] = frame.where("partition = 1 AND offset = 2").collect()
    assert (row.key, bytes(row.value), row.topic, row.timestampType) == (None, b"1/2", "t", 0)
    assert row.timestamp.timestamp() * 1000 == NOON_MS + 2000


@pytest.mark.parametrize("names", [["value"], ["offset", "key"], []])
def test_an_engine_that_prunes_columns_reads_only_these(
    cluster: Cluster, log: ClientLog, t: None, names: list[str]
) -> None:
    options = ReadOptions.parse({"subscribe": "t", "cluster": str(cluster.store.address)}, streaming=False, environ={})
    reader = BatchReader(options, ReadColumns(tuple(name for name, _ in COLUMNS), StructType()))
    reader.pruneColumns(pa.schema([(name, pa.binary()) for name in names]))
    executor = pickle.loads(pickle.dumps(reader))
    batches = [batch for task in reader.partitions() for batch in executor.read(task)]
    assert sum(batch.num_rows for batch in batches) == 8
    assert {tuple(batch.schema.names) for batch in batches} == {tuple(names)}


def test_headers(spark: SparkSession, cluster: Cluster, log: ClientLog) -> None:
    make(cluster, "t")
    append(log, "t", "with", headers=[("a", b"1"), ("a", b"2"), ("b", None)])  # type: ignore[list-item]
    append(log, "t", "without")
    frame = read(spark, cluster, subscribe="t", includeHeaders="TRUE")
    assert frame.dtypes == [*COLUMNS, HEADERS]
    first, second = frame.orderBy("offset").collect()
    assert [(h.key, h.value and bytes(h.value)) for h in first.headers] == [("a", b"1"), ("a", b"2"), ("b", None)]
    assert second.headers is None


def test_only_selected_columns_are_read(spark: SparkSession, cluster: Cluster, log: ClientLog, t: None) -> None:
    frame = read(spark, cluster, subscribe="t", columns="OFFSET, partition,headers")
    assert frame.dtypes == [("offset", "bigint"), ("partition", "int"), HEADERS]
    assert sorted((r.partition, r.offset) for r in frame.collect()) == [(0, n) for n in range(5)] + [
        (1, n) for n in range(3)
    ]


@pytest.mark.parametrize(
    "schema",
    ["value string", ", ".join(f"{name} {'string' if name == 'value' else kind}" for name, kind in COLUMNS)],
)
def test_a_user_schema_is_refused(spark: SparkSession, cluster: Cluster, t: None, schema: str) -> None:
    reader = spark.read.format("spark_log").options(cluster=str(cluster.store.address), subscribe="t").schema(schema)
    with fails("fixed schema and cannot be set with a custom one"):
        reader.load().collect()


# --- options and their errors ---------------------------------------------------------------------------------------


INVALID: list[tuple[dict[str, str], str]] = [
    ({"startingOffsets": '{"t":{"0":0}}'}, "Specified: Set(t-0) Assigned: Set(t-0, t-1, t-2)"),
    (
        {"startingOffsets": '{"t":{"0":0,"1":0,"2":0,"3":0}}'},
        "Partitions specified for start offsets don't match what are assigned",
    ),
    ({"endingOffsets": '{"t":{"0":1}}'}, "Partitions specified for end offsets don't match"),
    (
        {"startingTimestamp": str(NOON_MS + 10**9)},
        f"No offset matched from request of topic-partition t-0 and timestamp {NOON_MS + 10**9}.",
    ),
    (
        {"startingOffsetsByTimestamp": '{"t":{"0":0}}'},
        "Partitions specified for timestamp based start offsets don't match",
    ),
]


def test_options_that_do_not_fit_the_topic_are_named(cluster: Cluster, t: None) -> None:
    """Without Spark's processes: that errors pass through them is shown below. All other invalid options are in
    tests/unit/spark/datasource/test_options.py.
    """
    for options, message in INVALID:
        with fails(message):
            read_values(cluster, subscribe="t", **options)


def test_errors_of_planning_reach_the_user(spark: SparkSession, cluster: Cluster, t: None) -> None:
    with fails("unknown topic or partition"):
        read(spark, cluster, subscribe="nowhere").collect()
    with fails("The resolved start offset 9 is greater"):
        read(spark, cluster, subscribe="t", startingOffsets='{"t":{"0":9,"1":0,"2":0}}').collect()


@pytest.mark.parametrize("streaming", [False, True])
def test_invalid_options_are_refused_at_load(spark: SparkSession, cluster: Cluster, t: None, streaming: bool) -> None:
    reader = (spark.readStream if streaming else spark.read).format("spark_log")
    reader = reader.option("cluster", str(cluster.store.address))
    with fails("One of the following options must be specified for spark_log source"):
        reader.load()
    with fails("No topics to subscribe to as specified value for option 'subscribe' is ','"):
        reader.option("subscribe", ",").load()
    with fails('Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got {"t":5}'):
        reader.option("subscribe", "t").option("startingOffsets", '{"t":5}').load()
    secure = {"kafka.security.protocol": "SASL_SSL", "kafka.ssl.truststore.password": "hunter2"}
    with fails("Kafka options 'security.protocol' (SASL_SSL), 'ssl.truststore.password' are not supported"):
        reader.option("subscribe", "t").option("startingOffsets", "earliest").options(**secure).load()


def test_a_missing_cluster_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with fails("Option 'cluster' must be specified"):
        spark.read.format("spark_log").option("subscribe", "t").load().collect()
    with fails("spark-log init"):
        read(spark, str(tmp_path / "nowhere"), subscribe="t").collect()
    assert not (tmp_path / "nowhere").exists()
    kafka = spark.read.format("spark_log").option("kafka.bootstrap.servers", "b1:9092,b2:9092").option("subscribe", "t")
    with fails("cluster: 'b1:9092,b2:9092' is the address of a Kafka broker"):
        kafka.load().collect()


def test_a_password_is_never_shown(spark: SparkSession) -> None:
    url = "mysql://me:s3cret@127.0.0.1:1/log"
    frame = read(spark, url, subscribe="t")
    with pytest.raises(Exception, match=r"127\.0\.0\.1") as raised:
        frame.collect()
    assert "s3cret" not in str(raised.value)


def test_option_names_are_case_insensitive_have_aliases_and_unknown_ones_are_ignored(
    spark: SparkSession, cluster: Cluster, t: None
) -> None:
    named = {
        "kafka.Bootstrap.Servers": str(cluster.store.address),
        "SUBSCRIBE": " t , t",
        "STARTINGOFFSETS": " EarLiest ",
        "endingoffsets": ' {"t":{"0":2,"1":-1,"2":0}} ',
        "kafka.group.id": "g",
        "kafka.fetch.min.bytes": "1",
        "nonsense": "1",
    }
    assert values(spark.read.format("SPARK_LOG").options(**named).load()) == {
        0: ["0/0", "0/1"],
        1: ["1/0", "1/1", "1/2"],
    }


def test_sql(spark: SparkSession, cluster: Cluster, t: None) -> None:
    where = f"'cluster'='{cluster.store.address}', 'subscribe'='t'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW of_t USING spark_log OPTIONS ({where}, 'startingOffsets'='earliest')")
    [row] = spark.sql("SELECT count(*) AS n, max(offset) AS last FROM of_t WHERE partition = 0").collect()
    assert (row.n, row.last) == (5, 4)
    spark.catalog.dropTempView("of_t")


# --- subscriptions --------------------------------------------------------------------------------------------------


def test_subscribe_pattern_and_assign(spark: SparkSession, cluster: Cluster, log: ClientLog) -> None:
    for name in ("news.eu", "news.us", "olds", "x-news"):
        make(cluster, name, 2)
        append(log, name, name, partition=1)

    def topics(**options: str) -> set[str]:
        return {row.topic for row in read(spark, cluster, **options).collect()}

    assert topics(subscribe="news.eu,olds") == {"news.eu", "olds"}
    assert topics(subscribePattern=r"news\..*") == {"news.eu", "news.us"}
    assert topics(subscribePattern="news") == {"news.eu", "news.us", "x-news"}  # found anywhere in the name
    assert topics(subscribePattern="^news") == {"news.eu", "news.us"}
    assert topics(subscribePattern="nothing") == set()
    assert topics(assign='{"olds":[1,7],"news.us":[0],"gone":[0]}') == {"olds"}


# --- start and end --------------------------------------------------------------------------------------------------


RANGES: list[tuple[dict[str, Any], dict[int, tuple[int, int]]]] = [
    ({}, {0: (0, 5), 1: (0, 3)}),
    ({"startingOffsets": '{"t":{"0":2,"1":-2,"2":0}}'}, {0: (2, 5), 1: (0, 3)}),
    ({"endingOffsets": '{"t":{"0":2,"1":-1,"2":-1}}'}, {0: (0, 2), 1: (0, 3)}),
    ({"startingOffsets": '{"t":{"0":5,"1":3,"2":0}}'}, {}),
    ({"startingTimestamp": NOON_MS + 1500, "startingOffsetsByTimestampStrategy": "Latest"}, {0: (2, 5), 1: (2, 3)}),
    (
        {"startingTimestamp": NOON_MS, "startingOffsets": "x", "startingOffsetsByTimestampStrategy": "latest"},
        {0: (0, 5), 1: (0, 3)},
    ),  # timestamps take precedence
    (
        {
            "startingOffsetsByTimestamp": json.dumps({"t": {"0": NOON_MS + 3000, "1": NOON_MS + 9000, "2": 0}}),
            "startingOffsetsByTimestampStrategy": "latest",
        },
        {0: (3, 5)},
    ),
    ({"endingTimestamp": NOON_MS + 2000}, {0: (0, 2), 1: (0, 2)}),
    ({"endingTimestamp": NOON_MS + 10**9}, {0: (0, 5), 1: (0, 3)}),  # no record is as new: latest
    (
        {"endingOffsetsByTimestamp": json.dumps({"t": {"0": NOON_MS, "1": NOON_MS + 1000, "2": 0}})},
        {1: (0, 1)},
    ),
    ({"endingTimestamp": NOON_MS + 1000, "endingOffsets": "latest"}, {0: (0, 1), 1: (0, 1)}),
]


def test_start_and_end_options_select_ranges(cluster: Cluster, t: None) -> None:
    for options, counts in RANGES:
        expected = {p: [f"{p}/{n}" for n in range(*bounds)] for p, bounds in counts.items()}
        assert read_values(cluster, subscribe="t", **options) == expected, options


def test_a_dataframe_is_one_snapshot(spark: SparkSession, cluster: Cluster, log: ClientLog, t: None) -> None:
    frame = read(spark, cluster, subscribe="t")
    assert frame.count() == 8
    fill(log, "t", [2, 2, 2])
    assert frame.count() == 8 and frame.where("partition = 0").count() in (5, 7)  # a new plan may see more
    assert read(spark, cluster, subscribe="t").count() == 14


# --- tasks ----------------------------------------------------------------------------------------------------------


def tasks(frame: Any) -> int:
    return int(frame.rdd.getNumPartitions())


def test_splitting(spark: SparkSession, cluster: Cluster, log: ClientLog) -> None:
    topic = make(cluster, "t", 2)
    log.append(topic, [Records(0, table(*map(str, range(90)))), Records(1, table(*map(str, range(10))))])
    for options, count in [
        ({}, 2),
        ({"minPartitions": 10}, 10),
        ({"maxRecordsPerPartition": 25}, 5),
        ({"maxRecordsPerPartition": 100, "minPartitions": 4}, 4),
    ]:
        frame = read(spark, cluster, subscribe="t", **options)
        assert tasks(frame) == count, options
        assert values(frame) == {0: [str(n) for n in range(90)], 1: [str(n) for n in range(10)]}


def test_filters_leave_out_tasks_but_no_rows(spark: SparkSession, cluster: Cluster, log: ClientLog) -> None:
    topic = make(cluster, "t", 8)
    other = make(cluster, "u", 1)
    for partition in range(8):
        fill_one = [f"{partition}/{n}" for n in range(20)]
        log.append(topic, [Records(partition, table(*fill_one[:10]))])
        log.append(topic, [Records(partition, table(*fill_one[10:], timestamp_ms=NOON_MS + 5_000))])
    log.append(other, [Records(0, table("u"))])
    conditions = {
        "partition = 3": 1,
        "partition IN (1, 2) AND offset >= 15": 2,
        "topic = 'u'": 1,
        "offset < 0": 1,  # Spark creates a task itself if there is none
        "timestamp > timestamp'2100-01-01 00:00:00'": 1,
        "value = '3/3'": 9,
        "partition <=> 3 OR offset = 1": 9,
        "NOT (partition = 3)": 9,
    }
    unfiltered = read(spark, cluster, subscribe="t,u")
    whole = spark.createDataFrame(unfiltered.collect(), unfiltered.schema)

    def sorted_rows(frame: Any) -> list[tuple[str, int, int, bytes]]:
        return sorted((r.topic, r.partition, r.offset, bytes(r.value)) for r in frame.collect())

    with configured(spark, "spark.sql.python.filterPushdown.enabled", "true"):
        for condition, count in conditions.items():
            frame = read(spark, cluster, subscribe="t,u").where(condition)
            assert sorted_rows(frame) == sorted_rows(whole.where(condition)), condition
            assert tasks(frame) == count, condition


def test_timestamps_are_pushed_down_in_any_zone(spark: SparkSession, cluster: Cluster, log: ClientLog, t: None) -> None:
    """NOON_MS is 2023-11-14 22:13:20 UTC."""
    for zone, text in [("UTC", "2023-11-14 22:13:22"), ("Asia/Tokyo", "2023-11-15 07:13:22")]:
        with configured(spark, "spark.sql.session.timeZone", zone):
            frame = read(spark, cluster, subscribe="t").where(F.col("timestamp") >= F.lit(text).cast("timestamp"))
            assert frame.count() == 3 + 1, zone


# --- data loss ------------------------------------------------------------------------------------------------------


def test_deleted_records(spark: SparkSession, cluster: Cluster, log: ClientLog, t: None) -> None:
    delete_records(cluster, {TopicPartition("t", 0): 3})
    assert values(read(spark, cluster, subscribe="t"))[0] == ["0/3", "0/4"]  # earliest is the log start offset
    asked = {"subscribe": "t", "startingOffsets": '{"t":{"0":1,"1":0,"2":0}}'}
    with fails("data may have been lost", "Could not read records in offset [1, 3) for topic partition t-0"):
        read(spark, cluster, **asked).collect()
    assert values(read(spark, cluster, **asked, failOnDataLoss=False))[0] == ["0/3", "0/4"]
    beyond = {"subscribe": "t", "endingOffsets": '{"t":{"0":9,"1":0,"2":0}}'}
    with fails("data may have been lost", "Could not read records in offset [5, 9) for topic partition t-0"):
        read(spark, cluster, **beyond).collect()
    assert values(read(spark, cluster, **beyond, failOnDataLoss=False))[0] == ["0/3", "0/4"]


def test_a_batch_starts_at_the_committed_offsets_of_a_group(spark: SparkSession, cluster: Cluster, t: None) -> None:
    commit_offsets(cluster.store, "loaders", {TopicPartition("t", 0): 3})
    frame = read(spark, cluster, subscribe="t", startingOffsets="committed", **{"group.id": "loaders"})
    assert values(frame) == {0: ["0/3", "0/4"], 1: ["1/0", "1/1", "1/2"]}


def test_committed_offsets_are_readable_as_a_topic(spark: SparkSession, cluster: Cluster, t: None) -> None:
    commit_offsets(cluster.store, "loaders", {TopicPartition("t", 0): 3, TopicPartition("t", 1): 1})
    commit_offsets(cluster.store, "others", {TopicPartition("t", 0): Commit(1, "by hand")})
    commit_offsets(cluster.store, "loaders", {TopicPartition("t", 0): 5})
    frame = read(spark, cluster, subscribe="__consumer_offsets")
    key = F.from_json(F.col("key").cast("string"), "group STRING, topic STRING, partition INT")
    value = F.from_json(F.col("value").cast("string"), "offset BIGINT, metadata STRING, commitTimestamp BIGINT")
    rows = frame.select(key.alias("k"), value.alias("v"), "partition", "offset", "timestamp").collect()
    found = {(row.k.group, row.k.topic, row.k.partition): (row.v.offset, row.v.metadata) for row in rows}
    assert len(rows) == 3
    assert found == {
        ("loaders", "t", 0): (5, ""),
        ("loaders", "t", 1): (1, ""),
        ("others", "t", 0): (1, "by hand"),
    }
    loaders = {row.k.partition: row for row in rows if row.k.group == "loaders"}
    assert loaders[0].offset > loaders[1].offset, "the order of the commits"
    assert loaders[0].timestamp.timestamp() * 1000 == loaders[0].v.commitTimestamp
    assert values(read(spark, cluster, subscribePattern=".*offsets")) == {}, "patterns leave internal topics out"
