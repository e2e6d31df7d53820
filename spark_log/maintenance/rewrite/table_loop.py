"""Seals the tails of the topics that a process appends to, and publishes their files, in a loop.

A coordinator does this for all topics. While one lives, the loop only seals full tails and publishes new files of its
own appends; without one it keeps delta.max.lag.ms. It reads the age of the tails from the store, so it also finds a
tail that a killed process has left.
"""

import logging
import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import COORDINATOR, lease_status
from spark_log.cluster.log_dir_failures import suspected_log_dirs
from spark_log.cluster.topics import Topic
from spark_log.errors import SparkLogError, redact
from spark_log.ids import TopicId
from spark_log.log.append.companions import Append
from spark_log.log.append.write_ids import Writer
from spark_log.maintenance.rewrite.rewrite_plan import segments
from spark_log.maintenance.rewrite.segment_merge import BACKGROUND_GROWTH, merge, partitions_to_merge
from spark_log.maintenance.rewrite.table_schedule import (
    Attempts,
    Tail,
    after_round,
    due_tails,
    look_after_ms,
    merges_from_s,
    next_look_ms,
    pause_ms,
)
from spark_log.maintenance.rewrite.tail_seal import last_files_ms, tails, try_seal
from spark_log.process import start_thread, stop_at_exit
from spark_log.replication.controller.fallback_controller import FallbackController
from spark_log.tables.checkpoints import try_maintain_logs
from spark_log.tables.current.cut import NO_CUTS, Cut, cuts
from spark_log.tables.lag_measurement import delta_lags
from spark_log.tables.publication import try_publish
from spark_log.tables.publication_state import ICEBERG

logger = logging.getLogger(__name__)

THREAD_NAME = "spark-log-tables"
_DUE_PUBLICATIONS_MAX = 1_000
_TAILS_MAX = 4
"""Multiple of inline.tail.bytes at which the appending thread seals a tail itself, as the loop does not keep up."""
_LONG_S = 1.0
"""The time after which appends do not wait for a seal of the loop, which usually takes some milliseconds."""
_KNOWN_MAX = 10_000
"""The number of topics of which the attempts are remembered."""
_MERGE_BYTES_MAX = 16 * 2**20
"""Size of the largest file into which a client merges files. The coordinator writes larger ones."""


@dataclass
class _Touched:
    """A topic that this process has appended to. Its next round is due at `due_s`. `full` are the partitions with a
    full tail. `has_tails` means that it may have tails, `has_files` that new files are not published yet.
    """

    topic: Topic
    due_s: float = math.inf
    full: set[int] = field(default_factory=set)
    has_tails: bool = False
    has_files: bool = False
    appends: int = 0
    working: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class _Round:
    """A round of a topic. It is `done` if no due tail or table is left; `seconds` is its time without merges."""

    done: bool
    seconds: float


