"""Runs the task that seals inline tails and publishes topics that are behind, with a plan for dry runs, which changes
nothing.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import is_kept_by_store
from spark_log.cluster.topics import Topic, topics_of_ids, undamaged
from spark_log.config import ClusterSettings
from spark_log.errors.first_failure import FirstFailure
from spark_log.ids import TopicId
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.report import Report
from spark_log.maintenance.rewrite.rewrite_loop import rewrite_partitions
from spark_log.maintenance.rewrite.table_schedule import Attempts, Tail, after_round, deadline_ms, due_tails
from spark_log.maintenance.rewrite.tail_seal import sealing, tails
from spark_log.registry.external_ids import SchemaLookups
from spark_log.tables.checkpoints import try_maintain_logs
from spark_log.tables.current.cut import NO_CUTS, Cut, cuts
from spark_log.tables.lag_measurement import delta_lags, topics_behind
from spark_log.tables.publication import has_time, log_failure, publish_all
from spark_log.tables.publication_state import CURRENT, ICEBERG
from spark_log.tables.topic_tables import targets

T = TypeVar("T")

TOPICS_MAX = 64
"""The number of topics that one round of a coordinator seals, and also publishes."""
_KNOWN_MAX = 10_000
"""Above this number of topics, those whose last round did not fail are forgotten."""
_LAGS_EVERY_S = 2.0
"""The time between two searches of a coordinator for tables that lack a file, which read all partitions."""


@dataclass(frozen=True)
class _Due:
    """Topics with tails to seal, which are published afterwards, and other topics whose tables are behind. `cuts` are
    from the snapshot of the tails.
    """

    tails: list[tuple[Topic, list[Tail]]]
    behind: list[Topic]
    cuts: Mapping[TopicId, Cut]


class TableRounds:
    """The rounds of one coordinator, or a single one. They seal the due tails below the high watermark, the oldest
    first, and publish topics that are behind.

    A round works on at most `topics_max` topics, of which at most one has failed last: so topics that fail, or take
    long, leave time for the others. While such topics succeed, because the cause is gone, each round tries twice as
    many.

    An external schema registry may not answer. So rounds with the set `leaves` ask none: a topic with records of an
    unknown schema id gets into the set, and is left to the rounds that have this set as `takes`, until its tails are
    sealed. Without `catalogs`, Iceberg tables in a catalog, which may not answer either, are left to
    `publish_to_catalog`.
    """

    def __init__(
        self,
        topics_max: int | None = None,
        *,
        leaves: set[TopicId] | None = None,
        takes: set[TopicId] | None = None,
        catalogs: bool = True,
    ) -> None:
        self._topics_max, self._leaves, self._takes, self._catalogs = topics_max, leaves, takes, catalogs
        self._attempts: dict[TopicId, Attempts] = {}
        self._retries_max = 1
        """The number of topics whose last round failed and that the next round tries."""
        self._outcomes: list[bool] = []
        """For each topic of the round that failed last, whether it is done now; False for each other failure."""
        self._seconds = 0.0
        """The duration of the last round."""
        self._lags_from_s = -math.inf
        """When to search for tables that are behind."""
        self._checkpoints: dict[TopicId, Topic] = {}
        """The topics with a Delta log that is due for a checkpoint."""

    def pause_ms(self, settings: ClusterSettings) -> int:
        """Return the pause before the next round: table.loop.poll.ms, or more if the last one took long."""
        share = settings.table_loop_share_percent / 100
        return max(settings.table_loop_poll_ms, int(1000 * self._seconds * (1 - share) / share))

    def run(self, context: MaintenanceContext) -> Iterator[Report]:
        """Do one round (the task `seal`)."""
        if self._takes is not None and not self._takes and not self._checkpoints:
            self._seconds = 0.0
            return
        taken = frozenset(self._takes or ())
        began_s = clock.monotonic_s()
        searches = self._takes is None and began_s >= self._lags_from_s
        if searches:
            self._lags_from_s = began_s + _LAGS_EVERY_S
        try:
            costs_ms = {topic_id: attempt.cost_ms or 0.0 for topic_id, attempt in dict(self._attempts).items()}
            due = _due_topics(context, costs_ms, searches_lags=searches, catalogs=self._catalogs)
            own = self._own(due.tails, taken)
            with FirstFailure() as failure:
                with failure.attempt():
                    yield from self._seal(context, self._chosen(own, lambda each: each[0]), due.cuts)
                with failure.attempt():
                    yield from self._publish_behind(context, self._chosen(due.behind, lambda topic: topic), failure)
                # one a round: the tables of topics with equal rates are due at the same time
                for topic_id in list(self._checkpoints)[:1]:
                    try_maintain_logs(context.cluster, self._checkpoints.pop(topic_id), catalogs=self._catalogs)
        finally:
            self._seconds = clock.monotonic_s() - began_s
            if self._outcomes:
                self._retries_max = min(2 * self._retries_max, TOPICS_MAX) if all(self._outcomes) else 1
                self._outcomes.clear()
            if len(self._attempts) > _KNOWN_MAX:
                self._attempts = {
                    topic_id: attempt for topic_id, attempt in list(self._attempts.items()) if attempt.failures
                }

    def _own(self, due: Sequence[tuple[Topic, list[Tail]]], taken: Set[TopicId]) -> list[tuple[Topic, list[Tail]]]:
        """Return the due tails of the topics that these rounds seal. `taken` are those of `takes` before `due` was
        read.
        """
        if self._takes is None:
            return [each for each in due if each[0].topic_id not in (self._leaves or ())]
        own = [each for each in due if each[0].topic_id in taken]
        self._takes.difference_update(taken - {topic.topic_id for topic, _ in own})  # they are sealed, or deleted
        return own

    def _chosen(self, due: Sequence[T], topic_of: Callable[[T], Topic]) -> list[T]:
        """Return the part of the due work for this round, in the same order."""
        now_s, failed = clock.monotonic_s(), 0
        chosen: list[T] = []
        for each in due:
            attempts = self._attempts.get(topic_of(each).topic_id, Attempts())
            failed += attempts.failures > 0 and attempts.from_s <= now_s
            if attempts.from_s <= now_s and (attempts.failures == 0 or failed <= self._retries_max):
                chosen.append(each)
        return chosen[: self._topics_max]

    def _seal(
        self, context: MaintenanceContext, due: Sequence[tuple[Topic, list[Tail]]], cuts: Mapping[TopicId, Cut]
    ) -> Iterator[Report]:
        left = {topic.name: (topic, len(found)) for topic, found in due}
        learn = SchemaLookups().learn if self._leaves is None else self._leave
        try:
            for report in rewrite_partitions(
                context,
                "seal",
                [(topic, [tail.partition for tail in found]) for topic, found in due],
                lambda topic, partition: sealing(
                    context.cluster, context.writer, topic, partition, context.fence, learn=learn
                ),
                context.settings.table_loop_threads,
                lambda topics: self._publish(context, topics, cuts).keys(),
            ):
                topic, partitions = left.pop(str(report.topic))
                self._note(topic, report.seconds, done=not report.notes and report.partitions == partitions)
                yield report
        finally:
            for topic, _ in left.values():  # nothing was sealed, for example because too few replicas are in sync
                self._note(topic, 0.0, done=False)

    def _leave(self, _cluster: Cluster, topic: Topic, _ids: object) -> None:
        assert self._leaves is not None
        self._leaves.add(topic.topic_id)

    def _publish(
        self, context: MaintenanceContext, topics: Sequence[Topic], cuts: Mapping[TopicId, Cut] = NO_CUTS
    ) -> dict[TopicId, Exception]:
        """Publish topics, and note those whose Delta logs are due for a checkpoint. Returns the errors."""
        by_id = {topic.topic_id: topic for topic in topics}
        errors: dict[TopicId, Exception] = {}
        done = publish_all(context.cluster, topics, eager=context.now, cuts=cuts, catalogs=self._catalogs)
        for topic_id, published in done.items():
            log_failure(by_id[topic_id], published)
            if published.error is not None:
                errors[topic_id] = published.error
            if published.checkpoint_due:
                self._checkpoints[topic_id] = by_id[topic_id]
        return errors

    def _publish_behind(
        self, context: MaintenanceContext, topics: Sequence[Topic], failure: FirstFailure
    ) -> Iterator[Report]:
        began_s = clock.monotonic_s()
        errors: dict[TopicId, Exception] | None = None
        try:
            errors = self._publish(context, topics) if topics else {}
        finally:
            seconds = (clock.monotonic_s() - began_s) / max(1, len(topics))
            for topic in topics:
                self._note(topic, seconds, done=errors is not None and topic.topic_id not in errors)
        for topic in topics:
            if topic.topic_id not in errors:
                yield Report("seal", topic.name, notes=("updated the Delta table",))
        failure.keep(next(iter(errors.values()), None))

    def _note(self, topic: Topic, seconds: float, *, done: bool) -> None:
        if self._leaves is not None and topic.topic_id in self._leaves:
            return
        if self._takes is not None and done:
            self._takes.discard(topic.topic_id)
        before = self._attempts.get(topic.topic_id, Attempts())
        if before.failures or not done:
            self._outcomes.append(done)
        self._attempts[topic.topic_id] = after_round(
            before, topic.config, now_s=clock.monotonic_s(), seconds=seconds, done=done
        )


def seal_tails(context: MaintenanceContext) -> Iterator[Report]:
    """Seal the due tails (with `context.now` every tail); then publish topics that are behind."""
    return TableRounds().run(context)


def publish_to_catalog(context: MaintenanceContext) -> Sequence[Report]:
    """Publish the Iceberg tables in a catalog that are behind. Failures are logged. It returns no reports."""
    store = context.cluster.store
    if store.settings.iceberg_catalog:
        behind = store.read(lambda connection: topics_of_ids(connection, topics_behind(connection, ICEBERG)))
        for topic in undamaged(behind.values()):
            if ICEBERG in targets(topic) and not has_time(topic, ICEBERG) and not context.stopping():
                publish_all(context.cluster, [topic], folders=False)
    return ()


def plan_seal(context: MaintenanceContext) -> Iterator[Report]:
    """Yield reports of the work that `seal_tails` would do now. Changes nothing."""
    due = _due_topics(context, {}, searches_lags=True)
    for topic, found in due.tails:
        notes = (f"{sum(tail.bytes for tail in found):,} bytes of inline tails become files", "deletes nothing")
        yield Report("seal", topic.name, len(found), notes=notes)
    for topic in due.behind:
        yield Report("seal", topic.name, notes=("publishes what is behind", "deletes nothing"))


def _due_topics(
    context: MaintenanceContext, costs_ms: Mapping[TopicId, float], *, searches_lags: bool, catalogs: bool = True
) -> _Due:
    """Return the topics with work, those with tails by deadline, those that are behind by age.

    The writer of a file publishes it soon after the append, so a table counts as behind only after half of
    delta.max.lag.ms.
    """
    store = context.cluster.store
    others = (CURRENT, ICEBERG) if catalogs or not store.settings.iceberg_catalog else (CURRENT,)

    # the clock that dated the appends is read after the rows: so no append time is later than now
    def read(
        connection: sa.Connection,
    ) -> tuple[dict[TopicId, list[Tail]], dict[TopicId, Cut], dict[TopicId, int], dict[str, set[TopicId]], int]:
        unpublished = _unpublished(connection) if searches_lags else {}
        behind = {target: topics_behind(connection, target) if searches_lags else set() for target in others}
        waiting = tails(connection)
        return waiting, cuts(connection, waiting.keys()), unpublished, behind, store.clock(connection).wall_ms

    waiting, cuts_of_topics, unpublished, behind, now_ms = store.read(read)
    less_urgent: list[Topic] = []
    due = _Due([], [], cuts_of_topics)
    ids = waiting.keys() | unpublished.keys() | set().union(*behind.values())
    topics = store.read(lambda connection: topics_of_ids(connection, ids)) if ids else {}
    for topic in undamaged(sorted(topics.values(), key=lambda topic: topic.name)):
        if is_kept_by_store(topic.name) or (context.topic_names is not None and topic.name not in context.topic_names):
            continue
        due_of_topic = waiting.get(topic.topic_id, [])
        if not context.now:
            due_of_topic = due_tails(due_of_topic, topic.config, now_ms, costs_ms.get(topic.topic_id, 0.0))
        late_ms = 0 if context.now else topic.config.delta_max_lag_ms // 2
        if due_of_topic:
            due.tails.append((topic, due_of_topic))
        elif 0 <= late_ms <= now_ms - unpublished.get(topic.topic_id, now_ms + 1):
            due.behind.append(topic)
        elif any(
            topic.topic_id in ids and target in targets(topic) and (context.now or not has_time(topic, target))
            for target, ids in behind.items()
        ):
            less_urgent.append(topic)
    due.behind.sort(key=lambda topic: unpublished[topic.topic_id])
    due.behind.extend(less_urgent)
    due.tails.sort(key=lambda each: deadline_ms(each[1], each[0].config))
    return due


def _unpublished(connection: sa.Connection) -> dict[TopicId, int]:
    """Return by topic the append time of the oldest segment file that is missing in some Delta table of the topic."""
    oldest_ms: dict[TopicId, int] = {}
    for (topic_id, _), lag in delta_lags(connection).items():
        if lag.sealed_ms is not None:
            oldest_ms[topic_id] = min(lag.sealed_ms, oldest_ms.get(topic_id, lag.sealed_ms))
    return oldest_ms
