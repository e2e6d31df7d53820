"""Converts NumPy arrays and bytes to Arrow arrays, and back, by their buffers.

pyarrow's own converters (`pa.array`, `to_numpy`, `np.asarray` of an Arrow array) import pandas if it is installed. This
takes longer than all other work of a producer for its first record, so producers do not use them.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Longs = npt.NDArray[np.int64]
Integers = npt.NDArray[np.signedinteger[Any]]

_FEW = 16
_TYPES: dict[Any, pa.DataType] = {np.dtype(np.int32): pa.int32(), np.dtype(np.int64): pa.int64()}


def from_numpy(values: Integers, type: pa.DataType | None = None) -> pa.Array:
    """Return the integers as an Arrow array without nulls, of their own type or of `type`, which has the same width."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(type or _TYPES[values.dtype], len(values), [None, data])


def to_numpy(values: pa.Array | pa.ChunkedArray) -> Integers:
    """Return the values of an array of signed integers or timestamps, which must not have nulls. If they are in one
    chunk, the result shares its memory and is read-only.
    """
    assert values.null_count == 0, values.type
    dtype = np.dtype(f"i{values.type.bit_width // 8}")
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    found = [
        np.frombuffer(each.buffers()[1], dtype, len(each), dtype.itemsize * each.offset) for each in chunks if len(each)
    ]
    return found[0] if len(found) == 1 else np.concatenate([np.empty(0, dtype), *found])


def binary_array(rows: Sequence[bytes | None]) -> tuple[pa.Array, Longs | list[int]]:
    """Return the values as an Arrow array, and the length of each value, -1 for null."""
    count, nulls = len(rows), rows.count(None)
    if nulls == count:
        return pa.nulls(count, pa.binary()), np.full(count, -1)
    data = b"".join(rows) if not nulls else b"".join(row for row in rows if row is not None)  # type: ignore[arg-type]
    lengths = map(len, rows) if not nulls else (-1 if row is None else len(row) for row in rows)  # type: ignore[arg-type]
    sizes: Longs | list[int]
    offsets: npt.NDArray[np.int32] | array[int]
    if count <= _FEW:  # NumPy calls would take longer
        sizes = list(lengths)
        offsets = array("i", accumulate((max(0, size) for size in sizes), initial=0))
    else:
        sizes = np.fromiter(lengths, np.int64, count)
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(np.maximum(sizes, 0) if nulls else sizes, out=offsets[1:])
    valid = validity([row is not None for row in rows]) if nulls else None
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers, null_count=nulls), sizes


def validity(valid: Sequence[bool]) -> pa.Buffer:
    """Return Arrow's validity bitmap of these flags."""
    return pa.py_buffer(np.packbits(np.array(valid, bool), bitorder="little"))


def is_null(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return for each value whether it is null, shape (values,)."""
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    return np.concatenate([np.empty(0, bool), *map(_is_null, chunks)])


def _is_null(values: pa.Array) -> npt.NDArray[np.bool_]:
    if values.null_count in (0, len(values)):
        return np.full(len(values), values.null_count > 0)
    bits = np.unpackbits(np.frombuffer(values.buffers()[0], np.uint8), bitorder="little")
    found: npt.NDArray[np.bool_] = bits[values.offset : values.offset + len(values)] == 0
    return found
