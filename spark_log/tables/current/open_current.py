"""Implements the current-state format of publication: a Delta table that shows the current record of each key of each
partition, unless that record is a deletion.

The table is a function of the log below the offsets of its cursors, and of the files. A commit changes the vectors of
the partitions that changed: it finds the keys of the new records in the files of the partition, and hides the earlier
records. A merged or compacted file shows what its inputs showed.
"""

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa

from spark_log import clock
from spark_log.errors import CorruptRecordError
from spark_log.failpoints import failpoint
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.log.records.current_rule import CurrentRule
from spark_log.log.records.winners import Mask
from spark_log.remembered import BoundedDict
from spark_log.tables.current.deletion_vectors import Vector, decode, encode, file_name
from spark_log.tables.current.hidden_rows import Rows
from spark_log.tables.current.key_columns import read_rows
from spark_log.tables.current.table import CurrentFile, CurrentTable, commit_actions, open_table, schema_of
from spark_log.tables.current.vector_changes import PartitionFiles, SegmentFile, VectorChange
from spark_log.tables.delta_table import active_files
from spark_log.tables.publication_state import Cursor, ListedFile, PublishedFile
from spark_log.tables.table_changes import ConflictingCommitError, Difference, OpenTable, TopicTable
from spark_log.tables.unopened_commit import as_lines, commit_path, force_commits, is_newest

if TYPE_CHECKING:
    from deltalake import DeltaTable

_OPENED_MAX = 1_000
"""The number of tables that a process remembers."""

_opened: BoundedDict[str, tuple[CurrentTable, bytes]] = BoundedDict(_OPENED_MAX)
"""The last versions of tables that this process has written, by the id of the table, with the content of the commit."""


