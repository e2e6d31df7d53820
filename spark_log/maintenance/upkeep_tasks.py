"""Runs the tasks that work topic by topic: flush, retention, delta, files. Each has a plan for dry runs, which changes
nothing.
"""

from collections.abc import Iterator
from itertools import groupby

from spark_log.cluster.topics import Topic
from spark_log.errors.first_failure import FirstFailure
from spark_log.failpoints import failpoint
from spark_log.ids import HOME
from spark_log.log.append import write_ids
from spark_log.log.append.append_transaction import force
from spark_log.log.append.flush import partitions_to_flush
from spark_log.log.partitions.partition_rows import Key
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.removal.cleanable_log_dirs import CleanableLogDirs, Deleted
from spark_log.maintenance.removal.orphans import delete_orphans, delete_unknown_folders
from spark_log.maintenance.removal.retention import Dropped, apply_retention, plan_retention
from spark_log.maintenance.removal.retired_file_clean_up import (
    delete_left_copies,
    delete_retired_files,
    delete_retired_topics,
)
from spark_log.maintenance.report import Amount, Report
from spark_log.metadata.connections.server_identity import check_identity
from spark_log.tables.checkpoints import due_for_checkpoint, maintain_logs
from spark_log.tables.publication import publish
from spark_log.tables.publication_state import recorded_of
from spark_log.text import bytes_of, exact_duration_of, time_of

# --- flush: force acknowledged data to disk after flush.ms ----------------------------------------------------------


def flush_topics(context: MaintenanceContext) -> Iterator[Report]:
    """Force the due partitions to disk, with one durable commit for all."""
    due = _partitions_to_flush(context)
    if due:
        force(context.cluster.store, [key for _, keys in due for key in keys], context.fence)
    for topic, keys in due:
        yield Report("flush", topic.name, len(keys))


def plan_flush(context: MaintenanceContext) -> Iterator[Report]:
    """Yield reports of the partitions that `flush_topics` would force to disk now."""
    for topic, keys in _partitions_to_flush(context):
        yield Report("flush", topic.name, len(keys), notes=("deletes nothing",))


def _partitions_to_flush(context: MaintenanceContext) -> list[tuple[Topic, list[Key]]]:
    found = partitions_to_flush(context.cluster.store)
    topics = {topic.topic_id: topic for topic in context.topics()} if found else {}
    due = [key for key in found if key[0] in topics]
    return [(topics[topic_id], list(keys)) for topic_id, keys in groupby(due, key=lambda key: key[0])]


# --- retention: drop segments beyond retention.ms and retention.bytes ----------------------------------------------


def retain(context: MaintenanceContext) -> Iterator[Report]:
    """Drop the segments that retention no longer keeps."""
    with FirstFailure() as failure:
        for topic in context.topics():
            with failure.attempt():
                dropped = apply_retention(context.cluster, topic, context.fence)
                failure.keep(next(iter(dropped.failed.values()), None))
                yield from _retention_report(topic, dropped)


def plan_retain(context: MaintenanceContext) -> Iterator[Report]:
    """Yield reports of the segments that `retain` would drop now."""
    for topic in context.topics():
        yield from _retention_report(topic, plan_retention(context.cluster, topic))


def _retention_report(topic: Topic, dropped: Dropped) -> Iterator[Report]:
    why = tuple(
        f"{reason}: newest record of the segments {time_of(newest_ms)}" for reason, newest_ms in dropped.why.items()
    )
    if dropped.segments:
        why += (_freed(topic, dropped),)
    notes = why + tuple(f"partition {number}: {error}" for number, error in sorted(dropped.failed.items()))
    if dropped.partitions or notes:
        before = Amount(dropped.segments, dropped.bytes, dropped.records)
        yield Report("retention", topic.name, len(dropped.partitions), before=before, notes=notes)


def _freed(topic: Topic, dropped: Dropped) -> str:
    """Describe the bytes that the disk gets back now (inline segments), and later, with the files."""
    delay_ms = topic.config.file_delete_delay_ms
    later = f"in {exact_duration_of(delay_ms)} (file.delete.delay.ms)" if delay_ms else "with the task files"
    return f"frees {bytes_of(dropped.bytes - dropped.file_bytes)} now, {bytes_of(dropped.file_bytes)} {later}"


