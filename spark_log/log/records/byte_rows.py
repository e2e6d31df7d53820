"""Arranges the bytes of many binary values as matrices of machine words, so that array operations compute hashes.

A Python loop here runs once for each distinct length (in words), not once for each value.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.log.records.arrow_numpy import is_null

_WORDS_PER_STEP = 1 << 18
"""Words of one matrix: 2 MB of uint64 fit into the processor's cache, and bound the memory for any batch."""


class WordRows(NamedTuple):
    """Values that take the same number of words."""

    rows: npt.NDArray[np.int64]
    """Index of each value in the array, shape (values,)."""
    lengths: npt.NDArray[np.int64]
    """Bytes of each value, shape (values,); a null counts as 0 bytes."""
    words: npt.NDArray[Any]
    """Little-endian words, shape (words, values); bytes past a value's end are 0."""


def word_rows(values: pa.Array, word: type[np.uint32] | type[np.uint64]) -> Iterator[WordRows]:
    """Yield groups with each value of a binary or string array once. The array may be a slice, or of a large type."""
    starts, lengths, data = _layout(values, word)
    if len(starts) == 0:
        return
    width = np.dtype(word).itemsize
    counts = (lengths + (width - 1)) // width
    lowest, highest = int(counts.min()), int(counts.max())
    if lowest == highest:
        order, bounds = np.arange(len(starts)), [0, len(starts)]
    else:
        # numpy sorts 16-bit integers by radix, which is several times faster.
        order = np.argsort(counts.astype(np.uint16) if highest < 1 << 16 else counts, kind="stable")
        ordered = counts[order]
        bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(starts)]
    # Word i of this view starts at byte i, aligned or not.
    at_byte: npt.NDArray[Any] = np.ndarray((len(data) - width + 1,), word, data, strides=(1,))
    for begin, end in pairwise(bounds):
        count = int(counts[order[begin]])
        step = max(1, _WORDS_PER_STEP // max(1, count))
        for first in range(begin, end, step):
            rows = order[first : min(first + step, end)]
            row_lengths = lengths[rows]
            words = at_byte[starts[rows][None, :] + (width * np.arange(count))[:, None]]
            if count:
                spare_bits = (width * 8 - 8 * (row_lengths - width * (count - 1))).astype(word)
                words[-1] &= np.right_shift(np.iinfo(word).max, spare_bits, dtype=word)
            yield WordRows(rows, row_lengths, words)


def _layout(
    values: pa.Array, word: type[np.generic]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the start and the length of each value, and a copy of their bytes, padded so that a whole word can be read
    at each byte.
    """
    large = pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type)
    padding = np.dtype(word).itemsize
    _validity, offset_buffer, data_buffer = values.buffers()
    if len(values) == 0 or offset_buffer is None:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.zeros(padding, np.uint8)
    raw = np.frombuffer(offset_buffer, np.int64 if large else np.int32)
    offsets = raw[values.offset : values.offset + len(values) + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + padding, np.uint8)
    if data_buffer is not None and last > first:
        data[:-padding] = np.frombuffer(data_buffer, np.uint8)[first:last]
    lengths = np.diff(offsets)
    if values.null_count:
        # Arrow allows a null to have bytes.
        lengths[is_null(values)] = 0
    return offsets[:-1] - first, lengths, data
