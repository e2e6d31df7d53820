import errno
import gc
import io
import weakref
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_log.config import TopicConfig
from spark_log.errors import InvalidConfigurationError, InvalidRecordError, MessageSizeTooLargeError
from spark_log.log.records import segment_write
from spark_log.log.records.read_shape import ReadShape
from spark_log.log.records.schema import RECORD_SCHEMA, SEGMENT_SCHEMA, TimestampType, read_schema
from spark_log.log.records.segment_open import ExpectedSegment, open_segment
from spark_log.log.records.segment_read import first_offset_at_or_after, read_slice
from spark_log.log.records.segment_write import SegmentWriter, codec_name
from tests.unit.log.records.strategies import as_read, example_table, read_back, record_tables, segment_of, table_of

CODECS = ["zstd", "snappy", "lz4", "gzip", "none"]


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_write, "ROW_GROUP_RECORDS", 8)


def opened(data: bytes, records: int) -> pq.ParquetFile:
    return open_segment(pa.BufferReader(data), ExpectedSegment("a.parquet", len(data), records))


@given(record_tables(), st.sampled_from(CODECS), st.integers(1, 5), st.integers(0, 1 << 40), st.data())
@settings(max_examples=120, deadline=None)
def test_any_range_reads_back_as_written(
    table: pa.Table, codec: str, writes: int, base: int, data: st.DataObject
) -> None:
    content, facts = segment_of(table, codec, writes=writes)
    rows = table.num_rows
    start, end = data.draw(st.integers(0, rows + 2)), data.draw(st.integers(0, rows + 2))
    got = read_back(content, facts, base + start, base + end, base)
    first, last = min(start, rows), min(end, rows)
    expected = as_read(table.slice(first, max(0, last - first)), [base + i for i in range(first, last)])
    got.validate(full=True)
    assert got.equals(expected)
    assert (facts.record_count, facts.bytes, facts.codec) == (rows, len(content), codec)
    assert facts.checksum == xxhash.xxh3_128_hexdigest(content)
    times = table.column("timestamp").cast(pa.int64()).to_pylist() or [-1000]
    assert (facts.min_timestamp_ms, facts.max_timestamp_ms) == (min(times) // 1000, max(times) // 1000)


@given(st.sets(st.integers(0, 200), min_size=1), st.integers(0, 210), st.integers(0, 210), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_offsets_with_gaps(places: set[int], start: int, end: int, writes: int) -> None:
    deltas = sorted(places)
    table = example_table(len(deltas))
    content, facts = segment_of(table, deltas=deltas, writes=writes)
    keep = [i for i, delta in enumerate(deltas) if start <= delta < end]
    got = read_back(content, facts, 1000 + start, 1000 + end, 1000)
    assert got.equals(as_read(table.take(pa.array(keep, pa.int64())), [1000 + deltas[i] for i in keep]))


@pytest.mark.parametrize("columns", [["value"], ["offset"], ["topic"], ["partition", "timestampType"], ["headers"]])
@pytest.mark.parametrize("gaps", [False, True])
def test_only_the_columns_that_are_asked_for(columns: list[str], gaps: bool) -> None:
    table = example_table()
    deltas = [i * 2 for i in range(100)] if gaps else list(range(100))
    content, facts = segment_of(table, deltas=deltas)
    schema = read_schema(include_headers=True, columns=columns)
    assert read_back(content, facts, schema=schema).equals(as_read(table, deltas).select(columns))


def test_local_file_is_not_memory_mapped(tmp_path: Path) -> None:
    """The pages of a mapping would count as memory of the process as long as the file is open."""
    content, facts = segment_of(example_table())
    (tmp_path / "a.parquet").write_bytes(content)
    opened = open_segment(tmp_path / "a.parquet", ExpectedSegment("a.parquet", facts.bytes, 100))
    assert opened.read().column("value").equals(example_table().column("value"))
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_layout_of_the_file() -> None:
    content, _ = segment_of(example_table(20), writes=20)
    file = pq.ParquetFile(io.BytesIO(content))
    assert file.schema_arrow.equals(SEGMENT_SCHEMA)
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    assert [group.num_rows for group in groups] == [8, 8, 4]
    for group in groups:
        columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
        assert {name for name, column in columns.items() if column.is_stats_set} == {"offset_delta", "timestamp"}
        assert "DELTA_BINARY_PACKED" in columns["offset_delta"].encodings
        assert all(column.has_offset_index and not column.has_dictionary_page for column in columns.values())


def test_row_groups_close_early_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_write, "ROW_GROUP_BYTES", 10_000)
    table = table_of([(None, b"x" * size, None, 1000) for size in (3000, 3000, 3000, 3000, 20_000, 10, 10)])
    content, facts = segment_of(table)
    file = pq.ParquetFile(io.BytesIO(content))
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert sum(sizes) == 7 and max(sizes) <= 4 and len(sizes) >= 3
    assert read_back(content, facts).column("value").equals(table.column("value"))
    monkeypatch.setattr(segment_write, "RECORD_BYTES_MAX", 15_000)
    with pytest.raises(MessageSizeTooLargeError):
        segment_of(table)


def test_timestamps_prune_row_groups_and_find_offsets() -> None:
    content, facts = segment_of(example_table(), deltas=[i * 2 for i in range(100)])
    file = opened(content, 100)
    first_ms = facts.min_timestamp_ms
    shape = ReadShape("t", 0, 10, TimestampType.LOG_APPEND_TIME, read_schema())
    batches = read_slice(file, shape, min_timestamp_ms=first_ms + 17, max_timestamp_ms=first_ms + 24)
    rows = pa.Table.from_batches(list(batches))
    assert rows.column("offset").to_pylist() == [10 + 2 * i for i in range(16, 24)]
    assert set(rows.column("timestampType").to_pylist()) == {1}
    assert first_offset_at_or_after(file, 10, first_ms + 20) == 50
    assert first_offset_at_or_after(file, 10, first_ms + 20, at_least_offset=91) == 92
    assert first_offset_at_or_after(file, 10, 0) == 10
    assert first_offset_at_or_after(file, 10, first_ms + 99) == 208
    assert first_offset_at_or_after(file, 10, first_ms + 100) is None
    assert first_offset_at_or_after(file, 10, 0, at_least_offset=209) is None


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(0, 31), st.integers(0, 45))
@settings(max_examples=60, deadline=None)
def test_first_offset_with_timestamps_out_of_order(times: list[int], wanted: int, at_least: int) -> None:
    content, _ = segment_of(table_of([(None, None, None, ms * 1000) for ms in times]))
    expected = next((5 + i for i, ms in enumerate(times) if ms >= wanted and 5 + i >= at_least), None)
    assert first_offset_at_or_after(opened(content, len(times)), 5, wanted, at_least) == expected


