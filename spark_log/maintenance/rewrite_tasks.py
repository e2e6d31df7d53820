"""Runs the tasks that rewrite segments at the same offsets: seal, merge and columns. Each has a plan for dry runs,
which changes nothing.
"""

import os
from collections.abc import Iterator
from functools import partial

import sqlalchemy as sa

from spark_log.cluster.topics import Topic
from spark_log.ids import TopicId
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.first_failure import FirstFailure
from spark_log.maintenance.report import Report
from spark_log.maintenance.rewrite.column_backfill import backfill, files_to_backfill, partitions_to_backfill
from spark_log.maintenance.rewrite.rewrite_loop import rewrite_partitions
from spark_log.maintenance.rewrite.segment_merge import Write, merge, partitions_to_merge, runs_of
from spark_log.maintenance.rewrite.table_schedule import Tail, due_tails
from spark_log.maintenance.rewrite.tail_seal import sealing, tails
from spark_log.registry.external_ids import learn_schemas
from spark_log.tables.delta_lag import delta_lags
from spark_log.tables.publication import publish
from spark_log.text import count_of

_THREADS = min(4, os.cpu_count() or 1)
"""Several threads are useful: decoding, encoding and disk access do not block other threads."""


def seal_tails(context: MaintenanceContext) -> Iterator[Report]:
    """Seal the due tails (with `context.now` every tail) below the high watermark; then publish topics that are
    behind.
    """
    due, behind = _due_topics(context)
    yield from rewrite_partitions(
        context,
        "seal",
        [(topic, [tail.partition for tail in found]) for topic, found in due],
        lambda topic, partition: sealing(context.cluster, context.writer, topic, partition, context.fence),
        _THREADS,
    )
    with FirstFailure() as failure:
        for topic in behind:
            with failure.attempt():
                publish(context.cluster, topic)
                yield Report("seal", topic.name, notes=("updated the Delta table",))


def plan_seal(context: MaintenanceContext) -> Iterator[Report]:
    """Yield reports of the work that `seal_tails` would do now. Changes nothing."""
    due, behind = _due_topics(context)
    for topic, found in due:
        notes = (f"{sum(tail.bytes for tail in found):,} bytes of inline tails become files", "deletes nothing")
        yield Report("seal", topic.name, len(found), notes=notes)
    for topic in behind:
        yield Report("seal", topic.name, notes=("publishes what is behind", "deletes nothing"))


def _due_topics(context: MaintenanceContext) -> tuple[list[tuple[Topic, list[Tail]]], list[Topic]]:
    """Return topics with tails to seal, which are published afterwards; and other topics whose Delta tables are behind.

    The writer of a file publishes it soon after the append, so a table counts as behind only after half of
    delta.max.lag.ms.
    """
    store = context.cluster.store
    # the clock that dated the appends is read after the rows: so no append time is later than now
    waiting, unpublished, now_ms = store.read(
        lambda connection: (tails(connection), _unpublished(connection), store.clock(connection).wall_ms)
    )
    due: list[tuple[Topic, list[Tail]]] = []
    behind: list[Topic] = []
    if not waiting and not unpublished:
        return due, behind
    for topic in context.topics():
        found = waiting.get(topic.topic_id, [])
        if not context.now:
            found = due_tails(found, topic.config, now_ms, context.settings.log_seal_interval_ms)
        late_ms = 0 if context.now else topic.config.delta_max_lag_ms // 2
        if found:
            due.append((topic, found))
        elif 0 <= late_ms <= now_ms - unpublished.get(topic.topic_id, now_ms + 1):
            behind.append(topic)
    return due, behind


def _unpublished(connection: sa.Connection) -> dict[TopicId, int]:
    """Return by topic the append time of the oldest segment file that is missing in some Delta table of the topic."""
    found: dict[TopicId, int] = {}
    for (topic_id, _), lag in delta_lags(connection).items():
        if lag.sealed_ms is not None:
            found[topic_id] = min(lag.sealed_ms, found.get(topic_id, lag.sealed_ms))
    return found


def merge_segments(
    context: MaintenanceContext, write: Write | None = None, threads: int = _THREADS
) -> Iterator[Report]:
    """Merge small segments, each partition in one thread. `write` writes the files elsewhere (see `spark_merge`)."""
    yield from rewrite_partitions(
        context,
        "merge",
        _partitions_to_merge(context),
        lambda topic, partition: merge(
            context.cluster, context.writer, topic, partition, context.fence, write, context.growth
        ),
        threads,
    )


def plan_merge(context: MaintenanceContext) -> Iterator[Report]:
    """Yield reports of the first merges that `merge_segments` would do now; it may merge their results again."""
    store = context.cluster.store
    for topic, partitions in _partitions_to_merge(context):
        planned = [store.read(partial(runs_of, topic=topic, partition=partition)) for partition in partitions]
        runs = [run for found in planned for run in found]
        if runs:
            files, into = count_of(sum(map(len, runs)), "file"), count_of(len(runs), "file")
            kept = "deletes nothing: what it replaces stays for file.delete.delay.ms"
            yield Report("merge", topic.name, sum(map(bool, planned)), notes=(f"{files} become {into}", kept))


def backfill_columns(context: MaintenanceContext) -> Iterator[Report]:
    """Write the files that lack the present typed columns of their topic again. Topics with an external schema registry
    get the present versions of their subject first.
    """
    with FirstFailure() as failure:
        for topic in context.topics():
            if topic.config.schema_registry_url:
                with failure.attempt():
                    learn_schemas(context.cluster, topic)
        with failure.attempt():
            yield from rewrite_partitions(
                context,
                "columns",
                _partitions_to_backfill(context),
                lambda topic, partition: backfill(context.cluster, context.writer, topic, partition, context.fence),
                _THREADS,
            )


def plan_backfill(context: MaintenanceContext) -> Iterator[Report]:
    """Yield reports of the files that `backfill_columns` would write again now. Changes nothing."""
    store = context.cluster.store
    for topic, partitions in _partitions_to_backfill(context):
        files = [store.read(partial(files_to_backfill, topic=topic, partition=partition)) for partition in partitions]
        notes = (f"{count_of(sum(map(len, files)), 'file')} without the present columns are written again",)
        yield Report("columns", topic.name, len(partitions), notes=notes)


def _partitions_to_backfill(context: MaintenanceContext) -> list[tuple[Topic, list[int]]]:
    store = context.cluster.store
    found = [
        (topic, store.read(lambda connection, topic=topic: partitions_to_backfill(connection, topic)))  # type: ignore[misc]
        for topic in context.topics()
    ]
    return [(topic, partitions) for topic, partitions in found if partitions]


def _partitions_to_merge(context: MaintenanceContext) -> list[tuple[Topic, list[int]]]:
    store = context.cluster.store
    return [
        (topic, store.read(lambda connection, topic=topic: partitions_to_merge(connection, topic)))  # type: ignore[misc]
        for topic in context.topics()
    ]
