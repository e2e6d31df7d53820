"""`erase --purge` names every place that still holds erased records, and following its advice removes them."""

import os
import sqlite3
from pathlib import Path

import pytest

from spark_log import Producer
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.config import ClusterSettings
from spark_log.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from spark_log.groups.share.administration import alter_group_configs
from spark_log.ids import TopicPartition
from spark_log.log.reader import LogReader
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.erase.erase import erase
from spark_log.metadata import scrub
from spark_log.metadata import tables as t
from spark_log.metadata.address import SQLITE_FILE
from spark_log.replication.controller.reassignments import begin_reassignments
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.replication.replicas.replica_moves import run_reassignments
from spark_log.tables.publication import delta_tables, publish
from tests.support.records import append_keyed, rows_of
from tests.support.replicas import folder_of, take_away
from tests.support.resources import places_with, unnamed_places
from tests.support.share_members import ShareMember
from tests.support.stores import count_rows, topics_view

pytestmark = [pytest.mark.on_sqlite, pytest.mark.on_data_store]

READABLE = {"compression.type": "none"}
FILES = {**READABLE, "inline.max.bytes": "0"}
GONE, STAYS, PRIVATE = b"key-of-somebody-7f3a", b"key-that-stays", b"private-value-5b1d"


def come_back(cluster, broker_id):
    """The log dir is available again; no component has been notified."""
    folder = folder_of(cluster, broker_id)
    folder.with_name(f"{folder.name}-away").rename(folder)


def purge(cluster, topic="t"):
    return erase(cluster, topic, [GONE], purge=True)


def of_files(notes):
    """Without the note about PostgreSQL's own files."""
    return [note for note in notes if "PostgreSQL" not in note]


@pytest.fixture
def sqlite_cluster(tmp_path):
    with Cluster.init(str(tmp_path / "cluster"), log_dir=str(tmp_path / "d1")) as cluster:
        yield cluster


