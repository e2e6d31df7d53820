"""Sealing and publication by the clients that append, in time for delta.max.lag.ms, where no coordinator runs.

A client remembers the topics to which it has appended small batches, and reads the age of their tails from the store.
So it also finds a tail that a killed process left, as soon as it appends to the topic.
"""

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import COORDINATOR, lease_status
from spark_log.cluster.topics import Topic
from spark_log.errors import SparkLogError, redact
from spark_log.ids import TopicId
from spark_log.log.append.write_ids import Writer
from spark_log.maintenance.rewrite.segment_merge import BACKGROUND_GROWTH, merge, partitions_to_merge
from spark_log.maintenance.rewrite.tail_seal import Tail, due_tails, last_files_ms, seal_after_ms, tails
from spark_log.process import start_thread, stop_at_exit
from spark_log.tables.delta_lag import delta_lags
from spark_log.tables.publication import try_publish

logger = logging.getLogger(__name__)

_CHECK_S_MIN = 1.0
"""Minimum time between two checks of the tails of a topic."""
_PUBLISH_EVERY_S = 1.0
"""Minimum time between two publications of new files of a topic in the background: appends share them."""
_MERGE_BYTES_MAX = 16 * 2**20
"""Size of the largest file that a client merges; the coordinator merges larger ones."""


@dataclass
class _Watched:
    """A topic with tails to which this process has appended.

    `full`: partitions that are to be sealed at once. `publish_at_s`: when new files are to be published. `appended`: an
    append came since the last check began. `failures`: number of consecutive checks that could not do the due work.
    """

    topic: Topic
    check_at_s: float = math.inf
    full: set[int] = field(default_factory=set)
    publish_at_s: float = math.inf
    published_s: float = -math.inf
    appended: bool = True
    failures: int = 0

    @property
    def check_every_s(self) -> float:
        return max(_CHECK_S_MIN, seal_after_ms(self.topic.config) / 1000)

    @property
    def retry_s(self) -> float:
        """Wait after a failure: the time that delta.max.lag.ms leaves; it doubles each time, up to `check_every_s`."""
        left_ms = self.topic.config.delta_max_lag_ms - seal_after_ms(self.topic.config)
        return min(self.check_every_s, max(_CHECK_S_MIN, left_ms / 1000) * (1 << min(self.failures, 30)))


