"""The inspection of log dirs of which some hang."""

import shutil
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from contextlib import closing

import pytest
import sqlalchemy as sa

from spark_log import clock, process
from spark_log.cluster.each_store import in_each_store
from spark_log.cluster.lease import unfenced
from spark_log.cluster.log_dir import LogDir
from spark_log.facts.topics import describe_topics
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.file_verification import verify_files
from spark_log.metadata import tables as t
from spark_log.replication.controller import fallback_controller, log_dir_inspection
from spark_log.replication.controller.fallback_controller import FallbackController
from spark_log.replication.controller.log_dir_inspection import inspect_log_dirs
from spark_log.replication.controller.log_dir_relocation import relocate_log_dir
from tests.support.replicas import bring_back, folder_of, take_away, topic_on
from tests.support.stores import topics_view
from tests.support.topics import append, append_to
from tests.support.waiting import LIMIT_S, wait_until


def online(cluster):
    """The brokers whose log dir is online."""
    query = sa.select(t.log_dir.c.broker_id).where(t.log_dir.c.online)
    return set(cluster.store.read(lambda connection: connection.execute(query).scalars().all()))


def replicas(cluster):
    """The rows of all replicas and partitions."""
    return cluster.store.read(lambda c: [c.execute(sa.select(table)).all() for table in (t.replica, t.partition)])


def test_log_dirs_that_hang_are_asked_once_and_waited_for_together(three_brokers, monkeypatch):
    release, asked, waits, answers_seen = threading.Event(), [], [], set()
    ask, wait = log_dir_inspection._ask, log_dir_inspection.wait

    def hanging(known, *others):
        asked.append(known.broker_id)
        if known.broker_id != 1:
            release.wait()
        return ask(known, *others)

    def short(answers, timeout_s):
        """Wait for broker 1, the only one that can answer, until its thread has ended."""
        waits.append(timeout_s)
        answers_seen.update(answers)
        wait(answers, LIMIT_S, FIRST_COMPLETED)
        wait_until(lambda: len(asked) == len(answers_seen))  # each thread has begun
        wait_until(lambda: not any(each.answer.done() for each in list(process._asking.values())))

    monkeypatch.setattr(log_dir_inspection, "_ask", hanging)
    monkeypatch.setattr(log_dir_inspection, "wait", short)
    for _ in range(3):
        assert len(inspect_log_dirs(three_brokers, unfenced).out) <= 2
    assert sorted(asked) == [1, 1, 1, 2, 3] and len(waits) == 3
    now_s = clock.monotonic_s()
    with monkeypatch.context() as later:
        for seconds, count in ((61, 2), (121, 2), (182, 3)):  # a mount that was replaced answers
            later.setattr(clock, "monotonic_s", lambda seconds=seconds: now_s + seconds)
            inspect_log_dirs(three_brokers, unfenced)
            assert asked.count(2) == asked.count(3) == count
    monkeypatch.setattr(log_dir_inspection, "wait", wait)
    release.set()
    wait_until(lambda: not process._asking)
    inspect_log_dirs(three_brokers, unfenced)
    wait_until(lambda: asked.count(2) == asked.count(3) == 4)


def test_without_a_thread_the_caller_inspects(three_brokers, monkeypatch, tmp_path):
    """At the exit of the program, and at the limit of threads."""
    monkeypatch.setattr(process, "start_thread", lambda *_: None)
    assert inspect_log_dirs(three_brokers, unfenced).out == {}
    (tmp_path / "d2").rename(tmp_path / "away")
    assert len(inspect_log_dirs(three_brokers, unfenced).out) == 1


