"""Decodes and encodes records one by one, which is faster than array operations for few records."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_log.errors import InvalidRecordError, SparkLogError
from spark_log.log.records.arrow_numpy import binary_array
from spark_log.log.records.kafka_batch.header import NO_TIMESTAMP, BatchHeader
from spark_log.log.records.kafka_batch.varint import read_varint, varint
from spark_log.log.records.record_limits import HEADERS_PER_RECORD_MAX
from spark_log.log.records.schema import HEADERS, MICROSECONDS_PER_MILLISECOND, RECORD_SCHEMA, TIMESTAMP

Headers = list[tuple[str, bytes | None]]

_MICROSECONDS_MAX = 2**63 - 1


class ManyHeadersError(Exception):
    """Few records have many headers: array operations decode them faster, and in less memory."""


@dataclass
class _Columns:
    """The fields of records. `times` are in microseconds, None for a record without a timestamp."""

    headers_left: int
    """How many headers further records may have."""
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[Headers | None] = field(default_factory=list)
    times: list[int | None] = field(default_factory=list)

    def cut(self, count: int) -> None:
        """Remove all but the first `count` records."""
        for column in (self.keys, self.values, self.headers, self.times):
            del column[count:]

    def table(self) -> pa.Table:
        """Return the records as a table of RECORD_SCHEMA."""
        no_headers = not any(self.headers)
        columns = [
            binary_array(self.keys)[0],
            binary_array(self.values)[0],
            pa.nulls(len(self.keys), HEADERS) if no_headers else pa.array(self.headers, HEADERS),
            pa.array(self.times, pa.int64()).view(TIMESTAMP),
        ]
        return pa.Table.from_arrays(columns, schema=RECORD_SCHEMA)


def decode_few(
    batches: Sequence[tuple[memoryview | bytes, BatchHeader]], headers_max: int
) -> list[pa.Table | SparkLogError]:
    """Return for each batch its decompressed records as a table of RECORD_SCHEMA, or an InvalidRecordError if they are
    malformed. Raise ManyHeadersError if all records together have more than `headers_max` headers.
    """
    columns = _Columns(headers_max)
    parts: list[tuple[int, int] | SparkLogError] = []
    for data, header in batches:
        start = len(columns.keys)
        try:
            _read(data, header, columns)
            parts.append((start, header.record_count))
        except ValueError as error:
            columns.cut(start)
            parts.append(InvalidRecordError(f"a malformed record: {error}"))
    table = columns.table()
    return [part if isinstance(part, SparkLogError) else table.slice(*part) for part in parts]


def _read(data: memoryview | bytes, header: BatchHeader, columns: _Columns) -> None:
    """Add the records of a batch to the columns. Raises ValueError if they are malformed."""
    at = 0
    for number in range(header.record_count):
        size, at = read_varint(data, at, len(data))
        end = at + size
        if size < 0 or end > len(data):
            raise ValueError("cut off")
        delta, at = read_varint(data, at + 1, end)  # after the attributes of the record, which Kafka does not use
        offset_delta, at = read_varint(data, at, end)
        if offset_delta != number:
            raise ValueError("offset deltas do not count from 0")
        key, at = _bytes(data, at, end)
        value, at = _bytes(data, at, end)
        headers, at = _headers(data, at, end, columns.headers_left)
        columns.headers_left -= len(headers or ())
        if at != end:
            raise ValueError("the length of a record is wrong")
        time_ms = header.base_timestamp_ms + delta
        if abs(time_ms) * MICROSECONDS_PER_MILLISECOND > _MICROSECONDS_MAX:
            raise ValueError("a timestamp beyond int64")
        columns.keys.append(key)
        columns.values.append(value)
        columns.headers.append(headers)
        columns.times.append(None if time_ms == NO_TIMESTAMP else time_ms * MICROSECONDS_PER_MILLISECOND)
    if at != len(data):
        raise ValueError("bytes after the last record")


def _bytes(data: Any, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at, end)
    if size == -1:
        return None, at
    if size < -1 or at + size > end:
        raise ValueError("a length beyond the record")
    return bytes(data[at : at + size]), at + size


def _headers(data: Any, at: int, end: int, count_max: int) -> tuple[Headers | None, int]:
    count, at = read_varint(data, at, end)
    if not 0 <= count <= HEADERS_PER_RECORD_MAX:
        raise ValueError(f"{count} headers")
    if count > count_max:
        raise ManyHeadersError
    headers: Headers = []
    for _ in range(count):
        key, at = _bytes(data, at, end)
        if key is None:
            raise ValueError("a header without key")
        value, at = _bytes(data, at, end)
        headers.append((key.decode(), value))
    return headers or None, at


def encode_few(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Sequence[dict[str, Any]] | None],
    timestamp_deltas: Sequence[int],
    offset_deltas: Sequence[int],
) -> bytes:
    """Return the encoded records of a batch. Each argument has one item per record."""
    parts = []
    for key, value, header, timestamp_delta, offset_delta in zip(
        keys, values, headers, timestamp_deltas, offset_deltas, strict=True
    ):
        body = b"".join(
            (b"\0", varint(timestamp_delta), varint(offset_delta), *_sized(key), *_sized(value), _encoded(header))
        )
        parts += [varint(len(body)), body]
    return b"".join(parts)


def _sized(data: bytes | None) -> tuple[bytes, bytes]:
    return (_NULL, b"") if data is None else (varint(len(data)), data)


def _encoded(headers: Sequence[dict[str, Any]] | None) -> bytes:
    if not headers:
        return b"\0"
    pieces = [varint(len(headers))]
    for header in headers:
        pieces += (*_sized(header["key"].encode()), *_sized(header["value"]))
    return b"".join(pieces)


_NULL = varint(-1)
