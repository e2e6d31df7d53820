"""Spark reads a topic's Iceberg table: the records of the log, those of earlier snapshots, and new ones as a stream."""

import pytest

from spark_log.ids import TopicPartition
from spark_log.maintenance.erase.erase import erase
from spark_log.maintenance.removal.retention import delete_records
from spark_log.maintenance.task_list import run_tasks
from spark_log.tables.publication import delta_tables, publish
from tests.support.iceberg import CONFIGS, SparkError, assert_table_is_the_log
from tests.support.records import append_keyed
from tests.support.topics import append, make

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite, pytest.mark.spark41]

HEADERS = [("h", b"x"), ("h", b""), ("", None)]
DIRTY = {"min_cleanable_dirty_ratio": "0", "delete_retention_ms": "0"}
"""Configs of a topic that is compacted at once, and without tombstones."""


def test_spark_reads_the_records_of_each_snapshot(spark41, cluster, log):
    topic = make(cluster, "t", 2, **CONFIGS, cleanup_policy="compact,delete", **DIRTY)
    [location] = delta_tables(cluster, topic).values()
    table = spark41.table(location)
    snapshots = {}

    def check(rows):
        found = assert_table_is_the_log(spark41, cluster, log, topic)
        assert len(found) == rows
        assert spark41.sql(f"SELECT count(*) AS n FROM {table}") == [{"n": rows}]
        [main] = spark41.sql(f"SELECT snapshot_id FROM {table}.refs")
        snapshots[main["snapshot_id"]] = found

    append_keyed(log, topic, (b"a", b"1"), (b"", b""), (b"b", None), (b"c", b"\xff\x00"), headers=HEADERS)
    append_keyed(log, topic, (b"a", b"2"), (b"d", b""))
    append_keyed(log, topic, (b"x", b"3"), partition=1)
    append_keyed(log, topic, (b"y", b"4"), (b"x", b"5"), partition=1)
    check(9)
    list(run_tasks(cluster, ["merge"]))
    check(9)
    erase(cluster, "t", [b"c"])
    check(8)
    append_keyed(log, topic, (b"d", b"6" * 100_000))
    check(9)
    list(run_tasks(cluster, ["compact"], now=True))
    check(6)
    append_keyed(log, topic, (b"e", b"7"), partition=1)
    delete_records(cluster, {TopicPartition("t", 0): 7})
    check(3)
    for snapshot, rows in snapshots.items():
        assert spark41.rows(location, versionAsOf=snapshot) == rows
        [count] = spark41.sql(f"SELECT count(*) AS n FROM {table} VERSION AS OF {snapshot}")
        assert count["n"] == len(rows)
    for name in ("history", "files", "all_entries", "all_manifests", "partitions", "metadata_log_entries"):
        assert len(spark41.sql(f"SELECT * FROM {table}.{name}")) > 0
    assert spark41.scan(location, "partition = 1 AND base_offset > 2") == (rows[-1:], 1)


def test_a_stream_reads_each_record_once(spark41, cluster, log, tmp_path):
    topic = make(cluster, "t", 1, **CONFIGS)
    [location] = delta_tables(cluster, topic).values()

    def new(**options):
        publish(cluster, topic)
        rows = spark41.stream(location, tmp_path / "checkpoint", **options)
        return [row["value"] and row["value"].decode() for row in rows]

    append(log, topic, "0", None)
    append(log, topic, "2", key=b"k")
    assert new() == ["0", None, "2"]
    append(log, topic, "3")
    assert new() == ["3"]
    list(run_tasks(cluster, ["merge"]))
    append(log, topic, "4")
    assert new() == ["4"], "the snapshot before is a replace"
    erase(cluster, "t", [b"k"])
    append(log, topic, "5")
    with pytest.raises(SparkError, match="streaming-skip-overwrite-snapshots"):
        new()
    assert new(streaming_skip_overwrite_snapshots=True) == ["5"]
    delete_records(cluster, {TopicPartition("t", 0): 4})
    append(log, topic, "6")
    with pytest.raises(SparkError, match="streaming-skip-delete-snapshots"):
        new()
    assert new(streaming_skip_delete_snapshots=True) == ["6"]
    assert new() == []
