"""Copies that are throttled, stopped, killed or overtaken by other changes before their transaction."""

import os
import threading

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import unfenced
from spark_log.errors import (
    NotLeaderForPartitionError,
    UnknownTopicOrPartitionError,
)
from spark_log.facts.topics import describe_topics
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.controller import elect_leaders
from spark_log.replication.controller.topic_operations import delete_topic
from spark_log.replication.replicas.catch_up import catch_up
from spark_log.replication.replicas.throttle import Throttle
from tests.support.python_process import forkserver, killed_at
from tests.support.records import read_all
from tests.support.replicas import Replicated, copied_segments
from tests.support.table_checks import assert_replicas_are_whole

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite]


def large(text):
    return text + os.urandom(2_000).hex()


@pytest.fixture
def replicated(cluster, log, tmp_path):
    return Replicated(cluster, log, tmp_path)


# Changes between the copy and its transaction


def copied(step):
    state, replica, pieces = step.plan()
    assert step.copy(replica, pieces).error is None
    return state, replica, pieces


def overtaken(step, *run):
    before = describe_topics(step.cluster, ["t"])
    with pytest.raises(NotLeaderForPartitionError):
        step.commit(*run)
    assert describe_topics(step.cluster, ["t"]) == before, "nothing has moved"


def test_an_election_during_the_copy_advances_no_leo(replicated):
    replicated.append(large("a"))
    step = replicated.copying(3)
    run = copied(step)
    replicated.sql(t.log_dir.update().where(t.log_dir.c.broker_id == 1).values(online=False))
    elections = elect_leaders(replicated.cluster.store, unfenced)
    assert [truncation.start_offset for _, truncation in elections.truncations] == [0], (
        "broker 2 leads, and has nothing"
    )
    overtaken(step, *run)
    assert replicated.ends() == {1: 0, 2: 0, 3: 0}
    assert replicated.catch_up(3).log_end_offset == 0
    replicated.sql(t.log_dir.update().values(online=True))
    replicated.append(large("b"))
    assert replicated.catch_up(3).log_end_offset == 1
    assert_replicas_are_whole(replicated.cluster)


def test_an_election_that_loses_no_record_advances_no_leo_either(replicated):
    replicated.append(large("a"))
    replicated.catch_up(2)
    step = replicated.copying(3)
    run = copied(step)
    replicated.sql(t.log_dir.update().where(t.log_dir.c.broker_id == 1).values(online=False))
    elections = elect_leaders(replicated.cluster.store, unfenced)
    assert elections.elected and not elections.truncations
    overtaken(step, *run)
    assert (replicated.catch_up(3).log_end_offset, replicated.segments_copied) == (1, 0)


def test_a_seal_during_the_copy_advances_no_leo_and_the_next_plan_includes_it(replicated):
    replicated.append(large("a"))
    replicated.append("blob", "blob")
    replicated.append(large("b"))
    replicated.catch_up(2)
    replicated.leave(3)
    replicated.catch_up(2)
    replicated.append(large("c"))  # ISR {1, 2}: the watermark is at 4
    replicated.catch_up(2)
    step = replicated.copying(3)
    run = copied(step)
    assert replicated.log.seal(replicated.topic, [0]) == 1
    overtaken(step, *run)
    done = replicated.catch_up(3)
    assert (done.log_end_offset, done.in_sync, replicated.segments_copied) == (5, True, 1)
    replicated.is_whole()


def test_a_move_to_another_log_dir_during_the_copy_advances_no_leo(replicated, tmp_path):
    replicated.append(large("a"))
    step = replicated.copying(3)
    run = copied(step)
    other = replicated.cluster.add_log_dir(3, str(tmp_path / "other"))
    replicated.sql(t.replica.update().where(t.replica.c.broker_id == 3).values(log_dir_id=other))
    overtaken(step, *run)
    replicated.catch_up(3)
    assert replicated.segments_copied == 1
    assert_replicas_are_whole(replicated.cluster)


def test_a_concurrent_copy_costs_one_wasted_copy_at_most(replicated):
    replicated.append(large("a"))
    slow = replicated.copying(3)
    run = copied(slow)
    assert (replicated.catch_up(3).log_end_offset, replicated.segments_copied) == (1, 0)
    overtaken(slow, *run)
    with copied_segments() as copied_again:
        slow.run()
    assert not copied_again


