"""Finds the changes that a table of a topic needs: the difference between the metadata and the table."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from spark_log.cluster.log_dir import LogDir, LogDirInfo
from spark_log.cluster.log_dir_uris import location_of
from spark_log.cluster.topics import Topic
from spark_log.config import ClusterSettings
from spark_log.errors import StorageUnavailableError, redact
from spark_log.ids import LogDirId
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.log.partitions.partition_rows import topic_here
from spark_log.metadata.connections.server_identity import check_identity
from spark_log.tables import publication_intent, publication_state
from spark_log.tables.current.cut import Cut, due_below_cut
from spark_log.tables.delta_log_repair import TornLogError
from spark_log.tables.iceberg.catalog import CatalogName
from spark_log.tables.publication_state import CURRENT, Cursor, Due, ListedFile, PublishedFile, TableKey


@dataclass(frozen=True)
class TopicTable:
    """A table of a topic in a log dir. Unless it is `listing`, it must not list files any more."""

    topic: Topic
    info: LogDirInfo
    log_dir: LogDir
    target: str
    listing: bool
    settings: ClusterSettings
    log_dirs: Mapping[LogDirId, LogDirInfo]
    """All log dirs of the cluster."""
    cut: Cut | None = None
    """For a current-state table, offsets up to which it may show the partitions (`due_below_cut`)."""

    @property
    def key(self) -> TableKey:
        return TableKey(self.topic.topic_id, self.info.log_dir_id, self.target)

    @property
    def folder(self) -> str:
        """Return the folder of the table, relative to the log dir."""
        return publication_state.table_folder(self.topic, self.target)

    @property
    def metadata_folder(self) -> str:
        """Return the folder of the table that has nothing but its metadata, relative to the log dir."""
        names = {publication_state.DELTA: "/_delta_log", publication_state.ICEBERG: "/metadata", CURRENT: ""}
        return self.folder + names[self.target]

    @property
    def catalog(self) -> CatalogName | None:
        """Return the catalog that has the table, None if its folder has it."""
        name = self.settings.iceberg_catalog if self.target == publication_state.ICEBERG else ""
        return CatalogName(name, self.settings.iceberg_namespace) if name else None

    @property
    def locations(self) -> list[str]:
        """Return the locations of the topic's folder in all log dirs."""
        return [location_of(info.uri, self.topic.folder) for info in self.log_dirs.values()]

    @property
    def title(self) -> str:
        """Return the name of the table in messages."""
        return f"{self.target.capitalize()} table of topic {self.topic.name}"

    @property
    def table_id(self) -> str:
        """Return the table's id while the topic is in its present store. Other stores have other uuids of log dirs."""
        return f"spark-log/{self.topic.uuid}/{self.info.uuid}{self._suffix}"

    @property
    def applications(self) -> tuple[str, str]:
        """Return the application ids of our transactions in Delta: each commit has the same version for both.

        The first one stays the same if the topic moves to another store. Tables of earlier releases have only the
        second one, and processes of these releases, which may run during an upgrade, read only that one.
        """
        return f"spark-log/{self.topic.uuid}{self._suffix}", self.table_id

    @property
    def _suffix(self) -> str:
        return "" if self.target == publication_state.DELTA else f"/{self.target}"


@dataclass(frozen=True)
class Changes:
    """The metadata, from one snapshot, of a table that must be changed.

    If only changes are compared (`incremental`), `wanted` are the changed segments, and `gone` the retired paths;
    otherwise `wanted` are all segments. With `in_doubt` a publisher has committed and not recorded its commit.
    """

    recorded: tuple[int, int] | None
    in_doubt: bool
    due: Due
    cursors: dict[int, Cursor]
    incremental: bool
    wanted: list[PublishedFile]
    gone: list[str]
    columns: TopicColumns | None
    """The typed columns of the topic, which may be in any of its files."""


@dataclass(frozen=True)
class Difference:
    """The files to add to a table, and the paths of those to remove."""

    add: Sequence[PublishedFile]
    remove: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.add or self.remove)


def difference(wanted: Sequence[PublishedFile], active: Iterable[str]) -> Difference:
    """Return the changes after which a table has the wanted files. `active` are the paths of its active files now."""
    there = set(active)
    return Difference(
        [file for file in wanted if file.path not in there], sorted(there - {file.path for file in wanted})
    )


def _is_due(file: PublishedFile, before: Cursor, due: Due) -> bool:
    """Whether a current-state table must show records of the file that it has not shown, or only in another file."""
    end = due.cursors[file.partition].seen_offset
    return file.base_offset < end and (
        file.change > before.change or file.base_offset >= before.seen_offset or end > before.seen_offset
    )


class ConflictingCommitError(Exception):
    """Another process has committed to the table since it was opened."""


