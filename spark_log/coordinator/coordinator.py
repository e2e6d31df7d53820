"""The coordinator: the periodic duties of a cluster, each done by exactly one process at a time.

    with Coordinator("/data/log"):      on a Spark driver, or in any process; as many as you like
        ...

It stands for two leases. The holder of `controller` decides about replicas: which log dirs and brokers are dead, who
leads, who is in sync. The holder of `coordinator` does the rest: groups, expiry. The others wait for a lease to be
given back or to run out (by the store's clock). Every transaction of a duty checks its lease's epoch, so one that was
stopped in the midst of its work changes nothing after its term. What it does, clients do themselves where there is
none; it is prompter, and goes on when no client is at work.
"""

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_log import clock
from spark_log.append.write_ids import Writer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import COORDINATOR, Fence, Lease, LeaseStatus, lease_status
from spark_log.config import ClusterSettings
from spark_log.controller import controller
from spark_log.controller.balance import auto_rebalance
from spark_log.controller.lag_watch import LagWatch, read_lagging_members
from spark_log.controller.log_dir_inspection import inspect_log_dirs, suspected_log_dirs
from spark_log.errors import NotControllerError, NotCoordinatorError, SparkLogError, redact
from spark_log.exit_hooks import stop_at_exit
from spark_log.failpoints import failpoint
from spark_log.groups.assignment import known_assignors
from spark_log.groups.target_assignment import groups_in_need, groups_with_members, tend
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.rewrite.segment_merge import BACKGROUND_GROWTH
from spark_log.maintenance.tasks import TASKS, Task
from spark_log.partitions.retired_replicas import delete_retired_replicas
from spark_log.replicas.followers import Followers
from spark_log.replicas.replica_moves import switch_reassignments

logger = logging.getLogger(__name__)

_INSPECT_S = 2.0
"""How often to look at log dirs of which nobody complains."""
_LOOK_S = 0.5
"""How often to look for replicas that lag although nothing was committed: a log dir may have come back."""
_LOOK_S_MIN = 0.02
"""How long to leave between two looks, however much is committed."""
_TRY_AGAIN_S = 1.0
"""How long to wait where the settings that say how long can not be read."""


@dataclass(frozen=True)
class Term:
    """What a duty works with. `fence` is called first in each of its transactions; one that takes long asks `stopping`
    in between.
    """

    cluster: Cluster
    settings: ClusterSettings
    fence: Fence
    stopping: Callable[[], bool]


@dataclass(frozen=True)
class Duty:
    """Something that is done every so often. It may raise: it is logged, and done again at its next time."""

    name: str
    every_ms: int | Callable[[ClusterSettings], int]
    """A function of the settings where they say how often."""
    run: Callable[[Term], None]

    def pause_s(self, settings: ClusterSettings) -> float:
        """How long to wait from the end of one run to the next."""
        return (self.every_ms if isinstance(self.every_ms, int) else self.every_ms(settings)) / 1000


def _tend(term: Term, group_ids: Sequence[str]) -> None:
    assignors = known_assignors()
    failed: SparkLogError | None = None
    for group_id in group_ids:
        try:
            tend(term.cluster.store, group_id, assignors, term.fence)
        except NotCoordinatorError:
            raise
        except SparkLogError as error:  # a group whose assignor fails does not keep the others waiting
            failed = error
    if failed is not None:
        raise failed


def _tend_groups(term: Term) -> None:
    _tend(term, groups_in_need(term.cluster.store))


def _notice_topics(term: Term) -> None:
    _tend(term, groups_with_members(term.cluster.store))


GROUP_DUTIES: tuple[Duty, ...] = (
    Duty("end sessions and assign partitions of groups", 250, _tend_groups),
    Duty("notice changes of topics that groups subscribe", 5_000, _notice_topics),
)


def _maintenance_duty(task: Task) -> Duty:
    def run(term: Term) -> None:
        writer = Writer(term.cluster.store, f"coordinator: {task.name}", term.settings.producer_write_id_lease_ms)
        try:
            context = MaintenanceContext(
                term.cluster, term.settings, writer, term.fence, stopping=term.stopping, growth=BACKGROUND_GROWTH
            )
            for report in task.run(context):
                logger.info("%s", report)
        finally:
            writer.close()

    return Duty(f"maintenance: {task.name}", task.every_ms, run)


