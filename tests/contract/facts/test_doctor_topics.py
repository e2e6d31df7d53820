"""`spark-log doctor` on real clusters, each with a real fault of partitions, brokers, groups, tables or tasks."""

import shutil
from contextlib import closing

import pytest
import sqlalchemy as sa
from kafka import OffsetAndMetadata

from spark_log import Producer
from spark_log.cluster.brokers import BrokerSession, add_broker
from spark_log.cluster.cluster import Cluster, embedded_broker_row
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.topics import find_topic
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.facts.doctor import limits, stores
from spark_log.facts.metrics.cluster_snapshot import read_cluster
from spark_log.facts.metrics.history import read_task_runs
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.ids import BrokerId, TopicPartition
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.maintenance.removal.retention import delete_records
from spark_log.maintenance.task_list import run_tasks
from spark_log.metadata import tables as t
from spark_log.metadata.address import SQLITE_FILE
from spark_log.replication.controller.requested_elections import elect, expected_truncations
from spark_log.replication.controller.store_acceptance import accept_store
from spark_log.replication.controller.topic_operations import alter_configs, create_topic
from spark_log.replication.replicas.catch_up import catch_up
from tests.support.group_members import commit
from tests.support.operations import problem, problems
from tests.support.records import read_all, table
from tests.support.replicas import bring_back, folder_of, inspect_and_elect, take_away, topic_on
from tests.support.share_members import ShareMember
from tests.support.topics import append, append_to
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def any_machine(monkeypatch):
    """The machine of the tests may be slow, and its disk nearly full."""
    monkeypatch.setattr(limits, "LOCAL_WRITE_MS_MAX", 60_000)
    monkeypatch.setattr(limits, "FREE_SHARE_LOW", limits.FREE_SHARE_EMPTY)


def address_of(cluster):
    return cluster.store.address.with_password


# Partitions, brokers, groups, tables


def test_offline_and_under_replicated_partitions(tmp_path):
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        add_broker(cluster, 2, [str(tmp_path / "d2")])
        topic_on(cluster, "single", [[2]])
        topic_on(cluster, "twice", [[1, 2]], min_insync_replicas="1")
        take_away(cluster, 2)
        found = problems(cluster)
        assert [check for check, _ in found] == ["log dir", "brokers", "partitions", "partitions"]
        assert "1 partition (single-0): no leader" in found[2][1] and "--unclean" in found[2][1]
        assert "1 partition (twice-0): replicas are not in sync" in found[3][1]
        assert "partitions" not in {check for check, _ in problems(cluster, "__consumer_offsets")}
        alter_configs(cluster, "twice", {"min.insync.replicas": "2"})
        assert "fewer in-sync replicas" in problems(cluster, "twice")[-1][1]


def lose_a_file(cluster, log, folder):
    """Move the second file of topic t out of its only replica, and return the file and its new place."""
    add_broker(cluster, 2, [str(folder / "d2")])
    topic = topic_on(cluster, "t", [[2]], inline_max_bytes="0")
    for values in ("abc", "def", "ghi"):
        append(log, topic, *values)
    query = sa.select(t.segment.c.name).where(t.segment.c.base_offset == 3)
    name = cluster.store.read(lambda connection: connection.execute(query).scalar_one())
    file = folder_of(cluster, 2) / topic.folder / "_segments" / "0" / name
    take_away(cluster, 2)
    lost = (folder / "d2-away" / file.relative_to(folder / "d2")).rename(folder / "lost")
    bring_back(cluster, 2)
    inspect_and_elect(cluster)
    return file, lost


@pytest.mark.parametrize("choice", ["copy back", "delete records", "elect uncleanly"])
def test_a_missing_file_is_named_with_what_each_remedy_keeps(tmp_path, choice):
    with Cluster.init(str(tmp_path / "cluster")) as cluster, closing(ClientLog(cluster)) as log:
        file, lost = lose_a_file(cluster, log, tmp_path)
        check, text = problem(cluster)
        assert check == "partitions" and f"for example of t-0 offsets 3 to 5: {file}" in text
        if choice == "elect uncleanly":
            assert expected_truncations(cluster, [TopicPartition("t", 0)]) == {TopicPartition("t", 0): (3, 9)}
            assert elect(cluster, [TopicPartition("t", 0)], unclean=True) == {TopicPartition("t", 0): None}
        elif choice == "copy back":
            lost.rename(file)
        else:
            delete_records(cluster, {TopicPartition("t", 0): 6})
        if choice != "elect uncleanly":
            catch_up(cluster, log.find_topic("t"), 0, 2)
            inspect_and_elect(cluster)
        kept = {"copy back": "abcdefghi", "delete records": "ghi", "elect uncleanly": "abc"}[choice]
        assert "".join(value for _, _, value in read_all(log, log.find_topic("t"))) == kept
        assert problems(cluster) == []


