"""Runs the tasks that rewrite segment files at the same offsets: merge and columns. Each has a plan for dry runs,
which changes nothing.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence
from spark_log.cluster.topics import Topic
from spark_log.errors.first_failure import FirstFailure
from spark_log.log.append.write_ids import Writer
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.report import Report
from spark_log.maintenance.rewrite.rewrite_loop import rewrite_partitions
from spark_log.maintenance.rewrite.rewrite_plan import Rewriting, Segment, files_below_tail, plan_rewriting
from spark_log.maintenance.rewrite.segment_merge import merge, partitions_to_merge, runs_of
from spark_log.maintenance.rewrite.segment_rewrite import Write, Written, write_and_swap
from spark_log.metadata.sql_columns import SEGMENT
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
        _partitions(context, partitions_to_merge),
        lambda topic, partition: merge(
            context.cluster, context.writer, topic, partition, context.fence, write, context.growth
        ),
        threads,
    )


def plan_merge(context: MaintenanceContext) -> Iterator[Report]:
    """Yield reports of the first merges that `merge_segments` would do now; it may merge their results again."""
    store = context.cluster.store
    for topic, partitions in _partitions(context, partitions_to_merge):
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
            partitions = _partitions(context, _partitions_to_backfill)
            for topic, _ in partitions:
                publish_above_tails(context.cluster, topic)
            yield from rewrite_partitions(
                context,
                "columns",
                partitions,
                lambda topic, partition: _backfill(context.cluster, context.writer, topic, partition, context.fence),
                _THREADS,
            )


def plan_backfill(context: MaintenanceContext) -> Iterator[Report]:
    """Yield reports of the files that `backfill_columns` would write again now. Changes nothing."""
    store = context.cluster.store
    for topic, partitions in _partitions(context, _partitions_to_backfill):
        files = [store.read(partial(_files_to_backfill, topic=topic, partition=partition)) for partition in partitions]
        notes = (f"{count_of(sum(map(len, files)), 'file')} without the present columns are written again",)
        yield Report("columns", topic.name, len(partitions), notes=notes)


def _partitions(
    context: MaintenanceContext, find: Callable[[sa.Connection, Topic], list[int]]
) -> list[tuple[Topic, list[int]]]:
    """Return the topics with partitions for which there is something to do, with these partitions."""
    found = [
        (topic, context.cluster.store.read(lambda connection, topic=topic: find(connection, topic)))  # type: ignore[misc]
        for topic in context.topics()
    ]
    return [(topic, partitions) for topic, partitions in found if partitions]


def _partitions_to_backfill(connection: sa.Connection, topic: Topic) -> list[int]:
    """Return the partitions with a file that lacks the topic's present columns."""
    if topic.columns is None:
        return []
    query = (
        sa.select(SEGMENT.partition)
        .distinct()
        .where(SEGMENT.topic_id == topic.topic_id, ~SEGMENT.inline)
        .where(SEGMENT.columns_version.is_distinct_from(topic.columns.version))
        .order_by(SEGMENT.partition)
    )
    return list(connection.execute(query).scalars())


def _files_to_backfill(connection: sa.Connection, topic: Topic, partition: int) -> list[Segment]:
    """Return those of `files_below_tail` that lack the topic's present columns."""
    if topic.columns is None:
        return []
    version = topic.columns.version
    return [each for each in files_below_tail(connection, topic, partition) if each.columns_version != version]


def _backfill(
    cluster: Cluster, writer: Writer, topic: Topic, partition: int, fence: Fence
) -> Iterator[tuple[Rewriting, Written]]:
    """Write the files of the partition that lack the topic's present columns again. Yields each when its swap is done.

    It ends with the first swap that is refused, because the file or the ISR has changed: the next run sees the new
    state.
    """
    for file in cluster.store.read(partial(_files_to_backfill, topic=topic, partition=partition)):
        rewriting = cluster.store.read(partial(plan_rewriting, topic=topic, partition=partition, inputs=[file]))
        if rewriting is None:
            return
        written = write_and_swap(cluster, writer, rewriting, fence, "columns")
        if written is None:
            return
        yield rewriting, written