def coordinator_duties() -> tuple[Duty, ...]:
    """What the holder of `coordinator` does."""
    return (*GROUP_DUTIES, *(_maintenance_duty(task) for task in TASKS))


def _elect(term: Term) -> None:
    controller.elect_leaders(term.cluster.store, term.fence)


class _Inspection:
    """Looks at the log dirs every so often, and at once when somebody complains; never twice at a time."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def __call__(self, term: Term) -> None:
        now_s = clock.monotonic_s()
        if now_s >= self._next_s or term.cluster.store.read(suspected_log_dirs):
            self._next_s = now_s + _INSPECT_S
            inspect_log_dirs(term.cluster, term.fence)


def _shrink(watch: LagWatch, term: Term) -> None:
    lag_max_s = term.settings.replica_lag_time_max_ms / 1000
    late = watch.late(clock.monotonic_s(), term.cluster.store.read(read_lagging_members), lag_max_s)
    controller.shrink_isrs(term.cluster.store, term.fence, late)


def _lag_look_ms(settings: ClusterSettings) -> int:
    return min(1_000, max(10, settings.replica_lag_time_max_ms // 4))


def _finish_reassignments(term: Term) -> None:
    switch_reassignments(term.cluster, term.fence)


def _delete_retired_replicas(term: Term) -> None:
    delete_retired_replicas(term.cluster, term.fence)


def _rebalance(term: Term) -> None:
    if term.settings.auto_leader_rebalance_enable:
        auto_rebalance(term.cluster.store, term.fence, term.settings.leader_imbalance_per_broker_percentage)


def controller_duties() -> tuple[Duty, ...]:
    """What the holder of `controller` does."""
    watch = LagWatch()
    return (
        Duty("elect leaders and take the dead out of ISRs", 200, _elect),
        Duty("look at the log dirs", 200, _Inspection()),
        Duty("take replicas that lag out of ISRs", _lag_look_ms, lambda term: _shrink(watch, term)),
        Duty("finish reassignments", 500, _finish_reassignments),
        Duty("give leadership back", lambda settings: settings.leader_imbalance_check_interval_ms, _rebalance),
        Duty("delete what reassignments left behind", 600_000, _delete_retired_replicas),
    )


def coordinator_status(cluster: Cluster) -> LeaseStatus:
    """Who is the coordinator of the cluster."""
    return lease_status(cluster.store, COORDINATOR)


def controller_status(cluster: Cluster) -> LeaseStatus:
    """Who is the controller of the cluster."""
    return lease_status(cluster.store, controller.LEASE)


class Coordinator:
    """Stands for coordinator and for controller of the cluster while it is entered.

    `cluster` is an address, as for Producer and Consumer, or an open Cluster, which stays open. `settings` hold instead
    of the cluster's, which are followed when they change.
    """

    def __init__(
        self,
        cluster: str | Cluster,
        *,
        settings: ClusterSettings | None = None,
        duties: Sequence[Duty] | None = None,
    ) -> None:
        self._opened = Cluster.open(cluster) if isinstance(cluster, str) else None
        cluster = self._opened or cluster
        assert isinstance(cluster, Cluster)
        self._cluster = cluster
        self._followers = Followers(cluster)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="spark-log-embedded-replicas", daemon=True)
        self.controller = Standing(cluster, controller.LEASE, settings, controller_duties())
        self.coordinator = Standing(cluster, COORDINATOR, settings, coordinator_duties() if duties is None else duties)

    @property
    def acting(self) -> bool:
        """Whether the lease `coordinator` was ours when we last looked."""
        return self.coordinator.acting

    def __enter__(self) -> "Coordinator":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        for standing in (self.controller, self.coordinator):
            standing.start()
        self._thread.start()
        stop_at_exit(self)

    def close(self) -> None:
        """Finish the duties at hand and give the leases back."""
        self._stop.set()
        self._thread.join()
        self._followers.close()
        for standing in (self.coordinator, self.controller):
            standing.close()
        if self._opened is not None:
            self._opened.close()

    def request_stop(self) -> list[threading.Thread]:
        """Finish the running duties and begin no others; the leases run out."""
        self._stop.set()
        return [self._thread, *self.coordinator.request_stop(), *self.controller.request_stop()]

    def _keep_up(self) -> None:
        """Bring the replicas of embedded brokers up to date; those of served ones are for their own processes.

        Only while we are the controller: of several coordinators one copies.
        """
        changes = self._cluster.store.changes
        while not self._stop.is_set():
            seen = changes.current()
            if self.controller.acting:
                self._followers.wake()
            changes.wait(seen, _LOOK_S)
            self._stop.wait(_LOOK_S_MIN)


class Standing:
    """Stands for a lease, and does its duties while it is held.

    In daemon threads: one renews the lease, and each duty has its own, so that one that waits (for a disk that hangs)
    keeps neither the lease nor another duty waiting.
    """

    def __init__(self, cluster: Cluster, lease: str, settings: ClusterSettings | None, duties: Sequence[Duty]) -> None:
        self._cluster = cluster
        self._given = settings
        self._duties = tuple(duties)
        self._name = lease
        self._lease = Lease(cluster.store, lease, self._settings.controller_lease_ms)
        self._stop = threading.Event()
        self._term_began = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._failures: dict[str, str] = {}

    @property
    def _settings(self) -> ClusterSettings:
        return self._given or self._cluster.store.settings

    @property
    def acting(self) -> bool:
        """Whether the lease was ours when we last looked."""
        return self._lease.epoch is not None

    def start(self) -> None:
        assert not self._threads, "it starts once"
        works: list[tuple[str, Callable[[], None]]] = [("lease", self._keep_lease)]
        works += [(duty.name, lambda duty=duty: self._do_again_and_again(duty)) for duty in self._duties]  # type: ignore[misc]
        for name, work in works:
            thread = threading.Thread(target=work, name=f"spark-log-{self._name}: {name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Finish the duties at hand and give the lease back."""
        for thread in self.request_stop():
            thread.join()
        try:
            self._lease.give_back()
        except SparkLogError as error:
            logger.warning("%s: the lease was not given back, and runs out: %s", self._name, redact(str(error)))

    def request_stop(self) -> list[threading.Thread]:
        """As close, without waiting and with the lease."""
        self._stop.set()
        self._wake()
        return list(self._threads)

    def _wake(self) -> None:
        with self._term_began:
            self._term_began.notify_all()

    def _keep_lease(self) -> None:
        while not self._stop.is_set():
            before = self._lease.epoch
            try:
                self._lease.duration_ms = self._settings.controller_lease_ms
                if self._lease.take_or_renew() and self._lease.epoch != before:
                    failpoint(f"{self._name}.lease-taken")
                    logger.info("%s: term %s begins", self._name, self._lease.epoch)
                    self._wake()
                free_s = math.inf if self.acting else self._until_free_s()
            except Exception as error:  # this thread must not end before it is told to
                logger.warning("%s: the lease was not renewed: %s", self._name, redact(str(error)))
                free_s = math.inf
            self._stop.wait(min(free_s, self._lease.duration_ms / 3000))

    def _until_free_s(self) -> float:
        left_ms = lease_status(self._cluster.store, self._name).left_ms
        return max(left_ms, 10) / 1000

    def _do_again_and_again(self, duty: Duty) -> None:
        while not self._stop.is_set():
            with self._term_began:
                self._term_began.wait_for(lambda: self.acting or self._stop.is_set())
            epoch = self._lease.epoch
            while self.acting and self._lease.epoch == epoch and not self._stop.is_set():
                self._stop.wait(self._do(duty))

    def _do(self, duty: Duty) -> float:
        """Do it once, and return how long to wait before the next time. It may fail, but does not raise."""
        pause_s = _TRY_AGAIN_S
        try:
            settings = self._settings
            pause_s = duty.pause_s(settings)
            duty.run(Term(self._cluster, settings, self._lease.check, self._stop.is_set))
            self._failures.pop(duty.name, None)
        except (NotCoordinatorError, NotControllerError):
            logger.info("%s: the term has ended during: %s", self._name, duty.name)
        except Exception as error:
            text = redact(f"{type(error).__name__}: {error}")
            if self._failures.get(duty.name) != text:  # told once, not every quarter of a second
                logger.warning("%s: %s: %s", self._name, duty.name, text)
            self._failures[duty.name] = text
        return pause_s
