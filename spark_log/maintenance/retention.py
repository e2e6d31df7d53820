"""The task `retention`: what retention.ms and retention.bytes no longer keep leaves the log."""

from collections.abc import Iterator

from spark_log.cluster.topics import Topic
from spark_log.maintenance.removal.log_start import Dropped, apply_retention, plan_retention
from spark_log.maintenance.report import Amount, Report
from spark_log.maintenance.task_context import Work
from spark_log.quantities import time_of


def retain(work: Work) -> Iterator[Report]:
    failed: Exception | None = None
    for topic in work.topics():
        dropped = apply_retention(work.cluster, topic, work.guard)
        failed = failed or next(iter(dropped.failed.values()), None)
        yield from _report(topic, dropped)
    if failed is not None:
        raise failed


def plan_retain(work: Work) -> Iterator[Report]:
    """The segments that `retain` would drop now. Changes nothing."""
    for topic in work.topics():
        yield from _report(topic, plan_retention(work.cluster, topic))


def _report(topic: Topic, dropped: Dropped) -> Iterator[Report]:
    why = tuple(
        f"{reason}: newest record of the segments {time_of(newest_ms)}" for reason, newest_ms in dropped.why.items()
    )
    notes = why + tuple(f"partition {number}: {error}" for number, error in sorted(dropped.failed.items()))
    if dropped.partitions or notes:
        before = Amount(dropped.segments, dropped.bytes, dropped.records)
        yield Report("retention", topic.name, len(dropped.partitions), before=before, notes=notes)
