"""Brings lagging replicas up to date, in background threads of this process."""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import COORDINATOR, read_lease
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import SparkLogError, UnknownTopicOrPartitionError, redact
from spark_log.log.append.companions import Append
from spark_log.log.partitions.replication_rules import PartitionState
from spark_log.process import start_thread, stop_at_exit
from spark_log.replication.replicas.catch_up import ReplicaCopy
from spark_log.replication.replicas.replicas_to_copy import LaggingReplica, find_lagging_replicas
from spark_log.replication.replicas.throttle import Throttle
from spark_log.tables.publication import try_publish

logger = logging.getLogger(__name__)

COPIES_MAX = 4
"""The maximum number of copies at the same time."""
OUT_OF_SYNC_COPIES_MAX = 2
"""The maximum number of copies to replicas outside the ISR at the same time. A throttled copy of a reassignment may
take hours, and writers wait for ISR members: so the other copies are reserved for these.
"""

_READY_PAUSE, _READY_PAUSE_S_MAX = 10.0, 2.0
"""While copies of the last poll have not begun, the pause before the next poll is this multiple of the poll's duration.
The pause has a maximum, because only a poll finds a new ISR member that lags.
"""
_STAND_IN_PAUSE_S = 1.0
"""While a coordinator lives, the pause after an append until the coordinator's lease is read again."""
_BACK_OFF_S_MIN, _BACK_OFF_S_MAX = 0.1, 5.0

ReplicaKey = tuple[int, int, int]
"""Topic id, partition, broker id."""


def back_off_s(failures: int) -> float:
    """Return the pause in seconds before the next try of a replica whose copies failed `failures` successive times."""
    return min(_BACK_OFF_S_MAX, _BACK_OFF_S_MIN * 2.0 ** min(failures - 1, 16))


def ready_pause_s(took_s: float) -> float:
    """Return the pause in seconds after a poll that took `took_s`, while some of its copies have not begun."""
    return min(_READY_PAUSE_S_MAX, _READY_PAUSE * took_s)


def in_turn(
    behind: Iterable[LaggingReplica], left_out: Set[ReplicaKey], turns: Mapping[ReplicaKey, int]
) -> deque[LaggingReplica]:
    """Return the replicas in the order of copying: ISR members before others, and in both groups those first whose last
    turn is the oldest.

    `left_out` are replicas that are being copied, or that pause after a failure. `turns` has the number of each
    replica's last turn; each copy that begins has a higher number.
    """
    ready = [one for one in behind if one.key not in left_out]
    return deque(sorted(ready, key=lambda one: (not one.in_sync, turns.get(one.key, 0))))


def take_next(ready: deque[LaggingReplica], under_way: Iterable[bool]) -> list[LaggingReplica]:
    """Take from `ready` the replicas to copy now, in addition to the copies under way (True: to an ISR member)."""
    copies = list(under_way)
    taken: list[LaggingReplica] = []
    while ready and len(copies) < COPIES_MAX:
        if not ready[0].in_sync and copies.count(False) >= OUT_OF_SYNC_COPIES_MAX:
            break
        taken.append(ready.popleft())
        copies.append(taken[-1].in_sync)
    return taken


@dataclass(frozen=True)
class _UnderWay:
    in_sync: bool
    copy: ReplicaCopy


@dataclass(frozen=True)
class _Failure:
    count: int
    until_s: float
    text: str