class OpenCurrent(OpenTable):
    """See OpenTable. A file that is added may be listed already: then its vector changes."""

    def __init__(self, table: TopicTable, current: CurrentTable) -> None:
        self._table, self._current = table, current
        self._contents: dict[str, bytes] = {}
        """The content of the vector files that were read, by name."""
        self._columns: TopicColumns | None = None
        self._prepared: tuple[list[VectorChange], dict[str, Vector], dict[int, int]] = ([], {}, {})

    @classmethod
    def open(cls, table: TopicTable, *, create: bool) -> "OpenCurrent | None":
        """Open the table. If there is none, it is created with `create`, else the result is None."""
        current, content = _opened.get(table.table_id, (None, b""))
        if current is None or not _is_as_left(table, current.version, content):
            current = open_table(table.log_dir, table.folder, table.applications)
        opened = cls(table, current)
        if current.version < 0:
            if not create:
                return None
            opened._commit([], None, 0)
        return opened

    @property
    def at(self) -> tuple[int, int]:
        return self._current.transaction_version, self._current.version

    def listed(self) -> Collection[ListedFile]:
        """Return the files of the table as deltalake, and so every other reader, sees them."""
        active, folder = active_files(self._delta), Path(self._table.folder).name
        return [
            ListedFile(
                path.removeprefix("../") if path.startswith("../") else f"{folder}/{path}",
                -1 if each["partition"] is None else each["partition"],
                each["base_offset"] or 0,
                each["size"],
                each["records"] or 0,
            )
            for path, each in active
        ]

    def hidden(self, file: ListedFile) -> Mask | None:
        """Return the mask of a file as deltalake reads it. Raises CorruptRecordError."""
        from deltalake.exceptions import DeltaError

        location = self._table.log_dir.location(f"{self._table.topic.folder}/{file.path}")
        try:
            return self._masks.get(location)
        except DeltaError as error:
            raise CorruptRecordError(" ".join(str(error).split())) from error

    def compared(self, wanted: Sequence[PublishedFile]) -> Difference:
        """Return a difference with all files: vectors may be wrong if publication did not make the last commit."""
        return Difference(wanted, sorted(self._current.files.keys() - {file.path for file in wanted}))

    def incremental(self, wanted: Sequence[PublishedFile], gone: Sequence[str]) -> Difference:
        return Difference(wanted, [path for path in gone if path in self._current.files])

    def has_to_change_first(self, columns: TopicColumns | None) -> bool:
        """Commit a changed rule, without our transaction: all vectors are then computed anew. Return whether it did."""
        if self._current.rule == self._rule(columns):
            return False
        self._commit([], columns, None)
        return True

    def prepare(
        self,
        what: Difference,
        before: Mapping[int, Cursor],
        after: Mapping[int, Cursor],
        columns: TopicColumns | None,
    ) -> None:
        """Find the new vectors, and write them."""
        self._columns = columns
        listed: dict[int, dict[str, CurrentFile]] = defaultdict(dict)
        for path, file in self._current.files.items():
            listed[file.partition][path] = file
        added: dict[int, list[PublishedFile]] = defaultdict(list)
        for segment in what.add:
            added[segment.partition].append(segment)
        gone = set(what.remove)
        changes: list[VectorChange] = []
        for number, cursor in after.items():
            removed = [path for path in listed[number] if path in gone]
            files = PartitionFiles(listed[number], removed, added[number], self._read, self._stored_mask)
            start = before.get(number, Cursor()).seen_offset
            if self._rule(columns).by_sequence and files.lack_first:  # the sequence of a removed record may be larger
                start = 0
            changes += files.changes(start, cursor.seen_offset)
        self._table.log_dir.make_folder(f"{self._table.folder}/_delta_log")
        vectors = self._write({each.file.path: each.hidden for each in changes}, gone)
        self._prepared = changes, vectors, {number: cursor.seen_offset for number, cursor in after.items()}

    def commit(
        self,
        what: Difference,
        before: Mapping[int, Cursor],
        columns: TopicColumns | None,
        transaction_version: int,
    ) -> int:
        failpoint("current.vectors-written")
        self._commit(what.remove, columns, transaction_version)
        return self._current.version

    def _commit(self, remove: Sequence[str], columns: TopicColumns | None, transaction_version: int | None) -> None:
        table, current = self._table, self._current
        changes, vectors, ends = self._prepared
        table.log_dir.make_folder(f"{table.folder}/_delta_log")
        actions = commit_actions(
            current,
            [(each.file, vectors.get(each.file.path), each.is_data) for each in changes],
            remove,
            schema_of(columns),
            self._rule(columns),
            table.applications,
            transaction_version,
            ends,
            max(clock.wall_ms(), current.committed_ms),
        )
        version, content = current.version + 1, as_lines(actions)
        if not table.log_dir.create_whole(commit_path(table.folder, version), content):
            raise ConflictingCommitError
        self._current = current.after(version, actions, table.applications)
        _opened[table.table_id] = self._current, content

    def force(self, after: int) -> None:
        force_commits(self._table.log_dir, self._table.folder, after)

    def _read(self, file: SegmentFile) -> Rows:
        path, rule = f"{self._table.topic.folder}/{file.path}", self._rule(self._columns)
        return read_rows(
            self._table.log_dir,
            path,
            file.base_offset,
            file.bytes,
            file.record_count,
            rule,
            self._columns,
            self._table.settings.table_current_cache_bytes,
        )

    def _rule(self, columns: TopicColumns | None) -> CurrentRule:
        return CurrentRule.of(self._table.topic.config, columns)

    def _stored_mask(self, file: CurrentFile) -> Mask:
        vector = file.vector
        if vector is None:
            return np.zeros(file.record_count, bool)
        if vector.name not in self._contents:
            self._contents[vector.name] = self._table.log_dir.read(f"{self._table.folder}/{vector.name}")
        return decode(self._contents[vector.name], vector, file.record_count)

    def _write(self, masks: Mapping[str, Mask], removed: Collection[str]) -> dict[str, Vector]:
        """Write the vectors of these masks into one file, durably. Files with vectors that are replaced, or that
        removed files had, get the present time, from which clean-up counts.
        """
        paths = [path for path in [*masks, *removed] if path in self._current.files]
        replaced = {self._current.files[path].vector for path in paths}
        for name in {vector.name for vector in replaced if vector is not None}:
            self._table.log_dir.touch(f"{self._table.folder}/{name}")
        file_id = uuid.uuid4()
        content, vectors = encode(masks, file_id)
        if vectors:
            file = self._table.log_dir.create(f"{self._table.folder}/{file_name(file_id)}")
            file.write(content)
            file.commit()
        return vectors

    # As deltalake reads the table ------------------------------------------------------------------------------------

    @cached_property
    def _delta(self) -> "DeltaTable":
        from deltalake import DeltaTable

        log_dir = self._table.log_dir
        location, options = log_dir.location(self._table.folder), log_dir.storage_options
        return DeltaTable(location, version=self._current.version, storage_options=options)

    @cached_property
    def _masks(self) -> dict[str, Mask]:
        """The masks of the files that have one, by location."""
        rows = pa.RecordBatchReader.from_stream(self._delta.deletion_vectors()).read_all()
        return {
            (file if "://" in file and not self._table.log_dir.local else unquote(urlsplit(file).path)): ~np.asarray(
                shown.values
            )
            for file, shown in zip(rows.column(0).to_pylist(), rows.column(1), strict=True)
        }


def _is_as_left(table: TopicTable, version: int, content: bytes) -> bool:
    """Whether the newest version is the commit of this process. A table that was rebuilt may have the same versions."""
    if not is_newest(table.log_dir, table.folder, version):
        return False
    try:
        return table.log_dir.read(commit_path(table.folder, version)) == content
    except CorruptRecordError:  # it has been deleted meanwhile
        return False
