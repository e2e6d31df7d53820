"""Computes the new deletion vectors of a partition's files, when a commit shows further records of the partition."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from spark_log.errors import CorruptRecordError
from spark_log.log.records.winners import Mask
from spark_log.tables.current.hidden_rows import Offsets, Rows, carried, concatenated, hidden
from spark_log.tables.current.table import CurrentFile
from spark_log.tables.publication_state import PublishedFile

_ROWS_AT_ONCE, _BYTES_AT_ONCE = 4 * 2**20, 256 * 2**20
"""Limits of the new records, and of the bytes of their files, whose keys are searched for in the files of the partition
at the same time.
"""

SegmentFile = PublishedFile | CurrentFile


@dataclass(frozen=True)
class VectorChange:
    """A file, and the mask of its rows that are hidden from now on. `is_data` is whether readers see other rows."""

    file: SegmentFile
    hidden: Mask
    is_data: bool


@dataclass(frozen=True)
class PartitionFiles:
    """The files of a partition. The table lists `listed`, by path. The commit removes `removed` and adds `added`: files
    that are new to the table, or have records that it has not shown.

    `read` reads the rows of a file, and `stored_mask` the vector of a listed one.
    """

    listed: Mapping[str, CurrentFile]
    removed: Collection[str]
    added: Sequence[PublishedFile]
    read: Callable[[SegmentFile], Rows]
    stored_mask: Callable[[CurrentFile], Mask]

    @property
    def lack_first(self) -> bool:
        """Whether the table loses the first records of the partition."""
        kept = [file.base_offset for path, file in self.listed.items() if path not in set(self.removed)]
        first = min([*kept, *(file.base_offset for file in self.added)], default=2**63)
        return any(self.listed[path].base_offset < first for path in self.removed)

    def changes(self, start: int, end: int) -> list[VectorChange]:
        """Return the changed vectors, and those of all added files, for a table that shows the records below `end`.

        The table already shows the records below `start`, so its vectors are right for them. All vectors are computed
        anew if `start` is 0, if clean-up has deleted a file that another one replaced, or if a vector is damaged.
        """
        if start:
            with contextlib.suppress(CorruptRecordError):
                return self._changes(start, end)
        return self._changes(0, end)

    def _changes(self, start: int, end: int) -> list[VectorChange]:
        gone = {*self.removed, *(file.path for file in self.added)}
        kept = [file for path, file in self.listed.items() if path not in gone]
        masks = self._carried(start) if start else {}
        unchanged = dict(masks)
        files: list[SegmentFile] = sorted([*kept, *self.added], key=lambda file: file.base_offset)
        for group in _groups([file for file in files if not start or isinstance(file, PublishedFile)]):
            self._show(files, group, masks, start, end)
        return [
            VectorChange(file, masks[file.path], masks[file.path] is not unchanged.get(file.path))
            for file in files
            if file.path in masks
        ]

    def _carried(self, start: int) -> dict[str, Mask]:
        """Return the masks of the added files with records below `start`: they show what the removed files showed."""
        below = [file for file in self.added if file.base_offset < start]
        shown = np.empty(0, np.int64)
        if any(file.path not in self.listed for file in below):
            removed = [self.listed[path] for path in self.removed]
            shown = np.concatenate([shown, *(self.read(file).offsets[~self.stored_mask(file)] for file in removed)])
        return {
            file.path: self.stored_mask(self.listed[file.path])
            if file.path in self.listed
            else carried(self.read(file).offsets, shown)
            for file in below
        }

    def _show(
        self, files: Sequence[SegmentFile], group: Sequence[SegmentFile], masks: dict[str, Mask], start: int, end: int
    ) -> None:
        """Update the masks for the records of the files `group` from `start` to `end`. The masks include all earlier
        records already.
        """
        rows = [self.read(file) for file in group]
        for file in group:
            masks.setdefault(file.path, np.ones(file.record_count, bool))
        new = [
            (file, np.arange(len(each.offsets))[each.places(start, end)])
            for file, each in zip(group, rows, strict=True)
        ]
        parts = [each.take(places) for each, (_, places) in zip(rows, new, strict=True)]
        following = concatenated(parts)
        if not len(following.offsets):
            return
        earlier = self._earlier(files, masks, following)
        before = [self.read(file).take(places) for file, places in earlier]
        mask_of_all = hidden(concatenated([*before, *parts]))
        ends = np.cumsum([len(places) for _, places in (*earlier, *new)])
        for (file, places), part in zip((*earlier, *new), np.split(mask_of_all, ends[:-1]), strict=True):
            mask = self._mask(file, masks)
            if not np.array_equal(mask[places], part):
                masks[file.path] = mask.copy()
                masks[file.path][places] = part

    def _earlier(
        self, files: Sequence[SegmentFile], masks: Mapping[str, Mask], new: Rows
    ) -> list[tuple[SegmentFile, Offsets]]:
        """Return, by file, the places of the earlier records with the keys of new ones. Hidden records are left out,
        except with sequences, because a hidden deletion may win against a new record.
        """
        keys, first = pc.unique(new.keys.drop_null()), int(new.offsets[0])
        places = {file.path: self.read(file).with_keys(keys, first) for file in files if file.base_offset < first}
        if new.sequences is None:
            for file in files:
                if file.path in places:
                    at = places[file.path]
                    places[file.path] = at[~self._mask(file, masks)[at]]
        return [(file, places[file.path]) for file in files if len(places.get(file.path, ()))]

    def _mask(self, file: SegmentFile, masks: Mapping[str, Mask]) -> Mask:
        return masks[file.path] if file.path in masks else self.stored_mask(self.listed[file.path])


def _groups(files: Sequence[SegmentFile]) -> Iterator[list[SegmentFile]]:
    """Divide files into groups with at most _ROWS_AT_ONCE records and _BYTES_AT_ONCE, but at least one file."""
    group: list[SegmentFile] = []
    rows = size = 0
    for file in files:
        rows, size = rows + file.record_count, size + file.bytes
        if group and (rows > _ROWS_AT_ONCE or size > _BYTES_AT_ONCE):
            yield group
            group, rows, size = [], file.record_count, file.bytes
        group.append(file)
    if group:
        yield group
