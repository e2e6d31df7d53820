"""Decides which rows of a partition's files a current-state table hides. Pure.

The table shows, for each key, its current record (`log/records/winners.py`) among those below an offset, unless that
record is a deletion. All other rows of the files are hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.log.records.winners import current_records

Mask = npt.NDArray[np.bool_]
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Rows of files of one partition, by offset: the offset (int64) and the key (large_binary) of each. `deletions`
    marks those that delete their key.
    """

    offsets: Offsets
    keys: pa.Array
    deletions: Mask

    def places(self, start: int, end: int) -> slice:
        """Return the places of the rows with start <= offset < end."""
        return slice(*np.searchsorted(self.offsets, [start, end]))

    def __getitem__(self, places: slice) -> "Rows":
        return Rows(self.offsets[places], self.keys[places], self.deletions[places])


def concatenated(parts: Sequence[Rows]) -> Rows:
    return Rows(
        np.concatenate([np.empty(0, np.int64), *(each.offsets for each in parts)]),
        pa.concat_arrays([pa.array([], pa.large_binary()), *(each.keys for each in parts)]),
        np.concatenate([np.empty(0, bool), *(each.deletions for each in parts)]),
    )


def carried(offsets: Offsets, shown: Offsets) -> Mask:
    """Return the mask of a file with these offsets that replaces others, which showed the offsets `shown`."""
    return ~np.isin(offsets, shown)


def hidden(rows: Rows) -> Mask:
    """Return the mask of records that are new to the table, without regard to the earlier ones."""
    mask = np.ones(len(rows.keys), bool)
    mask[current_records(rows.keys)] = False
    return mask | rows.deletions


def shadowed(rows: Rows, mask: Mask, end: int, keys: pa.Array) -> Mask:
    """Return the mask of a file once records from the offset `end` on have these keys. It is `mask` itself if no row of
    the file is hidden by it.
    """
    earlier = rows.places(0, end)
    replaced = np.asarray(pc.is_in(rows.keys[earlier], value_set=keys)) & ~mask[earlier]
    if not replaced.any():
        return mask
    after = mask.copy()
    after[earlier] |= replaced
    return after
