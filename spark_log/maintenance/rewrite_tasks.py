"""Runs the tasks that rewrite segment files at the same offsets: merge and columns. Each has a plan for dry runs,
which changes nothing.
"""

import os
from collections.abc import Iterator
from functools import partial

from spark_log.cluster.topics import Topic
from spark_log.errors.first_failure import FirstFailure
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.report import Report
from spark_log.maintenance.rewrite.column_backfill import backfill, files_to_backfill, partitions_to_backfill
from spark_log.maintenance.rewrite.rewrite_loop import rewrite_partitions
from spark_log.maintenance.rewrite.segment_merge import merge, partitions_to_merge, runs_of
from spark_log.maintenance.rewrite.segment_rewrite import Write
from spark_log.process import in_parallel
from spark_log.registry.external_ids import learn_schemas
from spark_log.tables.publication import publish_above_tails
from spark_log.text import count_of

_THREADS = min(4, os.cpu_count() or 1)
"""Several threads are useful: decoding, encoding and disk access do not block other threads."""
_REGISTRY_THREADS = 8
"""Number of topics whose external registry is asked at the same time: one that does not answer takes up to 30 s."""


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

        def learn(topic: Topic) -> None:
            with failure.attempt():
                learn_schemas(context.cluster, topic)

        external = [topic for topic in context.topics() if topic.config.schema_registry_url]
        in_parallel(learn, external, _REGISTRY_THREADS, "spark-log-registry")
        with failure.attempt():
            partitions = _partitions_to_backfill(context)
            for topic, _ in partitions:
                publish_above_tails(context.cluster, topic)
            yield from rewrite_partitions(
                context,
                "columns",
                partitions,
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