class Sealer:
    """Seals the tails of topics that a process appends to, and with `beside` publishes its files. Thread-safe.

    With `beside`, it works in a daemon thread, which starts with the first tail or file; otherwise in the calls of
    `run_due` and `close`.
    """

    def __init__(
        self, cluster: Cluster, writer: Writer, seal: Callable[[Topic, int], int], *, beside: bool = False
    ) -> None:
        """`seal` seals one partition and returns the number of new files; it logs its failures and raises nothing."""
        self._cluster, self._writer, self._seal = cluster, writer, seal
        self._beside = beside
        self._changed = threading.Condition()
        self._watched: dict[TopicId, _Watched] = {}
        self._busy = self._stopped = False
        self._until_s = math.inf
        self._thread: threading.Thread | None = None

    def add(self, topic: Topic, partition: int) -> None:
        """The tail of the partition is full: seal it in the thread."""
        self._watch(topic, partition)

    def watch(self, topic: Topic) -> None:
        """The topic has a tail, of unknown age, or files that could not be published."""
        self._watch(topic, None)

    def publish(self, topic: Topic) -> None:
        """The topic has new files: publish them in the thread, together with those of the next appends."""
        with self._changed:
            watched = self._watched.setdefault(topic.topic_id, _Watched(topic))
            watched.topic = topic
            if watched.publish_at_s == math.inf:
                watched.publish_at_s = watched.published_s + _PUBLISH_EVERY_S
                self._start()
                self._changed.notify_all()

    def _start(self) -> None:
        if self._beside and self._thread is None and not self._stopped:
            self._thread = start_thread(self._run, "spark-log-sealer")  # without it, `close` does the work
            stop_at_exit(self)

    def _watch(self, topic: Topic, full: int | None) -> None:
        with self._changed:
            watched = self._watched.setdefault(topic.topic_id, _Watched(topic))
            watched.topic, watched.appended = topic, True
            if topic.config.delta_max_lag_ms < 0:
                watched.check_at_s = math.inf
            if full is not None:
                watched.full.add(full)
            elif watched.check_at_s < math.inf or topic.config.delta_max_lag_ms < 0:
                return
            if topic.config.delta_max_lag_ms >= 0:
                # without the thread the process may end soon, and `close` checks the tails
                soon_s = clock.monotonic_s() + (0 if self._beside else watched.check_every_s)
                watched.check_at_s = min(watched.check_at_s, soon_s)
            self._start()
            self._changed.notify_all()

    def run_due(self) -> None:
        """Without a thread: do the due work."""
        while not self._beside and (due := self._take(clock.monotonic_s())) is not None:
            self._handle(*due)

    def close(self, timeout_s: float, *, more_to_come: bool = False) -> None:
        """Seal the full tails, publish new files, and seal all tails of the topics that were appended to unless a
        coordinator runs.

        With `more_to_come` only tails that are due are sealed, or those of a topic that got no new files for a while:
        the first micro-batch after a pause is sealed, since it may be the only one, and many consecutive micro-batches
        share a file. Starts no work after `timeout_s`, or after `stop_after_current_tail`: the next client that
        appends, or the coordinator, does the rest.
        """
        with self._changed:
            until_s = self._until_s = min(self._until_s, clock.monotonic_s() + timeout_s)
            for each in self._watched.values():
                if each.publish_at_s < math.inf:
                    each.publish_at_s = -math.inf  # now
            self._changed.notify_all()
            self._changed.wait_for(self._has_ended, max(0.0, until_s - clock.monotonic_s()))
        for thread in self.request_stop():
            thread.join(max(0.0, until_s - clock.monotonic_s()))
        with self._changed:
            unpublished = [each.topic for each in self._watched.values() if each.publish_at_s < math.inf]
            left = [each.topic for each in self._watched.values() if each.check_at_s < math.inf]
            self._watched.clear()
        try:
            for topic in unpublished:  # the thread was stopped before
                if self._time_is_left():
                    try_publish(self._cluster, [topic])
            if not left or self._has_coordinator():
                return
            for topic in left:
                if self._time_is_left() and (not more_to_come or self._may_be_the_last(topic)):
                    self._seal_and_merge(topic, [tail.partition for tail in self._tails(topic)])
        except (SparkLogError, OSError) as error:
            logger.info("inline tails are left to the next client that appends: %s", redact(str(error)))
        except Exception:  # a bug: the records are appended all the same
            logger.exception("inline tails are left to the next client that appends")

    def _has_ended(self) -> bool:
        """Whether the thread has sealed all full tails and published all new files, or has stopped."""
        stopped = self._stopped or not self._time_is_left()
        due = (each.full or each.publish_at_s < math.inf for each in self._watched.values())
        return not self._busy and (stopped or not any(due))

    def stop_after_current_tail(self) -> None:
        """End a `close` in another thread, running or future, as soon as its current tail is sealed and published."""
        with self._changed:
            self._until_s = -math.inf
            self._changed.notify_all()

    def _time_is_left(self) -> bool:
        return clock.monotonic_s() < self._until_s

    def request_stop(self) -> list[threading.Thread]:
        """Stop the thread after the tail that it is sealing now; `close` seals the rest."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        return [] if self._thread is None else [self._thread]

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and (due := self._take(clock.monotonic_s())) is None:
                    times_s = (min(each.check_at_s, each.publish_at_s) for each in self._watched.values())
                    next_s = min(times_s, default=math.inf)
                    self._changed.wait(min(next_s - clock.monotonic_s(), threading.TIMEOUT_MAX))
                if self._stopped:
                    return
                self._busy = True
            try:
                assert due is not None
                self._handle(*due)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _take(self, now_s: float) -> tuple[_Watched, list[int], bool, bool] | None:
        """Return a topic with due work: the topic, its full partitions, whether to publish new files, and whether to
        check its other tails. None: nothing is due.
        """
        with self._changed:
            for topic_id, watched in self._watched.items():
                check, publish = watched.check_at_s <= now_s, watched.publish_at_s <= now_s
                if watched.full or publish or check:
                    self._watched[topic_id] = self._watched.pop(topic_id)  # behind the other topics
                    full, watched.full = sorted(watched.full), set()
                    if publish:
                        watched.publish_at_s, watched.published_s = math.inf, now_s
                    if check:
                        watched.check_at_s = now_s + watched.retry_s
                        watched.appended = False
                    return watched, full, publish, check
        return None

    def _handle(self, watched: _Watched, full: list[int], publish: bool, check: bool) -> None:
        """Raises nothing: work that fails is due again at the next check, and for every other client."""
        topic = watched.topic
        try:
            if check:
                self._check(watched, full, publish)
            else:
                self._seal_full(topic, full, publish)
            return
        except (SparkLogError, OSError) as error:
            logger.info("topic %s: tails not sealed, tried again later: %s", topic.name, redact(str(error)))
        except Exception:  # a bug: the thread continues with the other topics
            logger.exception("topic %s: tails not sealed", topic.name)
        watched.failures += 1

    def _check(self, watched: _Watched, full: list[int], publish: bool) -> None:
        topic = watched.topic
        found = self._tails(topic)
        now_ms = self._cluster.store.now().wall_ms
        due = due_tails(found, topic.config, now_ms)
        if self._has_coordinator():
            self._seal_full(topic, full, publish)
            done = not due
        else:
            done = self._seal_and_merge(topic, sorted({*full, *(tail.partition for tail in due)}))
        oldest_ms = min((tail.first_appended_ms for tail in found if tail not in due), default=now_ms)
        until_due_s = (oldest_ms + seal_after_ms(topic.config) - now_ms) / 1000
        with self._changed:
            if watched.check_at_s < math.inf:
                wait_s = max(_CHECK_S_MIN, until_due_s) if done else watched.retry_s
                watched.check_at_s = clock.monotonic_s() + wait_s
            watched.failures = 0 if done else watched.failures + 1
            idle = not watched.full and not watched.appended and watched.publish_at_s == math.inf
            if done and not found and idle:  # the next append adds it again
                self._watched.pop(topic.topic_id, None)

    def _may_be_the_last(self, topic: Topic) -> bool:
        """Whether to seal now because there may be no further append."""
        files_ms = self._cluster.store.read(lambda connection: last_files_ms(connection, topic.topic_id))
        now_ms = self._cluster.store.now().wall_ms
        paused_ms = topic.config.delta_max_lag_ms - seal_after_ms(topic.config)
        return bool(due_tails(self._tails(topic), topic.config, now_ms)) or not 0 <= now_ms - files_ms < paused_ms

    def _seal_full(self, topic: Topic, partitions: list[int], publish: bool) -> None:
        sealed = sum(self._seal(topic, partition) for partition in partitions)
        if (sealed or publish) and not try_publish(self._cluster, [topic]) and publish:
            self.watch(topic)

    def _seal_and_merge(self, topic: Topic, partitions: list[int]) -> bool:
        """Seal the tails of these partitions, publish, and merge small files. Returns whether all of these were sealed
        and the Delta tables list all files.
        """
        sealed = [partition for partition in partitions if self._time_is_left() and self._seal(topic, partition)]
        done = len(sealed) == len(partitions)
        if sealed or self._is_unpublished(topic):
            done = try_publish(self._cluster, [topic]) and done
        if not sealed or not self._time_is_left():
            return done
        crowded = self._cluster.store.read(lambda c: partitions_to_merge(c, topic, BACKGROUND_GROWTH, _MERGE_BYTES_MAX))
        merged = False
        for partition in sorted({*sealed} & {*crowded}):
            for _ in merge(
                self._cluster, self._writer, topic, partition, growth=BACKGROUND_GROWTH, bytes_max=_MERGE_BYTES_MAX
            ):
                merged = True
                if not self._time_is_left():
                    break
        if merged:
            try_publish(self._cluster, [topic])
        return done

    def _is_unpublished(self, topic: Topic) -> bool:
        """Whether some Delta table of the topic lacks a file."""
        lags = self._cluster.store.read(lambda connection: delta_lags(connection, [topic.topic_id]))
        return any(lag.sealed_ms is not None for lag in lags.values())

    def _tails(self, topic: Topic) -> list[Tail]:
        return self._cluster.store.read(lambda connection: tails(connection, [topic.topic_id])).get(topic.topic_id, [])

    def _has_coordinator(self) -> bool:
        return lease_status(self._cluster.store, COORDINATOR).left_ms > 0