def test_inspections_at_the_same_time_share_the_answers(three_brokers, monkeypatch):
    both, asked, ask = threading.Barrier(2, timeout=30), [], log_dir_inspection._ask
    release = threading.Event()

    def slow(known, *others):
        asked.append(known.broker_id)
        assert release.wait(30)
        return ask(known, *others)

    def inspect():
        both.wait()
        return inspect_log_dirs(three_brokers, unfenced)

    def waits(answers, timeout_s):
        waiting.append(len(answers))
        if len(waiting) == 2:
            release.set()
        return wait(answers, timeout_s)

    waiting, wait = [], log_dir_inspection.wait
    monkeypatch.setattr(log_dir_inspection, "_ask", slow)
    monkeypatch.setattr(log_dir_inspection, "wait", waits)
    with ThreadPoolExecutor(2) as threads:
        found = [each.result(60) for each in [threads.submit(inspect) for _ in range(2)]]
    assert [each.out for each in found] == [{}, {}]
    assert sorted(asked) == [1, 2, 3] and waiting == [3, 3]


@pytest.fixture
def listing(three_brokers, monkeypatch):
    """A topic on three brokers, of which the third is away. The first listing of its files hangs, until `release`, and
    then finds none.
    """
    topic = topic_on(three_brokers, "t", [[1, 2, 3]], inline_max_bytes="0")
    append_to(three_brokers, topic, "v")
    started, release, list_files = threading.Event(), threading.Event(), LogDir.list_files

    def hanging(self, folder):
        if self.uri != folder_of(three_brokers, 3).as_uri() or started.is_set():
            return list_files(self, folder)
        started.set()
        assert release.wait(60)
        return {}

    take_away(three_brokers, 3)
    monkeypatch.setattr(log_dir_inspection, "_BACK_S_MAX", 0.2)
    monkeypatch.setattr(LogDir, "list_files", hanging)
    bring_back(three_brokers, 3)
    assert started.wait(LIMIT_S)
    yield release
    release.set()
    wait_until(lambda: not process._asking)


def test_a_log_dir_that_hangs_when_it_comes_back_does_not_stop_the_detection_of_others(three_brokers, listing):
    take_away(three_brokers, 2)
    assert online(three_brokers) == {1}
    listing.set()
    wait_until(lambda: online(three_brokers) == {1, 3})


def test_without_a_coordinator_leaders_are_elected_before_a_log_dir_that_hangs_is_back(
    three_brokers, listing, monkeypatch
):
    topic_on(three_brokers, "led-by-2", [[2, 1]])
    waited_for, controller = [], FallbackController(three_brokers)

    def wait(checks, _):
        waited_for.extend(checks)
        process.begin(controller.detect_failures, "another append").result(LIMIT_S)  # it does not wait for the log dir

    monkeypatch.setattr(fallback_controller, "wait", wait)
    folder = folder_of(three_brokers, 2)
    folder.rename(folder.with_name("away"))
    controller.detect_failures()
    [described] = describe_topics(three_brokers, ["led-by-2"])
    assert described.partitions[0].leader == 1
    assert len(waited_for) == 1 and not waited_for[0].done()


def test_threads_that_append_wait_together_for_one_inspection(three_brokers, monkeypatch):
    """An inspection may wait for a log dir that hangs, for longer than the time until the next one."""
    monotonic_s, later_s, inspections = clock.monotonic_s, [0], []
    started, release = threading.Event(), threading.Event()
    controller = FallbackController(three_brokers)

    def slow(_term):
        inspections.append(1)
        started.set()
        assert release.wait(LIMIT_S)
        later_s[0] += 120
        return ()

    monkeypatch.setattr(controller, "_inspect_and_elect", slow)
    monkeypatch.setattr(fallback_controller, "_EVERY_S", 60)
    monkeypatch.setattr(clock, "monotonic_s", lambda: monotonic_s() + later_s[0])
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(controller.detect_failures) for _ in range(4)]
        assert started.wait(LIMIT_S)
        release.set()
        for each in waiting:
            each.result(LIMIT_S)
    assert len(inspections) == 1


