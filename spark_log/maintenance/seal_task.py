"""Runs the task that seals inline tails and publishes topics that are behind, with a plan for dry runs, which changes
nothing.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.names import is_kept_by_store
from spark_log.cluster.topics import Topic, topics_of_ids
from spark_log.config import ClusterSettings
from spark_log.ids import TopicId
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.first_failure import FirstFailure
from spark_log.maintenance.report import Report
from spark_log.maintenance.rewrite.rewrite_loop import rewrite_partitions
from spark_log.maintenance.rewrite.table_schedule import (
    Tail,
    average_cost_ms,
    deadline_ms,
    due_tails,
    retry_after_ms,
)
from spark_log.maintenance.rewrite.tail_seal import sealing, tails
from spark_log.tables.delta_lag import delta_lags
from spark_log.tables.publication import publish

_TOPICS_MAX = 64
"""The number of topics that a round of a coordinator seals; the next round follows at once."""
_LAGS_EVERY_S = 2.0
"""The time between two searches of a coordinator for tables that lack a file, which read all partitions."""


@dataclass(frozen=True)
class _Due:
    """Topics with tails to seal, which are published afterwards, and other topics whose Delta tables are behind."""

    tails: list[tuple[Topic, list[Tail]]]
    behind: list[Topic]


@dataclass(frozen=True)
class _Retry:
    """A topic of which tails were not sealed, in so many rounds; the next one is not before `from_s`."""

    failures: int
    from_s: float


class TableRounds:
    """The rounds of one coordinator, or a single one. They seal the due tails below the high watermark, the oldest
    first, and publish topics that are behind.
    """

    def __init__(self) -> None:
        self._costs_ms: dict[TopicId, float] = {}
        """The time that sealing and publication of each topic take, as a moving average."""
        self._retries: dict[TopicId, _Retry] = {}
        self._seconds = 0.0
        """The duration of the last round."""
        self._lags_from_s = -math.inf
        """When to search for tables that are behind."""

    def pause_ms(self, settings: ClusterSettings) -> int:
        """Return the pause before the next round: table.loop.poll.ms, or more if the last one took long."""
        rest_percent = max(0, 100 - settings.table_loop_share_percent)
        rest_ms = 1000 * self._seconds * rest_percent / settings.table_loop_share_percent
        return max(settings.table_loop_poll_ms, int(rest_ms))

    def run(self, context: MaintenanceContext) -> Iterator[Report]:
        """Do one round (the task `seal`)."""
        began_s = clock.monotonic_s()
        searches = began_s >= self._lags_from_s
        if searches:
            self._lags_from_s = began_s + _LAGS_EVERY_S
        try:
            due = _due_topics(context, self._costs_ms, searches_lags=searches)
            yield from self._run(context, due)
        finally:
            self._seconds = clock.monotonic_s() - began_s

    def _run(self, context: MaintenanceContext, due: _Due) -> Iterator[Report]:
        now_s = clock.monotonic_s()
        topics = [each for each in due.tails if self._may_try(each[0], now_s)]
        if not context.now:
            topics = topics[:_TOPICS_MAX]
        by_name = {topic.name: topic for topic, _ in topics}
        with FirstFailure() as failure:
            with failure.attempt():
                for report in rewrite_partitions(
                    context,
                    "seal",
                    [(topic, [tail.partition for tail in found]) for topic, found in topics],
                    lambda topic, partition: sealing(context.cluster, context.writer, topic, partition, context.fence),
                    context.settings.table_loop_threads,
                ):
                    self._note(by_name[str(report.topic)], report)
                    yield report
            for topic in due.behind:
                with failure.attempt():
                    publish(context.cluster, topic)
                    yield Report("seal", topic.name, notes=("updated the Delta table",))

    def _may_try(self, topic: Topic, now_s: float) -> bool:
        return topic.topic_id not in self._retries or now_s >= self._retries[topic.topic_id].from_s

    def _note(self, topic: Topic, report: Report) -> None:
        """Note how long a topic took. A topic that failed, for example because an external schema registry does not
        answer, is not due again at once: it would delay the others.
        """
        topic_id = topic.topic_id
        cost_ms = self._costs_ms[topic_id] = average_cost_ms(self._costs_ms.get(topic_id), 1000 * report.seconds)
        failed = self._retries.pop(topic_id, None)
        if report.notes:
            failures = 0 if failed is None else failed.failures + 1
            wait_s = retry_after_ms(topic.config, failures, cost_ms) / 1000
            self._retries[topic_id] = _Retry(failures, clock.monotonic_s() + wait_s)


def seal_tails(context: MaintenanceContext) -> Iterator[Report]:
    """Seal the due tails (with `context.now` every tail); then publish topics that are behind."""
    return TableRounds().run(context)


def plan_seal(context: MaintenanceContext) -> Iterator[Report]:
    """Yield reports of the work that `seal_tails` would do now. Changes nothing."""
    due = _due_topics(context, {}, searches_lags=True)
    for topic, found in due.tails:
        notes = (f"{sum(tail.bytes for tail in found):,} bytes of inline tails become files", "deletes nothing")
        yield Report("seal", topic.name, len(found), notes=notes)
    for topic in due.behind:
        yield Report("seal", topic.name, notes=("publishes what is behind", "deletes nothing"))


def _due_topics(context: MaintenanceContext, costs_ms: Mapping[TopicId, float], *, searches_lags: bool) -> _Due:
    """Return the topics with work, those with tails by deadline.

    The writer of a file publishes it soon after the append, so a table counts as behind only after half of
    delta.max.lag.ms.
    """
    store = context.cluster.store

    # the clock that dated the appends is read after the rows: so no append time is later than now
    def read(connection: sa.Connection) -> tuple[dict[TopicId, list[Tail]], dict[TopicId, int], int]:
        unpublished = _unpublished(connection) if searches_lags else {}
        return tails(connection), unpublished, store.clock(connection).wall_ms

    waiting, unpublished, now_ms = store.read(read)
    due = _Due([], [])
    ids = waiting.keys() | unpublished.keys()
    topics = store.read(lambda connection: topics_of_ids(connection, ids)) if ids else {}
    for topic in sorted(topics.values(), key=lambda topic: topic.name):
        if is_kept_by_store(topic.name) or (context.topic_names is not None and topic.name not in context.topic_names):
            continue
        found = waiting.get(topic.topic_id, [])
        if not context.now:
            found = due_tails(found, topic.config, now_ms, costs_ms.get(topic.topic_id, 0.0))
        late_ms = 0 if context.now else topic.config.delta_max_lag_ms // 2
        if found:
            due.tails.append((topic, found))
        elif 0 <= late_ms <= now_ms - unpublished.get(topic.topic_id, now_ms + 1):
            due.behind.append(topic)
    due.tails.sort(key=lambda each: deadline_ms(each[1], each[0].config))
    return due


def _unpublished(connection: sa.Connection) -> dict[TopicId, int]:
    """Return by topic the append time of the oldest segment file that is missing in some Delta table of the topic."""
    found: dict[TopicId, int] = {}
    for (topic_id, _), lag in delta_lags(connection).items():
        if lag.sealed_ms is not None:
            found[topic_id] = min(lag.sealed_ms, found.get(topic_id, lag.sealed_ms))
    return found