def test_a_missing_file_of_an_object_store_is_named_without_a_call_of_it(tmp_path, monkeypatch):
    with Cluster.init(str(tmp_path / "cluster")) as cluster, closing(ClientLog(cluster)) as log:
        file, _ = lose_a_file(cluster, log, tmp_path)
        away = t.log_dir.update().where(t.log_dir.c.broker_id == 2).values(uri="nosuch://key:secret@bucket/d2?region=x")
        cluster.store.transact(lambda connection: connection.execute(away))
        snapshot = read_cluster(cluster)
        [facts] = [each for each in snapshot.partitions if each.topic == "t"]
        missing = stores.find_missing_file(cluster, snapshot.topics[facts.topic_id], facts)
        assert missing.location == f"nosuch://bucket/d2/{file.relative_to(tmp_path / 'd2')}"


def test_an_error_of_the_search_for_a_missing_file_hides_no_other_problem(tmp_path, monkeypatch):
    def fail(*_):
        raise MetadataStoreUnavailableError("no answer")

    with Cluster.init(str(tmp_path / "cluster")) as cluster, closing(ClientLog(cluster)) as log:
        lose_a_file(cluster, log, tmp_path)
        monkeypatch.setattr(stores, "find_missing_file", fail)
        check, text = problem(cluster)
        assert check == "partitions" and "files are missing in log dirs that are online ->" in text


def test_an_unclean_election_is_foreseen_without_a_log_dir_that_has_just_failed(tmp_path):
    with Cluster.init(str(tmp_path / "cluster"), log_dir=str(tmp_path / "d1")) as cluster:
        for broker_id in (2, 3):
            add_broker(cluster, broker_id, [str(tmp_path / f"d{broker_id}")])
        topic = topic_on(cluster, "t", [[1, 2, 3]], inline_max_bytes="0")
        with closing(ClientLog(cluster)) as log:
            for broker_id in (2, 3):
                append(log, topic, "a", "b", "c")
                take_away(cluster, broker_id)
            append(log, topic, "a", "b", "c")
        take_away(cluster, 1)
        for broker_id in (2, 3):
            bring_back(cluster, broker_id)
        inspect_and_elect(cluster)
        partition = TopicPartition("t", 0)
        assert expected_truncations(cluster, [partition]) == {partition: (6, 9)}
        (tmp_path / "d3").rename(tmp_path / "d3-away")
        assert expected_truncations(cluster, [partition]) == {partition: (3, 9)}


def test_a_dead_broker_and_no_coordinator(tmp_path):
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        BrokerSession(cluster.store, 1, 1).register()
        found = problems(cluster)
        assert [check for check, _ in found] == ["coordinator", "brokers"]
        assert "spark-log broker start --id 1;" in found[1][1] and "spark-log broker embed --id 1" in found[1][1]


@pytest.mark.parametrize("served", [False, True])
def test_a_broker_without_log_dirs_is_added_again_unless_a_process_has_served_it(tmp_path, served):
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        cluster.store.transact(lambda c: c.execute(t.broker.insert(), embedded_broker_row(BrokerId(2), None)))
        if served:
            BrokerSession(cluster.store, 2, 60_000).register()
        [(_, text)] = [each for each in problems(cluster) if each[0] == "brokers"]
        assert "spark-log broker remove --id 2" in text
        assert ("spark-log broker add --id 2" in text) == (not served)


@pytest.mark.on_sqlite
def test_settings_that_contradict_each_other(cluster):
    topic_on(cluster, "t", [[1]], min_insync_replicas="2")
    alter_settings(cluster, {"group.consumer.heartbeat.interval.ms": "30000"})
    found = problems(cluster)
    assert [check for check, _ in found] == ["cluster settings", "topic settings"]
    assert "--unset group.consumer.heartbeat.interval.ms" in found[0][1]
    assert "spark-log topic alter t --config min.insync.replicas=N" in found[1][1]


def test_a_group_that_lost_records_to_retention(cluster):
    topic = create_topic(cluster, "t")
    append_to(cluster, topic, *"abc")
    commit(address_of(cluster), "g", {TopicPartition("t", 0): OffsetAndMetadata(1, "", -1)})
    delete_records(cluster, {TopicPartition("t", 0): 3})
    check, text = problem(cluster)
    assert check == "groups"
    assert "retention removed records of t-0" in text and "spark-log group reset g" in text


def test_a_share_group_that_dead_letters_hold_up(cluster):
    append_to(cluster, create_topic(cluster, "t"), *"abc")
    configs = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.missing"}
    alter_settings(cluster, {"group.share.min.partition.max.record.locks": "3"})
    alter_group_configs(cluster.store, "workers", {**configs, "share.partition.max.record.locks": "3"})
    member = ShareMember(cluster)
    member.acknowledge(member.poll(2), AcknowledgeType.REJECT)
    check, text = problem(cluster)
    assert check == "share groups"
    assert "cannot write 2 dead letters of t-0" in text and "spark-log share config workers" in text
    member.poll()
    assert "3 unfinished records in t-0" in problems(cluster)[1][1]