def test_a_deleted_partition_is_not_caught_up(replicated):
    replicated.append(large("a"))
    step = replicated.copying(3)
    run = copied(step)
    with pytest.raises(UnknownTopicOrPartitionError, match="t-0: broker 7"):
        replicated.catch_up(7)
    delete_topic(replicated.cluster, "t")
    with pytest.raises(UnknownTopicOrPartitionError):
        step.commit(*run)
    with pytest.raises(UnknownTopicOrPartitionError):
        replicated.catch_up(3)


def test_a_stopped_copy_keeps_the_copied_segments(replicated):
    for letter in "abc":
        replicated.append(large(letter))
    stop, blocks = threading.Event(), []

    class StopsAtThirdBlock(Throttle):
        def take(self, size):
            blocks.append(size)
            if len(blocks) == 3:
                stop.set()
            return 0.0

    with copied_segments() as copied:
        done = replicated.copying(3, throttle=StopsAtThirdBlock(1), stop=stop).run()
    assert done.log_end_offset in (1, 2) and len(copied) == done.log_end_offset
    assert replicated.catch_up(3).log_end_offset == 3
    assert_replicas_are_whole(replicated.cluster)


class FakeTime(threading.Event):
    """A stop event that is never set; each wait advances the fake time."""

    now_s = 0.0

    def wait(self, timeout=None):
        self.now_s += timeout
        return False


def test_a_throttled_copy_keeps_to_its_rate(replicated):
    for letter in "abcdef":
        replicated.append(large(letter))
    time, sent = FakeTime(), []
    total = 0

    class Watched(Throttle):
        def take(self, size):
            nonlocal total
            wait_s = super().take(size)
            total += size
            sent.append((time.now_s + wait_s, total))
            return wait_s

    throttle = Watched(1_000, now_s=lambda: time.now_s)
    for broker in (2, 3):  # they share the rate
        replicated.copying(broker, throttle=throttle, stop=time).run()
    assert total == 2 * sum(path.stat().st_size for path in replicated.files(1)) > 10_000
    assert all(so_far <= 1_000 * (at_s + 1) + 1e-3 for at_s, so_far in sent)
    assert time.now_s <= total / 1_000, "and is no slower than it must be"


# Processes


PROGRAM = """
import sys
from spark_log.cluster.cluster import Cluster
from spark_log.replication.replicas.catch_up import catch_up
from spark_log.maintenance.client_log import ClientLog
cluster = Cluster.open(sys.argv[1])
catch_up(cluster, ClientLog(cluster).find_topic("t"), 0, 3)
"""


@pytest.mark.parametrize(
    "failpoint",
    ["copy.file-written", "copy.file-written:2", "copy.committed", "file.temporary-written", "publish.committed"],
)
def test_the_next_process_completes_a_copy_that_was_killed(replicated, cluster_address, failpoint):
    for letter in "abc":
        replicated.append(large(letter))
    replicated.leave(3)
    replicated.catch_up(2)
    killed_at(failpoint, "-c", PROGRAM, cluster_address)
    assert replicated.ends()[3] == (3 if failpoint in ("copy.committed", "publish.committed") else 0)
    assert_replicas_are_whole(replicated.cluster)
    done = replicated.catch_up(3)
    assert (done.log_end_offset, done.in_sync) == (3, True)
    expected = {"copy.file-written": 2, "copy.file-written:2": 1, "file.temporary-written": 3}
    assert replicated.segments_copied == expected.get(failpoint, 0)
    replicated.append(large("d"))
    replicated.catch_up(3)
    replicated.catch_up(2)
    replicated.is_whole()


def catch_up_in_a_process(address, start, runs):
    with Cluster.open(address) as cluster:
        topic = ClientLog(cluster).find_topic("t")
        start.wait(timeout=60)
        for _ in range(runs):
            catch_up(cluster, topic, 0, 3)


@pytest.mark.slow
def test_three_processes_copy_the_same_replica_without_harm(replicated, cluster_address):
    for _ in range(20):
        replicated.append(large("x"))
    start = forkserver.Barrier(4)
    crowd = [forkserver.Process(target=catch_up_in_a_process, args=(cluster_address, start, 20)) for _ in range(3)]
    for process in crowd:
        process.start()
    start.wait(timeout=60)
    for _ in range(15):
        replicated.append(large("y"))
    for process in crowd:
        process.join(timeout=60)
        assert process.exitcode == 0
    replicated.catch_up(3)
    assert replicated.ends() == {1: 35, 2: 0, 3: 35}
    replicated.catch_up(2)
    replicated.is_whole()
    assert [value for _, _, value in read_all(replicated.log, replicated.topic)] == replicated.values
    assert not list(replicated.folder.rglob("*.tmp"))
