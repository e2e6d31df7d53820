"""What the parts of a stream count for."""

import pyarrow as pa
import pytest

from spark_log.gateway.records.record_streams import _DECODING_BYTES, _SCHEMA, EncodedBatch, _Stream
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