def test_a_listing_of_a_log_dir_that_was_online_since_changes_nothing(three_brokers, listing, monkeypatch):
    later_s = clock.monotonic_s() + 61
    monkeypatch.setattr(clock, "monotonic_s", lambda: later_s)  # asked again
    inspect_log_dirs(three_brokers, unfenced)
    wait_until(lambda: online(three_brokers) == {1, 2, 3})
    take_away(three_brokers, 3)
    before = replicas(three_brokers)
    listing.set()
    wait_until(lambda: not process._asking)
    assert replicas(three_brokers) == before


@pytest.mark.parametrize("damage", ["symbolic link", "name of a segment"])
def test_a_damaged_topic_does_not_keep_a_log_dir_offline(three_brokers, damage):
    """All or some of its files count as missing."""
    damaged, whole = (topic_on(three_brokers, name, [[1, 3]], inline_max_bytes="0") for name in ("damaged", "whole"))
    with closing(ClientLog(three_brokers)) as log:
        for topic in (damaged, whole):
            append(log, topic, "v")
    folder = folder_of(three_brokers, 3)
    take_away(three_brokers, 3)
    if damage == "symbolic link":
        elsewhere = folder.with_name("elsewhere")
        (folder.with_name(f"{folder.name}-away") / damaged.folder).rename(elsewhere)
        (folder.with_name(f"{folder.name}-away") / damaged.folder).symlink_to(elsewhere)
    else:
        rename = t.segment.update().where(t.segment.c.topic_id == damaged.topic_id).values(name="bad name")
        three_brokers.store.transact(lambda connection: connection.execute(rename))
    bring_back(three_brokers, 3)
    assert online(three_brokers) == {1, 2, 3}
    ends = sa.select(t.replica.c.topic_id, t.replica.c.log_end_offset).where(t.replica.c.broker_id == 3)
    ends = dict(three_brokers.store.read(lambda c: [tuple(row) for row in c.execute(ends)]))
    assert ends == {damaged.topic_id: 0, whole.topic_id: 1}


def test_the_files_of_a_log_dir_are_checked_after_its_relocation(three_brokers, tmp_path):
    """The copy at its new place may be older than the last appends, as that of a backup is."""
    topic = topic_on(three_brokers, "t", [[1, 2]], inline_max_bytes="0")
    folder = folder_of(three_brokers, 2)
    append_to(three_brokers, topic, "a")
    shutil.copytree(folder, tmp_path / "copy")
    append_to(three_brokers, topic, "b")
    folder.rename(folder.with_name("lost"))
    relocate_log_dir(three_brokers, str(folder), str(tmp_path / "copy"))
    in_each_store(three_brokers, lambda view: inspect_log_dirs(view, unfenced))
    [partition] = describe_topics(three_brokers, ["t"])[0].partitions
    assert [(each.broker_id, each.log_end_offset, each.in_sync) for each in partition.replicas] == [
        (1, 2, True),
        (2, 1, False),
    ]
    assert online(three_brokers) == {1, 2, 3}


def test_files_that_are_missing_stay_named_after_the_inspection(three_brokers):
    """Their only replica ends at the first of them then."""
    topic = topic_on(three_brokers, "t", [[2]], inline_max_bytes="0")
    with closing(ClientLog(three_brokers)) as log:
        for value in "abc":
            append(log, topic, value)
    query = sa.select(t.segment.c.name).where(t.segment.c.base_offset == 1)
    name = topics_view(three_brokers).store.read(lambda connection: connection.execute(query).scalar_one())
    file = folder_of(three_brokers, 2) / topic.folder / "_segments" / "0" / name
    lost = file.rename(folder_of(three_brokers, 1) / name)
    take_away(three_brokers, 2)
    bring_back(three_brokers, 2)
    [replica] = verify_files(three_brokers)
    assert (replica.files, [(bad.offsets, bad.problem) for bad in replica.problems]) == (3, [((1, 2), "missing")])
    lost.rename(file)
    [replica] = verify_files(three_brokers)
    assert (replica.files, replica.problems) == (3, ())
