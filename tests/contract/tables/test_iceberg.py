"""A topic's Iceberg table: pyiceberg and DuckDB read the records of the log from it, whatever happens to the files."""

import json
import os
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from spark_log import Producer, clock
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.topics import find_topic
from spark_log.ids import TopicPartition
from spark_log.maintenance.removal.retention import delete_records
from spark_log.maintenance.task_list import run_tasks
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.tables.iceberg import metadata_files
from spark_log.tables.iceberg.clean_up import clean_up
from spark_log.tables.iceberg.metadata_files import open_table
from spark_log.tables.publication import publish, publish_all, try_publish
from tests.support.iceberg import (
    CONFIGS,
    by_duckdb,
    by_pyiceberg,
    check,
    folder_of,
    metadata_path,
    publish_killed_at,
    snapshots_of,
)
from tests.support.stores import each_on_sqlite_last_on_postgres, rows_of
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import append, fill, make

pytestmark = pytest.mark.delta


@pytest.fixture
def topic(cluster):
    return make(cluster, "t", 1, **CONFIGS)


def test_the_readers_follow_appends_merges_and_removals(cluster, log):
    topic = make(cluster, "t", 2, **CONFIGS)
    fill(log, topic, [3, 2])
    check(cluster, topic, ["append"])
    list(run_tasks(cluster, ["merge"]))
    check(cluster, topic, ["replace"])
    fill(log, topic, [2, 0], first=3)
    check(cluster, topic, ["append"])
    delete_records(cluster, {TopicPartition("t", 1): 2, TopicPartition("t", 0): 3})
    list(run_tasks(cluster, ["retention", "files"]))
    check(cluster, topic, ["delete"])
    append(log, topic, "more", partition=1)
    check(cluster, topic, ["append"])
    assert_delta_is_the_log(cluster)


@pytest.mark.on_sqlite
def test_a_compaction_overwrites(cluster, log):
    topic = make(cluster, "t", 1, **CONFIGS, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    for key, value in ((b"a", "1"), (b"b", "2"), (b"a", "3"), (b"c", "4")):
        append(log, topic, value, key=key)
    check(cluster, topic, ["append"])
    list(run_tasks(cluster, ["compact"], now=True))
    check(cluster, topic, ["overwrite"])
    assert by_duckdb(cluster, topic) == {0: ["2", "3", "4"]}


@pytest.mark.on_sqlite
def test_typed_columns_are_fields_of_the_schema(cluster, topic, log):
    append(log, topic, '{"n": 0}')
    publish(cluster, topic)
    topic = alter_configs(cluster, "t", {"value.format": "json", "value.schema": "n BIGINT, tags ARRAY<STRING>"})
    append(log, topic, '{"n": 1, "tags": ["x"]}')
    check(cluster, topic, ["append"])
    topic = alter_configs(cluster, "t", {"value.schema": "n BIGINT, tags ARRAY<STRING>, at STRUCT<x: DOUBLE>"})
    append(log, topic, '{"n": 2, "at": {"x": 1.5}}')
    check(cluster, topic, ["append"])
    table = StaticTable.from_metadata(str(metadata_path(cluster, topic)))
    assert len(table.schemas()) == 3
    rows = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["base_offset"])
    assert [row["record"] for row in rows] == [
        None,
        {"n": 1, "tags": ["x"], "at": None},
        {"n": 2, "tags": None, "at": {"x": 1.5}},
    ]
    found = table.scan(row_filter="base_offset >= 2").to_arrow()
    assert found.num_rows == 1


@pytest.mark.on_sqlite
def test_readers_skip_files_by_statistics(cluster, log):
    schema = "n BIGINT, at TIMESTAMP, day DATE, price DECIMAL(12, 2), name STRING, x DOUBLE"
    topic = make(cluster, "t", 1, **CONFIGS, value_format="json", value_schema=schema)
    for n, day in ((1, "2024-01-01"), (500, "1969-12-30"), (-3, "2026-01-31")):
        value = {"n": n, "at": f"{day}T12:00:00.0005Z", "day": day, "price": n * 1.25, "name": f"v{n}" * 20, "x": n / 2}
        append(log, topic, json.dumps(value))
    check(cluster, topic)
    table = StaticTable.from_metadata(str(metadata_path(cluster, topic)))
    for condition in (
        "record.n = 500",
        "record.at < '1970-01-01T00:00:00+00:00'",
        "record.day < '1970-01-01'",
        "record.price = 625.00",
        f"record.name = '{'v500' * 20}'",
        "record.x > 249.5",
    ):
        scan = table.scan(row_filter=condition)
        [task] = scan.plan_files()
        assert task.file.partition[1] == 1
        [row] = scan.to_arrow().to_pylist()
        assert row["record"]["n"] == 500
    assert len(list(table.scan(row_filter="record.n IS NULL").plan_files())) == 0


def test_an_idle_topic_gets_its_table_when_it_is_switched_on(cluster, log):
    topic = make(cluster, "t", 1, **{**CONFIGS, "table_formats": "delta"})
    append(log, topic, "a")
    topic = alter_configs(cluster, "t", {"table.formats": "delta,iceberg"})
    list(run_tasks(cluster, ["seal"], now=True))
    assert by_pyiceberg(cluster, topic) == {0: ["a"]}


