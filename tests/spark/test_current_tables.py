"""A topic's current-state table in Spark: `read_table` joins it with the tail, and Delta's own commands do no harm."""

import itertools
import json

import numpy as np
import pytest
from pyspark.sql import SparkSession

from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidOptionError
from spark_log.ids import TopicPartition
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import delete_records
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.spark.streams.compacted_tables import read_table
from spark_log.tables.publication import publish
from tests.support.records import append_keyed
from tests.support.spark import assert_same_rows
from tests.support.table_checks import assert_current, assert_replicas_are_whole, location_of
from tests.support.topics import make

pytestmark = pytest.mark.delta

CONFIGS = {"cleanup_policy": "compact", "delta_max_lag_ms": "-1", "table_current": "delta"}


def check(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    fresh = read_table(spark, cluster, topic, include_headers=True)
    aggregated = read_table(spark, cluster, topic, include_headers=True, current="never")
    assert_same_rows(fresh, aggregated)


@pytest.mark.slow
def test_a_read_joins_the_table_with_the_tail(spark: SparkSession, cluster: Cluster, log: ClientLog) -> None:
    topic = make(cluster, "t", 2, **CONFIGS)
    append_keyed(log, topic, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"gone", b"1"), headers=[("h", b"1")])
    append_keyed(log, topic, (b"c", b"1"), (b"c", b"2"), partition=1)
    check(spark, cluster, "t")  # there is no table yet
    log.seal(topic, [0, 1])
    publish(cluster, topic)
    check(spark, cluster, "t")
    plan = read_table(spark, cluster, "t")._jdf.queryExecution().toString()
    assert "partition IN" in plan or "PartitionFilters" in plan, plan
    append_keyed(log, topic, (b"gone", None), (b"b", b"3"), (b"new", b"4"), (b"new", b"5"))
    append_keyed(log, topic, (b"c", None), partition=1)
    check(spark, cluster, "t")
    assert {bytes(row.key): bytes(row.value) for row in read_table(spark, cluster, "t").collect()} == {
        b"a": b"2",
        b"b": b"3",
        b"new": b"5",
    }
    with pytest.raises(InvalidOptionError, match="'auto' or 'never'"):
        read_table(spark, cluster, "t", current="always")  # type: ignore[arg-type]


def test_a_read_after_the_records_of_the_table_are_deleted(
    spark: SparkSession, cluster: Cluster, log: ClientLog
) -> None:
    topic = make(cluster, "t", 1, **{**CONFIGS, "cleanup_policy": "delete", "retention_ms": "-1"})
    append_keyed(log, topic, (b"a", b"1"), (b"b", b"1"))
    log.seal(topic, [0])
    append_keyed(log, topic, (b"c", b"1"))
    delete_records(cluster, {TopicPartition("t", 0): 3})
    assert read_table(spark, cluster, "t").collect() == []


@pytest.mark.slow
def test_readers_agree_on_vectors_of_many_rows(spark: SparkSession, cluster: Cluster, log: ClientLog) -> None:
    """Roaring bitmaps have another container above 4,096 values, and one for each 65,536 rows."""
    topic = make(cluster, "t", 1, **CONFIGS, inline_max_bytes="0")
    append_keyed(log, topic, *((b"%d" % number, b"1") for number in range(70_000)))
    numbers = np.concatenate([np.random.default_rng(0).permutation(65_536), np.arange(65_536, 70_000)])
    location = location_of(cluster, topic)
    deleted = 0
    for rows in (1, 4_096, 4_097, 68_000, 70_000):
        append_keyed(log, topic, *((b"%d" % number, None) for number in numbers[deleted:rows]))
        publish(cluster, topic)
        assert len(assert_current(cluster, topic)) == 70_000 - rows, rows
        assert spark.read.format("delta").load(location).count() == 70_000 - rows, rows
        deleted = rows