class Followers:
    """Brings replicas up to date: those of the served broker `broker_id`, or without it those of all embedded brokers.

    Thread-safe. The first `wake` starts a daemon thread. Each copy runs in its own daemon thread, because it may be
    abandoned at any point.
    """

    def __init__(self, cluster: Cluster, broker_id: int | None = None, *, stands_in: bool = False) -> None:
        """With `stands_in`, do nothing while a coordinator lives, because that copies to all embedded brokers."""
        self._cluster = cluster
        self._stands_in = stands_in
        self._broker_id = broker_id
        self._name = "spark-log-followers" if broker_id is None else f"spark-log-followers-{broker_id}"
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._woken = 0
        self._seen = 0
        """The value of `_woken` before the last completed poll."""
        self._wanted = 0
        """The value of `_woken` for which `drain` waits."""
        self._idle = True
        """Whether the last completed poll found no lagging replica."""
        self._under_way: dict[ReplicaKey, _UnderWay] = {}
        """The copies that take turns. An abandoned copy is not among them, but may still have a thread in `_copies`."""
        self._copies: set[threading.Thread] = set()
        self._failures: dict[ReplicaKey, _Failure] = {}
        self._ready: deque[LaggingReplica] = deque()
        """The lagging replicas of the last poll whose copies have not begun. `_topics` has their topics."""
        self._topics: Mapping[str, Topic] = {}
        self._turns: dict[ReplicaKey, int] = {}
        self._turn = 0
        self._unpublished: dict[int, Topic] = {}
        self._publishing: set[int] = set()
        self._throttles: dict[int, Throttle] = {}
        self._poll_failure: str | None = None

    @property
    def woken(self) -> bool:
        return self._woken > 0

    def appended(self, append: Append) -> None:
        """Wake the followers if a replica lacks records of the append."""
        if any(_has_lagging_replica(state) for state in append.partitions.values()):
            self.wake()

    def wake(self) -> None:
        """Let the thread poll for lagging replicas soon. Do nothing after `close` or `request_stop`."""
        with self._changed:
            if self._stop.is_set():
                return
            self._woken += 1
            if self._thread is None:
                self._thread = start_thread(self._run, self._name)
                stop_at_exit(self)
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Wait until no replica lags and the copies are published. Return False after the timeout or a stop."""
        with self._changed:
            self.wake()
            if self._thread is None:
                return False
            self._wanted = wanted = self._woken
            return (
                self._changed.wait_for(
                    lambda: self._stop.is_set() or (self._seen >= wanted and self._idle and not self._busy), timeout_s
                )
                and not self._stop.is_set()
            )

    def close(self, timeout_s: float = 10.0) -> None:
        """Abandon the running copies after their current block, and wait at most `timeout_s` for their threads."""
        deadline_s = clock.monotonic_s() + timeout_s
        for thread in self.request_stop():
            thread.join(max(0.0, deadline_s - clock.monotonic_s()))

    def request_stop(self) -> list[threading.Thread]:
        """Abandon the running copies like `close`, but return the threads instead of waiting for them."""
        with self._changed:
            self._stop.set()
            for one in self._under_way.values():
                one.copy.stop.set()
            self._changed.notify_all()
            return [thread for thread in (self._thread, *self._copies) if thread is not None]

    @property
    def _busy(self) -> bool:
        return bool(self._copies or self._unpublished)

    @property
    def _publishes_enough(self) -> bool:
        """Whether new copies have to wait, because each of the many running publications has a thread."""
        return len(self._publishing) >= COPIES_MAX

    @property
    def _will_begin_next(self) -> bool:
        """Whether copies of the last poll will begin when a running copy or publication ends."""
        return bool(self._ready) and (bool(self._under_way) or self._publishes_enough)

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._changed:
                before = self._woken
            began_s = clock.monotonic_s()
            behind, topics, left_s = self._poll()
            took_s = clock.monotonic_s() - began_s
            with self._changed:
                next_poll_s = self._begin(behind, topics)
                self._seen, self._idle = before, not behind and self._poll_failure is None
                self._changed.notify_all()
                if left_s > 0:  # a writer that appends continuously must not read the lease after each append
                    pause_s = min(_STAND_IN_PAUSE_S, left_s)
                    self._changed.wait_for(lambda: self._stop.is_set() or self._wanted > self._seen, pause_s)
                    next_poll_s = left_s - pause_s
                self._changed.wait_for(lambda: self._stop.is_set() or self._woken > self._seen, next_poll_s)
                # a poll reads all lagging replicas: while copies of the last poll are left, the next one waits
                self._changed.wait_for(lambda: self._stop.is_set() or not self._will_begin_next, ready_pause_s(took_s))
            self._stop.wait(took_s)  # appends may wake the thread continuously: it polls at most half of the time

    def _poll(self) -> tuple[list[LaggingReplica], dict[str, Topic], float]:
        """Return the lagging replicas, their topics, and the seconds for which a coordinator copies instead."""
        store = self._cluster.store
        try:
            with store.snapshot() as connection:
                now = store.clock(connection)
                if self._stands_in and (left_ms := read_lease(connection, COORDINATOR, now).left_ms) > 0:
                    self._poll_failure = None
                    return [], {}, left_ms / 1000
                behind = find_lagging_replicas(connection, now, self._broker_id)
                topics = find_topics(connection, {one.topic for one in behind}) if behind else {}
            self._poll_failure = None
        except Exception as error:
            text = redact(f"{type(error).__name__}: {error}")
            if text != self._poll_failure:
                logger.warning("lagging replicas could not be read, tried again: %s", text)
            self._poll_failure = text
            return [], {}, 0.0
        return behind, topics, 0.0

    def _begin(self, behind: list[LaggingReplica], topics: dict[str, Topic]) -> float | None:
        """Start the copies that are due. Return the seconds to the next poll, or None to poll at the next wake."""
        now_s = clock.monotonic_s()
        keys = {one.key for one in behind}
        if self._poll_failure is None:
            self._turns = {key: turn for key, turn in self._turns.items() if key in keys}
            self._failures = {key: failure for key, failure in self._failures.items() if key in keys}
            # a copy into a log dir that is offline now may hang: it is abandoned, so that another replica has its turn
            for key in self._under_way.keys() - keys:
                self._under_way.pop(key).copy.stop.set()
        waiting = {key for key, failure in self._failures.items() if failure.until_s > now_s}
        there = [one for one in behind if one.topic in topics and topics[one.topic].topic_id == one.topic_id]
        self._ready, self._topics = in_turn(there, self._under_way.keys() | waiting, self._turns), topics
        self._begin_next()
        if self._poll_failure is not None:
            return _BACK_OFF_S_MAX
        return min((each.until_s - now_s for each in self._failures.values() if each.until_s > now_s), default=None)

    def _begin_next(self) -> None:
        """Start the next copies of the last poll, as many as may run now."""
        if self._stop.is_set() or self._publishes_enough:
            return
        for one in take_next(self._ready, [copying.in_sync for copying in self._under_way.values()]):
            self._turn += 1
            self._turns[one.key] = self._turn
            self._start(one, self._topics[one.topic])

    def _start(self, one: LaggingReplica, topic: Topic) -> None:
        throttle = self._throttle(one.throttle_bytes_per_s)
        copying = ReplicaCopy(self._cluster, topic, one.partition, one.broker_id, throttle)

        def run() -> None:
            try:
                self._catch_up(one, copying)
            finally:
                with self._changed:
                    self._copies.discard(threading.current_thread())
                    self._changed.notify_all()

        self._under_way[one.key] = _UnderWay(one.in_sync, copying)
        thread = start_thread(run, self._name)
        if thread is None:
            del self._under_way[one.key]
            self._note(one, RuntimeError("no thread can be started"))
        else:
            self._copies.add(thread)

    def _catch_up(self, one: LaggingReplica, copying: ReplicaCopy) -> None:
        topic = copying.topic
        failed: Exception | None = None
        publishes = False
        try:
            copying.run()
        except UnknownTopicOrPartitionError:
            pass  # deleted, or reassigned, since the poll
        except Exception as error:  # any error: the replica is tried again
            failed = error
        with self._changed:
            if failed is None:
                self._failures.pop(one.key, None)
            else:
                self._note(one, failed)
            under_way = self._under_way.get(one.key)
            if under_way is not None and under_way.copy is copying:
                del self._under_way[one.key]
            if copying.moved:
                self._unpublished[topic.topic_id] = topic
                if topic.topic_id not in self._publishing:
                    self._publishing.add(topic.topic_id)
                    publishes = True
            if failed is None:  # after a failure a poll comes first, because the next copy may fail at once, too
                self._begin_next()
        self.wake()
        if publishes:
            self._publish(topic.topic_id)

    def _publish(self, topic_id: int) -> None:
        """Publish a topic until none of its copies is unpublished, including copies that end meanwhile.

        Only one thread at a time publishes a topic.
        """
        while True:
            with self._changed:
                topic = self._unpublished.pop(topic_id, None)
                if topic is None or self._stop.is_set():
                    self._publishing.discard(topic_id)
                    self._begin_next()
                    self._changed.notify_all()
                    return
            try:
                try_publish(self._cluster, [topic])
            except Exception as error:
                logger.warning("topic %s: Delta tables not updated: %s", topic.name, redact(str(error)))

    def _note(self, one: LaggingReplica, error: Exception) -> None:
        before = self._failures.get(one.key)
        text = redact(f"{type(error).__name__}: {error}")
        if before is None or before.text != text:  # logged once, not at every try
            report = logger.warning if isinstance(error, SparkLogError) else logger.error
            report("%s-%s on broker %s does not catch up: %s", one.topic, one.partition, one.broker_id, text)
        count = before.count + 1 if before else 1
        self._failures[one.key] = _Failure(count, clock.monotonic_s() + back_off_s(count), text)

    def _throttle(self, bytes_per_s: int | None) -> Throttle | None:
        if bytes_per_s is None:
            return None
        with self._changed:
            return self._throttles.setdefault(bytes_per_s, Throttle(bytes_per_s))


def _has_lagging_replica(state: PartitionState) -> bool:
    return any(replica.log_end_offset < state.log_end_offset for replica in state.replicas)
