"""The task `retention`: what retention.ms and retention.bytes no longer keep leaves the log."""

from collections.abc import Iterator

from spark_log.cluster.topics import Topic
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.removal.log_start import Dropped, apply_retention, plan_retention
from spark_log.maintenance.report import Amount, Report
from spark_log.quantities import time_of


def retain(context: MaintenanceContext) -> Iterator[Report]:
    failed: Exception | None = None
    for topic in context.topics():
        dropped = apply_retention(context.cluster, topic, context.fence)
        failed = failed or next(iter(dropped.failed.values()), None)
        yield from _report(topic, dropped)
    if failed is not None:
        raise failed


def plan_retain(context: MaintenanceContext) -> Iterator[Report]:
    """The segments that `retain` would drop now. Changes nothing."""
    for topic in context.topics():
        yield from _report(topic, plan_retention(context.cluster, topic))


def _report(topic: Topic, dropped: Dropped) -> Iterator[Report]:
    why = tuple(
        f"{reason}: newest record of the segments {time_of(newest_ms)}" for reason, newest_ms in dropped.why.items()
    )
    notes = why + tuple(f"partition {number}: {error}" for number, error in sorted(dropped.failed.items()))
    if dropped.partitions or notes:
        before = Amount(dropped.segments, dropped.bytes, dropped.records)
        yield Report("retention", topic.name, len(dropped.partitions), before=before, notes=notes)
