"""The Delta table of a topic in each log dir follows the replicas in that log dir, independent of other log dirs."""

import os
import shutil

import pytest
import sqlalchemy as sa

from spark_log.cluster.lease import unfenced
from spark_log.cluster.log_dir import LogDir
from spark_log.errors import SparkLogError
from spark_log.ids import TopicPartition
from spark_log.maintenance.removal.retention import delete_records
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PARTITION, REPLICA, SEGMENT
from spark_log.replication.controller.controller import elect_leaders
from spark_log.replication.controller.log_dir_inspection import inspect_log_dirs
from spark_log.replication.replicas import catch_up as catch_up_module
from spark_log.replication.replicas.catch_up import ReplicaCopy
from spark_log.tables import publication_intent, publication_state
from spark_log.tables.lag_measurement import describe_tables
from spark_log.tables.publication import delta_tables, try_publish
from spark_log.tables.publication_intent import Intent
from spark_log.tables.publication_resets import lower_seen_offsets
from spark_log.tables.publication_state import TableKey
from spark_log.tables.seen_offsets import seen_offsets
from spark_log.tables.verification import verify
from tests.support.replicas import ReplicatedTables, copied_segments
from tests.support.stores import count_rows

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite]


@pytest.fixture
def tables(cluster, log, tmp_path):
    return ReplicatedTables(cluster, log, tmp_path)


def test_the_tables_of_replicas_in_sync_are_equal(tables):
    tables.append("a", "b")
    tables.append("c")
    assert {tables.values(broker) for broker in (1, 2, 3)} == {"abc"}
    assert all(tables.changes(broker) == [(0, True), (2, True)] for broker in (1, 2, 3))
    assert len(delta_tables(tables.cluster, tables.topic)) == 3
    tables.is_the_log()


def test_a_table_lists_the_segments_of_its_replica_below_the_high_watermark(tables):
    tables.append("a")
    tables.append("b", acks=1)
    assert [tables.values(broker) for broker in (1, 2, 3)] == ["a"] * 3, "b may still be lost"
    tables.is_the_log()
    tables.leave(3)
    tables.catch_up(2)
    assert [tables.values(broker) for broker in (1, 2, 3)] == ["ab", "ab", "a"]
    tables.is_the_log()
    tables.append("c")
    assert [tables.values(broker) for broker in (1, 2, 3)] == ["abc", "abc", "a"]
    tables.catch_up(3)
    assert [tables.values(broker) for broker in (1, 2, 3)] == ["abc"] * 3
    assert all(tables.changes(broker) == [(0, True), (1, True), (2, True)] for broker in (1, 2, 3)), "came once to each"
    tables.is_the_log()


def test_a_replica_that_advances_is_published_although_the_high_watermark_stays(tables, monkeypatch):
    tables.leave(3)
    for value in "abc":
        tables.append(value)
    monkeypatch.setattr(catch_up_module, "RUN_FILES_MAX", 1)
    for seen in ("a", "ab"):
        step = ReplicaCopy(tables.cluster, tables.topic, 0, 3)
        state, replica, pieces = step.plan()
        assert step.copy(replica, pieces).error is None
        step.commit(state, replica, pieces)
        tables.publish()
        assert [tables.values(broker) for broker in (1, 2, 3)] == ["abc", "abc", seen]
        tables.is_the_log()
    assert tables.changes(3) == [(0, True), (1, True)]


def test_the_places_of_tables_are_known_while_no_log_dir_can_be_opened(tables, monkeypatch):
    """To open one at a remote file system may take long, and fails while that does not answer."""
    tables.append("a")
    expected = sorted(str(tables.location(broker)) for broker in (1, 2, 3))
    monkeypatch.setattr(LogDir, "__init__", lambda *_: pytest.fail("opened"))
    log_dirs = tables.cluster.log_dirs()
    described = tables.cluster.store.read(lambda connection: describe_tables(connection, [tables.topic], log_dirs, 0))
    assert sorted(each.location for each in described[tables.topic.topic_id]) == expected
    assert sorted(delta_tables(tables.cluster, tables.topic).values()) == expected