def test_codecs() -> None:
    assert [codec_name(name) for name in CODECS] == CODECS
    assert codec_name("uncompressed") == "none"
    with pytest.raises(InvalidConfigurationError):
        SegmentWriter(io.BytesIO(), "brotli")


@pytest.mark.parametrize("level", ["-131072", "22"])
def test_each_level_that_a_topic_may_have_can_be_written(level: str) -> None:
    config = TopicConfig.from_overrides({"compression.zstd.level": level})
    assert SegmentWriter(io.BytesIO(), "zstd", config.compression_zstd_level).close().codec == "zstd"


def test_writer_refuses_what_cannot_be_read_back() -> None:
    table = example_table(3)
    for deltas, message in (([0, 0, 1], "increase"), ([-1, 0, 1], "increase"), ([0, 1], "2 values")):
        with pytest.raises(InvalidRecordError, match=message):
            SegmentWriter(io.BytesIO()).write(table, pa.array(deltas))
    with pytest.raises(InvalidRecordError, match="int32"):
        SegmentWriter(io.BytesIO()).write(table, pa.array([0, 1, 1 << 31]))
    with pytest.raises(InvalidRecordError, match="timestamp"):
        SegmentWriter(io.BytesIO()).write(table_of([(b"k", b"v", None, None)]))
    with pytest.raises(InvalidRecordError, match="columns"):
        SegmentWriter(io.BytesIO()).write(pa.table({"value": [b"v"]}))
    writer = SegmentWriter(io.BytesIO())
    writer.write(table, pa.array([3, 5, 9]))
    with pytest.raises(InvalidRecordError, match="from 10"):
        writer.write(table, pa.array([9, 10, 11]))
    writer.write(RECORD_SCHEMA.empty_table())
    assert writer.close().record_count == 3


class FullDisk(io.BytesIO):
    def write(self, data: object, /) -> int:
        if self.tell() > 500:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)  # type: ignore[arg-type]


def test_full_disk_and_abort() -> None:
    sink = FullDisk()
    writer = SegmentWriter(sink, "none")
    with pytest.raises(OSError, match="No space left") as raised:
        writer.write(example_table())
    assert raised.value.errno == errno.ENOSPC
    size = len(sink.getvalue())
    writer.abort()
    del writer
    assert len(sink.getvalue()) == size


class SinkWithWriter:
    """A sink that owns the writer that writes to it, as `log.append.encoding.SegmentFiles` does."""

    def __init__(self) -> None:
        self.writer = SegmentWriter(self)

    def write(self, data: bytes) -> int:
        return len(data)


@pytest.mark.parametrize("end", [SegmentWriter.close, SegmentWriter.abort])
def test_a_finished_writer_and_its_sink_leave_the_memory(end: Callable[[SegmentWriter], object]) -> None:
    """Arrow's reference to the stream is invisible to the garbage collector: with a cycle each file would leak."""
    sink = SinkWithWriter()
    sink.writer.write(example_table())
    end(sink.writer)
    remains = weakref.ref(sink)
    del sink
    gc.collect()
    assert remains() is None
