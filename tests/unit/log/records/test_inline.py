import os

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_log.errors import CorruptRecordError, InvalidConfigurationError, InvalidRecordError
from spark_log.log.records.inline import InlineBlob, decode, encode, slice_batches
from spark_log.log.records.read_shape import ReadShape
from spark_log.log.records.schema import HEADERS, RECORD_SCHEMA, TIMESTAMP, TimestampType, read_schema
from tests.unit.log.records.strategies import as_read, example_table, record_tables, table_of


def read(blob: InlineBlob) -> pa.Table:
    return decode(blob.data, blob.facts.checksum, blob.facts.record_count)


def resealed(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


@given(record_tables(), st.sampled_from(["none", "zstd"]))
@settings(max_examples=80, deadline=None)
def test_round_trip(table: pa.Table, codec: str) -> None:
    blob = encode(table, codec)
    got = read(blob)
    got.validate(full=True)
    assert got.equals(table)
    times = table.column("timestamp").cast(pa.int64()).to_pylist() or [-1000]
    assert (blob.facts.min_timestamp_ms, blob.facts.max_timestamp_ms) == (min(times) // 1000, max(times) // 1000)
    assert (blob.facts.record_count, blob.facts.bytes) == (table.num_rows, len(blob.data))


@given(record_tables(), st.integers(0, 1 << 40), st.integers(0, 35), st.integers(0, 35))
@settings(max_examples=60, deadline=None)
def test_slices_are_those_of_a_segment(table: pa.Table, base: int, start: int, end: int) -> None:
    shape = ReadShape("orders", 3, base, TimestampType.CREATE_TIME, read_schema(include_headers=True))
    batches = slice_batches(read(encode(table)), shape, start=base + start, end=base + end)
    got = pa.Table.from_batches(list(batches), read_schema(include_headers=True))
    first, last = min(start, table.num_rows), min(end, table.num_rows)
    length = max(0, last - first)
    assert got.equals(as_read(table.slice(first, length), [base + first + i for i in range(length)]))


def test_large_blobs_are_compressed_and_small_ones_are_not() -> None:
    large = table_of([(None, b"x" * 100, None, 1000)] * 500)
    assert encode(large).facts.codec == "zstd"
    assert encode(large).facts.bytes < encode(large, "none").facts.bytes / 5
    assert encode(example_table(1)).facts.codec == "none"
    assert encode(table_of([(None, os.urandom(9000), None, 1000)])).facts.codec == "none"
    assert len(encode(example_table(1)).data) < 1000
    assert len(encode(example_table(5000).slice(4000, 1)).data) < 1000


@given(st.integers(0, 1 << 16), st.booleans())
@settings(max_examples=60, deadline=None)
def test_flipped_bits_are_refused(bit: int, large: bool) -> None:
    blob = encode(example_table(200 if large else 2))
    damaged = bytearray(blob.data)
    damaged[bit // 8 % len(damaged)] ^= 1 << (bit % 8)
    with pytest.raises(CorruptRecordError, match="checksum"):
        decode(bytes(damaged), blob.facts.checksum, blob.facts.record_count)


def test_damage_behind_a_valid_checksum() -> None:
    blob = encode(example_table(200))
    assert blob.facts.codec == "zstd"
    for damaged in (b"", b"SLB1", b"XXXX" + blob.data[4:], blob.data[:-10], blob.data[:4] + b"\7" + blob.data[5:]):
        with pytest.raises(CorruptRecordError):
            decode(damaged, resealed(damaged), 200)
    with pytest.raises(CorruptRecordError, match="200 records, expected 199"):
        decode(blob.data, blob.facts.checksum, 199)


def test_hostile_offsets_do_not_crash() -> None:
    data = encode(table_of([(b"k" * 9, b"v" * 9, None, 1000)]), "none").data
    at = data.index((9).to_bytes(4, "little"))
    damaged = data[:at] + (1 << 30).to_bytes(4, "little") + data[at + 4 :]
    with pytest.raises(CorruptRecordError):
        decode(damaged, resealed(damaged), 1)


def test_decompression_bomb() -> None:
    blob = encode(table_of([(None, bytes(1 << 20), None, 1000)] * 20))
    assert len(blob.data) < 20_000
    with pytest.raises(CorruptRecordError, match="at most 1000000 are allowed"):
        decode(blob.data, blob.facts.checksum, 20, max_bytes=1_000_000)
    lying = blob.data[:8] + (1000).to_bytes(8, "little") + blob.data[16:]
    with pytest.raises(CorruptRecordError):
        decode(lying, resealed(lying), 20, max_bytes=1_000_000)


def test_what_cannot_be_encoded() -> None:
    with pytest.raises(InvalidConfigurationError, match="brotli"):
        encode(example_table(1), "brotli")
    with pytest.raises(InvalidRecordError, match="timestamp"):
        encode(table_of([(b"k", b"v", None, None)]))
    with pytest.raises(InvalidRecordError, match="columns"):
        encode(pa.table({"value": [b"v"]}))


def test_a_blob_of_a_slice_has_no_bytes_of_its_neighbours() -> None:
    """The slices of a table may be the records of different clients, for different topics."""
    texts = [xxhash.xxh64_hexdigest(b"%d" % number).encode()[: 4 + number % 12] for number in range(200)]
    columns = [
        pa.array([None if number % 3 else text for number, text in enumerate(texts)], pa.binary()),
        pa.array(texts, pa.binary()),
        pa.array([[("h", text)] if number % 5 == 0 else None for number, text in enumerate(texts)], HEADERS),
        pa.array(range(200), TIMESTAMP),
    ]
    whole = pa.Table.from_arrays(columns, schema=RECORD_SCHEMA)
    for start in range(0, 200, 7):
        part = whole.slice(start, 3)
        blob = encode(part, "none")
        assert read(blob).to_pylist() == part.to_pylist()
        for number, text in enumerate(texts):
            assert start <= number < start + 3 or text not in blob.data, (start, number)
        chunks = pa.concat_tables([whole.slice(start, 1), whole.slice(start + 1, 2)])
        assert encode(chunks, "none").data == blob.data