def test_a_failing_log_dir_does_not_stop_the_publication_of_others(tables, caplog):
    tables.append("a")
    home = tables.folder / "broker-2"
    away = home.rename(tables.folder / "away")
    tables.leave(2)
    tables.append("b")
    assert "table not updated" in caplog.text and "broker-2" in caplog.text
    assert [tables.values(broker) for broker in (1, 3)] == ["ab", "ab"]
    with pytest.raises(SparkLogError, match="broker-2"):
        tables.publish()
    home.mkdir()
    with pytest.raises(SparkLogError, match="broker-2"):
        tables.publish()
    assert not list(home.iterdir()), "a folder without our marker is not ours to write to"
    tables.sql(t.log_dir.update().where(t.log_dir.c.broker_id == 2).values(online=False))
    caplog.clear()
    tables.append("c")
    tables.publish()
    assert not caplog.records
    home.rmdir()
    away.rename(home)
    tables.sql(t.log_dir.update().values(online=True))
    tables.catch_up(2)
    assert tables.values(2) == "abc"
    tables.is_the_log()


def test_a_log_dir_that_is_lost_while_its_table_is_made_returns_empty(tables, monkeypatch):
    """deltalake makes the folders that it lacks: the place of a new disk then has the log of a table."""
    tables.append("a")
    disk, make_folder = tables.folder / "broker-2", LogDir.make_folder
    shutil.rmtree(tables.location(2) / "_delta_log")

    def lose(log_dir, relative):
        make_folder(log_dir, relative)
        shutil.rmtree(disk)

    with monkeypatch.context() as during:
        during.setattr(LogDir, "make_folder", lose)
        tables.append("b")
    assert [path.name for path in tables.location(2).iterdir()] == ["_delta_log"]
    foreign = disk / "photos" / "1.jpg"
    foreign.parent.mkdir()
    foreign.write_bytes(b"")
    assert len(inspect_log_dirs(tables.cluster, unfenced).out) == 1
    assert inspect_log_dirs(tables.cluster, unfenced).back == [], "a folder with other files is not empty"
    shutil.rmtree(foreign.parent)
    assert len(inspect_log_dirs(tables.cluster, unfenced).back) == 1
    tables.catch_up(2)
    tables.publish()
    assert tables.values(2) == "ab"
    tables.is_the_log()


def test_a_lowered_leo_removes_only_the_files_above_it_and_they_return_without_data_change(tables):
    for value in "abcd":
        tables.append(value)
    version = tables.delta(3).version()
    tables.fall(3, 1)
    tables.publish()
    assert [tables.values(broker) for broker in (1, 2, 3)] == ["abcd", "abcd", "a"]
    tables.append("e")
    assert tables.values(3) == "a"
    tables.catch_up(3)
    assert tables.values(3) == "abcde"
    assert sorted(tables.changes(3, version + 1)) == [(1, False), (2, False), (3, False), (4, True)]
    tables.append("f")
    assert tables.changes(3, version + 1)[-1] == (5, True)
    tables.is_the_log()


def test_a_leo_that_falls_and_recovers_between_publications_changes_nothing(tables):
    for value in "abc":
        tables.append(value)
    version = tables.delta(3).version()
    tables.fall(3, 0)
    ReplicaCopy(tables.cluster, tables.topic, 0, 3).run()
    tables.publish()
    assert tables.changes(3, version + 1) == []
    tables.is_the_log()


