"""Batches of records as Hypothesis draws them: nulls, empty values, duplicate headers; chunked and sliced."""

import io
from itertools import pairwise

import pyarrow as pa
from hypothesis import strategies as st

from spark_log.log.records.read_shape import ReadShape
from spark_log.log.records.schema import HEADERS, RECORD_SCHEMA, TIMESTAMP, TimestampType, normalise, read_schema
from spark_log.log.records.segment_open import ExpectedSegment, open_segment
from spark_log.log.records.segment_read import read_slice
from spark_log.log.records.segment_write import SegmentFacts, SegmentWriter

_HEADER = st.fixed_dictionaries({"key": st.text(max_size=5), "value": st.none() | st.binary(max_size=9)})
_ROWS: st.SearchStrategy[list[tuple[object, ...]]] = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=40),
        st.none() | st.lists(_HEADER, min_size=1, max_size=3),
        st.integers(0, 253_402_300_799_999).map(lambda ms: ms * 1000),
    ),
    max_size=30,
)


def table_of(rows: list[tuple[object, ...]]) -> pa.Table:
    """Rows of (key, value, headers, timestamp in microseconds) as a RECORD_SCHEMA table."""
    keys, values, headers, times = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(headers, HEADERS),
        pa.array(times, pa.int64()).cast(TIMESTAMP),
    ]
    return pa.table(columns, schema=RECORD_SCHEMA)


@st.composite
def record_tables(draw: st.DrawFn) -> pa.Table:
    """A RECORD_SCHEMA table made of slices, so that its chunks have offsets and there are any number of them."""
    table = table_of(draw(_ROWS))
    if draw(st.booleans()):
        return table
    cuts = sorted(draw(st.lists(st.integers(0, table.num_rows), min_size=1, max_size=4)))
    pieces = [table.slice(a, b - a) for a, b in pairwise(cuts)]
    return pa.concat_tables(pieces) if pieces else RECORD_SCHEMA.empty_table()


def example_table(rows: int = 100) -> pa.Table:
    """A fixed table with every kind of row."""
    return normalise(
        table_of(
            [
                (
                    None if i % 7 == 0 else b"k%d" % i,
                    None if i % 5 == 0 else b"value-%d" % (i * 7919),
                    [{"key": "a", "value": b"x"}, {"key": "a", "value": None}] if i % 3 == 0 else None,
                    (1_700_000_000_000 + i) * 1000,
                )
                for i in range(rows)
            ]
        )
    )


def segment_of(
    table: pa.Table, codec: str = "zstd", deltas: list[int] | None = None, writes: int = 1
) -> tuple[bytes, SegmentFacts]:
    """A segment file of `table`, handed to the writer in `writes` calls."""
    sink = io.BytesIO()
    writer = SegmentWriter(sink, codec)
    step = -(-table.num_rows // writes) or 1
    for at in range(0, table.num_rows, step):
        part = None if deltas is None else pa.array(deltas[at : at + step], pa.int32())
        writer.write(table.slice(at, step), part)
    facts = writer.close()
    return sink.getvalue(), facts


def read_back(
    data: bytes, facts: SegmentFacts, start: int = 0, end: int = 1 << 40, base: int = 0, schema: pa.Schema | None = None
) -> pa.Table:
    """Offsets [start, end) of a segment in memory, with headers unless `schema` says otherwise."""
    schema = read_schema(include_headers=True) if schema is None else schema
    file = open_segment(pa.BufferReader(data), ExpectedSegment("a.parquet", facts.bytes, facts.record_count))
    shape = ReadShape("orders", 3, base, TimestampType.CREATE_TIME, schema)
    batches = read_slice(file, shape, start=start, end=end, path="a.parquet")
    return pa.Table.from_batches(list(batches), schema)


def as_read(table: pa.Table, offsets: list[int]) -> pa.Table:
    """The table that readers must return for `table`, whose rows have these offsets."""
    rows = table.num_rows
    columns = {
        "key": table.column("key"),
        "value": table.column("value"),
        "topic": pa.array(["orders"] * rows, pa.string()),
        "partition": pa.array([3] * rows, pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": table.column("timestamp"),
        "timestampType": pa.array([0] * rows, pa.int32()),
        "headers": table.column("headers"),
    }
    return pa.table(columns, schema=read_schema(include_headers=True))
