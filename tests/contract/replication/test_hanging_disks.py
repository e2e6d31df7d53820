"""A disk whose writes hang while it answers reads, as one that fails, or whose file system is frozen, does; and one
whose reads hang too, as of a mount whose server is away.
"""

import os
import stat
import subprocess
import threading
from contextlib import closing
from dataclasses import replace

import pytest
from deltalake import DeltaTable

from spark_log.cluster.files import disk_calls
from spark_log.cluster.files.disk_calls import DiskCalls
from spark_log.cluster.lease import COORDINATOR, unfenced
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.log_dir_failures import failures_of_log_dirs, suspected_log_dirs
from spark_log.errors import NotCoordinatorError, StorageUnavailableError
from spark_log.facts.topics import describe_topics
from spark_log.failpoints import failpoint
from spark_log.ids import LogDirId
from spark_log.log.append.append_transaction import AppendRequest
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.log.partitions.partition_rows import read_partition
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.coordinator import lease_runner
from spark_log.maintenance.coordinator.lease_runner import LeaseRunner, PeriodicTask
from spark_log.metadata import tables as t
from spark_log.replication.controller import log_dir_inspection
from spark_log.replication.controller.controller import elect_leaders
from spark_log.replication.controller.log_dir_inspection import inspect_log_dirs
from spark_log.replication.replicas.followers import COPIES_MAX, Followers
from spark_log.tables import unopened_publication
from spark_log.tables.lag_measurement import delta_lags
from spark_log.tables.publication import delta_tables, publish
from tests.support.disk_faults import Disk, needs_a_disk
from tests.support.records import read_all, table
from tests.support.replicas import add_brokers, folder_of, inspect_and_elect, take_away, topic_on
from tests.support.stores import change
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import append
from tests.support.waiting import LIMIT_S, wait_until

ANSWER_S = 0.3


def leave_soon(monkeypatch, hangs):
    """Let calls into folders for which `hangs` is true have a limit of ANSWER_S; a loaded machine delays the others."""
    begin, less = DiskCalls.begin, (ANSWER_S - disk_calls.CALL_S_MAX) * 10_000_000
    monkeypatch.setattr(
        DiskCalls, "begin", lambda calls, work, size=0: begin(calls, work, less if hangs(calls._folder[0]) else size)
    )


@pytest.fixture
def answering(three_brokers, monkeypatch):
    """Set while the log dir of broker 3 answers. The others wait for it as briefly as they can."""
    event, folder, wait = threading.Event(), folder_of(three_brokers, 3), log_dir_inspection.wait

    def wait_for_the_others(answers, timeout_s):
        wait_until(lambda: sum(not each.done() for each in answers) <= 1)
        return wait(answers, min(timeout_s, 2 * ANSWER_S))

    leave_soon(monkeypatch, lambda root: str(folder) in root and not event.is_set())
    monkeypatch.setattr(log_dir_inspection, "wait", wait_for_the_others)
    yield event
    event.set()
    wait_until(no_calls)


@pytest.fixture
def frozen(three_brokers, answering, monkeypatch):
    """The disk of broker 3, whose writes hang until `set`."""
    folder, fsync = folder_of(three_brokers, 3), os.fsync

    def hanging(descriptor):
        if f"{os.readlink(f'/proc/self/fd/{descriptor}')}/".startswith(f"{folder}/"):
            assert answering.wait(LIMIT_S), "the caller waited for it"
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", hanging)
    return answering


@pytest.fixture
def mount(three_brokers, answering, monkeypatch):
    """The mount of broker 3, which answers while it is set."""
    folder = folder_of(three_brokers, 3)

    def hangs(call):
        def hanging(path, *arguments, **options):
            if f"{path}/".startswith(f"{folder}/"):
                assert answering.wait(LIMIT_S), "the caller waited for it"
            return call(path, *arguments, **options)

        return hanging

    for name in ("stat", "lstat", "open", "mkdir"):
        monkeypatch.setattr(os, name, hangs(getattr(os, name)))
    answering.set()
    return answering


def no_calls():
    """Whether no thread is in a call, or waits for one."""
    names = ("spark-log-disk", "spark-log-trial", "spark-log-inspection")
    return not any(thread.name.startswith(names) for thread in threading.enumerate())


def offline(cluster):
    return cluster.store.read(failures_of_log_dirs)


