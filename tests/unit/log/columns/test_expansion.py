"""Rows whose columns are much larger than their bytes are decoded a few at a time."""

import json
from io import BytesIO
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_log.log.append.encoding import bad_records
from spark_log.log.columns import expansion
from spark_log.log.columns.decoded import ColumnsDefinition
from spark_log.log.columns.decoding import decoder, schema_fields
from spark_log.log.columns.json import decoder as json_decoder
from spark_log.log.columns.topic_columns import TopicColumns, slices
from spark_log.log.records.schema import RECORD_SCHEMA
from spark_log.log.records.segment_write import SegmentWriter
from spark_log.log.segments.typed_columns import add_columns

WIDTH, ITEMS, ROWS, MOST = 20, 10, 30, 500


@pytest.fixture(autouse=True)
def most(monkeypatch):
    for module in (expansion, json_decoder):
        monkeypatch.setattr(module, "MAX_VALUES", MOST)


def columns(format_, schema):
    return TopicColumns(1, value=ColumnsDefinition(format_, "none", schema, schema_fields(format_, schema)))


STRUCT = f"STRUCT<{', '.join(f'f{number}: BIGINT' for number in range(WIDTH))}>"
WIDE = columns("json", f"a ARRAY<{STRUCT}>")
SPARSE = b'{"a": [' + b"{}," * (ITEMS - 1) + b"null]}"


def rows(values):
    return pa.table({"value": pa.array(values, pa.binary())})


def sizes(values, of):
    return [part.num_rows for part in slices(rows(values), of, ["record"])]


def test_rows_of_sparse_wide_items_are_cut():
    found = sizes([SPARSE] * ROWS, WIDE)
    assert sum(found) == ROWS and {*found} == {1, 2}


def test_a_row_above_the_limit_is_alone():
    large = SPARSE.replace(b"null", b"null," * 50 + b"null")
    assert sizes([b"{}", large, b"{}", None], WIDE) == [1, 1, 2]


def test_no_rows_are_one_slice():
    assert sizes([], WIDE) == [0]


def test_arrays_without_structs_are_not_cut_whatever_their_length():
    assert sizes([json.dumps({"a": [1] * 1000}).encode()] * 10, columns("json", "a ARRAY<BIGINT>")) == [10]


def test_rows_of_many_columns_are_cut():
    many = columns("json", ", ".join(f"f{number} BIGINT" for number in range(100)))
    assert sizes([b"{}"] * 12, many) == [3, 3, 3, 3]


def avro(items):
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
    )


def avro_item(count):
    fields = [{"name": f"f{number}", "type": ["null", "long"]} for number in range(count)]
    return {"type": "record", "name": "I", "fields": fields}


def test_avro_is_cut_where_a_byte_stands_for_more_values_than_one():
    value = bytes([2 * ITEMS]) + bytes(ITEMS) + b"\0"
    assert len(sizes([value] * ROWS, columns("avro", avro(["null", avro_item(WIDTH)])))) >= ROWS * ITEMS * WIDTH // MOST
    dense = bytes([2 * ITEMS]) + bytes(ITEMS * WIDTH) + b"\0"
    assert sizes([dense] * 2, columns("avro", avro(avro_item(WIDTH)))) == [2]


@pytest.mark.parametrize("value", [SPARSE, None, b"{}", b'{"a": [{"f1": 2}]}'])
def test_a_bound_is_not_below_the_values_that_a_record_has(value):
    values = pa.array([value] * 60, pa.binary())
    records = decoder(WIDE.value).decode(values).record
    items = len(records.field("a").flatten())
    assert decoder(WIDE.value).most_values(values) >= items * WIDTH


def test_a_read_has_the_rows_in_small_batches():
    batch = pa.RecordBatch.from_arrays([pa.array([SPARSE] * ROWS, pa.binary())], names=["value"])
    found = list(add_columns(iter([batch]), WIDE, pa.schema([("value", pa.binary()), *WIDE.fields])))
    assert sum(part.num_rows for part in found) == ROWS
    assert all(len(part.column("record").field("a").values) * WIDTH <= MOST for part in found)


def test_a_segment_has_all_rows_of_a_batch_that_was_cut():
    values = [SPARSE, b"no JSON", None] * (ROWS // 3)
    count = len(values)
    parts = {
        "timestamp": pa.array([1000] * count, pa.timestamp("us", "UTC")),
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.nulls(count, RECORD_SCHEMA.field("headers").type),
    }
    records = pa.table([parts[name] for name in RECORD_SCHEMA.names], schema=RECORD_SCHEMA)
    sink = BytesIO()
    writer = SegmentWriter(sink, columns=WIDE)
    writer.write(records)
    writer.close()
    file = pq.ParquetFile(BytesIO(sink.getvalue()))
    found = file.read(["value", "record_error", "record"])
    assert file.num_row_groups == 1, "what is small is written together"
    assert found.column("value").to_pylist() == values
    assert [row is not None for row in found.column("record").to_pylist()] == [True, False, False] * (ROWS // 3)
    assert [row is not None for row in found.column("record_error").to_pylist()] == [False, True, False] * (ROWS // 3)


def test_a_rejected_record_is_named_by_its_row_in_the_whole_batch():
    records = rows([SPARSE] * 9 + [b"no JSON"] + [SPARSE] * 9)
    encoding = SimpleNamespace(columns=WIDE, rejecting=("value",))
    ((number, error),) = bad_records(records, encoding).items()
    assert number == 9 and str(error).startswith("value: in row 9: not valid JSON")