class RefusedCommitError(StorageUnavailableError):
    """deltalake does not write to the table as it is. It has not begun the commit."""


def storage_error(what: str, error: BaseException) -> StorageUnavailableError | None:
    """Return the error of a table that could not be read or written, in one line; None for an error of another kind.

    An object store that does not complete its answer raises OSError. deltalake panics, with an exception class of its
    own, in a forked child of a process that has used it. The text of its errors is a coloured tree of lines.
    """
    from deltalake.exceptions import DeltaError

    if not (isinstance(error, DeltaError | TornLogError | OSError) or type(error).__name__ == "PanicException"):
        return None
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m|↳", "", str(error)).split())
    return StorageUnavailableError(redact(f"{what}: {text}"))


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Raise `storage_error` in place of an error of the block."""
    try:
        yield
    except BaseException as error:
        unavailable = storage_error(what, error)
        if unavailable is None:
            raise
        raise unavailable from error


class OpenTable(Protocol):
    """A table of some format, as of the version that was opened."""

    @property
    def at(self) -> tuple[int, int]:
        """Return the version of our last transaction in the table, and the version of the table."""

    def listed(self) -> Collection[ListedFile]:
        """Return the files that the table lists, also those of other writers."""

    def hidden(self, file: ListedFile) -> npt.NDArray[np.bool_] | None:
        """Return the mask of the rows of a listed file that the table hides, shape (rows,), or None if it shows all."""
        return None

    def compared(self, wanted: Sequence[PublishedFile]) -> Difference:
        """Return the change that makes a table in any state list exactly these files."""

    def incremental(self, wanted: Sequence[PublishedFile], gone: Sequence[str]) -> Difference:
        """Return the change of a table that is as publication left it, by the segments and files changed since then."""

    def has_foreign_schema(self, columns: TopicColumns | None) -> bool:
        """Whether another program has changed the schema: then the table needs a commit, even without a file."""
        return False

    def has_to_change_first(self, columns: TopicColumns | None) -> bool:
        """Make the extra commit that the table needs before it gets files, and return True; False if it needs none."""
        return False

    def prepare(
        self,
        what: Difference,
        before: Mapping[int, Cursor],
        after: Mapping[int, Cursor],
        columns: TopicColumns | None,
    ) -> None:
        """Do the work of a commit that may fail, before its intent is noted. The cursors `before` decide which records
        of added files the table has shown; `after` are those of the changed partitions.
        """
        return None

    def commit(
        self,
        what: Difference,
        before: Mapping[int, Cursor],
        columns: TopicColumns | None,
        transaction_version: int,
    ) -> int:
        """Commit the prepared change, durably, and return the new version of the table. Raises
        ConflictingCommitError.
        """

    def force(self, after: int) -> None:
        """Force the versions after this one to disk: the process that made them may have been killed before it did."""


def find_changes(
    connection: sa.Connection, table: TopicTable, left_at: tuple[int, int], *, reads_all: bool = True
) -> Changes | None:
    """Return the changes of a table, or None if it is up to date, or its topic and replicas are deleted. Without
    `reads_all`, the changes of a table that must be compared as a whole have no segments.

    `left_at` is the version of our app transaction in the table, and the version of the table. The caller reads from
    the primary, because files are removed from the table on the basis of the result.
    """
    check_identity(connection)
    topic, key, in_table = table.topic, table.key, left_at[0]
    recorded = publication_state.recorded(connection, key)
    in_doubt = in_table > (recorded or (0, 0))[0] and publication_intent.is_noted(connection, key, in_table)
    as_we_left_it = left_at == (recorded or (0, 0))
    if not table.listing:
        due = publication_state.all_gone(connection, key)
    elif table.target == CURRENT:
        due = due_below_cut(connection, key, table.cut, everything=not as_we_left_it)
    else:
        due = publication_state.due(connection, key)
    if as_we_left_it and due.has_replicas and not due.cursors:
        return None
    now = topic_here(connection, topic)
    if now is None:
        return None  # deleted meanwhile, together with its records; or another store has got it, and publishes it
    incremental, gone = as_we_left_it and not due.fallen, []
    # a table without a commit by spark-log has not shown any record
    changed = due.cursors.keys() if incremental else None
    cursors = publication_state.cursors(connection, key, changed) if in_table else {}
    if table.target == CURRENT and not incremental:
        cursors = {}  # all vectors are computed anew
    if incremental:
        segments = publication_state.changed_segments(connection, key, due.cursors)
        gone = publication_state.retired_paths(connection, topic, key, due.cursors)
    else:
        segments = publication_state.all_segments(connection, key) if reads_all and table.listing else []
    if table.target == CURRENT:
        segments = [file for file in segments if _is_due(file, cursors.get(file.partition, Cursor()), due)]
    return Changes(recorded, in_doubt, due, cursors, incremental, segments, gone, now.all_columns)