def intents(cluster):
    return cluster.store.read(lambda connection: connection.execute(t.publication_intent.select()).all())


def isr(cluster, topic):
    [described] = describe_topics(cluster, [topic])
    return described.partitions[0].isr


def replica_end(cluster, topic, broker_id):
    """The LEO of the replica of partition 0."""
    state = cluster.store.read(lambda connection: read_partition(connection, (topic.topic_id, 0)))
    return state.replica(broker_id).log_end_offset


def test_an_append_leaves_out_the_log_dir_and_it_comes_back_when_it_writes_again(three_brokers, frozen):
    topic = topic_on(three_brokers, "t", [[1, 2, 3]], inline_max_bytes="0", min_insync_replicas="2")
    with closing(ClientLog(three_brokers)) as log:
        append(log, topic, "v")
        assert list(isr(three_brokers, "t")) == [1, 2]
        inspect_log_dirs(three_brokers, unfenced)
        assert len(offline(three_brokers)) == 1, "that it answers reads is not enough"
        append(log, topic, "w")
        frozen.set()
        wait_until(lambda: not inspect_log_dirs(three_brokers, unfenced).checks and not offline(three_brokers))
        append(log, topic, "x")
        wait_until(lambda: sorted(isr(three_brokers, "t")) == [1, 2, 3])
    assert not list(folder_of(three_brokers, 3).rglob("*.tmp")), "what was left is deleted"


def test_an_inspection_finds_it_before_a_writer_does(three_brokers, frozen):
    topic_on(three_brokers, "t", [[3, 1]])
    wait_until(lambda: inspect_log_dirs(three_brokers, unfenced).out)
    elect_leaders(three_brokers.store, unfenced)
    [described] = describe_topics(three_brokers, ["t"])
    assert described.partitions[0].leader == 1
    assert not inspect_log_dirs(three_brokers, unfenced).back, "that it answers reads is not enough"
    frozen.set()
    wait_until(lambda: not inspect_log_dirs(three_brokers, unfenced).checks and not offline(three_brokers))


@pytest.mark.parametrize("opened", [True, False])
def test_an_append_leaves_out_a_log_dir_whose_mount_does_not_answer(three_brokers, mount, opened):
    topic = topic_on(three_brokers, "t", [[1, 2, 3]], inline_max_bytes="0", min_insync_replicas="2")
    with closing(ClientLog(three_brokers)) as log:
        if opened:
            append(log, topic, "v")
        mount.clear()
        append(log, topic, "w")
        assert list(isr(three_brokers, "t")) == [1, 2] and len(offline(three_brokers)) == 1
        mount.set()
        wait_until(lambda: not inspect_log_dirs(three_brokers, unfenced).checks and not offline(three_brokers))
        append(log, topic, "x")
        wait_until(lambda: sorted(isr(three_brokers, "t")) == [1, 2, 3])


def test_an_append_that_is_repeated_does_not_ask_a_log_dir_that_is_offline(three_brokers, mount, monkeypatch):
    topic = topic_on(three_brokers, "t", [[1, 2, 3]], inline_max_bytes="0")
    monkeypatch.setattr(Followers, "appended", lambda *_: None)
    asked, sizes = [], LogDir.sizes
    monkeypatch.setattr(LogDir, "sizes", lambda self, paths: asked.append(self.uri) or sizes(self, paths))

    def set_isr(*brokers):
        change(three_brokers, t.replica.update().values(in_sync=t.replica.c.broker_id.in_(brokers)))

    with closing(ClientLog(three_brokers)) as log:
        append(log, topic, "v")
        mount.clear()
        inspect_and_elect(three_brokers)
        set_isr(1)
        written = log.write_batches([(topic, Records(0, table("w")))])
        set_isr(1, 2)  # broker 2 has caught up meanwhile
        request = AppendRequest(written.batches, written.blobs, write_id=written.write_id)
        assert log.append_batches(request, {topic.topic_id: topic}).outcomes == [Appended(1, 2)]
        assert set(asked) == {folder_of(three_brokers, broker).as_uri() for broker in (1, 2)}
        assert list(isr(three_brokers, "t")) == [1, 2]


