"""Compaction on Spark, and Spark readers of compacted topics."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from spark_log import read_topic
from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidConfigurationError, StorageUnavailableError, UnknownTopicOrPartitionError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.append.partitioner import partition_of, split_by_partition
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.log.records.schema import RECORD_SCHEMA, read_schema
from spark_log.maintenance import compact_on_spark
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import delete_records
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.spark.jobs.maintenance import MaintenanceArguments, do_tasks
from tests.support.disk_faults import flipped_in_page, replicas_of
from tests.support.records import NOON_MS
from tests.support.replicas import add_brokers, topic_on
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import make, read, read_stream

KEY_COLUMN = 2
"""Size of a segment file."""

Latest = dict[tuple[int, bytes], tuple[int, bytes | None]]
"""(partition, key) -> (offset, value)."""


def records(keys, first):
    """One record for each key; every seventh is a tombstone, and every fifth has a header."""
    rows = len(keys)
    numbers = range(first, first + rows)
    headers = [[("n", b"%d" % n)] if n % 5 == 0 else None for n in numbers]
    columns = [
        pa.array(keys, pa.binary()),
        pa.array([None if n % 7 == 0 else b"value %d" % n for n in numbers], pa.binary()),
        pa.array(headers, RECORD_SCHEMA.field("headers").type),
        pa.array(np.arange(first, first + rows) * 1_000_000 + NOON_MS * 1000).cast(
            RECORD_SCHEMA.field("timestamp").type
        ),
    ]
    return pa.table(columns, schema=RECORD_SCHEMA)


def fill(log, topic, batches, rows, keys, latest, hot=0.0):
    """Append batches of records with random keys (of `keys`; a share of `hot` has one key), and record the last of each
    key in `latest`.
    """
    random = np.random.default_rng(3)
    for batch in range(batches):
        numbers = np.where(random.random(rows) < hot, 0, random.integers(0, keys, rows)).tolist()
        table = records([b"key-%d" % number for number in numbers], batch * rows)
        parts = split_by_partition(table, partition_of(table.column("key"), None, topic.partition_count))
        for partition, part in parts:
            [outcome] = log.append(topic, [Records(partition, part)])
            assert isinstance(outcome, Appended)
            offsets = range(outcome.base_offset, outcome.end_offset)
            for offset, key, value in zip(offsets, part["key"].to_pylist(), part["value"].to_pylist(), strict=True):
                latest[partition, key] = (offset, value)


def found_in(log: ClientLog, topic, *partitions: int) -> Latest:
    """The records of these partitions, or of all; there must be one per key."""
    ranges = {
        tp: OffsetRange(*where)
        for tp, where in log.positions(topic).items()
        if not partitions or tp.partition in partitions
    }
    schema = read_schema(columns=["partition", "offset", "key", "value"])
    rows = [row for batch in log.read(ranges, schema) for row in batch.to_pylist()]
    found = {(row["partition"], row["key"]): (row["offset"], row["value"]) for row in rows}
    assert len(found) == len(rows), "one record of each key"
    return found


@pytest.fixture
def compacted(spark: SparkSession, cluster: Cluster, log: ClientLog):
    """Topic `t` of three partitions and many units, compacted beside another, and its records that must remain."""
    latest: Latest = {}
    untimed = {"delta_max_lag_ms": "-1"}  # a seal by age ends a unit, and only units that change are counted
    topic = make(cluster, "t", 3, cleanup_policy="compact", inline_max_bytes="3000", segment_bytes="9000", **untimed)
    fill(log, topic, 12, 500, 300, latest, hot=0.6)
    hot: Latest = {}
    other = make(cluster, "hot", 2, cleanup_policy="compact,delete", retention_ms="-1", **untimed)
    fill(log, other, 2, 3_000, 20_000, hot, hot=0.9)
    make(cluster, "plain", 1)
    told: list[str] = []
    reports = compact_on_spark(spark, str(cluster.store.address), progress=told.append)
    assert [report.topic for report in reports] == ["hot", "t"]
    assert [report.before.records for report in reports] == [6_000, 6_000]
    assert [report.after.records for report in reports] == [len(hot), len(latest)]
    assert reports[1].before.files > reports[1].after.files > 3
    assert told[0].startswith("due: 5 partitions, 12,000 records, ")
    assert found_in(log, other) == hot
    return topic, latest


@pytest.mark.slow
@pytest.mark.delta_jars
def test_many_partitions_at_once_and_every_kind_of_reader(
    spark: SparkSession, cluster: Cluster, log: ClientLog, compacted, tmp_path
) -> None:
    topic, latest = compacted
    assert found_in(log, topic) == latest
    assert compact_on_spark(spark, cluster) == []
    assert compact_on_spark(spark, cluster, ["t"], force=True) == [], "there is nothing left to take away"

    rows = {(p, key): (offset, value) for (p, key), (offset, value) in latest.items()}

    def as_found(frame):
        collected = frame.select("partition", "key", "offset", "value").collect()
        assert len(collected) == len(rows)
        return {
            (row.partition, bytes(row.key)): (row.offset, None if row.value is None else bytes(row.value))
            for row in collected
        }

    assert as_found(read_topic(spark, cluster, "t")) == rows
    assert as_found(read(spark, cluster, subscribe="t", minPartitions=7, maxRecordsPerPartition=300)) == rows
    query = (
        read_stream(spark, cluster, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger=2500)
        .writeStream.format("memory")
        .queryName("compacted")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    ends = {str(tp.partition): end for tp, (_, end) in log.positions(topic).items()}
    assert json.loads(query.lastProgress["sources"][0]["endOffset"])["t"] == ends
    assert as_found(spark.table("compacted")) == rows
    folder = next(iter(cluster.log_dirs().values())).uri.removeprefix("file://") + "/" + topic.folder
    delta = spark.read.format("delta").load(folder)
    headers = read_topic(spark, cluster, "t", include_headers=True).where("headers is not null").count()
    assert as_found(delta.withColumn("offset", F.col("base_offset") + F.col("offset_delta"))) == rows
    assert delta.where("headers is not null").count() == headers > 0
    assert_delta_is_the_log(cluster)

    # continued: new records are dirty, and tombstones are dropped after delete.retention.ms
    fill(log, topic, 1, 900, 300, latest)
    assert do_tasks(spark, cluster, MaintenanceArguments("", ["t"], ["compact"], force=True)) == []
    assert found_in(log, topic) == latest


def test_tombstones_and_keyless_records_are_removed_and_others_unchanged(
    spark: SparkSession, cluster: Cluster, log: ClientLog, capsys: pytest.CaptureFixture[str]
) -> None:
    latest: Latest = {}
    topic = make(cluster, "t", 2, delete_retention_ms="0", inline_max_bytes="0")
    fill(log, topic, 3, 100, 150, latest)
    log.append(topic, [Records(0, records([None, None], 0))])  # the topic is not compacted yet
    delete_records(cluster, {TopicPartition("t", 1): 40})  # in the middle of a segment
    latest = {place: found for place, found in latest.items() if place[0] == 0 or found[0] >= 40}
    topic = alter_configs(cluster, "t", {"cleanup.policy": "compact"})
    before = {(row.partition, row.offset): row for row in read(spark, cluster, subscribe="t").collect()}
    for _ in range(2):
        assert do_tasks(spark, cluster, MaintenanceArguments("", None, ["compact"], json=True)) == []
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    values = {place: found for place, found in latest.items() if found[1] is not None}
    assert found_in(log, topic) == values
    after = read(spark, cluster, subscribe="t").collect()
    assert all(before[row.partition, row.offset] == row for row in after)
    reports = [line for line in lines if line["event"] == "report"]
    assert reports[1]["notes"] == [f"{len(latest) - len(values)} tombstones dropped"]
    assert [line["event"] for line in lines] == ["progress", "progress", "progress", "report", "summary"] * 2
    assert reports[1]["after"]["records"] == len(values)
    assert compact_on_spark(spark, cluster) == []


def test_damaged_replicas_are_repaired_or_delay_their_partition_only(spark: SparkSession, tmp_path) -> None:
    """A segment that Spark cannot read is repaired from another replica; without one, only its partition waits."""
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        add_brokers(cluster, tmp_path, 2)
        log = ClientLog(cluster)
        latest: Latest = {}
        topic = topic_on(cluster, "t", [[1, 2], [1]], cleanup_policy="compact", inline_max_bytes="0")
        fill(log, topic, 2, 200, 100, latest)
        for copies in replicas_of(cluster, log, topic):
            copies[0].write(flipped_in_page(copies[0].read(), KEY_COLUMN))
        with pytest.raises(StorageUnavailableError, match=r"not all was compacted, 1 times: .*not what was written"):
            compact_on_spark(spark, cluster)
        assert found_in(log, topic, 0) == {place: value for place, value in latest.items() if place[0] == 0}
        log.close()


def test_topics_that_cannot_be_compacted_are_refused_before_any_work(spark: SparkSession, cluster: Cluster) -> None:
    make(cluster, "plain", 1)
    with pytest.raises(
        InvalidConfigurationError, match=r"topic 'plain': cleanup.policy is 'delete', expected 'compact'"
    ):
        compact_on_spark(spark, cluster, ["plain"])
    with pytest.raises(UnknownTopicOrPartitionError, match="'nowhere'"):
        compact_on_spark(spark, cluster, ["nowhere"])