def test_segments_sealed_while_a_replica_lagged_are_new_data_in_its_table(cluster, log, tmp_path):
    """The blobs were below its LEO but not in its table: a stream of the table has not seen them."""
    tables = ReplicatedTables(cluster, log, tmp_path, **{"inline.max.bytes": "1500", "delta.max.lag.ms": "-1"})
    large = "x" + os.urandom(2_000).hex()
    tables.append(large)
    tables.append("blob")
    tables.append("blob")
    tables.append(large)
    tables.leave(3)
    assert log.seal(tables.topic, [0]) == 1
    tables.publish()
    assert len(tables.records(1)) == 4 and len(tables.records(3)) == 1
    tables.append(large)
    tables.catch_up(3)
    for broker in (1, 2):
        assert tables.changes(broker) == [(0, True), (3, True), (1, True), (4, True)]
    first, again = [(0, True), (3, True)], [(1, True), (3, True), (4, True)]
    assert tables.changes(3) == first + again, "the file above the blobs comes twice rather than the blobs' never"
    tables.is_the_log(twice=[3])


def test_a_merged_file_is_a_data_change_only_in_tables_that_lacked_its_records(tables):
    """Simulates a merge: the row of one file with the same records replaces the rows of two files."""
    tables.append("a")
    tables.leave(3)
    tables.append("b")
    tables.append("c")
    with tables.cluster.store.snapshot() as connection:
        rows = connection.execute(sa.select(t.segment).order_by(SEGMENT.base_offset)).mappings().all()
    tables.append("a", "b")  # provides the file; then the log is restored
    with tables.cluster.store.snapshot() as connection:
        donor = connection.execute(sa.select(t.segment).where(SEGMENT.base_offset == 3)).mappings().one()
    name = "0123456789abcdef0123456789abcdef-0.parquet"
    for broker in (1, 2):
        folder = tables.location(broker) / "_segments" / "0"
        shutil.copy(folder / donor["name"], folder / name)
    with tables.cluster.store.snapshot() as connection:
        change = connection.execute(sa.select(PARTITION.change)).scalar_one() + 1
    facts = {"topic_id": tables.topic.topic_id, "partition": 0, "change": change, "retired_ms": 0}
    retired = [{"path": f"{tables.topic.folder}/_segments/0/{row['name']}", **facts} for row in rows[:2]]
    new = {**donor, "base_offset": 0, "end_offset": 2, "name": name, "change": change, "rewritten": True}
    versions = {broker: tables.delta(broker).version() for broker in (1, 2)}
    tables.sql(
        t.segment.delete().where(SEGMENT.base_offset < 2),
        t.retired_file.insert().values(retired),
        t.segment.insert().values(new),
        t.partition.update().values(change=change),
        t.replica.update().where(t.replica.c.broker_id == 3).values(log_end_offset=0),
    )
    tables.publish()
    assert [len(tables.records(broker)) for broker in (1, 2, 3)] == [5, 5, 0]
    tables.catch_up(3)
    for broker in (1, 2):
        assert tables.changes(broker, versions[broker] + 1) == [(0, False)]
    assert tables.changes(3) == [(0, True), (0, True), (2, True), (3, True)], (
        "b was never in this table: rather a twice"
    )
    tables.is_the_log(twice=[0])


def test_after_a_truncation_the_table_has_no_lost_record(tables):
    tables.append("a")
    tables.append("b", acks=1)
    tables.leave(2, 3)
    tables.append("c", acks=1)
    tables.publish()
    assert [tables.values(broker) for broker in (1, 2, 3)] == ["abc", "a", "a"]
    tables.sql(t.log_dir.update().where(t.log_dir.c.broker_id == 1).values(online=False))
    [(_, truncation)] = elect_leaders(tables.cluster.store, unfenced, unclean=[(tables.topic.topic_id, 0)]).truncations
    assert truncation.start_offset == 1
    tables.append("B")
    tables.append("C")
    tables.log._followers.close(10)  # it would copy to broker 1 as soon as that is back
    tables.sql(t.log_dir.update().values(online=True))
    version = tables.delta(1).version()
    tables.publish()
    assert tables.values(1) == "a"
    for broker in (1, 3):
        tables.catch_up(broker)
    assert [tables.values(broker) for broker in (1, 2, 3)] == ["aBC"] * 3
    assert tables.changes(1, version + 1) == [(1, True), (2, True)], "other records at the offsets of lost ones"
    tables.is_the_log()


