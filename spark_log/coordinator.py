"""The coordinator: the periodic duties of a cluster, done by exactly one process at a time.

    with Coordinator(cluster):          on a Spark driver, or in any process; as many as you like
        ...

The holder of the lease `coordinator` acts; the others wait for it to be given back or to run out (by the store's
clock). Every transaction of a duty checks the lease's epoch, so one that was stopped in the midst of its work changes
nothing after its term. What it does, clients do themselves where there is none; it is prompter, and goes on when no
client is at work.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Guard, Lease, LeaseStatus, lease_status
from spark_log.config import ClusterSettings
from spark_log.errors import NotCoordinatorError, SparkLogError, redact
from spark_log.failpoints import failpoint
from spark_log.groups.assignment import known_assignors
from spark_log.groups.offsets import expire_offsets
from spark_log.groups.targets import groups_in_need, groups_with_members, tend
from spark_log.log.producer_expiry import expire_producers

logger = logging.getLogger(__name__)

LEASE = "coordinator"


@dataclass(frozen=True)
class Term:
    """What a duty works with. `guard` is called first in each of its transactions."""

    cluster: Cluster
    settings: ClusterSettings
    guard: Guard


@dataclass(frozen=True)
class Duty:
    """Something that is done every so often. It may raise: it is logged, and done again at its next time."""

    name: str
    every_ms: int
    run: Callable[[Term], None]


def _tend(term: Term, group_ids: Sequence[str]) -> None:
    assignors = known_assignors()
    failed: SparkLogError | None = None
    for group_id in group_ids:
        try:
            tend(term.cluster.store, group_id, assignors, term.guard)
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


def _expire_offsets(term: Term) -> None:
    expire_offsets(term.cluster.store, term.settings, term.guard)


def _expire_producers(term: Term) -> None:
    expire_producers(term.cluster.store, term.settings, term.guard)


DUTIES: tuple[Duty, ...] = (
    Duty("end sessions and assign partitions of groups", 250, _tend_groups),
    Duty("notice changes of topics that groups subscribe", 5_000, _notice_topics),
    Duty("forget offsets of empty groups", 600_000, _expire_offsets),
    Duty("forget silent producers", 600_000, _expire_producers),
)
"""All that a coordinator does, in order. Kafka's offsets.retention.check.interval.ms is 10 minutes too."""


def coordinator_status(cluster: Cluster) -> LeaseStatus:
    """Who is the coordinator of the cluster."""
    return lease_status(cluster.store, LEASE)


class Coordinator:
    """Stands for coordinator of the cluster while it is entered, in two daemon threads: one renews the lease, so that a
    long duty does not lose it, and one acts.
    """

    def __init__(
        self, cluster: Cluster, *, settings: ClusterSettings | None = None, duties: Sequence[Duty] = DUTIES
    ) -> None:
        self._cluster = cluster
        self._settings = settings or ClusterSettings()
        self._duties = tuple(duties)
        self._lease = Lease(cluster.store, LEASE, self._settings.controller_lease_ms)
        self._renew_s = self._settings.controller_lease_ms / 3000
        self._stop = threading.Event()
        self._elected = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: dict[str, str] = {}

    @property
    def acting(self) -> bool:
        """Whether the lease was ours when we last looked."""
        return self._lease.epoch is not None

    def __enter__(self) -> "Coordinator":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        assert not self._threads, "a coordinator starts once"
        for name, work in (("lease", self._keep_lease), ("duties", self._do_duties)):
            thread = threading.Thread(target=work, name=f"spark-log-coordinator-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Finish the duty at hand and give the lease back."""
        self._stop.set()
        self._elected.set()
        for thread in self._threads:
            thread.join()
        try:
            self._lease.give_back()
        except SparkLogError as error:
            logger.warning("coordinator: the lease was not given back, and runs out by itself: %s", redact(str(error)))

    def _keep_lease(self) -> None:
        while not self._stop.is_set():
            before = self._lease.epoch
            try:
                if self._lease.take_or_renew() and self._lease.epoch != before:
                    failpoint("coordinator.lease-taken")
                    logger.info("coordinator: term %s begins", self._lease.epoch)
                    self._elected.set()
                pause_s = self._renew_s if self.acting else self._until_free_s()
            except SparkLogError as error:
                logger.warning("coordinator: the lease was not renewed: %s", redact(str(error)))
                pause_s = self._renew_s
            self._stop.wait(pause_s)

    def _until_free_s(self) -> float:
        left_ms = coordinator_status(self._cluster).left_ms
        return min(max(left_ms, 10) / 1000, self._renew_s)

    def _do_duties(self) -> None:
        due_s = {duty.name: 0.0 for duty in self._duties}
        while not self._stop.is_set():
            if not self.acting:
                self._elected.wait()
                self._elected.clear()
                due_s = dict.fromkeys(due_s, 0.0)
                continue
            for duty in self._duties:
                if due_s[duty.name] <= clock.monotonic_s() and not self._stop.is_set():
                    self._do(duty)
                    due_s[duty.name] = clock.monotonic_s() + duty.every_ms / 1000
            self._stop.wait(max(0.0, min(due_s.values()) - clock.monotonic_s()))

    def _do(self, duty: Duty) -> None:
        try:
            duty.run(Term(self._cluster, self._settings, self._lease.check))
            self._failures.pop(duty.name, None)
        except NotCoordinatorError:
            logger.info("coordinator: the term has ended during: %s", duty.name)
        except Exception as error:
            text = redact(f"{type(error).__name__}: {error}")
            if self._failures.get(duty.name) != text:  # told once, not every quarter of a second
                logger.warning("coordinator: %s: %s", duty.name, text)
            self._failures[duty.name] = text
