"""Reads Confluent's framing: a zero byte, the schema's id in 4 bytes, big-endian, then the message."""

import numpy as np
import pyarrow as pa

from spark_log.log.columns.value_bytes import offsets_of, slices

NOT_FRAMED = -1
HEADER_BYTES = 5
NO_FRAMING = "does not begin with Confluent's framing"


def unframed(values: pa.BinaryArray) -> tuple[pa.BinaryArray, "np.ndarray[tuple[int], np.dtype[np.int64]]"]:
    """Return the messages, and the schema id of each. Values without framing are null messages with id NOT_FRAMED."""
    ids = np.full(len(values), NOT_FRAMED, np.int64)
    offsets = offsets_of(values).astype(np.int64)
    framed = offsets[1:] - offsets[:-1] >= HEADER_BYTES
    if values.null_count:
        framed &= values.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(framed)
    if not len(rows):
        return pa.nulls(len(values), pa.binary()), ids
    data = np.frombuffer(values.buffers()[2], np.uint8)
    starts = offsets[rows]
    numbers = data[starts[:, None] + np.arange(1, HEADER_BYTES)].astype(np.int64) @ (256 ** np.arange(3, -1, -1))
    is_magic = data[starts] == 0
    ids[rows[is_magic]] = numbers[is_magic]
    rows = np.flatnonzero(ids != NOT_FRAMED)
    order = np.full(len(values), -1)
    order[rows] = np.arange(len(rows))
    messages = slices(values.buffers()[2], offsets[rows] + HEADER_BYTES, offsets[rows + 1])
    return messages.take(pa.array(order, mask=order < 0)), ids
