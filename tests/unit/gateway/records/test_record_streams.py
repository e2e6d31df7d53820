"""The bytes that a stream counts, and the slices that share a batch."""

import struct

import pyarrow as pa
import pytest

from spark_log.gateway.records.record_streams import (
    _DECODING_BYTES,
    _SCHEMA,
    _TOGETHER_BYTES,
    EncodedBatch,
    _Stream,
    _together,
)
from spark_log.ids import LogDirId
from spark_log.log.segments.slices import Slice

FILE = Slice("t", "t", 0, 0, 0, 3, 3, 500, 0, "a.parquet", "", 0, (LogDirId(1),), None)


def records(*values):
    rows = [
        {"key": None, "value": value, "offset": offset, "timestamp": 0, "headers": None}
        for offset, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)


class DecodedRecords:
    """A fetcher that has one row group for each slice."""

    def __init__(self, found):
        self.found = found

    def read(self, _slices, _schema):
        yield self.found


@pytest.mark.parametrize(("remote", "downloaded"), [(set(), 0), ({LogDirId(1)}, 500), ({LogDirId(2)}, 0)])
def test_a_stream_counts_what_it_decodes_has_decoded_and_has_downloaded(remote, downloaded):
    found = records(b"a" * 900_000, b"b" * 900_000)
    stream = _Stream(DecodedRecords(found), [FILE], 0, 3, remote)
    steps = [(step.start, step.end) if isinstance(step, EncodedBatch) else step for step in stream.steps]
    decoded = found.get_total_buffer_size() + downloaded
    assert steps == [_DECODING_BYTES, decoded, (0, 1), (1, 2), _DECODING_BYTES, 0, (2, 3)]


def inline(start, size=100, **others):
    blob = struct.pack("<4sB3xQ", b"SLB1", 0, size)
    return FILE._replace(base_offset=start, start=start, end=start + 1, record_count=1, data=blob, **others)


@pytest.mark.parametrize(
    ("slices", "starts"),
    [
        ([], []),
        ([inline(0), inline(1), inline(5)], [[0, 1, 5]]),
        ([FILE, inline(3), inline(4), FILE._replace(start=5), inline(8)], [[0], [3, 4], [5], [8]]),
        ([inline(0), inline(1, leader_epoch=1), inline(2, leader_epoch=1)], [[0], [1, 2]]),
        ([inline(0, timestamp_type=1), inline(1, timestamp_type=1)], [[0], [1]]),
        ([inline(0), inline(1, timestamp_type=1), inline(2)], [[0], [1], [2]]),
        ([inline(0, _TOGETHER_BYTES), inline(1), inline(2, _TOGETHER_BYTES)], [[0], [1], [2]]),
    ],
)
def test_small_appends_that_follow_each_other_share_a_batch(slices, starts):
    assert [[piece.start for piece in pieces] for pieces in _together(slices)] == starts