def test_a_reader_that_keeps_the_write_ahead_log_is_named(sqlite_cluster, tmp_path, monkeypatch):
    cluster, log = sqlite_cluster, ClientLog(sqlite_cluster)
    monkeypatch.setattr(scrub, "WAIT_MS", 200)
    topic = create_topic(cluster, "t", configs=READABLE)
    append_keyed(log, topic, (GONE, PRIVATE), (STAYS, b"1"))
    reader = sqlite3.connect(tmp_path / "cluster" / SQLITE_FILE, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM blob").fetchone()
    erased = purge(cluster)
    assert erased.records == 1
    found = places_with(cluster, tmp_path, GONE, PRIVATE)
    assert any(path.endswith(f"{SQLITE_FILE}-wal") for path in found)
    [note] = erased.notes
    assert str(tmp_path / "cluster" / SQLITE_FILE) in note and "write-ahead log" in note, note
    assert "erase again" in note, note
    reader.execute("COMMIT")  # the advice: when that reader has ended
    again = purge(cluster)
    assert (again.records, again.notes) == (0, ())
    assert places_with(cluster, tmp_path, GONE, PRIVATE) == {}
    reader.close()
    log.close()


def test_a_database_that_cannot_be_rewritten_is_named_and_the_erase_is_done(sqlite_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(scrub, "WAIT_MS", 200)
    other = sqlite3.connect(tmp_path / "cluster" / SQLITE_FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # a program that does not queue with us
    left = scrub.scrub(sqlite_cluster.store)
    assert left is not None and SQLITE_FILE in left and "locked" in left
    other.execute("ROLLBACK")
    other.close()
    assert scrub.scrub(sqlite_cluster.store) is None


def test_vacuum_full_removes_the_bytes_that_postgresql_keeps(postgres_url, postgres_server, tmp_path):
    with Cluster.init(postgres_url, log_dir=str(tmp_path / "d1")) as cluster:
        log, topic = ClientLog(cluster), create_topic(cluster, "t", configs=READABLE)
        append_keyed(log, topic, (GONE, PRIVATE), (STAYS, b"1"))
        [note] = purge(cluster).notes
        assert "VACUUM FULL blob" in note and "write-ahead log" in note and "backups" in note
        database = postgres_url.rpartition("/")[2]
        for statement in ("VACUUM FULL blob", "CHECKPOINT"):  # by the operator: they may take long
            postgres_server.execute(statement, database)
        oid = postgres_server.query("SELECT oid FROM pg_database WHERE datname = current_database()", database)
        folder = postgres_server.data / "base" / oid  # other tests' databases may hold the same keys
        assert folder.is_dir()
        assert not [
            path
            for path in folder.rglob("*")
            if path.is_file() and (GONE in path.read_bytes() or PRIVATE in path.read_bytes())
        ]
        log.close()


def test_files_on_a_log_dir_that_was_offline_are_deleted_although_their_producer_is_open(three_brokers, tmp_path):
    cluster, log = three_brokers, ClientLog(three_brokers)
    topic = create_topic(cluster, "t", 1, 3, FILES)
    append_keyed(log, topic, (GONE, PRIVATE), (STAYS, b"1"))
    take_away(cluster, 3)
    erased = purge(cluster)
    found = places_with(cluster, tmp_path, GONE, PRIVATE, away=[3])
    assert found and unnamed_places(erased.notes, found) == []
    come_back(cluster, 3)
    again = purge(cluster)  # the advice; `log` is open, and its write id registered
    assert of_files(again.notes) == []
    assert again.purged.files == 1
    assert places_with(cluster, tmp_path / "d3", GONE, PRIVATE) == {}
    assert [row[2] for row in rows_of(log, topic)] == [STAYS]
    log.close()


def test_clean_up_deletes_files_that_were_retired_while_a_log_dir_was_offline(three_brokers, tmp_path):
    cluster, log = three_brokers, ClientLog(three_brokers)
    topic = create_topic(cluster, "t", 1, 3, FILES)
    append_keyed(log, topic, (GONE, PRIVATE), (STAYS, b"1"))
    take_away(cluster, 3)
    purge(cluster)
    come_back(cluster, 3)
    reports = list(run_tasks(cluster, ["files"]))
    assert sum(report.before.files for report in reports) == 1
    assert places_with(cluster, tmp_path / "d3", GONE, PRIVATE) == {}
    assert count_rows(topics_view(cluster).store, t.retired_copy) == 0
    log.close()


def test_a_replica_that_moved_away_from_an_offline_log_dir_is_named(three_brokers, tmp_path):
    cluster, log = three_brokers, ClientLog(three_brokers)
    add_broker(cluster, 4, [str(tmp_path / "d4")])
    topic = create_topic(cluster, "t", 1, 3, FILES)
    append_keyed(log, topic, (GONE, PRIVATE), (STAYS, b"1"))
    take_away(cluster, 3)
    begin_reassignments(cluster, {TopicPartition("t", 0): [1, 2, 4]})
    run_reassignments(cluster, ClusterSettings(), [TopicPartition("t", 0)])
    erased = purge(cluster)
    found = places_with(cluster, tmp_path, GONE, PRIVATE, away=[3])
    assert found and unnamed_places(erased.notes, found) == []
    come_back(cluster, 3)
    again = purge(cluster)
    assert of_files(again.notes) == []
    assert again.purged.replicas == 1
    assert places_with(cluster, tmp_path / "d3", GONE, PRIVATE) == {}
    log.close()


@pytest.mark.parametrize("inline", [True, False])
def test_batches_of_an_open_transaction_are_named_by_its_id(cluster, cluster_address, tmp_path, inline):
    create_topic(cluster, "t", configs=READABLE if inline else FILES)
    producer = Producer(cluster=cluster_address, transactional_id="payments-7")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", key=GONE, value=PRIVATE)
    producer.flush()
    erased = purge(cluster)
    [note] = [note for note in erased.notes if "'payments-7'" in note]
    assert "erase again" in note
    if not inline:
        found = places_with(cluster, tmp_path, GONE, PRIVATE)
        assert found and unnamed_places(erased.notes, found) == []
    producer.abort_transaction()  # the advice: end it
    again = purge(cluster)
    assert of_files(again.notes) == []
    if "://" not in cluster_address:
        assert places_with(cluster, tmp_path, GONE, PRIVATE) == {}
    producer.close()


def test_an_open_transaction_of_a_deleted_topic_is_named(cluster, cluster_address):
    create_topic(cluster, "t", configs=READABLE)
    producer = Producer(cluster=cluster_address, transactional_id="payments-7")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", key=GONE, value=PRIVATE)
    producer.flush()
    delete_topic(cluster, "t")
    create_topic(cluster, "t", configs=READABLE)
    [note] = of_files(purge(cluster).notes)
    assert "'payments-7'" in note
    producer.abort_transaction()
    assert of_files(purge(cluster).notes) == []
    producer.close()


def test_files_of_a_deleted_topic_of_the_same_name_are_deleted_too(three_brokers, tmp_path):
    cluster, log = three_brokers, ClientLog(three_brokers)
    old = create_topic(cluster, "t", 1, 3, FILES)
    other = create_topic(cluster, "t-00000000", 1, 3, FILES)
    append_keyed(log, old, (GONE, PRIVATE), (STAYS, b"1"))
    append_keyed(log, old, (STAYS, b"2"))
    append_keyed(log, other, (STAYS, b"of another topic"))
    take_away(cluster, 3)
    delete_topic(cluster, "t")
    topic = create_topic(cluster, "t", 1, 2, FILES)
    append_keyed(log, topic, (STAYS, b"3"))
    erased = purge(cluster)
    found = places_with(cluster, tmp_path, GONE, PRIVATE, away=[3])
    assert found and unnamed_places(erased.notes, found) == []
    assert erased.purged.files == 2
    assert len(list((tmp_path / "d1" / old.folder / "_segments").rglob("*.parquet"))) == 1, "without the key it stays"
    come_back(cluster, 3)
    again = purge(cluster)
    assert of_files(again.notes) == []
    assert places_with(cluster, tmp_path / "d3", GONE, PRIVATE) == {}
    assert len(rows_of(log, other)) == len(rows_of(log, topic)) == 1
    log.close()


def test_dead_letters_of_the_records_are_named(sqlite_cluster):
    cluster, log = sqlite_cluster, ClientLog(sqlite_cluster)
    topic = create_topic(cluster, "t", configs=READABLE)
    letters = create_topic(cluster, "dlq.t", configs={**READABLE, "errors.deadletterqueue.group.enable": "true"})
    alter_group_configs(cluster.store, "workers", {"errors.deadletterqueue.topic.name": "dlq.t"})
    for each in (topic, letters):
        append_keyed(log, each, (GONE, PRIVATE), (STAYS, b"1"))
    assert len(ShareMember(cluster).poll()) == 0, "it begins at the end of the topic"
    [note] = purge(cluster).notes
    assert note.startswith("topic 'dlq.t', to which share groups of t write dead letters, has records"), note
    assert "`spark-log topic erase dlq.t`" in note
    assert (purge(cluster, "dlq.t").records, purge(cluster).notes) == (1, ())
    log.close()


def test_a_file_that_its_writer_may_still_append_is_named_with_the_writer(sqlite_cluster, tmp_path):
    cluster, log = sqlite_cluster, ClientLog(sqlite_cluster, holder="loader on host-7")
    topic = create_topic(cluster, "t", configs=FILES)
    append_keyed(log, topic, (GONE, PRIVATE), (STAYS, b"1"))
    write_id = next((tmp_path / "d1" / topic.folder / "_segments" / "0").iterdir()).name[:32]
    [source] = (tmp_path / "d1" / topic.folder / "_segments" / "0").iterdir()
    for name in (f"{write_id}-77.parquet", f".{write_id}-78.parquet.tmp", f".{'0' * 32}-1.parquet-0123456789ab.tmp"):
        source.with_name(name).write_bytes(source.read_bytes())
    source.with_name(f"{write_id}-79.parquet").write_bytes(b"PAR1 torn")
    (tmp_path / "d1" / topic.folder / "part-0.parquet").write_bytes(source.read_bytes())
    notes = purge(cluster).notes
    text = "\n".join(notes)
    assert "loader on host-7" in text and "close" in text
    assert "a day" in text, "the unfinished copy"
    assert "part-0.parquet" in text and "delete" in text, "another program's file"
    assert unnamed_places(notes, places_with(cluster, tmp_path, GONE, PRIVATE)) == []
    log.close()
    (tmp_path / "d1" / topic.folder / "part-0.parquet").unlink()
    source.with_name(f".{'0' * 32}-1.parquet-0123456789ab.tmp").unlink()
    assert purge(cluster).notes == ()
    assert places_with(cluster, tmp_path, GONE, PRIVATE) == {}


@pytest.mark.delta
def test_bounds_in_the_metadata_of_each_table_are_named_and_no_table_is_foreign(cluster):
    """Each table has statistics of the erased files until their retention is over."""
    configs = {"inline.max.bytes": "0", "cleanup.policy": "compact", "value.format": "json", "value.schema": "a STRING"}
    tables = {"table.formats": "delta,iceberg", "table.current": "delta"}
    topic = create_topic(cluster, "t", configs={**configs, **tables})
    log = ClientLog(cluster)
    append_keyed(log, topic, (GONE, b'{"a": "x"}'))
    append_keyed(log, topic, (b"other", b'{"a": "y"}'))
    log.close()
    publish(cluster, topic)
    notes = of_files(purge(cluster).notes)
    names = ("the Delta log of the topic", "the Delta log of the current state", "the Iceberg metadata of the topic")
    assert [sum(name in note for note in notes) for name in names] == [1, 1, 1], notes
    assert len(notes) == 3, notes


@pytest.mark.delta
def test_metadata_files_that_a_killed_publisher_left_are_named_and_deleted_after_a_day(cluster):
    tables = {"table.formats": "delta,iceberg", "table.current": "delta", "cleanup.policy": "compact"}
    topic = create_topic(cluster, "t", configs={**FILES, **tables, "value.format": "json", "value.schema": "a STRING"})
    log = ClientLog(cluster)
    append_keyed(log, topic, (GONE, b'{"a": "x"}'))
    log.close()
    publish(cluster, topic)
    (location,) = delta_tables(cluster, topic).values()
    names = [f"_delta_log/.{9:020d}.json-0123456789ab.tmp", "metadata/.0f-m0.avro.tmp"]
    left = [Path(location, name) for name in [*names, "_current/.deletion_vector_0f.bin.tmp"]]
    for file in left:
        file.write_bytes(b'{"add":')
    notes = purge(cluster).notes
    assert [sum(name in note and "Maintenance deletes" in note for note in notes) for name in names] == [1, 1], notes
    assert not any("deletion_vector" in note for note in notes), "it has no values"
    list(run_tasks(cluster, ["delta"]))
    assert all(file.exists() for file in left)
    for file in left:
        os.utime(file, (0, 0))
    list(run_tasks(cluster, ["delta"]))
    assert not any(file.exists() for file in left)


@pytest.mark.parametrize("kind", [OffsetOutOfRangeError, UnknownTopicOrPartitionError])
def test_dead_letters_that_change_during_the_search_do_not_stop_the_purge(sqlite_cluster, monkeypatch, kind):
    cluster, log = sqlite_cluster, ClientLog(sqlite_cluster)
    topic = create_topic(cluster, "t", configs=READABLE)
    create_topic(cluster, "dlq.t", configs={**READABLE, "errors.deadletterqueue.group.enable": "true"})
    alter_group_configs(cluster.store, "workers", {"errors.deadletterqueue.topic.name": "dlq.t"})
    append_keyed(log, topic, (GONE, PRIVATE), (STAYS, b"1"))
    assert len(ShareMember(cluster).poll()) == 0, "it begins at the end of the topic"
    positions = LogReader.positions

    def of_dead_letters(reader, target, *arguments, **options):
        if target.name == "dlq.t":
            raise kind("dlq.t-0")
        return positions(reader, target, *arguments, **options)

    monkeypatch.setattr(LogReader, "positions", of_dead_letters)
    erased = purge(cluster)
    assert erased.records == 1 and erased.purged is not None
    assert any(note.startswith("topic 'dlq.t'") and "cannot be read" in note for note in erased.notes), erased.notes
    log.close()
