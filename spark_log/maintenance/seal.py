"""Task `seal`: tails that are older than segment.ms, or were not sealed when they became long."""

import os
from collections.abc import Iterator

from spark_log.cluster.topics import Topic
from spark_log.log.seal import Tail, is_due, sealing, tails
from spark_log.maintenance.report import Report
from spark_log.maintenance.rewrites import rewrite_partitions
from spark_log.maintenance.work import Work

_THREADS = min(4, os.cpu_count() or 1)
"""Encoding and the disk let other threads run."""


def seal_tails(work: Work) -> Iterator[Report]:
    """Seal what is due, below the high watermark."""
    wanted = [(topic, [tail.partition for tail in due]) for topic, due in _due(work)]
    yield from rewrite_partitions(
        work,
        "seal",
        wanted,
        lambda topic, partition: sealing(work.cluster, work.writer, topic, partition, work.guard),
        _THREADS,
    )


def plan_seal(work: Work) -> Iterator[Report]:
    """What `seal_tails` would seal now. Changes nothing."""
    for topic, due in _due(work):
        if due:
            notes = (f"{sum(tail.bytes for tail in due):,} bytes of inline tails become files", "deletes nothing")
            yield Report("seal", topic.name, len(due), notes=notes)


def _due(work: Work) -> list[tuple[Topic, list[Tail]]]:
    store = work.cluster.store
    now_ms = store.now().wall_ms
    wanted = []
    for topic in work.topics():
        found = store.read(lambda connection, topic=topic: tails(connection, topic))  # type: ignore[misc]
        wanted.append((topic, [tail for tail in found if is_due(tail, topic.config, now_ms)]))
    return wanted