@pytest.mark.on_sqlite
def test_the_table_gets_no_more_snapshots_than_its_lag_demands(cluster, topic, log, monkeypatch):
    append(log, topic, "a")
    try_publish(cluster, [topic])
    append(log, topic, "b")
    assert by_pyiceberg(cluster, topic) == {0: ["a"]}
    assert_delta_is_the_log(cluster)
    now_s = clock.monotonic_s() + 0.8 * topic.config.iceberg_max_lag_ms / 1000
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s)
    append(log, topic, "c")
    assert by_pyiceberg(cluster, topic) == {0: ["a", "b", "c"]}


def test_removals_reach_the_table_of_an_idle_topic(cluster, topic, log, monkeypatch):
    append(log, topic, "a")
    append(log, topic, "b")
    list(run_tasks(cluster, ["seal"], now=True))
    delete_records(cluster, {TopicPartition("t", 0): 1})
    assert by_pyiceberg(cluster, topic) == {0: ["a", "b"]}
    list(run_tasks(cluster, ["seal"]))
    assert by_pyiceberg(cluster, topic) == {0: ["a", "b"]}, "it waits for the lag"
    now_s = clock.monotonic_s() + 0.8 * topic.config.iceberg_max_lag_ms / 1000
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s)
    list(run_tasks(cluster, ["seal"]))
    assert by_pyiceberg(cluster, topic) == {0: ["b"]}


def test_the_table_has_all_records_when_the_only_client_closes(cluster, cluster_address):
    make(cluster, "t", 1, **{**CONFIGS, "inline_max_bytes": "100"})
    with Producer(cluster=cluster_address) as producer:
        for value in (b"a" * 200, b"b" * 200, b"c"):
            producer.send("t", value).get()
    topic = cluster.store.read(lambda connection: find_topic(connection, "t"))
    assert by_pyiceberg(cluster, topic) == {0: ["a" * 200, "b" * 200, "c"]}


@pytest.mark.on_sqlite
def test_a_publisher_that_slept_before_its_hint_does_not_lower_it(cluster, topic, log, monkeypatch):
    append(log, topic, "a")
    publish(cluster, topic)
    metadata = metadata_path(cluster, topic)
    newest, replace_file = metadata.with_name("v200.metadata.json"), LogDir.replace

    def late(self, relative):
        if relative.endswith("version-hint.text") and not newest.exists():
            newest.write_bytes(metadata.read_bytes())
        return replace_file(self, relative)

    monkeypatch.setattr(LogDir, "replace", late)
    append(log, topic, "b")
    check(cluster, topic)
    assert metadata_path(cluster, topic).name == "v201.metadata.json"


@each_on_sqlite_last_on_postgres(
    "point", [("publish.before-commit:2",), ("iceberg.committed:1",), ("publish.committed:2",), ("publish.recorded:2",)]
)
def test_a_publisher_that_is_killed_at_any_step_is_replaced(cluster, topic, cluster_address, log, point, monkeypatch):
    """The Delta table passes the point first, the Iceberg table second."""
    append(log, topic, "before")
    publish(cluster, topic)
    publish_killed_at(point, cluster_address, log, topic, monkeypatch)
    check(cluster, topic)
    assert [each["summary"]["operation"] for each in snapshots_of(cluster, topic)] == ["append", "append"]
    assert rows_of(cluster, t.publication_intent) == {"publication_intent": []}


@pytest.mark.on_sqlite
def test_two_publishers_make_one_commit_each_file(cluster, topic, log, monkeypatch):
    """Another process commits between our comparison and our commit."""
    append(log, topic, "a")
    publish(cluster, topic)
    create_whole, others = LogDir.create_whole, []

    def late(self, relative, data):
        if "metadata/v" in relative and not others:
            others.append(relative)
            Path(self.location(relative)).write_bytes(metadata_path(cluster, topic).read_bytes())
        return create_whole(self, relative, data)

    monkeypatch.setattr(LogDir, "create_whole", late)
    append(log, topic, "b")
    check(cluster, topic, ["append"])
    assert others


def test_the_table_lists_nothing_once_it_is_switched_off(cluster, topic, log):
    append(log, topic, "a")
    publish(cluster, topic)
    topic = alter_configs(cluster, "t", {"table.formats": "delta"})
    publish(cluster, topic)
    assert by_pyiceberg(cluster, topic) == by_duckdb(cluster, topic) == {}
    append(log, topic, "b")
    publish(cluster, topic)
    [row] = rows_of(cluster, t.publication)["publication"]
    assert "'delta'" in row
    topic = alter_configs(cluster, "t", {"table.formats": "delta,iceberg"})
    check(cluster, topic)
    append(log, topic, "c")
    check(cluster, topic, ["append"])


