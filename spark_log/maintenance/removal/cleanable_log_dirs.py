"""Opens the log dirs in which a run of clean-up deletes files, or counts them for a dry run."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Self, TypeVar

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence
from spark_log.cluster.log_dir import LogDir, LogDirInfo
from spark_log.cluster.topics import Topic
from spark_log.errors import UnsafePathError, redact
from spark_log.ids import LogDirId
from spark_log.log.append.encoding import LOG_DIR_FAILURES
from spark_log.metadata.connections.server_identity import check_identity
from spark_log.metadata.sql_columns import LOG_DIR
from spark_log.tables.publication import check_publication, publish, try_publish

D = TypeVar("D")
_THREADS = 8
"""Concurrent deletions: object stores answer slowly."""


@dataclass(frozen=True)
class Deleted:
    """The number of deleted files, counted in each log dir that had them, with their bytes, and notes for the
    report.
    """

    files: int = 0
    bytes: int = 0
    notes: tuple[str, ...] = ()

    def __add__(self, other: "Deleted") -> "Deleted":
        return Deleted(self.files + other.files, self.bytes + other.bytes, self.notes + other.notes)


@dataclass
class CleanableLogDirs:
    """The log dirs of a cluster for one run of clean-up. Each is used only after its id was verified, every time.

    A log dir that is offline or fails is skipped for the rest of the run; `failures` has the reason. One that failed in
    the folder of a topic is skipped until `use_again`, which is called before the next topic.
    """

    cluster: Cluster
    infos: Mapping[LogDirId, LogDirInfo]
    failures: dict[LogDirId, str] = field(default_factory=dict)
    doubtful: set[LogDirId] = field(default_factory=set)
    """The log dirs in `failures` that failed in the folder of a topic."""
    expired: Collection[str] = frozenset()
    """Write ids that are still registered, but are treated as expired."""
    stopping: Callable[[], bool] = lambda: False
    """Whether to leave the remaining files to the next run."""
    dry_run: bool = False
    """Whether the run counts the files that it would delete, each once, and changes nothing."""
    counted: set[tuple[LogDirId, str]] = field(default_factory=set)

    @classmethod
    def of(cls, cluster: Cluster, stopping: Callable[[], bool] = lambda: False, *, dry_run: bool = False) -> Self:
        log_dirs = cls(cluster, cluster.log_dirs(), stopping=stopping, dry_run=dry_run)
        offline = sa.select(LOG_DIR.log_dir_id).where(~LOG_DIR.online)
        for log_dir_id in cluster.store.read(lambda c: c.execute(offline).scalars().all()):
            log_dirs.failures[LogDirId(log_dir_id)] = "it is offline"
        return log_dirs

    def decide(self, body: Callable[[sa.Connection], D]) -> D:
        """Read the metadata that decides which files are deleted. None means that no file is deleted. In a dry run the
        server need not be the primary any more.

        Raises StoreChangedError if the primary is another one than when the run began, and is not accepted yet.
        """
        if self.dry_run:
            return self.cluster.store.read(body)

        def read(connection: sa.Connection) -> D:
            check_identity(connection)
            return body(connection)

        return self.cluster.store.read_as_primary(read)

    def open(self, log_dir_id: LogDirId) -> LogDir | None:
        """Return the log dir, or None if it is skipped in this run."""
        if log_dir_id in self.failures or log_dir_id not in self.infos:
            return None
        info = self.infos[log_dir_id]
        try:
            log_dir = self.cluster.log_dir(info)
            log_dir.verify(info.uuid)
        except LOG_DIR_FAILURES as error:
            self.failures[log_dir_id] = redact(str(error))
            return None
        return log_dir

    def opened(self) -> Iterator[tuple[LogDirId, LogDir]]:
        """Yield the log dirs that are not skipped, opened one after the other, until the run is to stop."""
        for log_dir_id in self.infos:
            if self.stopping():
                return
            log_dir = self.open(log_dir_id)
            if log_dir is not None:
                yield log_dir_id, log_dir

    def leave_alone(self, log_dir_id: LogDirId, error: Exception) -> None:
        """Skip a log dir that failed in the folder of a topic."""
        self.failures[log_dir_id] = redact(str(error))
        self.doubtful.add(log_dir_id)

    def use_again(self) -> Deleted:
        """Use the log dirs again that failed in the folder of a topic, if they answer: only that folder is damaged. A
        note has the reason.
        """
        notes: tuple[str, ...] = ()
        for log_dir_id in sorted(self.doubtful):
            reason = self.failures.pop(log_dir_id)
            if self.open(log_dir_id) is not None:
                notes += (reason,)
        self.doubtful.clear()
        return Deleted(notes=notes)

    def delete(self, log_dir_id: LogDirId, paths: Sequence[str]) -> Deleted:
        """Delete those files that exist, and return their number and bytes."""
        if self.dry_run:
            paths = [path for path in paths if (log_dir_id, path) not in self.counted]
            self.counted.update((log_dir_id, path) for path in paths)
        log_dir = self.open(log_dir_id)
        if log_dir is None or not paths:
            return Deleted()
        try:
            sizes = dict(zip(paths, log_dir.sizes(paths), strict=True))
            there = [path for path in paths if sizes[path] is not None]
            if not self.dry_run:
                with ThreadPoolExecutor(min(_THREADS, len(there) or 1), "spark-log-clean-up") as pool:
                    list(pool.map(log_dir.delete, there))
        except UnsafePathError as error:  # the path contains a symbolic link
            return Deleted(notes=(redact(f"{self.infos[log_dir_id].uri}: {error}"),))
        except LOG_DIR_FAILURES as error:
            self.leave_alone(log_dir_id, error)
            return Deleted()
        return Deleted(len(there), sum(size for size in sizes.values() if size is not None))

    def delete_folder(self, log_dir: LogDir, folder: str) -> None:
        """Delete a folder with all its content."""
        if not self.dry_run:
            log_dir.delete_folder(folder)

    def delete_empty_folder(self, log_dir: LogDir, folder: str) -> None:
        """Delete a folder if it is empty."""
        if not self.dry_run:
            log_dir.delete_empty_folder(folder)

    def publish(self, topic: Topic) -> None:
        """Remove deleted files from the topic's Delta tables. Raises the errors of `tables.publication.publish`; in a
        dry run, only those for a store that is an older copy.
        """
        (check_publication if self.dry_run else publish)(self.cluster, topic)

    def try_publish(self, topic: Topic) -> None:
        """Publish like `publish`, but log a failure."""
        if not self.dry_run:
            try_publish(self.cluster, [topic], eager=True)

    def forget(self, delete_rows: Callable[[sa.Connection], None], fence: Fence) -> None:
        """Delete the metadata rows of deleted files."""
        if not self.dry_run:
            self.cluster.store.transact(delete_rows, fence=fence)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(
            f"log dir {redact(self.infos[log_dir_id].uri)} was left alone: {reason}"
            for log_dir_id, reason in sorted(self.failures.items())
            if log_dir_id in self.infos
        )
