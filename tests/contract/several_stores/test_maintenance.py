"""Maintenance of a cluster with two stores: each maintains its own topics, and none deletes what another needs."""

import os
import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.store_directory import find_stores
from spark_log.cluster.stores import remove_store
from spark_log.cluster.topics import find_topics
from spark_log.errors import CorruptRecordError, InvalidConfigurationError, StoreChangedError
from spark_log.ids import HOME
from spark_log.log.log import Records
from spark_log.log.reader import LogReader
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.context import work_in_each_store
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.maintenance.erase.erase import erase
from spark_log.maintenance.file_verification import verify_files
from spark_log.maintenance.removal.orphans import GRACE_MS
from spark_log.maintenance.removal.unnamed_files import find_unnamed_files
from spark_log.metadata import tables as t
from spark_log.replication.controller.store_acceptance import accept_store
from spark_log.replication.controller.topic_copies import follow
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.tables.verification import verify
from tests.support.records import append_keyed, read_all, rows_of, table
from tests.support.stores import count_rows
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole
from tests.support.topics import make_older
from tests.support.waiting import wait_until

pytestmark = pytest.mark.delta

EAST = 1
FILES = {"inline.max.bytes": "0", "retired.file.retention.ms": "0"}
OLD_MS = 1_000_000_000_000
BOTH = ("near", "far")


@pytest.fixture
def folder(stores):
    [info] = stores.log_dirs().values()
    return Path(unquote(info.uri.removeprefix("file://")))


def create(stores, **configs):
    configs = {name.replace("_", "."): value for name, value in configs.items()}
    return [create_topic(stores, "near", configs=configs), create_topic(stores, "far", configs=configs, store="east")]


def append(log, topics, *values, timestamp_ms=None):
    for topic in topics:
        log.append(topic, [Records(0, table(*values, timestamp_ms=timestamp_ms or clock.wall_ms()))])


def values(stores, topic):
    return [value for _, _, value in read_all(LogReader(stores), topic)]


def files_of(folder, topic):
    return sorted(path for path in (folder / topic.folder).rglob("*.parquet") if "_delta_log" not in path.parts)


def age(path, ms):
    then_s = (clock.wall_ms() - ms) / 1000
    os.utime(path, (then_s, then_s))


def assert_whole(stores):
    assert_delta_is_the_log(stores)
    assert_replicas_are_whole(stores)
    assert find_unnamed_files(stores).files == []
    assert not [problem for replica in verify_files(stores, checksums=True) for problem in replica.problems]


def test_each_task_maintains_the_topics_of_both_stores(stores, folder):
    log = ClientLog(stores)
    topics = create(stores, **FILES, cleanup_policy="compact,delete", retention_ms="86400000")
    for n in range(3):
        for topic in topics:
            append_keyed(log, topic, (b"a", b"%d" % n), (b"b%d" % n, b"x"))
    inline = [create_topic(stores, "tail"), create_topic(stores, "tail-far", store="east")]
    append(log, inline, "a", "b")
    changed = {}
    for tasks in (["seal", "compact"], ["retention"], ["merge"]):
        for report in run_tasks(stores, tasks, now=True):
            changed.setdefault(report.task, set()).add(report.topic)
    log.close()
    old = {"far", "near"}
    assert changed == {"seal": {"tail", "tail-far"}, "compact": old, "retention": old}
    for topic in topics:
        assert values(stores, topic) == []
    for topic in inline:
        assert values(stores, topic) == ["a", "b"]
    reports = {report.topic: report.before.files for report in run_tasks(stores, ["files"])}
    assert reports.keys() >= {"far", "near"}
    assert [files_of(folder, topic) for topic in topics] == [[], []]
    assert_whole(stores)
    for topic in inline:
        assert {each.difference for each in verify(stores, topic)} == {None}


def test_clean_up_deletes_the_orphans_and_deleted_topics_of_each_store_only(stores, folder):
    log = ClientLog(stores)
    topics = create(stores, **FILES)
    gone = [create_topic(stores, "gone", configs=FILES), create_topic(stores, "gone-far", configs=FILES, store="east")]
    append(log, [*topics, *gone], "a", "b")
    log.close()
    orphans = [folder / topic.folder / "_segments/0" / f"{os.urandom(16).hex()}-1.parquet" for topic in topics]
    for orphan in orphans:
        orphan.write_bytes(b"x")
    assert [Path(each.location) for each in find_unnamed_files(stores).files] == sorted(orphans)
    for topic in gone:
        delete_topic(stores, topic.name)
    assert {report.topic: report.before.files for report in run_tasks(stores, ["files"])} == {"near": 1, "far": 1}
    assert [len(files_of(folder, topic)) for topic in [*topics, *gone]] == [1, 1, 1, 1]
    statement = t.retired_file.update().values(retired_ms=OLD_MS)
    stores.store.transact(lambda c: c.execute(statement))
    assert [report.topic for report in run_tasks(stores, ["files"])] == [None]
    assert [files_of(folder, topic) for topic in gone] == [[], []]
    assert_whole(stores)