@pytest.mark.on_sqlite
def test_a_publisher_that_was_stopped_for_long_makes_no_version(cluster, topic, log, monkeypatch):
    """The versions that it missed have been cleaned up, so that it can create one of them."""
    append(log, topic, "a")
    publish(cluster, topic)
    metadata = metadata_path(cluster, topic)
    create_whole, newest = LogDir.create_whole, metadata.with_name("v200.metadata.json")

    def late(self, relative, data):
        if "metadata/v" in relative and not newest.exists():
            newest.write_bytes(metadata.read_bytes())
            metadata.with_name("version-hint.text").write_text("200")
        return create_whole(self, relative, data)

    monkeypatch.setattr(LogDir, "create_whole", late)
    append(log, topic, "b")
    check(cluster, topic, ["append"])
    assert metadata_path(cluster, topic).name == "v201.metadata.json"


@pytest.mark.on_sqlite
def test_old_snapshots_and_their_files_go(cluster, log):
    topic = make(cluster, "t", 1, **CONFIGS, iceberg_snapshot_retention_ms="0")
    log_dir, _ = folder_of(cluster, topic)
    for number in range(5):
        append(log, topic, str(number))
        publish(cluster, topic)
    assert len(snapshots_of(cluster, topic)) == 1
    metadata = metadata_path(cluster, topic).parent
    before = set(os.listdir(metadata))
    [snapshot] = snapshots_of(cluster, topic)
    now_ms = snapshot["timestamp-ms"]
    assert clean_up(open_table(log_dir, topic.folder, ""), set(), now_ms) == 0, "a reader may be on them"
    old_s = snapshot["timestamp-ms"] / 1000 - 7_200
    for name in before - {os.path.basename(snapshot["manifest-list"])}:
        os.utime(metadata / name, (old_s, old_s))
    assert clean_up(open_table(log_dir, topic.folder, ""), set(), now_ms) == 8, "4 lists and 4 manifests"
    check(cluster, topic)
    assert {name for name in before if name.endswith(".json")} <= set(os.listdir(metadata))


@pytest.mark.on_sqlite
def test_snapshots_stay_few_after_a_commit_by_a_host_whose_clock_is_ahead(cluster, log, monkeypatch):
    monkeypatch.setattr("spark_log.tables.iceberg.table.METADATA_FILES", 4)
    monkeypatch.setattr("spark_log.tables.iceberg.table.MANIFEST_FILES", 2)
    topic = make(cluster, "t", 1, **CONFIGS)
    log_dir, _ = folder_of(cluster, topic)
    with monkeypatch.context() as ahead:
        ahead.setattr(clock, "wall_ms", lambda wall_ms=clock.wall_ms: wall_ms() + 3_650 * 86_400_000)
        append(log, topic, "first")
        publish(cluster, topic)
    for number in range(6):
        append(log, topic, str(number))
        publish(cluster, topic)
    snapshots = snapshots_of(cluster, topic)
    assert len(snapshots) == 4 and len({each["timestamp-ms"] for each in snapshots}) == 1
    metadata = metadata_path(cluster, topic).parent
    now_ms = clock.wall_ms() + 2 * 3_600_000
    clean_up(open_table(log_dir, topic.folder, ""), set(), now_ms)
    table = StaticTable.from_metadata(str(metadata_path(cluster, topic)))
    rows = [table.scan(snapshot_id=each["snapshot-id"]).to_arrow().num_rows for each in snapshots]
    assert rows == [4, 5, 6, 7], f"each can be read: {os.listdir(metadata)}"
    check(cluster, topic)


@pytest.mark.on_sqlite
def test_manifests_stay_few(cluster, log, monkeypatch):
    monkeypatch.setattr("spark_log.tables.iceberg.table.MANIFEST_FILES", 10)
    topic = make(cluster, "t", 3, **CONFIGS)
    for number in range(12):
        append(log, topic, str(number), partition=number % 3)
        if number % 2 == 0:
            publish(cluster, topic)
    check(cluster, topic)
    table = open_table(*folder_of(cluster, topic), "")
    assert len(table.manifests_of(snapshots_of(cluster, topic)[-1])) == 2
    list(run_tasks(cluster, ["merge"]))
    check(cluster, topic, ["replace"])


@pytest.mark.on_sqlite
def test_a_topic_in_an_object_store_keeps_its_delta_table(cluster, log, monkeypatch):
    topic = make(cluster, "t", 1, **{**CONFIGS, "table_formats": "delta"})
    append(log, topic, "a")
    topic = alter_configs(cluster, "t", {"table.formats": "delta,iceberg"})
    message = "table.formats=iceberg: .* is neither a folder nor in S3 with obstore"
    monkeypatch.setattr("spark_log.tables.iceberg.metadata_files.point_readers", lambda *_: 0)
    monkeypatch.setattr(metadata_files, "open_table", lambda log_dir, *_: open_table(Remote(), "f", "a"))
    [published] = publish_all(cluster, [topic], eager=True).values()
    with pytest.raises(Exception, match=message):
        raise published.error
    assert_delta_is_the_log(cluster)


class Remote:
    creates_whole = False

    def __repr__(self):
        return "LogDir('s3://bucket')"
