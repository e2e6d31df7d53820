"""Decides which rows of a partition's files a current-state table hides. Pure.

The table shows, for each key, its current record (`log.records.current_rule.py`) among those below an offset, unless
that record is a deletion. All other rows of the files are hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.log.records.current_rule import Candidates
from spark_log.log.records.winners import Mask, current_records

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Rows of files of one partition, by offset, with the values that decide which are current (see Candidates)."""

    offsets: Offsets
    keys: pa.Array
    sequences: pa.Array | None
    deletions: Mask

    @classmethod
    def of(cls, offsets: Offsets, candidates: Candidates) -> "Rows":
        return cls(offsets, *candidates)

    def places(self, start: int, end: int) -> slice:
        """Return the places of the rows with start <= offset < end."""
        return slice(*np.searchsorted(self.offsets, [start, end]))

    def __getitem__(self, places: slice) -> "Rows":
        sequences = None if self.sequences is None else self.sequences[places]
        return Rows(self.offsets[places], self.keys[places], sequences, self.deletions[places])

    def take(self, places: Offsets) -> "Rows":
        taken = pa.array(places)
        sequences = None if self.sequences is None else self.sequences.take(taken)
        return Rows(self.offsets[places], self.keys.take(taken), sequences, self.deletions[places])

    def with_keys(self, keys: pa.Array, end: int) -> Offsets:
        """Return the places of the rows below the offset `end` that have one of these keys."""
        return np.flatnonzero(np.asarray(pc.is_in(self.keys[self.places(0, end)], value_set=keys)))


def concatenated(parts: Sequence[Rows]) -> Rows:
    sequences = [each.sequences for each in parts if each.sequences is not None]
    return Rows(
        np.concatenate([np.empty(0, np.int64), *(each.offsets for each in parts)]),
        pa.concat_arrays([pa.array([], pa.large_binary()), *(each.keys for each in parts)]),
        pa.concat_arrays(sequences) if sequences else None,
        np.concatenate([np.empty(0, bool), *(each.deletions for each in parts)]),
    )


def carried(offsets: Offsets, shown: Offsets) -> Mask:
    """Return the mask of a file with these offsets. The files that it replaces showed the offsets `shown`."""
    return ~np.isin(offsets, shown)


def hidden(rows: Rows) -> Mask:
    """Return the mask of `rows`, which have all rows of their keys that count."""
    mask = np.ones(len(rows.keys), bool)
    mask[current_records(rows.keys, rows.sequences)] = False
    return mask | rows.deletions
