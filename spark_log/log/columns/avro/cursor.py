"""Keeps positions in the bytes of many Avro records, and reads a number at each position."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_log.log.columns.bad_rows import Bad
from spark_log.log.columns.value_bytes import Ints, offsets_of

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]

_PADDING = 16
"""Zero bytes after the data, so that a number can be read before its end is checked."""
TRUNCATED = "the bytes of the Avro record end too early"


@dataclass
class Cursor:
    """One position for each value to read, in ascending order: `pos[i] <= end[i]`, in the record of row `row[i]`.

    A value that cannot be read makes its row bad. Its position is then `end[i]`, which is not after `pos[i + 1]`.
    """

    data: "np.ndarray[tuple[int], np.dtype[np.uint8]]"
    pos: Ints
    end: Ints
    row: Ints
    bad: Bad

    @classmethod
    def of(cls, values: pa.BinaryArray, rows: Ints, bad: Bad) -> "Cursor":
        """Return a cursor at the start of the values of these rows."""
        offsets = offsets_of(values).astype(np.int64)
        first, last = int(offsets[0]), int(offsets[-1])
        data = np.zeros(last - first + _PADDING, np.uint8)
        if last > first:
            data[: last - first] = np.frombuffer(values.buffers()[2], np.uint8)[first:last]
        return cls(data, offsets[rows] - first, offsets[rows + 1] - first, rows, bad)

    def __len__(self) -> int:
        return len(self.pos)

    def part(self, chosen: Ints) -> "Cursor":
        """Return a cursor at the chosen positions."""
        return Cursor(self.data, self.pos[chosen], self.end[chosen], self.row[chosen], self.bad)

    def fail(self, where: Bools, reason: str) -> None:
        """Make the rows bad where `where` is True, and move their positions to their ends."""
        if where.any():
            for row in self.row[where].tolist():
                self.bad.add(row, reason)
            self.pos = np.where(where, self.end, self.pos)

    def skip(self, lengths: Ints | int) -> Ints:
        """Advance each position by a number of bytes, and return the old positions. A row with a negative or too large
        length becomes bad.
        """
        start = self.pos
        impossible = (lengths > self.end - start) | (np.asarray(lengths) < 0)
        self.pos = start + lengths
        self.fail(impossible, TRUNCATED)
        return np.where(impossible, self.pos, start) if impossible.any() else start

    def numbers(self, path: str, bits: int = 64) -> Ints:
        """Read a zigzag varint of at most `bits` bits (32 or 64) at each position. A row with another number becomes
        bad, and its number is 0. `path` is the field that the reason names.
        """
        byte = self.data[self.pos]
        value = (byte & 0x7F).astype(np.uint64)
        more, length = np.flatnonzero(byte & 0x80), 1
        pos = self.pos + 1
        too_long = np.zeros(len(self), np.bool_)
        while len(more):
            byte = self.data[pos[more]]
            too_long[more] = byte > 1 if length == 9 else False
            value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * length)
            pos[more] += 1
            length += 1
            more = more[(byte & 0x80) != 0] if length < 10 else more[:0]
        number = (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(np.int64)
        cut_off = pos > self.end
        self.pos = pos
        failed = cut_off | too_long
        if bits < 64:
            failed |= number != number.astype(np.int32)
        if failed.any():
            self.fail(cut_off, TRUNCATED)
            self.fail(failed, f"{path}: a number of more than {bits} bits")
            number[failed] = 0
        return number
