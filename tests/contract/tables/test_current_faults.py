"""A current-state table after events that its publishers do not make: its readers see the log again."""

import json
import os
import shutil
from pathlib import Path
from unittest import mock

import pytest
from deltalake import DeltaTable

from spark_log.cluster.log_dir import LogDir
from spark_log.log.append.write_ids import Writer
from spark_log.maintenance.rewrite.tail_seal import seal
from spark_log.maintenance.task_list import run_tasks
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.tables.current import deletion_vectors, open_current
from spark_log.tables.current.clean_up import clean_up
from spark_log.tables.current.cut import cuts
from spark_log.tables.lag_measurement import table_lags
from spark_log.tables.publication import publish, publish_all
from spark_log.tables.verification import rebuild, verify
from tests.support.records import LARGE
from tests.support.replicas import add_brokers, truncate
from tests.support.stores import count_rows
from tests.support.table_checks import assert_current, by_duckdb, ends_of, location_of
from tests.support.topics import append, make, put

pytestmark = pytest.mark.delta

CONFIGS = {"inline_max_bytes": "0", "delta_max_lag_ms": "-1", "cleanup_policy": "compact", "table_current": "delta"}


@pytest.fixture
def topic(cluster):
    return make(cluster, "t", 2, **CONFIGS)


def check(cluster, topic, **expected):
    publish(cluster, topic)
    assert {row[2].decode(): row[3].decode() for row in assert_current(cluster, topic)} == expected
    assert [each.difference for each in verify(cluster, topic)] == [None, None]


def foreign_commit(location, *actions):
    version = DeltaTable(location).version() + 1
    lines = [{"commitInfo": {"operation": "WRITE"}}, *actions]
    Path(location, "_delta_log", f"{version:020d}.json").write_text("".join(json.dumps(each) + "\n" for each in lines))


def last_actions(location, kind):
    *_, last = sorted(Path(location, "_delta_log").glob("*.json"))
    return [each[kind] for each in map(json.loads, last.read_text().splitlines()) if kind in each]


def test_a_truncation_shows_the_earlier_records_again(cluster, log, topic):
    put(log, topic, "a", "1")
    put(log, topic, "a", "2")
    check(cluster, topic, a="2")
    truncate(cluster, "t", 1)
    check(cluster, topic, a="1")
    put(log, topic, "b", "3")
    check(cluster, topic, a="1", b="3")


@pytest.mark.on_sqlite
def test_files_without_vectors_stay_when_all_are_compared_after_a_checkpoint(cluster, log, topic):
    put(log, topic, "a", "1")
    put(log, topic, "b", "2")
    publish(cluster, topic)
    DeltaTable(location_of(cluster, topic)).create_checkpoint()
    open_current._opened.clear()
    foreign_commit(location_of(cluster, topic))
    check(cluster, topic, a="1", b="2")


@pytest.mark.on_sqlite
@pytest.mark.parametrize("first", ["add", "remove"])
def test_rows_that_another_program_deletes_come_back(cluster, log, topic, first):
    """A commit may have its actions in any order."""
    append(log, topic, "1", "2", key=b"a")
    put(log, topic, "b", "1")
    publish(cluster, topic)
    location = location_of(cluster, topic)
    [shown] = [each for each in last_actions(location, "add") if "deletionVector" not in each]
    mask = deletion_vectors.np.array([True])
    content, vectors = deletion_vectors.encode({"f": mask}, deletion_vectors.uuid.uuid4())
    Path(location, vectors["f"].name).write_bytes(content)
    add = {"add": {**shown, "deletionVector": vectors["f"].descriptor()}}
    remove = {"remove": {"path": shown["path"], "dataChange": True, "deletionTimestamp": 1}}
    foreign_commit(location, *([add, remove] if first == "add" else [remove, add]))
    check(cluster, topic, a="2", b="1")


@pytest.mark.on_sqlite
def test_a_file_of_another_program_is_removed(cluster, log, topic):
    put(log, topic, "a", "1")
    publish(cluster, topic)
    [shown] = last_actions(location_of(cluster, topic), "add")
    values = {"partition": None, "base_offset": None}
    foreign_commit(location_of(cluster, topic), {"add": {**shown, "path": "x.parquet", "partitionValues": values}})
    check(cluster, topic, a="1")


@pytest.mark.on_sqlite
def test_a_file_that_another_program_adds_again_without_statistics_is_read(cluster, log, topic):
    put(log, topic, "a", "1")
    publish(cluster, topic)
    [shown] = last_actions(location_of(cluster, topic), "add")
    foreign_commit(location_of(cluster, topic), {"add": {name: shown[name] for name in shown if name != "stats"}})
    check(cluster, topic, a="1")
    put(log, topic, "a", "2")
    check(cluster, topic, a="2")


def test_the_lag_counts_files_behind_the_tail_of_another_partition(cluster, log):
    topic = make(cluster, "t", 2, **{**CONFIGS, "inline_max_bytes": "2000"})
    put(log, topic, "a", "small")
    put(log, topic, "b", LARGE, partition=1)
    publish(cluster, topic)
    lags = cluster.store.read(table_lags)
    assert {key.target: lag.records for key, lag in lags.items()} == {"delta": 1, "current": 2}


@pytest.mark.on_sqlite
def test_a_process_notices_that_another_one_has_rebuilt_the_table(cluster, log, topic):
    """The table that was rebuilt has the same version, with vectors in other files."""
    append(log, topic, "1", "2", key=b"a")
    publish(cluster, topic)
    mine, location = dict(open_current._opened), location_of(cluster, topic)
    version = DeltaTable(location).version()
    open_current._opened.clear()
    assert rebuild(cluster, topic, "current") == 1
    assert DeltaTable(location).version() == version
    open_current._opened.clear()
    open_current._opened.update(mine)
    put(log, topic, "a", "3")
    check(cluster, topic, a="3")