def test_a_replica_that_moved_away_leaves_the_table(cluster, log, tmp_path):
    tables = ReplicatedTables(cluster, log, tmp_path, partitions=2)
    for partition in (0, 1):
        tables.append("a", partition=partition)
    gone = t.partition.update().where(PARTITION.partition == 1).values(change=PARTITION.change + 1)
    tables.sql(t.replica.delete().where(REPLICA.broker_id == 3, REPLICA.partition == 1), gone)
    tables.publish()
    assert tables.records(3) == [(0, 0, "a")]
    version = tables.delta(3).version()
    tables.append("b", partition=1)
    tables.publish()
    assert tables.delta(3).version() == version, "and is not checked again"
    tables.sql(t.replica.delete().where(REPLICA.broker_id == 3))
    tables.publish()
    assert tables.records(3) == []
    assert len(delta_tables(cluster, tables.topic)) == 2
    assert count_rows(cluster.store, t.publication) == 2
    tables.is_the_log()
    shutil.rmtree(tables.location(3))
    tables.append("c")
    tables.publish()
    assert not tables.location(3).exists(), "it is not made again for nothing"


def test_a_replica_that_returns_to_a_log_dir_makes_no_data_change_of_known_records(cluster, log, tmp_path):
    tables = ReplicatedTables(cluster, log, tmp_path)
    tables.append("a")
    [info] = [info for info in cluster.log_dirs().values() if info.broker_id == 3]
    keys = {"topic_id": tables.topic.topic_id, "partition": 0, "broker_id": 3, "log_dir_id": info.log_dir_id}
    changed = t.partition.update().values(change=PARTITION.change + 1)
    tables.sql(t.replica.delete().where(t.replica.c.broker_id == 3), changed)
    tables.append("b")
    assert tables.records(3) == []
    version = tables.delta(3).version()
    tables.sql(t.replica.insert().values(**keys, log_end_offset=0, in_sync=False, preference=9), changed)
    tables.catch_up(3)
    assert tables.values(3) == "ab"
    assert tables.changes(3, version + 1) == [(0, False), (1, True)]
    tables.is_the_log()


def test_a_full_comparison_requested_during_a_publication_is_kept(tables):
    """The controller found missing files during the comparison: the next publication compares the whole table."""
    tables.append("a")
    info = next(iter(tables.cluster.log_dirs().values()))
    table = TableKey(tables.topic.topic_id, info.log_dir_id)
    with tables.cluster.store.snapshot() as connection:
        before = publication_state.recorded(connection, table)
        due = publication_state.due(connection, table)
    assert before is not None
    tables.sql(t.publication.update().where(t.publication.c.log_dir_id == info.log_dir_id).values(table_version=-1))
    tables.cluster.store.transact(
        lambda connection: publication_state.record(connection, tables.topic, table, before, before, due)
    )
    with tables.cluster.store.snapshot() as connection:
        assert publication_state.recorded(connection, table) == (before[0], -1)
    tables.publish()
    with tables.cluster.store.snapshot() as connection:
        assert publication_state.recorded(connection, table) == before


