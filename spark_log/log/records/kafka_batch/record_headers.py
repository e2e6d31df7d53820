"""Reads the headers of many records together: their positions in the bytes of the records."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.log.columns.value_bytes import slices
from spark_log.log.records.kafka_batch.varint import Longs, Varints, read_varint

Flags = npt.NDArray[np.bool_]

_FEW = 64
"""The number of records whose headers are read one by one."""


@dataclass(frozen=True)
class HeaderPositions:
    """All headers, in no particular order: the record of each, and the positions of its key and its value."""

    rows: Longs
    key_starts: Longs
    key_ends: Longs
    value_starts: Longs
    value_ends: Longs
    value_is_null: Longs

    def of(self, records: Flags) -> "HeaderPositions":
        """Return the headers of the marked records, in the order of the data."""
        where = np.flatnonzero(records[self.rows])
        where = where[np.argsort(self.key_starts[where], kind="stable")]
        return HeaderPositions(*(each[where] for each in vars(self).values()))

    def keys(self, data: bytes) -> pa.StringArray:
        """Return the keys of headers that are in the order of the data. Raise ArrowInvalid if one is not UTF-8."""
        return slices(pa.py_buffer(data), self.key_starts, self.key_ends).cast(pa.string())


NO_HEADERS = HeaderPositions(*(np.empty(0, np.int64) for _ in range(6)))


def read_bytes(varints: Varints, at: Longs, ends: Longs, bad: Flags) -> tuple[Longs, Longs, Flags, Longs]:
    """Read a length and as many bytes at each position; the length is -1 for null. Return the starts, the ends, which
    are null, and the positions after the bytes.
    """
    sizes, starts = varints.read(at, bad)
    bad |= (sizes < -1) | (sizes > ends - starts)
    sizes = np.where(bad, 0, sizes)
    is_null = sizes == -1
    after = starts + np.maximum(sizes, 0)
    return starts, after, is_null, after


def read_headers(data: bytes, varints: Varints, at: Longs, ends: Longs, counts: Longs) -> tuple[HeaderPositions, Flags]:
    """Read the first header of all records, then the second, and so on. When at most _FEW records have more headers,
    read these one by one. Return the headers, and which records do not end after their `counts` headers.
    """
    rows = np.flatnonzero(counts)
    at = at.copy()
    malformed = np.zeros(len(at), bool)
    parts: list[tuple[Longs, ...]] = [(np.empty(0, np.int64),) * 6]
    number = 0
    while len(rows) > _FEW:
        bad = np.zeros(len(rows), bool)
        key_starts, key_ends, no_key, here = read_bytes(varints, at[rows], ends[rows], bad)
        bad |= no_key
        value_starts, value_ends, no_value, here = read_bytes(varints, here, ends[rows], bad)
        parts.append((rows, key_starts, key_ends, value_starts, value_ends, no_value.astype(np.int64)))
        at[rows] = here
        malformed[rows] |= bad
        number += 1
        rows = rows[(counts[rows] > number) & ~bad]
    for row in rows.tolist():
        positions, at[row] = _headers_of(data, int(at[row]), int(ends[row]), int(counts[row]) - number)
        columns = np.array(positions, np.int64).reshape(-1, 5).T
        parts.append((np.full(columns.shape[1], row), *columns))
    malformed |= at != ends
    return HeaderPositions(*(np.concatenate([part[i] for part in parts]) for i in range(6))), malformed


def _headers_of(data: bytes, at: int, end: int, count: int) -> tuple[list[int], int]:
    """Return the positions of `count` headers of one record, five numbers for each as in HeaderPositions, and the
    position after them, -1 if they are malformed.
    """
    positions: list[int] = []
    try:
        for _ in range(count):
            # as in read_varint, for the lengths of one byte, which most have
            byte = data[at]
            key_size, key_start = ((byte >> 1) ^ -(byte & 1), at + 1) if byte < 0x80 else read_varint(data, at, end)
            key_end = key_start + key_size
            if key_size < 0 or key_end >= end:
                return [], -1
            byte = data[key_end]
            value_size, value_start = (
                ((byte >> 1) ^ -(byte & 1), key_end + 1) if byte < 0x80 else read_varint(data, key_end, end)
            )
            at = value_start + value_size if value_size >= 0 else value_start
            if value_size < -1 or at > end:
                return [], -1
            positions += (key_start, key_end, value_start, at, value_size < 0)
    except ValueError:
        return [], -1
    return positions, at


def check_keys(headers: HeaderPositions, data: bytes, batch_of: Longs, good: Flags) -> None:
    """Set `good` to False for each batch that has one of these headers with a key that is not UTF-8. The headers are in
    the order of the data, and `batch_of` are the numbers of the records' batches.
    """
    keys = slices(pa.py_buffer(data), headers.key_starts, headers.key_ends)
    if _are_utf8(keys):
        return
    numbers, begins = np.unique(batch_of[headers.rows], return_index=True)
    ends = [*begins[1:].tolist(), len(keys)]
    for number, begin, end in zip(numbers.tolist(), begins.tolist(), ends, strict=True):
        good[number] = _are_utf8(keys.slice(begin, end - begin))


def _are_utf8(keys: pa.BinaryArray) -> bool:
    try:
        keys.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True