@pytest.mark.delta
def test_a_stale_table_with_the_reason_if_it_cannot_be_published(tmp_path):
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        topic = create_topic(cluster, "t", configs={"delta.max.lag.ms": "0"})
        log = ClientLog(cluster)
        log.append(topic, [Records(0, table("a"))])
        list(run_tasks(cluster, ["seal", "delta"]))
        alter_configs(cluster, "t", {"delta.max.lag.ms": "-1"})
        topic = cluster.store.read(lambda connection: find_topic(connection, "t"))
        log.append(topic, [Records(0, table("b"))])
        log.close()
        age(cluster, t.segment, appended_ms=22 * 60_000)
        assert problems(cluster) == [], "without a bound"
        alter_configs(cluster, "t", {"delta.max.lag.ms": "480000"})
        check, text = problem(cluster)
        assert check == "tables"
        assert "the delta table of t lacks 1 record, the oldest 22 min old" in text
        assert "spark-log maintenance seal delta --now --topic t" in text
        delta_log = folder_of(cluster, 1) / topic.folder / "_delta_log"
        delta_log.rename(delta_log.with_name("_away"))
        delta_log.write_text("no folder")
        assert "the error names" in problem(cluster)[1]


@pytest.mark.delta
def test_an_idle_table_that_is_ahead_of_a_restored_store(tmp_path, monkeypatch):
    """Its cursors are those of the backup, so that it does not lag."""
    address, backup = str(tmp_path / "cluster"), tmp_path / "backup.sqlite"
    with Cluster.init(address) as cluster:
        create_topic(cluster, "t", configs={"inline.max.bytes": "0"})
        append_to(cluster, "t", "before")
    shutil.copy(tmp_path / "cluster" / SQLITE_FILE, backup)
    with Cluster.open(address) as cluster:
        append_to(cluster, "t", "after")
    shutil.copy(backup, tmp_path / "cluster" / SQLITE_FILE)
    check, text = problem(address)
    assert check == "store" and "the store seems to be restored from an older copy" in text
    assert "spark-log store accept" in text
    with Cluster.open(address) as cluster:
        append_to(cluster, "t", "not published")
        monkeypatch.setattr("spark_log.facts.doctor.examination._TRIED_AGE_S", 0)
        assert problem(address)[0] == "store", "one fault is one problem, also if the table lags"
        accept_store(cluster)
    assert problems(address) == []


def age(cluster, changed, **columns):
    """Let times of all rows of a table be so long ago."""
    now_ms = cluster.store.now().wall_ms
    values = {name: now_ms - ago_ms for name, ago_ms in columns.items()}
    cluster.store.transact(lambda connection: connection.execute(changed.update().values(values)))


def test_transactions_past_their_time_out(cluster):
    create_topic(cluster, "t")
    address = address_of(cluster)
    with Producer(cluster=address, transactional_id="x", transaction_timeout_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"v").get(30)
        assert problems(cluster) == []
        age(cluster, t.transaction, began_ms=31 * 60_000, until_ms=0)
        check, text = problem(cluster)
        assert check == "transactions"
        assert "'x' has been open for 31 min" in text and "1 batch of t" in text
        assert "spark-log transaction abort x" in text
        producer.abort_transaction()


def test_retired_files_that_nothing_deletes(cluster):
    topic = create_topic(cluster, "t")
    row = {"path": f"{topic.folder}/_segments/0/w-0.parquet", "topic_id": topic.topic_id, "partition": 0}
    now_ms = cluster.store.now().wall_ms
    row |= {"retired_ms": now_ms - 9 * 24 * 3_600_000, "change": 0, "fresh": False}
    cluster.store.transact(lambda connection: connection.execute(t.retired_file.insert(), row))
    check, text = problem(cluster)
    assert check == "clean-up"
    assert "1 should have been deleted, the oldest 48 h ago" in text or "2 d ago" in text
    assert "spark-log maintenance files" in text


@pytest.mark.delta
def test_a_task_that_fails(tmp_path):
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        often = {"table.loop.poll.ms": "50", "delta.maintenance.interval.ms": "50", "metrics.interval.ms": "100"}
        alter_settings(cluster, often)
        topic = create_topic(cluster, "t", configs={"delta.max.lag.ms": "0"})
        append_to(cluster, topic, "a")
        delta_log = folder_of(cluster, 1) / topic.folder / "_delta_log"
        if delta_log.exists():
            delta_log.rename(delta_log.with_name("_away"))
        delta_log.parent.mkdir(exist_ok=True)
        delta_log.write_text("no folder")
        with Coordinator(cluster):
            wait_until(lambda: any(run.task == "maintenance: delta" for run in failed_runs(cluster)))
            found = problems(cluster)
        assert "tasks" in {check for check, _ in found}
        assert any("maintenance: delta" in text for _, text in found)


def failed_runs(cluster):
    return read_task_runs(cluster, failed=True)