# --- delta: publish, write checkpoints, remove expired log files of Delta tables -----------------------------------


def maintain_delta_tables(context: MaintenanceContext) -> Iterator[Report]:
    """Publish tables that are behind, and maintain their Delta logs. Files and bytes in a report are those of the
    logs.
    """
    with FirstFailure() as failure:
        for topic in context.topics():
            before, after = Amount(), Amount()
            notes: list[str] = []
            with failure.attempt(notes):
                if _publish(context, topic):
                    notes.append("updated the Delta table")
                for done in maintain_logs(context.cluster, topic):
                    notes.append(f"checkpoint at version {done.version}")
                    before += Amount(done.files_before, done.bytes_before)
                    after += Amount(done.files_after, done.bytes_after)
            if notes:
                yield Report("delta", topic.name, 0, before, after, tuple(notes))


def _publish(context: MaintenanceContext, topic: Topic) -> bool:
    """Publish the topic to the tables that are behind the metadata. Returns whether a table has changed."""
    store = context.cluster.store
    before = store.read(lambda connection: recorded_of(connection, [topic.topic_id]))
    publish(context.cluster, topic)
    return store.read(lambda connection: recorded_of(connection, [topic.topic_id])) != before


def plan_delta_tables(context: MaintenanceContext) -> Iterator[Report]:
    """Yield reports of the tables that `maintain_delta_tables` would checkpoint now; the expired files of their logs
    are deleted afterwards. Publication is not listed.
    """
    for topic in context.topics():
        versions = due_for_checkpoint(context.cluster, topic)
        notes = [f"checkpoint at version {version}; expired files of the table's log go" for version in versions]
        if notes:
            yield Report("delta", topic.name, notes=tuple(notes))


# --- files: delete retired files, deleted topics and orphans -------------------------------------------------------


def clean_up_files(context: MaintenanceContext) -> Iterator[Report]:
    """Expire write ids, then delete the files that the metadata does not name and that can no longer be appended."""
    store = context.cluster.store
    store.read(check_identity)  # first: with a wrong store, all files that it does not name would count as orphans
    write_ids.expire(store, context.fence)
    failpoint("clean_up.write-ids-expired")
    yield from _clean_up(context, CleanableLogDirs.of(context.cluster, context.stopping))


def plan_clean_up(context: MaintenanceContext) -> Iterator[Report]:
    """Yield reports of the files that `clean_up_files` would delete now."""
    store = context.cluster.store
    store.read(check_identity)
    log_dirs = CleanableLogDirs.of(context.cluster, dry_run=True)
    log_dirs.expired = write_ids.expired(store)
    yield from _clean_up(context, log_dirs)


def _clean_up(context: MaintenanceContext, log_dirs: CleanableLogDirs) -> Iterator[Report]:
    cluster = context.cluster
    with FirstFailure() as failure:
        for topic in context.topics():
            deleted = Deleted()
            with failure.attempt():
                deleted = delete_retired_files(cluster, log_dirs, topic, context.fence)
                deleted += delete_left_copies(cluster, log_dirs, topic, context.fence)
                deleted += delete_orphans(cluster, log_dirs, topic)
            deleted += log_dirs.use_again()
            yield from _files_report(topic.name, deleted)
        of_no_topic = Deleted()
        # a data store knows only its own folders
        if context.topic_names is None and cluster.store_id == HOME and not context.stopping():
            of_no_topic = delete_retired_topics(cluster, log_dirs, context.fence)
            of_no_topic += delete_unknown_folders(cluster, log_dirs)
        yield from _files_report(None, of_no_topic + Deleted(notes=log_dirs.notes))


def _files_report(topic: str | None, deleted: Deleted) -> Iterator[Report]:
    if deleted != Deleted():
        yield Report("files", topic, before=Amount(deleted.files, deleted.bytes), notes=deleted.notes)
