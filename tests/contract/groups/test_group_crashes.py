"""Members and coordinators that are killed or stopped: a partition never has two owners, and others take over."""

import itertools
import signal
import threading
import time

import pytest

from spark_log.cluster.lease import Lease
from spark_log.config import ClusterSettings
from spark_log.errors import NotCoordinatorError, UnknownMemberIdError
from spark_log.facts.groups import describe_groups
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.groups.consumer.reconciliation import reconcile_group
from spark_log.ids import TopicPartition
from spark_log.maintenance.coordinator.coordinator import Coordinator, coordinator_status
from spark_log.maintenance.coordinator.lease_runner import PeriodicTask
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import add_partitions, create_topic
from tests.support.children import Child
from tests.support.group_members import Reader, move_session_end, settle
from tests.support.stores import change
from tests.support.waiting import wait_until

SESSION_MS = 1_200
LEASE_MS = 900
PARTITIONS = 4


class Process(Child):
    """A member of the group, or a coordinator. Its end may be that of a failpoint."""

    killed_s = None

    def kill(self):
        super().kill()
        self.killed_s = self.killed_s or time.monotonic()

    def holdings(self):
        """(partition, from, to) of each period in which it held a partition."""
        since, found = {}, []
        for kind, *rest in self.lines:
            if kind == "took":
                since[int(rest[0])] = float(rest[1])
            elif kind == "dropped":
                found.append((int(rest[0]), since.pop(int(rest[0])), float(rest[1])))
        return found + [(partition, began, self.killed_s) for partition, began in since.items()]

    @property
    def holds(self):
        found = set()
        for kind, *rest in list(self.lines):
            if kind == "took":
                found.add(int(rest[0]))
            elif kind == "dropped":
                found.discard(int(rest[0]))
        return found

    def commits(self):
        return [(int(line[1]), int(line[2])) for line in self.lines if line[0] == "committed"]


@pytest.fixture
def started():
    """A function that starts processes; they are killed at the end."""
    made = []

    def start(module, *arguments, **options):
        made.append(Process(module, *arguments, **options))
        return made[-1]

    yield start
    for process in made:
        process.kill()


def members(started, address, count):
    return [started("tests.support.group_members", address, "g", SESSION_MS) for _ in range(count)]


def share_everything(processes):
    """Wait until the processes together hold all partitions, and each holds at least one."""

    def is_shared():
        assert not any(process.ended for process in processes)
        held = [process.holds for process in processes]
        return all(held) and sorted(p for some in held for p in some) == list(range(PARTITIONS))

    wait_until(is_shared, "the partitions are not shared")


def check_history(cluster, processes):
    """No partition had two owners at once, and each commit is one above the previous one."""
    by_partition = {}
    for process in processes:
        for partition, began, ended in process.holdings():
            by_partition.setdefault(partition, []).append((began, ended))
    assert sorted(by_partition) == list(range(PARTITIONS))
    for partition, times in by_partition.items():
        times.sort()
        for (_, ended), (began, _) in itertools.pairwise(times):
            assert ended <= began, f"two held partition {partition}: {times}"
    told = [commit for process in processes for commit in process.commits()]
    assert len(told) == len(set(told)), "two made the same commit"
    stored = {p.partition: offset for p, offset in committed_offsets(cluster.store, "g").items()}
    for partition, last in stored.items():
        numbers = sorted(offset for p, offset in told if p == partition)
        missing = set(range(1, last + 1)) - set(numbers)
        killed = sum(process.killed_s is not None for process in processes)
        assert set(numbers) <= set(range(1, last + 1)) and len(missing) <= killed, (
            "but what a killed one could not tell"
        )


def kill(cluster, process):
    """Kill a member, and let its session end now."""
    process.kill()
    for member in describe_groups(cluster.store, ["g"])[0].members:
        if process.holds & {p.partition for p in member.assignment}:
            move_session_end(cluster.store, member.member_id, 0)