@pytest.mark.delta
def test_tables_in_other_log_dirs_are_published_while_a_mount_does_not_answer(three_brokers, mount, monkeypatch):
    monkeypatch.setattr(Followers, "appended", lambda *_: None)
    topic = topic_on(three_brokers, "t", [[1, 3]], inline_max_bytes="0")
    with closing(ClientLog(three_brokers)) as log:
        append(log, topic, "v")
        change(three_brokers, t.replica.update().where(t.replica.c.broker_id == 3).values(in_sync=False))
        mount.clear()
        append(log, topic, "w")
        with pytest.raises(StorageUnavailableError, match=r"may hang|an earlier call"):
            publish(three_brokers, topic)
    location = delta_tables(three_brokers, topic)[LogDirId(1)]
    assert DeltaTable(location).to_pyarrow_table().num_rows == 2


@needs_a_disk
@pytest.mark.on_sqlite
def test_a_frozen_file_system(cluster, tmp_path, monkeypatch):
    disk = Disk.make(tmp_path / "image", tmp_path / "disk")
    with disk.mounted() as folder, closing(ClientLog(cluster)) as log:
        leave_soon(monkeypatch, lambda root: str(folder) in root)
        add_brokers(cluster, tmp_path, 2)
        add_brokers(cluster, folder, 3)
        topic = topic_on(cluster, "t", [[1, 2, 3]], inline_max_bytes="0", min_insync_replicas="2")
        append(log, topic, "v")
        subprocess.run(["fsfreeze", "-f", str(folder)], check=True)
        try:
            append(log, topic, "w")
            assert sorted(isr(cluster, "t")) == [1, 2]
        finally:
            subprocess.run(["fsfreeze", "-u", str(folder)], check=True)
        wait_until(lambda: not inspect_log_dirs(cluster, unfenced).checks and not offline(cluster))
        append(log, topic, "x")
        wait_until(lambda: sorted(isr(cluster, "t")) == [1, 2, 3])
        assert read_all(log, topic) == [(0, 0, "v"), (0, 1, "w"), (0, 2, "x")]
        wait_until(no_calls)


def test_a_folder_that_hangs_after_the_file_got_its_name(three_brokers, frozen, monkeypatch):
    """The append finds the file, which may not be durable: it waits for it no longer than for another call."""
    topic = topic_on(three_brokers, "t", [[1, 2, 3]], inline_max_bytes="0", min_insync_replicas="2")
    hanging = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    with closing(ClientLog(three_brokers)) as log:
        append(log, topic, "v")
        folders_hang = lambda descriptor: stat.S_ISDIR(os.fstat(descriptor).st_mode) and hanging(descriptor)  # noqa: E731
        monkeypatch.setattr(os, "fsync", folders_hang)
        append(log, topic, "w")
    assert list(isr(three_brokers, "t")) == [1, 2]


@pytest.mark.delta
def test_a_publication_leaves_out_the_log_dir(three_brokers, frozen, monkeypatch):
    """It reports the failure. Without a controller, the next append detects it."""
    topic = topic_on(three_brokers, "t", [[1, 3]], inline_max_bytes="0", retention_ms="-1")
    frozen.set()
    with closing(ClientLog(three_brokers)) as log:
        append(log, topic, "v")
        monkeypatch.setattr(unopened_publication, "failpoint", lambda _: frozen.clear())
        append(log, topic, "w")
        assert len(three_brokers.store.read(suspected_log_dirs)) == 1
        append(log, topic, "x")
        assert len(offline(three_brokers)) == 1
        assert list(isr(three_brokers, "t")) == [1]
        assert three_brokers.store.read(delta_lags) == {}
        monkeypatch.setattr(unopened_publication, "failpoint", failpoint)
        frozen.set()
        wait_until(lambda: not inspect_log_dirs(three_brokers, unfenced).checks and not offline(three_brokers))
    publish(three_brokers, topic)
    assert_delta_is_the_log(three_brokers)


@pytest.mark.delta
def test_a_commit_that_a_disk_makes_late_is_found(three_brokers, frozen, monkeypatch):
    topic = topic_on(three_brokers, "t", [[3]], inline_max_bytes="0", retention_ms="-1")
    link = os.link
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "link", lambda *names: frozen.wait(LIMIT_S) and link(*names))
    frozen.set()
    with closing(ClientLog(three_brokers)) as log:
        append(log, topic, "v")
        monkeypatch.setattr(unopened_publication, "failpoint", lambda _: frozen.clear())
        append(log, topic, "w")
        assert intents(three_brokers), "none is withdrawn whose commit may still be made"
        monkeypatch.setattr(unopened_publication, "failpoint", failpoint)
        frozen.set()
        wait_until(no_calls)
    publish(three_brokers, topic)
    assert_delta_is_the_log(three_brokers)
    assert not intents(three_brokers)


