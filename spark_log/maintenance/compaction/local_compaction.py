"""Compacts partitions of moderate size without Spark: the task `compact` of `spark-log maintenance` and the
Coordinator. `compact_on_spark` compacts large partitions.
"""

from collections.abc import Iterator

from spark_log.errors.first_failure import FirstFailure
from spark_log.log.records.current_rule import CurrentRule
from spark_log.maintenance.compaction.last_offsets import find_last_offsets
from spark_log.maintenance.compaction.passes import (
    Compacting,
    CompactionPass,
    Due,
    candidates,
    compacted_topics,
    find_due,
    plan_pass,
)
from spark_log.maintenance.compaction.unit import Compacted, compact_unit
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.report import Report
from spark_log.text import count_of


def compact(context: MaintenanceContext, *, force: bool = False) -> Iterator[Report]:
    """Compact the due partitions (with `force` all that can be compacted), one after the other; yields a report for
    each topic.

    Memory is bounded, whatever the number of keys: see `find_last_offsets`. A failing partition does not stop the
    others; the first error is raised at the end.
    """
    with FirstFailure() as failure:
        for topic in compacted_topics(context):
            compacting = Compacting(context, topic)
            for partition in candidates(context, topic, force=force):
                if context.stopping():
                    break
                with failure.attempt():
                    due = find_due(context, topic, partition, force=force)
                    if due is None:
                        continue
                    if _is_too_large(context, due):
                        compacting.say(_too_large(due))
                        continue
                    planned = plan_pass(context, due)
                    if planned is not None:
                        _run(context, planned, compacting)
            report = compacting.report()
            if report is not None:
                yield report


def plan_compaction(context: MaintenanceContext) -> Iterator[Report]:
    """Yield reports of the partitions that `compact` would compact now. Changes nothing, and reads no keys."""
    for topic in compacted_topics(context):
        found = [find_due(context, topic, partition) for partition in candidates(context, topic)]
        due = [each for each in found if each is not None and not _is_too_large(context, each)]
        notes = [_too_large(each) for each in found if each is not None and _is_too_large(context, each)]
        if due:
            dirty, size = sum(each.dirty_records for each in due), sum(each.bytes for each in due)
            notes.append(
                f"{count_of(dirty, 'record')} since the last pass, {size:,} bytes to read; how many records go is known"
                " only when their keys have been read"
            )
        if notes:
            yield Report("compact", topic.name, len(due), notes=tuple(notes))


def _is_too_large(context: MaintenanceContext, due: Due) -> bool:
    """Whether the partition is left to Spark, whose compaction does not order by sequence."""
    by_sequence = CurrentRule.of(due.topic.config, due.topic.columns).by_sequence
    return due.bytes > context.settings.log_cleaner_local_bytes_max and not by_sequence


def _too_large(due: Due) -> str:
    return (
        f"{due.topic.name}-{due.partition}: {due.bytes:,} bytes, more than log.cleaner.local.bytes.max: left to"
        " jobs/maintenance.py"
    )


def _run(context: MaintenanceContext, planned: CompactionPass, compacting: Compacting) -> None:
    """Run the pass. Each unit is swapped in as soon as it is written."""
    log_dirs = context.cluster.log_dirs()
    done: list[Compacted] = []
    swapped = True
    for unit, last_offsets in zip(
        planned.units, find_last_offsets(planned.topic, planned.units, log_dirs), strict=True
    ):
        write_id, name = context.writer.file_name()
        done.append(compact_unit(unit, last_offsets, name, log_dirs, context.cluster.log_dir))
        swapped = compacting.swap(planned, unit, done[-1], write_id) and swapped  # each swap is useful by itself
    if swapped:
        compacting.complete(planned, done)
    else:
        compacting.note_conflict(planned)