def test_a_publication_during_a_truncation_does_not_record_offsets_that_are_gone_as_seen(tables):
    """A stream of the table would miss the records that get these offsets, if their files are merged at first."""
    tables.append("a")
    tables.leave(2, 3)
    tables.append("b")
    tables.sql(t.partition.update().values(change=PARTITION.change + 1))
    store, topic = tables.cluster.store, tables.topic
    [info] = [info for info in tables.cluster.log_dirs().values() if info.broker_id == 1]
    table = TableKey(topic.topic_id, info.log_dir_id)
    with store.snapshot() as connection:
        recorded = publication_state.recorded(connection, table)
        due = publication_state.due(connection, table)
    assert due.cursors[0].seen_offset == 2
    tables.sql(t.log_dir.update().where(t.log_dir.c.broker_id == 1).values(online=False))
    [_] = elect_leaders(store, unfenced, unclean=[(topic.topic_id, 0)]).truncations
    intent = Intent(topic, table, recorded, recorded, [], due)
    store.transact(lambda connection: publication_state.record(connection, topic, table, recorded, recorded, due))
    assert store.transact(lambda connection: publication_intent.note(connection, [intent])) == {}
    assert max(store.read(lambda connection: seen_offsets(connection, topic, 0))) == 1
    once = store.read(lambda connection: publication_state.recorded(connection, table))
    store.transact(lambda connection: lower_seen_offsets(connection, (topic.topic_id, 0), 0))
    again = Intent(topic, table, once, once, [], due)
    assert store.transact(lambda connection: publication_intent.note(connection, [again])) == {}


def test_a_log_dir_that_returns_empty_gets_a_new_table(tables):
    tables.append("a")
    tables.append("b")
    home = tables.folder / "broker-2"
    away = home.rename(tables.folder / "away")
    inspect_log_dirs(tables.cluster, unfenced)
    elect_leaders(tables.cluster.store, unfenced)
    tables.append("c")
    home.mkdir()
    inspect_log_dirs(tables.cluster, unfenced)
    try_publish(tables.cluster, [tables.topic])
    assert tables.values(2) == ""
    tables.catch_up(2)
    assert tables.values(2) == "abc"
    assert tables.changes(2) == [(0, True), (1, True), (2, True)], "its streams have seen nothing"
    tables.append("d")
    tables.is_the_log()
    assert away.exists()


def test_a_log_dir_that_returns_without_some_files_keeps_its_table(tables):
    for value in "abc":
        tables.append(value)
    version = tables.delta(2).version()
    home = tables.folder / "broker-2"
    away = home.rename(tables.folder / "away")
    inspect_log_dirs(tables.cluster, unfenced)
    elect_leaders(tables.cluster.store, unfenced)
    tables.append("d")
    [name] = tables.cluster.store.read(
        lambda connection: connection.execute(sa.select(SEGMENT.name).where(SEGMENT.base_offset == 1)).scalars().all()
    )
    next(away.rglob(name)).unlink()
    away.rename(home)
    inspect_log_dirs(tables.cluster, unfenced)
    tables.publish()
    assert tables.values(2) == "a"
    with copied_segments() as copied:
        assert tables.catch_up(2).in_sync
    assert len(copied) == 2, "the third is there, and is only verified"
    assert tables.values(2) == "abcd"
    assert sorted(tables.changes(2, version + 1)) == [(1, False), (2, False), (3, True)]
    tables.is_the_log()


def test_a_table_of_a_partition_that_has_lost_records_is_not_equal_to_the_log(tables):
    """Nothing can be read above the files that are missing, and the table does not list it."""
    for value in "abc":
        tables.append(value)
    assert [each.difference for each in verify(tables.cluster, tables.topic)] == [None] * 3
    for broker in (1, 2, 3):
        tables.fall(broker, 1)
    tables.sql(t.partition.update().values(leader=None))
    lost = "partition 0, offsets 1 to 2: it has no leader, and this log dir lacks them"
    assert [(each.records, each.difference) for each in verify(tables.cluster, tables.topic)] == [(1, lost)] * 3
    for before, difference in {2: lost.replace("offsets 1 to 2", "offsets 2 to 2"), 3: None}.items():
        delete_records(tables.cluster, {TopicPartition(tables.topic.name, 0): before})
        assert [each.difference for each in verify(tables.cluster, tables.topic)] == [difference] * 3
