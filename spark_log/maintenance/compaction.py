"""Compaction without Spark, for partitions of moderate size: the task `compact` of `spark-log maintenance` and the
Coordinator. Large ones are for `compact_on_spark`.
"""

from collections.abc import Iterator

from spark_log.errors import NotCoordinatorError, SparkLogError
from spark_log.log.compacting import Compacted, compact_unit
from spark_log.maintenance.compaction_pass import (
    Compacting,
    CompactionPass,
    candidates,
    compacted_topics,
    look,
    plan_pass,
)
from spark_log.maintenance.last_offsets import find_last_offsets
from spark_log.maintenance.report import Report
from spark_log.maintenance.work import Work


def compact(work: Work, *, force: bool = False) -> Iterator[Report]:
    """Compact what is due (with `force` whatever can be), partition by partition; a report for each topic.

    Memory is bounded, whatever the number of keys: see `find_last_offsets`. A partition that fails keeps no other from
    it; then the first error is raised.
    """
    failed: Exception | None = None
    for topic in compacted_topics(work):
        compacting = Compacting(work, topic)
        for partition in candidates(work, topic, force=force):
            if work.stopping():
                break
            try:
                due = look(work, topic, partition, force=force)
                if due is None:
                    continue
                if due.bytes > work.settings.log_cleaner_local_bytes_max:
                    compacting.say(
                        f"{topic.name}-{partition}: {due.bytes:,} bytes, more than log.cleaner.local.bytes.max:"
                        " left to jobs/compact.py"
                    )
                    continue
                planned = plan_pass(work, due)
                if planned is not None:
                    _run(work, planned, compacting)
            except NotCoordinatorError:
                raise
            except (SparkLogError, OSError) as error:
                failed = failed or error
        report = compacting.report()
        if report is not None:
            yield report
    if failed is not None:
        raise failed


def _run(work: Work, planned: CompactionPass, compacting: Compacting) -> None:
    """The pass; each unit is swapped in as soon as it is written."""
    log_dirs = work.cluster.log_dirs()
    done: list[Compacted] = []
    swapped = True
    for unit, last_offsets in zip(planned.units, find_last_offsets(planned.units, log_dirs), strict=True):
        write_id, name = work.writer.file_name()
        done.append(compact_unit(unit, last_offsets, name, log_dirs, work.cluster.log_dir))
        swapped = compacting.swap(planned, unit, done[-1], write_id) and swapped  # each does good by itself
    if swapped:
        compacting.complete(planned, done)
    else:
        compacting.gave_way(planned)
