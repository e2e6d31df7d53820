"""Implements the loop of `poll`: it does the work that is due, then returns records or waits for a change of the store.

While some partitions have buffered records, the store is read at most every 10 ms. It is read if it has changed, if a
partition needs a position or a plan, if the wait for fetch_min_bytes is over, or if 5 s have passed since the last
read.
"""

import logging
from collections.abc import Collection

from kafka.structs import TopicPartition

from spark_log import clock
from spark_log.clients.consume.background import Background
from spark_log.clients.consume.buffers import Fetched
from spark_log.clients.consume.consumer_settings import ConsumerSettings
from spark_log.clients.consume.group_side import GroupSide
from spark_log.clients.consume.offset_commits import Commits, Offsets
from spark_log.clients.consume.partition_reads import Fetching
from spark_log.clients.consume.subscription import Move, Subscription, move_of
from spark_log.clients.consume.topic_watch import TopicWatch
from spark_log.cluster.cluster import Cluster
from spark_log.errors import CommitFailedError, NoOffsetForPartitionError, RetriableError
from spark_log.groups.committed_offsets import Commit, commit_offsets, read_commits, refuse_unknown
from spark_log.groups.pending_offsets import unstable_partitions
from spark_log.ids import TopicPartition as OurPartition
from spark_log.process import Stop

logger = logging.getLogger(__name__)

_READ_STORE_S_MIN = 0.01
"""Minimum time between two reads of the store while some partitions have buffered records."""
_READ_STORE_S_MAX = 5.0
"""Maximum time between two reads of the store: PostgreSQL's listener may be disconnected and miss a change."""
_FRUITLESS_S_MIN, _FRUITLESS_S_MAX = 0.0005, 0.01
"""Pause between reads that find no records while the store keeps changing: it doubles with each of them, from twice the
minimum up to the maximum."""
_WAIT_S_MAX = 0.2
"""Longest single wait. A close from another thread is noticed after at most this time."""