def test_a_restored_home_store_deletes_nothing_of_a_data_store(stores, log, folder):
    near, far = create(stores, **FILES)
    append(log, [near, far], "a")
    log.close()
    for path in (folder / far.folder).rglob("*"):
        age(path, 2 * GRACE_MS)
    # a restored home store: it lacks the topic of the data store
    stores.store.transact(lambda c: c.execute(t.topic.delete().where(t.topic.c.name == "far")))
    list(run_tasks(stores, ["files"]))
    assert len(files_of(folder, far)) == 1, "the data store knows the folder"
    stores.store.transact(lambda c: c.execute(t.cluster.update().values(system_identifier="17")))
    with Cluster.open(stores.store.address.with_password) as restored:  # each connection checks the identity once
        with pytest.raises(StoreChangedError):
            follow(restored, EAST)
        accept_store(restored)
        follow(restored, EAST)
    assert stores.store.read(find_topics)["far"] == far
    assert values(stores, far) == ["a"]
    assert_whole(stores)


def test_a_restored_home_store_keeps_the_folders_of_a_store_that_it_does_not_know(stores, log, folder):
    _, far = create(stores, **FILES)
    append(log, [far], "a")
    log.close()
    for path in (folder / far.folder).rglob("*"):
        age(path, 2 * GRACE_MS)

    def forget(connection):
        connection.execute(t.topic.delete().where(t.topic.c.name == "far"))
        connection.execute(t.store.delete())

    [(folder / far.folder / name).rename(folder / name) for name in ("_delta_log",)]
    stores.store.transact(forget)
    [report] = run_tasks(stores, ["files"])
    assert "marker of store 1" in "".join(report.notes)
    assert len(files_of(folder, far)) == 1


def test_a_removed_store_leaves_no_marker(stores, folder):
    assert [each.name for each in folder.glob("spark_log_dir-*.json")] == ["spark_log_dir-1.json"]
    create_topic(stores, "far", store="east")
    with pytest.raises(InvalidConfigurationError):
        remove_store(stores, "east")
    delete_topic(stores, "far")
    remove_store(stores, "east")
    assert stores.store.read(find_stores) == [] and not list(folder.glob("spark_log_dir-*.json"))


def test_keys_are_erased_and_purged_in_topics_of_both_stores(stores, log, folder):
    topics = create(stores, **FILES)
    for topic in topics:
        append_keyed(log, topic, (b"stays", b"1"), (b"gone", b"2"))
    log.close()
    for topic in topics:
        erased = erase(stores, topic.name, [b"gone"], purge=True)
        assert (erased.records, erased.purged.files) == (1, 1)
        assert [row[2] for row in rows_of(LogReader(stores), topic)] == [b"stays"]
    assert_whole(stores)


def test_a_coordinator_maintains_both_stores(stores, log, folder):
    topics = create(stores, delta_max_lag_ms="100")
    gone = create_topic(stores, "gone", configs=FILES, store="east")
    append(log, [*topics, gone], "a", "b")
    for topic in topics:
        make_older(stores.of(topic), 60_000)
    delete_topic(stores, "gone")
    with Coordinator(stores) as coordinator:
        wait_until(lambda: all(files_of(folder, topic) for topic in topics), "files of each topic", pause_s=0.05)
        assert coordinator.health() is None
    list(run_tasks(stores, ["delta"]))
    kept = [Path(each.location) for each in find_unnamed_files(stores).files]
    assert kept == files_of(folder, gone) and len(kept) == 1, "for its readers"
    shutil.rmtree(folder / gone.folder)
    assert_whole(stores)
    assert count_rows(stores.at(EAST).store, t.segment) == 1


def test_work_on_request_goes_on_in_the_stores_after_one_that_fails(stores):
    def work(context):
        yield context.cluster.store_id
        if context.cluster.store_id == HOME:
            raise CorruptRecordError("home")

    done = []
    with pytest.raises(CorruptRecordError, match="home"):
        done.extend(work_in_each_store(stores, "test", None, work, on_spark=True))
    assert done == [HOME, EAST]
