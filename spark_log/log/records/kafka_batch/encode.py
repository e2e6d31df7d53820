"""Encodes records as one record batch: columns to bytes, without a loop over the records."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.log.records.arrow_numpy import from_numpy
from spark_log.log.records.kafka_batch.few_records import encode_few
from spark_log.log.records.kafka_batch.header import packed
from spark_log.log.records.kafka_batch.varint import Longs, put_varints, varint_sizes, zigzag
from spark_log.log.records.schema import TimestampType

FEW = 16
"""Batches of at most this number of records are encoded record by record."""
_EMPTY = pa.scalar(b"", pa.binary())


@dataclass(frozen=True)
class StoredRecords:
    """Records of one partition, leader epoch and timestamp type, in the order of their offsets.

    `headers` is of type HEADERS, or None if no record has headers.
    """

    offsets: Longs
    timestamps_ms: Longs
    keys: pa.Array
    values: pa.Array
    headers: pa.Array | None


def encode(
    records: StoredRecords,
    *,
    base_offset: int,
    last_offset: int,
    leader_epoch: int,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> bytes:
    """Return one batch without compression, from `base_offset` to `last_offset`, both inclusive.

    Offsets without a record are gaps, as compaction leaves them. Without records the result is an empty batch, which
    moves a consumer past the gap. Records of type LogAppendTime must all have the same timestamp, because consumers use
    the batch's largest timestamp.
    """
    pack = partial(
        packed,
        base_offset=base_offset,
        last_offset=last_offset,
        leader_epoch=leader_epoch,
        timestamp_type=timestamp_type,
    )
    if not len(records.offsets):
        return pack(b"")
    base_ms = int(records.timestamps_ms[0])
    timestamp_deltas, offset_deltas = records.timestamps_ms - base_ms, records.offsets - base_offset
    return pack(
        _encoded(records, timestamp_deltas, offset_deltas),
        base_timestamp_ms=base_ms,
        max_timestamp_ms=int(records.timestamps_ms.max()),
        record_count=len(records.offsets),
    )


def _encoded(records: StoredRecords, timestamp_deltas: Longs, offset_deltas: Longs) -> bytes:
    count = len(timestamp_deltas)
    if count <= FEW:
        return encode_few(
            records.keys.to_pylist(),
            records.values.to_pylist(),
            [None] * count if records.headers is None else records.headers.to_pylist(),
            timestamp_deltas.tolist(),
            offset_deltas.tolist(),
        )
    key_sizes, value_sizes = _sizes(records.keys), _sizes(records.values)
    tails = None if records.headers is None else _header_bytes(records.headers)
    tail_sizes = np.ones(count, np.int64) if tails is None else _sizes(tails)
    before_key = [zigzag(timestamp_deltas), zigzag(offset_deltas), zigzag(key_sizes)]
    before_value = zigzag(value_sizes)
    value_varints = varint_sizes(before_value)
    sizes = (
        1
        + sum(map(varint_sizes, before_key))
        + np.maximum(key_sizes, 0)
        + value_varints
        + np.maximum(value_sizes, 0)
        + tail_sizes
    )
    prefix = _varint_rows([zigzag(sizes), None, *before_key])
    middle = _varint_rows([before_value])
    tail = pa.scalar(b"\0", pa.binary()) if tails is None else tails
    return _joined(prefix, _present(records.keys), middle, _present(records.values), tail)


def _joined(*columns: pa.Array | pa.Scalar) -> bytes:
    """Return the bytes of all columns, row by row."""
    whole = pc.binary_join_element_wise(*columns, _EMPTY)
    offsets = np.frombuffer(whole.buffers()[1], np.int32)[whole.offset : whole.offset + len(whole) + 1]
    return whole.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0])).to_pybytes()  # type: ignore[no-any-return]


def _varint_rows(columns: list[np.ndarray[tuple[int], np.dtype[np.uint64]] | None]) -> pa.Array:
    """Return for each row the varints of its columns, concatenated. A column None is a zero byte in each row."""
    count = next(len(column) for column in columns if column is not None)
    sizes = [np.ones(count, np.int64) if column is None else varint_sizes(column) for column in columns]
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(sum(sizes), out=offsets[1:])
    data = np.zeros(int(offsets[-1]), np.uint8)
    at = offsets[:-1]
    for column, size in zip(columns, sizes, strict=True):
        if column is not None:
            put_varints(data, at, column, size)
        at = at + size
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _header_bytes(headers: pa.ListArray) -> pa.Array:
    """Return the number of headers and the headers of each record, as bytes on the wire."""
    items = headers.flatten()
    keys, values = pc.struct_field(items, "key").cast(pa.binary()), pc.struct_field(items, "value")
    counts = pc.fill_null(pc.list_value_length(headers), 0)
    header_counts = _varint_rows([zigzag(np.asarray(counts).astype(np.int64))])
    if not len(items):
        return header_counts
    pieces = pc.binary_join_element_wise(
        _varint_rows([zigzag(_sizes(keys))]),
        _present(keys),
        _varint_rows([zigzag(_sizes(values))]),
        _present(values),
        _EMPTY,
    )
    ends = np.concatenate([[0], np.cumsum(np.asarray(counts))]).astype(np.int32)
    rows = pc.binary_join(pa.ListArray.from_arrays(from_numpy(ends), pieces), _EMPTY)
    return pc.binary_join_element_wise(header_counts, rows, _EMPTY)


def _sizes(values: pa.Array) -> Longs:
    """Return the length of each value, -1 for null, shape (values,)."""
    lengths = pc.binary_length(values)
    return np.asarray(pc.fill_null(lengths, -1) if values.null_count else lengths).astype(np.int64)


def _present(values: pa.Array) -> pa.Array:
    return pc.fill_null(values, _EMPTY) if values.null_count else values