class Polling:
    """One consumer without its public interface. Only `closed`, `metrics` and the commits are thread-safe."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings, background: Background) -> None:
        self.cluster = cluster
        self.settings = settings
        self.subscription = Subscription()
        self.closed = Stop()
        self.fetching = Fetching(cluster, settings, self.closed)
        self.topics = TopicWatch(cluster, settings)
        self.commits = Commits(settings, background, self._write_commit)
        self.group: GroupSide | None = None
        if settings.group_id is not None:
            self.group = GroupSide(cluster, settings, self.subscription, background, self._commit_before_revocation)
        self._seen: int | None = None
        self._changed = True
        self._read_s = float("-inf")
        self._fruitless = 0
        self._short_since_s: float | None = None

    def metrics(self, record_count: int) -> dict[str, dict[str, float]]:
        """Return metrics by kafka-python's group and name, with `record_count` as consumed. Any thread may call it."""
        fetches = max(1, self.fetching.fetch_count)
        lags = {
            partition: float(max(0, state.high_watermark - state.offset))
            for partition, state in list(self.subscription.partitions.items())
            if state.high_watermark is not None and state.offset is not None
        }
        return {
            "consumer-fetch-manager-metrics": {
                "records-lag-max": max(lags.values(), default=0.0),
                "fetch-latency-avg": 1000 * self.fetching.fetch_s / fetches,
                "fetch-latency-max": 1000 * self.fetching.fetch_s_max,
                "records-consumed-total": record_count,
                "fetch-total": self.fetching.fetch_count,
                "buffered-bytes": self.fetching.buffers.held_bytes,
                "replicas-passed-over-total": self.fetching.fetcher.passed_over,
                "replicas-repaired-total": self.fetching.fetcher.repaired,
            },
            "consumer-coordinator-metrics": {
                "commit-total": self.commits.count,
                "rebalance-total": 0 if self.group is None else self.group.rebalances,
                "assigned-partitions": len(self.subscription.partitions),
            },
            **{
                f"consumer-fetch-manager-metrics.{topic}-{partition}": {"records-lag": lag}
                for (topic, partition), lag in lags.items()
            },
        }

    def poll(self, timeout_s: float, rows_max: int | None) -> list[Fetched]:
        """Return records at the positions; wait for them up to `timeout_s`. The caller moves the positions.

        While the store is unavailable it waits and tries again, as Kafka's clients do.
        """
        deadline_s = clock.monotonic_s() + timeout_s
        while not self.closed.is_set():
            try:
                self._run_due_work()
                if self.closed.is_set():
                    break
                taken = self._take(rows_max)
                if taken:
                    return taken
            except RetriableError as error:
                logger.warning("poll: tried again in %d ms: %s", self.settings.retry_backoff_ms, error)
                if not self._pause(min(deadline_s - clock.monotonic_s(), self.settings.retry_backoff_ms / 1000)):
                    break
                continue
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0:
                break
            self._wait(left_s)
        return []

    def positions_changed(self) -> None:
        """Make the next poll read the store, with or without a notification."""
        self._changed = True
        self._short_since_s = None

    def resolve_positions(self, awaited: TopicPartition | None = None, timeout_s: float = 0.0) -> None:
        """Find a position for every assigned partition. With auto_offset_reset none, a missing one is an error.

        Waits while an open transaction may change the committed offset of the partition `awaited`.
        """
        deadline_s = clock.monotonic_s() + timeout_s
        changes = self.cluster.store.changes
        while True:
            seen = changes.current()
            unstable = self._find_missing()
            self.fetching.settle_positions(self.subscription)
            left_s = deadline_s - clock.monotonic_s()
            if awaited not in unstable or left_s <= 0 or self.closed.is_set():
                return
            changes.wait(seen, min(left_s, _WAIT_S_MAX))

    def refresh_topics(self) -> None:
        """Follow created and deleted topics; without a group, assign all partitions of subscribed topics."""
        subscription = self.subscription
        if not subscription.kind:
            return
        if subscription.kind == "assigned":
            names = {topic for topic, _ in subscription.partitions}
        else:
            names = set() if subscription.pattern is not None else set(subscription.topics or ())
        if not self.topics.refresh_if_due(None if subscription.pattern is not None else names):
            return
        if subscription.pattern is not None:
            subscription.topics = subscription.matching(self.topics.counts, self.settings.exclude_internal_topics)
        if subscription.automatic and self.group is None:
            wanted = [
                OurPartition(topic, number)
                for topic in subscription.matching(self.topics.counts, self.settings.exclude_internal_topics)
                for number in range(self.topics.counts[topic])
            ]
            move = move_of(subscription.partitions, wanted)
            if move.added or move.revoked:
                subscription.apply(move)
                self.positions_changed()

    def to_commit(self) -> dict[TopicPartition, Commit]:
        """Return the positions, except those of deleted partitions, which cannot be committed."""
        unknown = self.fetching.unknown
        return {name: offset for name, offset in self.subscription.consumed().items() if name not in unknown}

    def leave_and_drop_partitions(self) -> None:
        """Leave the group and drop all partitions, for `unsubscribe` and `close`."""
        if self.group is not None and self.subscription.automatic:
            self.group.leave()
        self.subscription.apply(Move(frozenset(self.subscription.partitions), frozenset()))
        self.fetching.buffers.keep_only(())

    def _run_due_work(self) -> None:
        self.commits.call_back()
        if self.closed.is_set():  # by a callback
            return
        if self.subscription.kind != "assigned" or not self.topics.counts:
            self.refresh_topics()
        if self.closed.is_set():  # by a signal handler
            return
        if self.group is not None and self.subscription.automatic:
            before = self.group.rebalances
            self.group.poll(self.subscription.topics or ())
            if self.group.rebalances != before:
                self.commits.postpone_auto()
                self.positions_changed()
        self.commits.auto_if_due(self.to_commit)

    def _take(self, rows_max: int | None) -> list[Fetched]:
        now_s = clock.monotonic_s()
        if now_s - self._read_s >= _READ_STORE_S_MIN and self._read_due(now_s):
            self._read_store(now_s)
        taken = self.fetching.take(self.subscription, rows_max)
        if not taken and self._read_due(now_s) and self._read_store(now_s):
            taken = self.fetching.take(self.subscription, rows_max)
        return taken

    def _read_due(self, now_s: float) -> bool:
        if self._changed or self._seen is None or now_s - self._read_s >= _READ_STORE_S_MAX:
            return True
        if self._short_since_s is not None and now_s >= self._short_due_s():
            return True
        if self._short_since_s is None and self.fetching.may_fetch(self.subscription):
            return True
        return self.cluster.store.changes.current() != self._seen

    def _read_store(self, now_s: float) -> bool:
        """Read the store; return whether there are records to read. Reads that find none become rarer."""
        if self._fruitless and not self._changed:
            pause_s = min(_FRUITLESS_S_MIN * 2**self._fruitless, _FRUITLESS_S_MAX)
            self._pause(self._read_s + pause_s - now_s)
        self._seen = self.cluster.store.changes.current()
        self._changed = True  # until this read has succeeded: a failed one is due again
        self._find_missing()
        enough = self._short_since_s is not None and now_s >= self._short_due_s()
        has_records = self.fetching.fetch(self.subscription, 0 if enough else self.settings.fetch_min_bytes)
        self._changed = False
        self._read_s = clock.monotonic_s()
        if self.fetching.short_bytes:
            self._short_since_s = self._read_s if self._short_since_s is None else self._short_since_s
        else:
            self._short_since_s = None
        self._fruitless = 0 if has_records else min(self._fruitless + 1, 10)
        return has_records

    def _short_due_s(self) -> float:
        assert self._short_since_s is not None
        return self._short_since_s + self.settings.fetch_max_wait_ms / 1000

    def _wait(self, left_s: float) -> None:
        now_s = clock.monotonic_s()
        bounds = [left_s, _WAIT_S_MAX, self.commits.auto_due_s() - now_s]
        if self._short_since_s is not None:
            bounds.append(self._short_due_s() - now_s)
        if self.subscription.automatic:
            bounds.append(self.topics.time_to_read_s())
            if self.group is not None:
                bounds.append(self.group.time_to_ask_s())
        changes = self.cluster.store.changes
        seen = changes.current() if self._seen is None else self._seen
        if changes.wait(seen, max(0.0, min(bounds))) and changes.current() == seen:
            self._changed = True  # the wait cannot tell whether the store has changed: read it

    def _pause(self, seconds: float) -> bool:
        """Sleep and return True; if `seconds` is not positive, return False at once."""
        if seconds <= 0:
            return False
        clock.sleep_s(seconds)
        return True

    def _find_missing(self) -> Collection[TopicPartition]:
        """Initialize missing positions from the group's committed offset, otherwise by auto_offset_reset.

        Return the partitions whose committed offset an open transaction may change: a later poll finds their positions.
        """
        states = self.subscription.partitions
        missing = [name for name, state in states.items() if state.offset is None and state.reset is None]
        if not missing:
            return ()
        unstable: Collection[TopicPartition] = ()
        if self.settings.group_id is not None:
            group_id = self.settings.group_id
            commits, unstable = self.cluster.store.read(
                lambda c: (read_commits(c, group_id, missing), unstable_partitions(c, group_id))
            )
            missing = [name for name in missing if name not in unstable]
            for partition in commits.keys() - set(unstable):
                states[partition].replace_by(commits[partition])
            missing = [name for name in missing if states[name].offset is None]
        policy = self.settings.auto_offset_reset
        if missing and policy == "none":
            raise NoOffsetForPartitionError(set(missing))
        for name in missing:
            states[name].ask_reset("earliest" if policy == "earliest" else "latest")
        return unstable

    def _commit_before_revocation(self) -> None:
        self.commits.finish(self.to_commit())

    def _write_commit(self, offsets: Offsets) -> None:
        if self.subscription.automatic:
            assert self.group is not None
            self.group.commit(offsets)
        elif self.settings.group_id is None:
            raise CommitFailedError("there is no group to commit for")
        else:
            ours = {OurPartition(*partition): offset for partition, offset in offsets.items()}
            refuse_unknown(commit_offsets(self.cluster.store, self.settings.group_id, ours))
