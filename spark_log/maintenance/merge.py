"""Task `merge`: small segments become large ones."""

import os
from collections.abc import Iterator

from spark_log.log.merge import Write, merge, partitions_to_merge
from spark_log.maintenance.report import Report
from spark_log.maintenance.rewrites import rewrite_partitions
from spark_log.maintenance.work import Work

_THREADS = min(4, os.cpu_count() or 1)
"""Decoding, encoding and the disk let other threads run."""


def merge_segments(work: Work, write: Write | None = None, threads: int = _THREADS) -> Iterator[Report]:
    """Merge what there is to merge, a partition a thread. `write` writes the files elsewhere (see `on_spark`)."""
    store = work.cluster.store
    wanted = [
        (topic, store.read(lambda connection, topic=topic: partitions_to_merge(connection, topic)))  # type: ignore[misc]
        for topic in work.topics()
    ]
    yield from rewrite_partitions(
        work,
        "merge",
        wanted,
        lambda topic, partition: merge(work.cluster, work.writer, topic, partition, work.guard, write),
        threads,
    )