@pytest.mark.slow
def test_commands_of_delta_delete_no_file_of_the_log(spark: SparkSession, cluster: Cluster, log: ClientLog) -> None:
    topic = make(cluster, "t", 1, **CONFIGS, inline_max_bytes="0")
    for n in range(6):
        append_keyed(log, topic, (b"a", b"%d" % n), (b"k%d" % n, b"x"))
    list(run_tasks(cluster, ["merge"]))
    append_keyed(log, topic, (b"a", b"6"))
    publish(cluster, topic)
    for command in ("OPTIMIZE {}", "VACUUM {} LITE RETAIN 0 HOURS", "VACUUM {} RETAIN 0 HOURS"):
        spark.sql(command.format(f"delta.`{location_of(cluster, topic)}`")).collect()
        assert_replicas_are_whole(cluster)
        append_keyed(log, topic, (b"a", b"7"))
        publish(cluster, topic)
        assert_current(cluster, topic)
    check(spark, cluster, "t")


@pytest.mark.slow
@pytest.mark.parametrize("order", ["offset", "sequence"])
def test_a_row_that_an_event_deletes_is_gone(spark: SparkSession, cluster: Cluster, log: ClientLog, order: str) -> None:
    """With and without the table, in files and in the tail. With sequences, older events in the tail change nothing."""
    typed = {"value_format": "json", "value_schema": "id BIGINT, price DOUBLE", "value_envelope": "debezium"}
    topic = make(cluster, "t", 1, **CONFIGS, **typed, table_current_order=order)
    sequences = itertools.count()

    def put(op: str, number: int, price: float, sequence: int | None = None) -> None:
        row = {"id": number, "price": price}
        value = {"op": op, "after": None if op == "d" else row, "before": row if op == "d" else None}
        value["source"] = {"lsn": next(sequences) if sequence is None else sequence}
        append_keyed(log, topic, (b"%d" % number, json.dumps(value).encode()))

    def rows(current: str) -> dict[int, float]:
        table = read_table(spark, cluster, "t", record=True, current=current)  # type: ignore[arg-type]
        return {row.record.id: row.record.price for row in table.collect()}

    for number in (1, 2, 3):
        put("c", number, 1.0)
    put("d", 1, 1.0)
    put("u", 2, 2.0)
    assert rows("auto") == {2: 2.0, 3: 1.0}
    log.seal(topic, [0])
    assert rows("auto") == {2: 2.0, 3: 1.0}
    put("d", 3, 1.0)
    put("c", 1, 4.0)
    assert rows("auto") == rows("never") == {1: 4.0, 2: 2.0}
    if order == "sequence":
        append_keyed(log, topic, (b"1", None))
        for number in (1, 2, 3):
            put("c", number, 1.0, sequence=number - 1)
        put("d", 1, 1.0, sequence=3)
        assert rows("auto") == rows("never") == {1: 4.0, 2: 2.0}
    check(spark, cluster, "t")


def test_a_read_with_new_typed_columns_and_a_new_log_start(
    spark: SparkSession, cluster: Cluster, log: ClientLog
) -> None:
    """The table has neither before the next publication, and files keep records before the log start."""
    typed = {"value_format": "json", "value_schema": "a BIGINT"}
    topic = make(cluster, "t", 1, **{**CONFIGS, "cleanup_policy": "compact,delete", "retention_ms": "-1"}, **typed)
    rows = [(b"%d" % n, json.dumps({"a": n, "b": n + 1}).encode()) for n in range(3)]
    append_keyed(log, topic, *rows)
    log.seal(topic, [0])
    publish(cluster, topic)
    alter_configs(cluster, "t", {"value.schema": "a BIGINT, b BIGINT"})
    delete_records(cluster, {TopicPartition("t", 0): 1})
    for current in ("auto", "never"):
        found = read_table(spark, cluster, "t", record=True, current=current)  # type: ignore[arg-type]
        assert sorted((row.offset, row.record.b) for row in found.collect()) == [(1, 2), (2, 3)], current
    check(spark, cluster, "t")
