"""Task `merge`: small segments become large ones."""

import os
from collections.abc import Iterator
from functools import partial

from spark_log.cluster.topics import Topic
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.report import Report
from spark_log.maintenance.rewrite.rewrite_loop import rewrite_partitions
from spark_log.maintenance.rewrite.segment_merge import Write, merge, partitions_to_merge, runs_of
from spark_log.quantities import count_of

_THREADS = min(4, os.cpu_count() or 1)
"""Decoding, encoding and the disk let other threads run."""


def merge_segments(
    context: MaintenanceContext, write: Write | None = None, threads: int = _THREADS
) -> Iterator[Report]:
    """Merge what there is to merge, a partition a thread. `write` writes the files elsewhere (see `on_spark`)."""
    yield from rewrite_partitions(
        context,
        "merge",
        _due(context),
        lambda topic, partition: merge(
            context.cluster, context.writer, topic, partition, context.fence, write, context.growth
        ),
        threads,
    )


def plan_merge(context: MaintenanceContext) -> Iterator[Report]:
    """The first merges that `merge_segments` would do now; their outputs may be merged again. Changes nothing."""
    store = context.cluster.store
    for topic, partitions in _due(context):
        planned = [store.read(partial(runs_of, topic=topic, partition=partition)) for partition in partitions]
        runs = [run for found in planned for run in found]
        if runs:
            files, into = count_of(sum(map(len, runs)), "file"), count_of(len(runs), "file")
            kept = "deletes nothing: what it replaces stays for file.delete.delay.ms"
            yield Report("merge", topic.name, sum(map(bool, planned)), notes=(f"{files} become {into}", kept))


def _due(context: MaintenanceContext) -> list[tuple[Topic, list[int]]]:
    store = context.cluster.store
    return [
        (topic, store.read(lambda connection, topic=topic: partitions_to_merge(connection, topic)))  # type: ignore[misc]
        for topic in context.topics()
    ]