def test_without_another_replica_the_append_fails_and_other_partitions_go_on(three_brokers, frozen):
    alone = topic_on(three_brokers, "alone", [[3], [1]], inline_max_bytes="0")
    with closing(ClientLog(three_brokers)) as log:
        with pytest.raises(StorageUnavailableError, match="its disk may hang"):
            append(log, alone, "v", partition=0)
        append(log, alone, "v", partition=1)


def test_a_reader_goes_on_with_another_replica(three_brokers, monkeypatch, caplog):
    topic = topic_on(three_brokers, "t", [[3, 1, 2]], inline_max_bytes="0")
    with closing(ClientLog(three_brokers)) as log:
        append(log, topic, "a")
        append(log, topic, "b")
        answers, open_, asked = threading.Event(), LogDir.open, []

        def hanging(log_dir, path):
            if not asked or log_dir.uri in asked:  # the log dir that is read first
                asked.append(log_dir.uri)
                assert answers.wait(LIMIT_S)
            return open_(log_dir, path)

        monkeypatch.setattr(LogDir, "open", hanging)
        leave_soon(monkeypatch, lambda root: not asked or root in asked)
        try:
            assert read_all(log, topic) == [(0, 0, "a"), (0, 1, "b")]
        finally:
            answers.set()
        assert len(asked) == 1, "the second file is read from another replica at once"
        assert "no answer in" in caplog.text
    wait_until(no_calls)


def test_a_run_of_a_task_that_waits_for_a_log_dir_that_has_failed_is_left_and_fenced(three_brokers, monkeypatch):
    monkeypatch.setattr(lease_runner, "_LOOK_S", 0.05)
    monkeypatch.setattr(lease_runner, "_LEFT_AFTER_S", 0.0)
    settings = replace(three_brokers.store.settings, controller_lease_ms=900)
    waits, goes_on, again, contexts = threading.Event(), threading.Event(), threading.Event(), []

    def publish(context):
        contexts.append(context)
        if len(contexts) == 1:
            waits.set()
            goes_on.wait(LIMIT_S)
        else:
            again.set()

    runner = LeaseRunner(three_brokers, COORDINATOR, settings, [PeriodicTask("publish", 10, publish)])
    runner.start()
    try:
        assert waits.wait(LIMIT_S)
        take_away(three_brokers, 3)
        assert again.wait(LIMIT_S)
        first, second = contexts[:2]
        assert first.stopping() and not second.stopping()
        with pytest.raises(NotCoordinatorError):
            three_brokers.store.transact(first.fence)
        three_brokers.store.transact(second.fence)
        assert runner.runs["publish"].failures == 1
    finally:
        goes_on.set()
        runner.close()


def test_copies_into_a_log_dir_that_hangs_are_left_when_it_is_offline(three_brokers, monkeypatch):
    hangs = topic_on(three_brokers, "hangs", [[1, 2]] * COPIES_MAX, inline_max_bytes="0")
    copied = topic_on(three_brokers, "copied", [[1, 3]], inline_max_bytes="0")
    asked, answers, sizes = [], threading.Event(), LogDir.sizes

    def hanging(log_dir, paths):
        if log_dir.uri == folder_of(three_brokers, 2).as_uri():
            asked.append(paths)
            answers.wait()
        return sizes(log_dir, paths)

    monkeypatch.setattr(LogDir, "sizes", hanging)
    monkeypatch.setattr(Followers, "appended", lambda *_: None)
    followers = Followers(three_brokers)
    try:
        with closing(ClientLog(three_brokers)) as log:
            log.append(hangs, [Records(number, table("v")) for number in range(COPIES_MAX)], acks=1)
            followers.wake()
            wait_until(lambda: len(asked) == COPIES_MAX)
            take_away(three_brokers, 2)
            log.append(copied, [Records(0, table("v"))], acks=1)
        followers.wake()
        wait_until(lambda: replica_end(three_brokers, copied, 3) == 1)
    finally:
        answers.set()
        followers.close()
