import pyarrow as pa
import pytest
from hypothesis import given, settings
from kafka.record.default_records import DefaultRecordBatchBuilder

from spark_log.errors import InvalidRecordError, InvalidTimestampError, MessageSizeTooLargeError
from spark_log.log.records.record_limits import (
    HEADERS_PER_RECORD_MAX,
    TIMESTAMP_MS_MAX,
    RecordLimits,
    check,
    record_sizes,
    truncate_to_milliseconds,
)
from spark_log.log.records.schema import RECORD_SCHEMA
from tests.unit.log.records.strategies import record_tables, table_of

NOW_MS = 1_700_000_000_000
GOOD = (b"k", b"v", None, NOW_MS * 1000)


@given(record_tables())
@settings(max_examples=100, deadline=None)
def test_sizes_are_kafkas_upper_bound(table: pa.Table) -> None:
    expected = [
        61
        + DefaultRecordBatchBuilder.MAX_RECORD_OVERHEAD
        + DefaultRecordBatchBuilder.size_of(
            row["key"], row["value"], [(h["key"], h["value"]) for h in row["headers"] or []]
        )
        for row in table.to_pylist()
    ]
    assert record_sizes(table).tolist() == expected
    if expected:
        check(table, RecordLimits(max_message_bytes=max(expected)), NOW_MS)
        with pytest.raises(MessageSizeTooLargeError, match=f"row {expected.index(max(expected))} .*{max(expected)} b"):
            check(table, RecordLimits(max_message_bytes=max(expected) - 1), NOW_MS)


def test_too_large_for_a_segment_whatever_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_log.log.records.record_limits.RECORD_BYTES_MAX", 1000)
    with pytest.raises(MessageSizeTooLargeError, match=r"row 1 .*segment"):
        check(table_of([GOOD, (None, b"x" * 2000, None, 1)]), RecordLimits(max_message_bytes=1 << 30), NOW_MS)


@pytest.mark.parametrize("bad_us", [-1, -(1 << 60), (TIMESTAMP_MS_MAX + 1) * 1000, (1 << 63) - 1, None])
def test_absurd_timestamps(bad_us: int | None) -> None:
    with pytest.raises(InvalidTimestampError, match="row 1"):
        check(table_of([GOOD, (b"k", b"v", None, bad_us)]), RecordLimits(), NOW_MS)


def test_timestamp_window() -> None:
    limits = RecordLimits(timestamp_after_max_ms=1000, timestamp_before_max_ms=500)
    check(table_of([(b"k", b"", None, (NOW_MS + d) * 1000) for d in (-500, 0, 1000)]), limits, NOW_MS)
    for distance in (-501, 1001):
        with pytest.raises(InvalidTimestampError, match=str(NOW_MS + distance)):
            check(table_of([GOOD, (b"k", b"", None, (NOW_MS + distance) * 1000)]), limits, NOW_MS)


def test_headers() -> None:
    header = {"key": "a", "value": None}
    good = (b"k", b"v", [header] * 2, 1000)
    for bad in ({"key": None, "value": b"x"}, None):
        with pytest.raises(InvalidRecordError, match="headers: null key in row 2"):
            check(table_of([good, GOOD, (b"k", b"v", [header, bad], 1000)]), RecordLimits(), NOW_MS)
    with pytest.raises(InvalidRecordError, match=f"headers: {HEADERS_PER_RECORD_MAX + 1} in row 1"):
        check(table_of([good, (b"k", b"v", [header] * (HEADERS_PER_RECORD_MAX + 1), 1)]), RecordLimits(1 << 30), 1)


def test_null_key_in_a_compacted_topic() -> None:
    table = table_of([GOOD, (None, b"v", None, 1000)])
    check(table, RecordLimits(), NOW_MS)
    with pytest.raises(InvalidRecordError, match="row 1"):
        check(table, RecordLimits(compacted=True), NOW_MS)


def test_empty_and_foreign_schema() -> None:
    check(RECORD_SCHEMA.empty_table(), RecordLimits(), NOW_MS)
    with pytest.raises(InvalidRecordError, match="columns"):
        check(pa.table({"value": [b""]}), RecordLimits(), NOW_MS)


def test_truncation_to_milliseconds() -> None:
    times = table_of([(None, None, None, us) for us in (0, 999, 1000, 1_700_000_000_123_456)]).column("timestamp")
    assert truncate_to_milliseconds(times).cast(pa.int64()).to_pylist() == [0, 0, 1000, 1_700_000_000_123_000]