class TableLoop:
    """Listens to the appends of a `Log`. Thread-safe.

    With `in_thread` it works in a daemon thread, which starts with the first append; otherwise in the appends
    themselves, and in `close`. An append waits for a checkpoint of a Delta log only if `close` does not come for long.
    """

    def __init__(self, cluster: Cluster, writer: Writer, *, in_thread: bool = False, tail_bytes_min: int = 0) -> None:
        """`tail_bytes_min` is the lower bound of inline.tail.bytes, for topics that leave it at its default."""
        self._cluster, self._writer, self._tail_bytes_min = cluster, writer, tail_bytes_min
        self._in_thread = in_thread
        self._fallback = FallbackController(cluster)
        self._changed = threading.Condition()
        self._touched: dict[int, _Touched] = {}
        self._attempts: dict[int, Attempts] = {}
        self._in_iceberg: dict[int, Topic] = {}
        """Topics with an Iceberg table, which may lack the last files."""
        self._checkpoints_due: dict[TopicId, Topic] = {}
        """Topics whose appends published so often that a checkpoint is due, which is left to `close`."""
        self._due_publications = 0
        """The number of publications since then. After _DUE_PUBLICATIONS_MAX an append writes the checkpoints."""
        self._merges_from_s = -math.inf
        """The time before which no merge begins."""
        self._sealing: tuple[tuple[TopicId, int], float] | None = None
        """The partition whose tail a round is sealing, and when that began."""
        self._stopped = False
        self._until_s = math.inf
        self._thread: threading.Thread | None = None

    def appended(self, append: Append) -> None:
        """Note the topics of an append, and seal or publish what is due (an `AppendListener`)."""
        for (topic_id, partition), state in append.partitions.items():
            topic = append.topics[topic_id]
            full_bytes = topic.config.inline_tail_bytes
            if "inline.tail.bytes" not in topic.overrides:
                full_bytes = max(full_bytes, self._tail_bytes_min)
            if state.tail_bytes >= full_bytes:
                if self._is_late(topic, partition, state.tail_bytes) and self._seal(topic, partition):
                    self._touch(topic, has_files=True)
                else:
                    self._touch(topic, full=partition)
            elif state.tail_bytes:
                self._touch(topic)
        for topic_id in append.topics_with_files:
            self._touch(append.topics[topic_id], has_files=True)
        if not self._in_thread:
            self._work_due()

    def _is_late(self, topic: Topic, partition: int, tail_bytes: int) -> bool:
        """Return whether the appending thread is to seal this tail, so that appends wait for the loop. A small
        inline.tail.bytes of one topic does not make the clients of a gateway wait (`tail_bytes_min`); nor does a topic
        that cannot be sealed now, or whose schemas another server has. No append waits while the loop seals this
        tail, or needs long for another one: a disk may hang.
        """
        most = _TAILS_MAX * max(topic.config.inline_tail_bytes, self._tail_bytes_min)
        if not self._in_thread or tail_bytes < most or self._attempts_of(topic).failures:
            return False
        if (sealing := self._sealing) is not None:
            place, began_s = sealing
            if place == (topic.topic_id, partition) or clock.monotonic_s() - began_s >= _LONG_S:
                return False
        return not (self._tail_bytes_min and topic.config.schema_registry_url)

    def watch(self, topics: Iterable[Topic]) -> None:
        """Seal the tails of these topics at `close`, as if they had been appended to here."""
        for topic in topics:
            self._touch(topic)

    def _touch(self, topic: Topic, *, full: int | None = None, has_files: bool = False) -> None:
        with self._changed:
            touched = self._touched.setdefault(topic.topic_id, _Touched(topic))
            touched.topic = topic
            touched.appends += 1
            now_s, due_s, attempts = clock.monotonic_s(), math.inf, self._attempts_of(topic)
            if full is not None:
                touched.full.add(full)
                due_s = max(now_s, attempts.from_s) if attempts.failures else now_s
            elif has_files:
                touched.has_files = True
                due_s = max(now_s, attempts.from_s) if self._in_thread else now_s
            elif topic.config.delta_max_lag_ms >= 0 and not touched.has_tails:
                touched.has_tails = True  # their age is unknown: an earlier process may have left them
                due_s = now_s if self._in_thread else now_s + look_after_ms(topic.config) / 1000
            sooner = due_s < touched.due_s
            touched.due_s = min(due_s, touched.due_s)
            if touched.due_s < math.inf and self._in_thread and self._thread is None and not self._stopped:
                self._thread = start_thread(self._run, THREAD_NAME)  # without it, `close` does the work
                stop_at_exit(self)
            if sooner:
                self._changed.notify_all()

    # The rounds ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and (wait_s := self._next_s() - clock.monotonic_s()) > 0:
                    self._changed.wait(min(wait_s, threading.TIMEOUT_MAX))
                if self._stopped:
                    return
            self._work_due()

    def _next_s(self) -> float:
        with self._changed:
            return min((each.due_s for each in self._touched.values()), default=math.inf)

    def _work_due(self) -> None:
        """Do a round of each topic that is due, in the order in which they became due."""
        now_s = clock.monotonic_s()
        with self._changed:
            due = sorted((each.due_s, topic_id) for topic_id, each in self._touched.items() if each.due_s <= now_s)
        for _, topic_id in due:
            if self._time_is_left() and not self._stopped:
                self._work(topic_id)

    def _work(self, topic_id: int) -> None:
        """Do one round of a topic. It raises nothing: failed work is due again later, and for every other client."""
        with self._changed:
            touched = self._touched.get(topic_id)
        if touched is None:
            return
        with touched.working:
            with self._changed:
                full, has_files, appends = touched.full, touched.has_files, touched.appends
                touched.full, touched.has_files, touched.due_s = set(), False, math.inf
            topic, wait_ms = touched.topic, None
            round_: _Round | None = None
            began_s, cost_ms = clock.monotonic_s(), self._attempts_of(topic).cost_ms or 0.0
            try:
                found, now_ms, cut = self._tails(topic)
                alone = self._is_alone()
                due = due_tails(found, topic.config, now_ms, cost_ms) if alone else []
                partitions = full | {tail.partition for tail in due}
                round_ = self._round(topic, partitions, cut, publish=has_files, alone=alone)
                wait_ms = next_look_ms([tail for tail in found if tail not in due], topic.config, now_ms, cost_ms)
            except Exception as error:
                round_ = _Round(done=False, seconds=clock.monotonic_s() - began_s)
                if isinstance(error, SparkLogError | OSError):
                    logger.info("topic %s: tails not sealed, tried again later: %s", topic.name, redact(str(error)))
                else:  # a bug: the loop goes on with the other topics
                    logger.exception("topic %s: tails not sealed", topic.name)
            with self._changed:
                attempts = self._note(topic, round_)
                failed = round_ is not None and not round_.done
                touched.has_files = touched.has_files or (has_files and failed)
                if failed:
                    wait_ms = int(1000 * max(0.0, attempts.from_s - clock.monotonic_s()))
                elif wait_ms is None and touched.appends > appends:
                    wait_ms = look_after_ms(topic.config, cost_ms)
                # appends during the round have made the next one due
                if failed or (self._in_thread and not touched.full):
                    touched.due_s = max(touched.due_s, attempts.from_s)
                touched.has_tails = wait_ms is not None and topic.config.delta_max_lag_ms >= 0
                if wait_ms is not None and touched.has_tails:
                    touched.due_s = min(touched.due_s, clock.monotonic_s() + wait_ms / 1000)
                if touched.due_s < math.inf:
                    self._touched.setdefault(topic_id, touched)
                elif self._touched.get(topic_id) is touched:
                    del self._touched[topic_id]  # the next append adds it again

    def _attempts_of(self, topic: Topic) -> Attempts:
        return self._attempts.get(topic.topic_id, Attempts())

    def _note(self, topic: Topic, round_: _Round | None) -> Attempts:
        """Record a round of the topic; None means that there was nothing to do. Return the topic's attempts."""
        before, now_s = self._attempts_of(topic), clock.monotonic_s()
        attempts = replace(before, failures=0)
        if round_ is not None:
            attempts = after_round(before, topic.config, now_s=now_s, seconds=round_.seconds, done=round_.done)
        if len(self._attempts) >= _KNOWN_MAX:
            self._attempts.clear()
        self._attempts[topic.topic_id] = attempts
        return attempts

    def _is_alone(self) -> bool:
        return lease_status(self._cluster.store, COORDINATOR).left_ms <= 0

    def _round(
        self, topic: Topic, partitions: Iterable[int], cuts: Mapping[TopicId, Cut], *, publish: bool, alone: bool
    ) -> _Round | None:
        """Seal tails and publish; merge small files without a coordinator. Returns None if there was nothing to do."""
        numbers, began_s = sorted(partitions), clock.monotonic_s()
        sealed = []
        for number in numbers:
            self._sealing = (topic.topic_id, number), clock.monotonic_s()
            try:
                if self._time_is_left() and self._seal(topic, number):
                    sealed.append(number)
            finally:
                self._sealing = None
        all_sealed = len(sealed) == len(numbers)
        if not numbers and not publish and not (alone and self._is_unpublished(topic)):
            return None
        done = self._publish(topic, cuts) and all_sealed
        if ICEBERG in topic.config.table_formats:
            self._in_iceberg[topic.topic_id] = topic
        outcome = _Round(done, clock.monotonic_s() - began_s)
        if not all_sealed and self._time_is_left() and self._cluster.store.read(suspected_log_dirs):
            self._fallback.detect_failures()
        if not alone or not sealed or not self._time_is_left() or clock.monotonic_s() < self._merges_from_s:
            return outcome
        crowded = self._cluster.store.read(lambda c: partitions_to_merge(c, topic, BACKGROUND_GROWTH, _MERGE_BYTES_MAX))
        merged, began_s = False, clock.monotonic_s()
        for number in sorted({*sealed} & {*crowded}):
            for _ in merge(
                self._cluster, self._writer, topic, number, growth=BACKGROUND_GROWTH, bytes_max=_MERGE_BYTES_MAX
            ):
                merged = True
                if not self._time_is_left():
                    break
        if merged:
            self._publish(topic)
            now_s = clock.monotonic_s()
            self._merges_from_s = merges_from_s(now_s, now_s - began_s)
        return outcome

    def _publish(self, topic: Topic, cuts: Mapping[TopicId, Cut] = NO_CUTS) -> bool:
        due = None if self._in_thread else self._checkpoints_due
        done = try_publish(self._cluster, [topic], cuts=cuts, catalogs=self._in_thread, checkpoints_due=due)
        if topic.topic_id in self._checkpoints_due:
            self._due_publications += 1
            if self._due_publications >= _DUE_PUBLICATIONS_MAX and self._is_alone():
                self._write_checkpoints()
        return done

    def _seal(self, topic: Topic, partition: int) -> bool:
        """Seal a tail, and return whether none is left of it: too few in-sync replicas may have got the file."""
        files = try_seal(self._cluster, self._writer, topic, partition)
        if files == 0:
            return not self._cluster.store.read(lambda connection: segments(connection, topic, partition, inline=True))
        return files is not None

    def _is_unpublished(self, topic: Topic) -> bool:
        """Whether some Delta table of the topic lacks a file."""
        lags = self._cluster.store.read(lambda connection: delta_lags(connection, [topic.topic_id]))
        return any(lag.sealed_ms is not None for lag in lags.values())

    def _tails(self, topic: Topic) -> tuple[list[Tail], int, dict[TopicId, Cut]]:
        """Return the topic's tails, the time by the clock that dated them, read after them, and the topic's cut."""
        store, ids = self._cluster.store, [topic.topic_id]
        by_topic, cut, now = store.read(lambda c: (tails(c, ids), cuts(c, ids), store.clock(c)))
        return by_topic.get(topic.topic_id, []), now.wall_ms, cut

    # The end ---------------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float, *, more_to_come: bool = False) -> None:
        """Do one last round of all topics: full tails are sealed and new files published, and unless a coordinator
        lives, all tails are sealed and the checkpoints that are due are written.

        With `more_to_come` (after a micro-batch) another process will append to the same topics: then only tails that
        are due are sealed, or those of a topic that got no new files for a while. So the first micro-batch after a
        pause is sealed, since it may be the only one, and many that follow one another share a file.

        It starts no work after `timeout_s`, or after `stop_after_current_tail`: the next client that appends, or the
        coordinator, does the rest.
        """
        with self._changed:
            until_s = self._until_s = min(self._until_s, clock.monotonic_s() + timeout_s)
        for thread in self.request_stop():
            thread.join(max(0.0, until_s - clock.monotonic_s()))
        with self._changed:
            left = list(self._touched.values())
            self._touched.clear()
        try:
            alone = not left or self._is_alone()
            for touched in left:
                if not self._time_is_left():
                    break
                partitions = touched.full
                cut: Mapping[TopicId, Cut] = NO_CUTS
                if alone and self._is_to_be_sealed(touched, more_to_come):
                    found, _, cut = self._tails(touched.topic)
                    partitions = partitions | {tail.partition for tail in found}
                if partitions or touched.has_files:
                    self._round(touched.topic, partitions, cut, publish=touched.has_files, alone=alone)
            if self._in_iceberg and self._time_is_left() and self._is_alone():
                try_publish(self._cluster, self._in_iceberg.values(), eager=True)
            # a coordinator's task `delta` writes them otherwise
            if self._checkpoints_due and self._time_is_left() and self._is_alone():
                self._write_checkpoints()
        except (SparkLogError, OSError) as error:
            logger.info("inline tails are left to the next client that appends: %s", redact(str(error)))
        except Exception:  # a bug: the records are appended all the same
            logger.exception("inline tails are left to the next client that appends")

    def _write_checkpoints(self) -> None:
        self._due_publications = 0
        while self._checkpoints_due and self._time_is_left():
            try_maintain_logs(self._cluster, self._checkpoints_due.popitem()[1])

    def _is_to_be_sealed(self, touched: _Touched, more_to_come: bool) -> bool:
        """Whether to seal all tails of the topic in the last round."""
        if touched.topic.config.delta_max_lag_ms < 0 or not (touched.has_tails or touched.full):
            return False
        return not more_to_come or self._may_be_the_last(touched.topic)

    def _may_be_the_last(self, topic: Topic) -> bool:
        """Whether to seal now because there may be no further append."""
        files_ms = self._cluster.store.read(lambda connection: last_files_ms(connection, topic.topic_id))
        found, now_ms, _ = self._tails(topic)
        paused = not 0 <= now_ms - files_ms < pause_ms(topic.config)
        return paused or bool(due_tails(found, topic.config, now_ms))

    def stop_after_current_tail(self) -> None:
        """End a `close` in another thread, running or future, as soon as its current tail is sealed and published."""
        with self._changed:
            self._until_s = -math.inf
            self._changed.notify_all()

    def request_stop(self) -> list[threading.Thread]:
        """Stop the thread after its current round; `close` does the rest."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        return [] if self._thread is None else [self._thread]

    def _time_is_left(self) -> bool:
        return clock.monotonic_s() < self._until_s
