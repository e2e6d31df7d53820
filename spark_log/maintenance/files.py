"""The task `files`: what nobody needs any more leaves the log dirs."""

from collections.abc import Iterator

from spark_log.append import write_ids
from spark_log.errors import NotControllerError, NotCoordinatorError, SparkLogError
from spark_log.failpoints import failpoint
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.removal.clean_up import (
    CleanableLogDirs,
    CountedLogDirs,
    Deleted,
    delete_left_copies,
    delete_retired_files,
    delete_retired_topics,
)
from spark_log.maintenance.removal.orphans import delete_orphans, delete_unknown_folders
from spark_log.maintenance.report import Amount, Report
from spark_log.metadata.identity import check_identity


def clean_up_files(context: MaintenanceContext) -> Iterator[Report]:
    store = context.cluster.store
    store.read(check_identity)  # before anything else: what is not named by another store is no orphan
    write_ids.expire(store, context.fence)
    failpoint("clean_up.write-ids-expired")
    yield from _clean_up(context, CleanableLogDirs.of(context.cluster))


def plan_clean_up(context: MaintenanceContext) -> Iterator[Report]:
    """The files that `clean_up_files` would delete now. Changes nothing."""
    store = context.cluster.store
    store.read(check_identity)
    log_dirs = CountedLogDirs.of(context.cluster)
    log_dirs.expired = write_ids.expired(store)
    yield from _clean_up(context, log_dirs)


def _clean_up(context: MaintenanceContext, log_dirs: CleanableLogDirs) -> Iterator[Report]:
    cluster = context.cluster
    failed: Exception | None = None
    for topic in context.topics():
        try:
            deleted = delete_retired_files(cluster, log_dirs, topic, context.fence)
            deleted += delete_left_copies(cluster, log_dirs, topic, context.fence)
            deleted += delete_orphans(cluster, log_dirs, topic)
        except (NotCoordinatorError, NotControllerError):
            raise
        except SparkLogError as error:
            failed = failed or error
            continue
        yield from _report(topic.name, deleted)
    of_nobody = Deleted()
    if context.topic_names is None:
        of_nobody = delete_retired_topics(cluster, log_dirs, context.fence) + delete_unknown_folders(cluster, log_dirs)
    yield from _report(None, of_nobody + Deleted(notes=log_dirs.notes))
    if failed is not None:
        raise failed


def _report(topic: str | None, deleted: Deleted) -> Iterator[Report]:
    if deleted != Deleted():
        yield Report("files", topic, before=Amount(deleted.files, deleted.bytes), notes=deleted.notes)
