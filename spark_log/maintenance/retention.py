"""The task `retention`: what retention.ms and retention.bytes no longer keep leaves the log."""

from collections.abc import Iterator

from spark_log.log.retention import apply_retention
from spark_log.maintenance.report import Amount, Report
from spark_log.maintenance.work import Work


def retain(work: Work) -> Iterator[Report]:
    failed: Exception | None = None
    for topic in work.topics():
        dropped = apply_retention(work.cluster, topic, work.guard)
        failed = failed or next(iter(dropped.failed.values()), None)
        notes = tuple(f"partition {number}: {error}" for number, error in sorted(dropped.failed.items()))
        if dropped.partitions or notes:
            before = Amount(dropped.segments, dropped.bytes, dropped.records)
            yield Report("retention", topic.name, len(dropped.partitions), before=before, notes=notes)
    if failed is not None:
        raise failed