def test_other_members_take_over_from_killed_ones(cluster, cluster_address, started):
    create_topic(cluster, "t", PARTITIONS)
    processes = members(started, cluster_address, 3)
    share_everything(processes)
    kill(cluster, processes[0])
    share_everything(processes[1:])
    late = members(started, cluster_address, 1)
    share_everything(processes[1:] + late)
    kill(cluster, processes[1])
    share_everything([processes[2], *late])
    for process in (processes[2], *late):
        process.end()
    check_history(cluster, [*processes, *late])
    assert describe_groups(cluster.store, ["g"])[0].members == ()


@pytest.mark.parametrize("cluster_address", ["postgres"], indirect=True)
def test_a_member_that_was_stopped_beyond_its_session_may_not_commit(cluster, cluster_address, started):
    create_topic(cluster, "t", PARTITIONS)
    stopped, other = members(started, cluster_address, 2)
    share_everything([stopped, other])
    stopped.say("pause")  # not in a transaction, whose locks would block all others
    stopped.waits_for(lambda p: p.printed("paused"))
    stopped.stop(cluster.store)
    other.waits_for(lambda p: len(p.holds) == PARTITIONS)
    before = len(stopped.commits())
    stopped.go_on()
    stopped.waits_for(lambda p: p.printed("lost"))
    assert stopped.printed("refused", "UnknownMemberIdError")
    at_that_time = [line for line in stopped.lines if line[0] in ("refused", "lost", "committed")]
    assert at_that_time[len([c for c in at_that_time if c[0] == "committed"][:before]) :][0][0] == "refused"
    share_everything([stopped, other])
    for process in (stopped, other):
        process.end()


MEMBER_POINTS = ["group.changed", "group.target-decided", "group.target-written", "group.assigned"]
COORDINATOR_POINTS = ["coordinator.lease-taken", "group.changed", "group.target-decided", "group.target-written"]


def everywhere_on_sqlite(points):
    """All points on SQLite; inside a transaction on PostgreSQL too, where the transaction ends with the connection."""
    cases = [*(("sqlite", point) for point in points), ("postgres", "group.target-decided")]
    return pytest.mark.parametrize(("cluster_address", "point"), cases, indirect=["cluster_address"])


@everywhere_on_sqlite(MEMBER_POINTS)
def test_a_member_killed_during_a_rebalance(point, cluster, cluster_address, started):
    create_topic(cluster, "t", PARTITIONS)
    a, b = settle(Reader(cluster), Reader(cluster))
    third = started("tests.support.group_members", cluster_address, "g", SESSION_MS, failpoint=point)

    def killed():
        if point == "group.assigned":  # at the others the third does all alone, unless these compute the target first
            settle_once(a, b)
        return third.ended

    wait_until(killed)
    assert third.wait() == -signal.SIGKILL

    for member in describe_groups(cluster.store, ["g"])[0].members:
        if member.member_id not in (a.member.member_id, b.member.member_id):
            move_session_end(cluster.store, member.member_id, 0)
    settle(a, b)
    assert len(describe_groups(cluster.store, ["g"])[0].members) == 2
    assert sorted(a.numbers + b.numbers) == list(range(PARTITIONS))


def settle_once(*readers):
    for reader in readers:
        reader.beat()
        held = [p for other in readers for p in other.held]
        assert len(held) == len(set(held))


