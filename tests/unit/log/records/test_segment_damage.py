"""Whatever happens to a segment's bytes, a reader gets CorruptRecordError or the very same records."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spark_log.errors import CorruptRecordError, StorageUnavailableError
from spark_log.log.records import segment_footer, segment_open, segment_write
from spark_log.log.records.schema import SEGMENT_SCHEMA
from spark_log.log.records.segment_open import ExpectedSegment, open_segment
from tests.unit.log.records.strategies import example_table, read_back, segment_of

CODECS = ["zstd", "none", "lz4", "snappy", "gzip"]


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_write, "ROW_GROUP_RECORDS", 40)


def unchanged_or_corrupt(damaged: bytes, content: bytes, facts: segment_write.SegmentFacts) -> None:
    try:
        got = read_back(damaged, facts)
    except CorruptRecordError as error:
        assert "a.parquet" in str(error)
        return
    assert got.equals(read_back(content, facts))


def headers_of(content: bytes) -> set[int]:
    """The bytes of each page's header up to its checksum; there is one page in a column of a row group."""
    metadata = pq.read_metadata(io.BytesIO(content))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    return {byte for column in columns for byte in range(column.data_page_offset, column.data_page_offset + 16)}


@given(st.sampled_from(CODECS), st.booleans(), st.data())
@settings(max_examples=150, deadline=None)
def test_flipped_bits(codec: str, gaps: bool, data: st.DataObject) -> None:
    content, facts = segment_of(example_table(), codec, [i * i for i in range(100)] if gaps else None)
    damaged = bytearray(content)
    bits = data.draw(st.lists(st.integers(0, 8 * len(content) - 1), min_size=1, max_size=3))
    # one bit of a page's header can turn the page's checksum off; a second one in the page is then not found
    assume(len(bits) == 1 or not any(bit // 8 in headers_of(content) for bit in bits))
    for bit in bits:
        damaged[bit // 8] ^= 1 << (bit % 8)
    unchanged_or_corrupt(bytes(damaged), content, facts)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_zeroed_or_overwritten_pieces(data: st.DataObject) -> None:
    content, facts = segment_of(example_table())
    at = data.draw(st.integers(0, len(content) - 1))
    piece = data.draw(st.binary(min_size=1, max_size=64) | st.integers(1, 512).map(bytes))
    unchanged_or_corrupt((content[:at] + piece + content[at + len(piece) :])[: len(content)], content, facts)


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_every_bit_of_a_page_header(codec: str) -> None:
    # Headers of pages are outside of the pages' checksums; they are found by their column's start.
    content, facts = segment_of(example_table(), codec)
    group = pq.read_metadata(io.BytesIO(content)).row_group(2)
    for column in (0, 3, 4):
        start = group.column(column).data_page_offset
        for bit in range(8 * start, 8 * (start + 24)):
            damaged = bytearray(content)
            damaged[bit // 8] ^= 1 << (bit % 8)
            unchanged_or_corrupt(bytes(damaged), content, facts)


def test_every_bit_of_the_footer_counts() -> None:
    content, facts = segment_of(example_table())
    length = segment_footer.footer_length(content[-8:], "a.parquet") + 8
    for position in range(len(content) - length, len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptRecordError):
            read_back(bytes(damaged), facts)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 100, -1])
def test_truncated(length: int, tmp_path: Path) -> None:
    content, facts = segment_of(example_table())
    cut = content[:length]
    path = tmp_path / "a.parquet"
    path.write_bytes(cut)
    for size in (facts.bytes, len(cut)):
        expected = ExpectedSegment("a.parquet", size, 100)
        with pytest.raises(CorruptRecordError, match=r"a\.parquet"):
            open_segment(path, expected)
        with pytest.raises(CorruptRecordError, match=r"a\.parquet"):
            open_segment(pa.BufferReader(cut), expected)


def test_zeroed_grown_and_swapped_for_another() -> None:
    content, facts = segment_of(example_table())
    other, _ = segment_of(example_table(99))
    for damaged in (bytes(len(content)), content + b"x", other):
        with pytest.raises(CorruptRecordError, match=r"a\.parquet"):
            read_back(damaged, facts)
    with pytest.raises(CorruptRecordError, match="99 records, expected 100"):
        open_segment(pa.BufferReader(other), ExpectedSegment("a.parquet", len(other), 100))


def foreign(table: pa.Table, seal: bool, **options: object) -> bytes:
    sink = io.BytesIO()
    writer = pq.ParquetWriter(sink, table.schema, **options)
    writer.add_key_value_metadata(
        {segment_footer.DIGEST_KEY: segment_footer.PLACEHOLDER.decode()} if seal else {"a": ""}
    )
    writer.write_table(table)
    writer.close()
    return segment_footer.sealed(sink.getvalue()) if seal else sink.getvalue()


def test_parquet_that_is_no_segment() -> None:
    table = pa.table({"value": [b"v"]})
    for data, message in ((foreign(table, seal=False), "not a segment"), (foreign(table, seal=True), "schema")):
        with pytest.raises(CorruptRecordError, match=message):
            open_segment(pa.BufferReader(data), ExpectedSegment("a.parquet", len(data), 1))


def test_segment_without_statistics() -> None:
    table = pa.table([[0], [0], [b""], [b""], [None]], schema=SEGMENT_SCHEMA)
    data = foreign(table, seal=True, write_statistics=False)
    _, facts = segment_of(example_table(1))
    with pytest.raises(CorruptRecordError, match="statistics"):
        read_back(data, segment_write.SegmentFacts(1, len(data), 0, 0, facts.codec, ""))


def test_decompression_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_open, "ROW_GROUP_BYTES_MAX", 5 << 20)
    bomb = pa.table(
        [
            pa.array(range(3), pa.int32()),
            pa.array([0] * 3).cast(SEGMENT_SCHEMA.field(1).type),
            pa.array([b""] * 3),
            pa.array([bytes(2 << 20)] * 3),
            pa.nulls(3, SEGMENT_SCHEMA.field(4).type),
        ],
        schema=SEGMENT_SCHEMA,
    )
    data = foreign(bomb, seal=True, compression="zstd", use_dictionary=False)
    assert len(data) < 10_000
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptRecordError, match="row group 0 has 62"):
        open_segment(pa.BufferReader(data), ExpectedSegment("a.parquet", len(data), 3))
    assert pa.total_allocated_bytes() - before < 100_000


def test_too_many_rows_and_too_long_footers(monkeypatch: pytest.MonkeyPatch) -> None:
    content, facts = segment_of(example_table())
    monkeypatch.setattr(segment_open, "ROW_GROUP_RECORDS_MAX", 30)
    with pytest.raises(CorruptRecordError, match="40 records"):
        read_back(content, facts)
    monkeypatch.setattr(segment_open, "FOOTER_BYTES_MAX", 500)
    with pytest.raises(CorruptRecordError, match="footer"):
        read_back(content, facts)


def test_large_footers_are_read_with_a_second_request(monkeypatch: pytest.MonkeyPatch) -> None:
    content, facts = segment_of(example_table())
    monkeypatch.setattr(segment_open, "_TAIL_BYTES", 100)
    assert read_back(content, facts).num_rows == 100


def test_missing_is_unavailable_and_not_corrupt(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailableError, match=r"a\.parquet"):
        open_segment(tmp_path / "a.parquet", ExpectedSegment("a.parquet", 100, 1))