@pytest.mark.on_sqlite
def test_a_damaged_vector_is_found_anew(cluster, log, topic):
    put(log, topic, "a", "1")
    put(log, topic, "a", "2")
    publish(cluster, topic)
    for damage in (Path.unlink, lambda path: path.write_bytes(b"damaged")):
        for path in Path(location_of(cluster, topic)).glob("*.bin"):
            damage(path)
        put(log, topic, "a", "3")
        publish(cluster, topic)
        open_current._opened.clear()
    check(cluster, topic, a="3")


def move_first_partition(cluster, topic, folder):
    """Move the replica of partition 0 to a new broker. Returns the log dirs by broker."""
    add_brokers(cluster, folder, 2)
    infos = {info.broker_id: info for info in cluster.log_dirs().values()}
    here, there = (Path(infos[number].uri.removeprefix("file://"), topic.folder, "_segments") for number in (1, 2))
    shutil.copytree(here, there)

    def move(connection):
        moved = {"broker_id": 2, "log_dir_id": infos[2].log_dir_id}
        connection.execute(t.replica.update().where(t.replica.c.partition == 0).values(moved))
        change = t.partition.c.change + 1
        connection.execute(t.partition.update().where(t.partition.c.partition == 0).values(leader=2, change=change))

    cluster.store.transact(move)
    return infos


def test_replicas_that_leave_a_log_dir_leave_its_table(cluster, log, topic, tmp_path):
    put(log, topic, "a", "1")
    put(log, topic, "b", "1", partition=1)
    publish(cluster, topic)
    infos = move_first_partition(cluster, topic, tmp_path / "brokers")
    assert publish_all(cluster, [topic], eager=True)[topic.topic_id].error is None
    for number, partition in ((1, 1), (2, 0)):
        [file] = DeltaTable(location_of(cluster, topic, infos[number].log_dir_id)).file_uris()
        assert f"_segments/{partition}/" in file
    assert {each.difference for each in verify(cluster, topic)} == {None}


def test_a_replica_leaves_whose_first_file_crosses_the_cut(cluster, log, tmp_path):
    topic = make(cluster, "t", 2, **{**CONFIGS, "inline_max_bytes": "65536"})
    writer = Writer(cluster.store, "test", 60_000)
    for value in ("1", "2"):
        if value == "2":
            cut = cluster.store.read(lambda connection: cuts(connection, [topic.topic_id]))
        for partition in (0, 1):
            put(log, topic, "k", value, partition=partition)
    for partition in (0, 1):
        seal(cluster, writer, topic, partition)
    put(log, topic, "k", "3", partition=1)  # inline
    publish_all(cluster, [topic], cuts=cut)
    assert ends_of(cluster, topic) == {0: 1, 1: 1}
    move_first_partition(cluster, topic, tmp_path / "brokers")
    publish_all(cluster, [topic], eager=True)
    [file] = DeltaTable(location_of(cluster, topic)).file_uris()
    assert "_segments/1/" in file


@pytest.mark.on_sqlite
def test_vectors_of_merged_files_stay_for_readers(cluster, log, topic):
    for n in range(3):
        put(log, topic, "a", str(n))
    publish(cluster, topic)
    vectors = set(Path(location_of(cluster, topic)).glob("*.bin"))
    for path in vectors:
        os.utime(path, (0, 0))
    list(run_tasks(cluster, ["merge"]))
    publish(cluster, topic)
    [info] = cluster.log_dirs().values()
    clean_up(LogDir(info.uri), topic, cluster.store.now().wall_ms)
    needed = {path.name for path in vectors if path.exists()}
    assert len(needed) == 2, "the last version before the merge has vectors in two of the files"
    check(cluster, topic, a="2")


def test_a_publisher_that_fails_each_time_leaves_no_intents(cluster, log, topic, monkeypatch):
    put(log, topic, "a", "1")
    monkeypatch.setattr(open_current, "encode", mock.Mock(side_effect=ModuleNotFoundError("pyroaring")))
    for n in range(3):
        put(log, topic, "a", str(n))
    assert count_rows(cluster.store, t.publication_intent) == 0
    assert set(ends_of(cluster, topic).values()) <= {0, 1}


@pytest.mark.on_sqlite
def test_a_change_of_the_envelope_finds_all_vectors_anew(cluster, log):
    topic = make(cluster, "t", 1, **CONFIGS, value_format="json", value_schema="id BIGINT")
    deletion = json.dumps({"op": "d", "before": {"id": 1}})
    put(log, topic, "a", "{}")
    put(log, topic, "a", deletion)
    check(cluster, topic, a=deletion)
    topic = alter_configs(cluster, "t", {"value.envelope": "debezium"})
    put(log, topic, "b", json.dumps({"op": "c", "after": {"id": 2}}))
    publish(cluster, topic)
    assert [row[2] for row in shown(cluster, topic)] == [b"b"]
    topic = alter_configs(cluster, "t", {"value.envelope": "none"})
    put(log, topic, "c", "{}")
    publish(cluster, topic)
    assert [row[2] for row in shown(cluster, topic)] == [b"a", b"b", b"c"]


def shown(cluster, topic):
    """The rows of the table, which are those of the log."""
    assert [each.difference for each in verify(cluster, topic)] == [None, None]
    return by_duckdb(location_of(cluster, topic))
