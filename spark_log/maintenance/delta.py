"""Task `delta`: the topics' Delta tables are as the log is, quick to open, and their logs no longer than needed."""

from collections.abc import Iterator

from spark_log.delta.checkpoints import due_for_checkpoint, publish_behind, tidy_logs
from spark_log.errors import SparkLogError, redact
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.report import Amount, Report


def tend_delta_tables(context: MaintenanceContext) -> Iterator[Report]:
    """Of every topic. Files and bytes in a report are those of the tables' logs."""
    failed: Exception | None = None
    for topic in context.topics():
        if context.stopping():
            return
        before, after = Amount(), Amount()
        notes: list[str] = []
        try:
            if publish_behind(context.cluster, topic):
                notes.append("published what was behind")
            for done in tidy_logs(context.cluster, topic):
                notes.append(f"checkpoint at version {done.version}")
                before += Amount(done.files_before, done.bytes_before)
                after += Amount(done.files_after, done.bytes_after)
        except (SparkLogError, OSError) as error:
            notes.append(redact(str(error)))
            failed = failed or error
        if notes:
            yield Report("delta", topic.name, 0, before, after, tuple(notes))
    if failed is not None:
        raise failed


def plan_delta_tables(context: MaintenanceContext) -> Iterator[Report]:
    """Which tables `tend_delta_tables` would checkpoint now, after which expired files of their logs go. Changes
    nothing. What is behind is published without asking.
    """
    for topic in context.topics():
        versions = due_for_checkpoint(context.cluster, topic)
        notes = [f"checkpoint at version {version}; expired files of the table's log go" for version in versions]
        if notes:
            yield Report("delta", topic.name, notes=tuple(notes))