@everywhere_on_sqlite(COORDINATOR_POINTS)
def test_a_coordinator_killed_during_its_work(point, cluster, cluster_address, started):
    create_topic(cluster, "t", PARTITIONS)
    a, b = settle(Reader(cluster), Reader(cluster))
    move_session_end(cluster.store, b.member.member_id, 0)
    victim = started("tests.support.child_programs", "coordinator", cluster_address, LEASE_MS, failpoint=point)
    assert victim.wait() == -signal.SIGKILL, "b falls silent, which is for the coordinator to see"
    first = coordinator_status(cluster)
    change(cluster, t.lease.update().values(until_ms=0))
    with Coordinator(cluster, settings=ClusterSettings(controller_lease_ms=LEASE_MS)):
        wait_until(lambda: coordinator_status(cluster).epoch > first.epoch)
        everything = frozenset(TopicPartition("t", n) for n in range(PARTITIONS))

        def targets_are_of_a_alone():
            (found,) = describe_groups(cluster.store, ["g"])
            return [m.target for m in found.members] == [everything] and found.state == "Reconciling"

        wait_until(targets_are_of_a_alone)
    with pytest.raises(UnknownMemberIdError):
        b.beat()
    assert a.beat().partitions == everything


@pytest.mark.on_sqlite
def test_exactly_one_coordinator_acts(cluster):
    acted = []
    running = threading.Lock()

    def act(name):
        def run(context):
            assert running.acquire(blocking=False), "another one is acting"
            try:
                cluster.store.transact(context.fence)
                acted.append(name)
            finally:
                running.release()

        return PeriodicTask("act", 10, run)

    # the lease of `one` may not expire here, however busy the machine is; `two` asks again in a third of its own
    one = Coordinator(cluster, settings=ClusterSettings(controller_lease_ms=30_000), tasks=[act("one")])
    two = Coordinator(cluster, settings=ClusterSettings(controller_lease_ms=6_000), tasks=[act("two")])
    one.start()
    wait_until(lambda: acted[-1:] == ["one"])
    two.start()
    epoch = coordinator_status(cluster).epoch
    wait_until(lambda: len(acted) > 50)
    assert set(acted) == {"one"} and one.acting and not two.acting
    one.close()
    wait_until(lambda: acted[-1:] == ["two"])
    status = coordinator_status(cluster)
    assert status.epoch == epoch + 1 and 0 < status.left_ms <= 6_000
    two.close()
    assert coordinator_status(cluster).holder is None


def test_a_coordinator_whose_lease_has_expired_changes_nothing(cluster):
    create_topic(cluster, "t", 2)
    (a,) = settle(Reader(cluster))
    old = Lease(cluster.store, "coordinator", 1)
    assert old.take_or_renew()
    wait_until(lambda: coordinator_status(cluster).left_ms == 0)
    new = Lease(cluster.store, "coordinator", 60_000)
    assert new.take_or_renew()
    assert new.epoch == old.epoch + 1
    generation = a.answer.generation
    with pytest.raises(NotCoordinatorError, match="has ended"):
        cluster.store.transact(old.check)
    add_partitions(cluster, "t", 3)
    with pytest.raises(NotCoordinatorError):
        reconcile_group(cluster.store, "g", {}, old.check)
    assert describe_groups(cluster.store, ["g"])[0].generation == generation
    reconcile_group(cluster.store, "g", {}, new.check)
    assert describe_groups(cluster.store, ["g"])[0].generation == generation + 1
    assert not old.take_or_renew() and old.epoch is None
    of_first_term = new.check_of_term()
    cluster.store.transact(of_first_term)
    new.give_back()
    assert old.take_or_renew()
    old.give_back()
    assert new.take_or_renew()
    cluster.store.transact(new.check)
    with pytest.raises(NotCoordinatorError, match="has ended"):  # of work that began before a pause
        cluster.store.transact(of_first_term)
    new.give_back()
    assert old.take_or_renew()


@pytest.mark.on_sqlite
def test_a_coordinator_ends_sessions_and_assigns_without_any_heartbeat(cluster, cluster_address):
    create_topic(cluster, "t", 2)
    silent, _ = settle(Reader(cluster), Reader(cluster))
    move_session_end(cluster.store, silent.member.member_id, 0)
    with Coordinator(cluster_address):

        def one_left():
            (found,) = describe_groups(cluster.store, ["g"])
            return len(found.members) == 1 and len(found.members[0].target) == 2

        wait_until(one_left)
