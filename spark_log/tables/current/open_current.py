"""The current-state format of publication: a Delta table that shows the last record of each key of each partition,
unless it is a deletion.

The table is a function of the log below the offsets of its cursors, and of the files. A commit changes the vectors of
the partitions that changed: it finds the keys of the new records in the files of the partition, and hides the earlier
records. A merged or compacted file shows what its inputs showed.
"""

import uuid
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from spark_log import clock
from spark_log.failpoints import failpoint
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.tables.current.deletion_vectors import Vector, decode, encode, file_name
from spark_log.tables.current.hidden_rows import Mask, Rows
from spark_log.tables.current.key_columns import read_rows
from spark_log.tables.current.table import CurrentFile, CurrentTable, commit_actions, open_table, schema_of
from spark_log.tables.current.vector_changes import PartitionFiles, SegmentFile, VectorChange
from spark_log.tables.publication_state import Cursor, ListedFile, PublishedFile
from spark_log.tables.table_changes import ConflictingCommitError, Difference, TopicTable
from spark_log.tables.unopened_commit import as_lines, commit_path, is_newest

_opened: dict[str, CurrentTable] = {}
"""The last version of each table that this process has read or written, by application id."""


class OpenCurrent:
    """See OpenTable. A file that is added may be listed already: then its vector changes."""

    def __init__(self, table: TopicTable, current: CurrentTable) -> None:
        self._table, self._current = table, current
        self._contents: dict[str, bytes] = {}
        """The files of vectors that have been read, by name."""

    @classmethod
    def open(cls, table: TopicTable, *, create: bool) -> "OpenCurrent | None":
        """Open the table. If there is none, it is created with `create`, else the result is None."""
        current = _opened.get(table.application)
        if current is None or not is_newest(table.log_dir, table.folder, current.version):
            current = open_table(table.log_dir, table.folder, table.application)
        opened = cls(table, current)
        if current.version < 0:
            if not create:
                return None
            opened._commit([], [], None, 0, {})
        _opened[table.application] = opened._current
        return opened

    @property
    def at(self) -> tuple[int, int]:
        return self._current.transaction_version, self._current.version

    def listed(self) -> Collection[ListedFile]:
        return [
            ListedFile(file.path, file.partition, file.base_offset, file.bytes, file.record_count)
            for file in self._current.files.values()
        ]

    def hidden(self, file: ListedFile) -> Mask:
        return self._stored_mask(self._current.files[file.path])

    def compared(self, wanted: Sequence[PublishedFile]) -> Difference:
        """All files are added: the vectors of a table that is not as we left it may be wrong."""
        return Difference(wanted, sorted(self._current.files.keys() - {file.path for file in wanted}))

    def incremental(self, wanted: Sequence[PublishedFile], gone: Sequence[str]) -> Difference:
        return Difference(wanted, [path for path in gone if path in self._current.files])

    def has_to_change_first(self, columns: TopicColumns | None) -> bool:
        return False

    def commit(
        self,
        what: Difference,
        before: Mapping[int, Cursor],
        after: Mapping[int, Cursor],
        columns: TopicColumns | None,
        transaction_version: int,
    ) -> int:
        changes = [change for number, cursor in after.items() for change in self._changes(what, number, before, cursor)]
        ends = {number: cursor.seen_offset for number, cursor in after.items()}
        self._commit(changes, what.remove, columns, transaction_version, ends)
        _opened[self._table.application] = self._current
        return self._current.version

    def _commit(
        self,
        changes: Sequence[VectorChange],
        remove: Sequence[str],
        columns: TopicColumns | None,
        transaction_version: int,
        ends: Mapping[int, int],
    ) -> None:
        table, current = self._table, self._current
        table.log_dir.make_folder(f"{table.folder}/_delta_log")
        vectors = self._write({each.file.path: each.hidden for each in changes})
        failpoint("current.vectors-written")
        actions = commit_actions(
            current,
            [(each.file, vectors.get(each.file.path), each.is_data) for each in changes],
            remove,
            schema_of(columns),
            table.application,
            transaction_version,
            ends,
            max(clock.wall_ms(), current.committed_ms),
        )
        version = current.version + 1
        if not table.log_dir.create_whole(commit_path(table.folder, version), as_lines(actions)):
            raise ConflictingCommitError
        self._current = current.after(version, actions, table.application)

    def committed_ms(self) -> int:
        return self._current.committed_ms

    def _changes(
        self, what: Difference, partition: int, before: Mapping[int, Cursor], after: Cursor
    ) -> list[VectorChange]:
        listed = {path: file for path, file in self._current.files.items() if file.partition == partition}
        files = PartitionFiles(
            listed,
            [path for path in what.remove if path in listed],
            [file for file in what.add if file.partition == partition],
            self._read,
            self._stored_mask,
        )
        return files.changes(before.get(partition, Cursor()).seen_offset, after.seen_offset)

    def _read(self, file: SegmentFile) -> Rows:
        path = f"{self._table.topic.folder}/{file.path}"
        return read_rows(self._table.log_dir, path, file.base_offset, file.bytes, file.record_count)

    def _stored_mask(self, file: CurrentFile) -> Mask:
        vector = file.vector
        if vector is None:
            return np.zeros(file.record_count, bool)
        if vector.name not in self._contents:
            blocks = self._table.log_dir.read_blocks(f"{self._table.folder}/{vector.name}")
            self._contents[vector.name] = b"".join(map(bytes, blocks))
        return decode(self._contents[vector.name], vector, file.record_count)

    def _write(self, masks: Mapping[str, Mask]) -> dict[str, Vector]:
        """Write the vectors of these files into one file, durably. Files of vectors that they replace get the present
        time, from which clean-up counts.
        """
        replaced = {self._current.files[path].vector for path in masks if path in self._current.files}
        for name in {vector.name for vector in replaced if vector is not None}:
            self._table.log_dir.touch(f"{self._table.folder}/{name}")
        file_id = uuid.uuid4()
        content, vectors = encode(masks, file_id)
        if vectors:
            file = self._table.log_dir.create(f"{self._table.folder}/{file_name(file_id)}")
            file.write(content)
            file.commit()
        return vectors
