"""Records for tests of the record batch codec: generated, as the encoder takes them, as the decoder returns them."""

import struct
from collections.abc import Sequence

import google_crc32c
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from spark_log.log.records.kafka_batch.decode import FEW, DecodedBatch, decode
from spark_log.log.records.kafka_batch.encode import StoredRecords
from spark_log.log.records.kafka_batch.header import HEADER_BYTES
from spark_log.log.records.schema import HEADERS

Row = tuple[int | None, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Timestamp in milliseconds, key, value, headers."""

_BYTES = st.none() | st.binary(max_size=200)
_RECORD = st.tuples(st.integers(0, 2**48), _BYTES, _BYTES, st.lists(st.tuples(st.text(max_size=9), _BYTES), max_size=3))
RECORDS = st.builds(
    lambda rows, many: rows * (FEW // len(rows) + 1) if many else rows,
    st.lists(_RECORD, min_size=1, max_size=FEW),
    st.sampled_from([False, False, True]),
)
"""The records of a batch, up to FEW or more: the codec has a way for each."""
_MUTATION = st.tuples(st.integers(0, 10_000), st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]))
MUTATIONS = st.lists(_MUTATION, min_size=1, max_size=4)
"""Where a byte is changed, and to which."""


def damaged(batch: bytes, mutations: Sequence[tuple[int, int]], cut: int) -> bytes:
    """An uncompressed batch with changed records, without its last `cut` bytes, but with the right checksum."""
    found = bytearray(batch)
    for at, byte in mutations:
        found[HEADER_BYTES + at % (len(found) - HEADER_BYTES)] = byte
    return with_checksum(found[: len(found) - cut] if cut < len(found) - HEADER_BYTES else found)


def with_checksum(batch: bytes | bytearray) -> bytes:
    """The batch with the length and the checksum that its bytes need."""
    found = bytearray(batch)
    struct.pack_into(">i", found, 8, len(found) - 12)
    struct.pack_into(">I", found, 17, google_crc32c.value(bytes(found[21:])))
    return bytes(found)


def rows_of(table: pa.Table) -> list[Row]:
    """The rows of decoded records."""
    return [
        (
            None if time is None else time // 1000,
            key,
            value,
            [(header["key"], header["value"]) for header in headers or ()],
        )
        for time, key, value, headers in zip(
            table.column("timestamp").cast(pa.int64()).to_pylist(),
            *(table.column(name).to_pylist() for name in ("key", "value", "headers")),
            strict=True,
        )
    ]


def stored(rows: Sequence[Row], first: int = 0, offsets: Sequence[int] | None = None) -> StoredRecords:
    """Rows to encode, with the offsets from `first` on, or those given."""
    times, keys, values, headers = zip(*rows, strict=True)
    return StoredRecords(
        np.arange(first, first + len(rows)) if offsets is None else np.array(offsets, np.int64),
        np.array(times, np.int64),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([each or None for each in headers], HEADERS) if any(headers) else None,
    )


def no_records() -> StoredRecords:
    return StoredRecords(np.empty(0, np.int64), np.empty(0, np.int64), pa.nulls(0), pa.nulls(0), None)


def decoded(batch: bytes) -> DecodedBatch:
    """One batch, which must be good."""
    [found] = decode([batch])
    assert isinstance(found, DecodedBatch), found
    return found
