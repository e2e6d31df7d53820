"""Field ids: each path has one, which stays; segment files have them, readers do not see them."""

import io
import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given

from spark_log.log.columns.decoded import ColumnsDefinition
from spark_log.log.columns.field_paths import BASE_IDS, FIRST_TYPED_ID, numbered, with_ids, without_ids
from spark_log.log.columns.topic_columns import changed, from_text, to_text
from spark_log.log.columns.types import parse_ddl
from spark_log.log.records.read_shape import ReadShape
from spark_log.log.records.schema import RECORD_SCHEMA, TimestampType, read_schema, segment_schema
from spark_log.log.records.segment_open import ExpectedSegment, open_segment
from spark_log.log.records.segment_read import read_slice
from spark_log.log.records.segment_write import SegmentWriter

from .strategies import SCHEMAS

DDL = "id BIGINT, tags ARRAY<STRING>, place STRUCT<x: DOUBLE>, prices MAP<STRING, STRUCT<p: BIGINT>>"


def definition(ddl):
    return ColumnsDefinition("json", "none", ddl, parse_ddl(ddl))


def ids_in(schema):
    """The id of each field of a schema by its path, at any depth."""
    found = {}

    def walk(path, field):
        found[path] = int(field.metadata[b"PARQUET:field_id"])
        kind = field.type
        inner = list(kind) if pa.types.is_struct(kind) else []
        inner += [kind.value_field] if pa.types.is_list(kind) else []
        inner += [kind.key_field, kind.item_field] if pa.types.is_map(kind) else []
        for each in inner:
            walk(f"{path}.{each.name}", each)

    for field in schema:
        walk(field.name, field)
    return found


def test_ids_stay_when_structs_gain_fields_and_keys_get_columns():
    columns = changed(None, None, definition(DDL))
    assert columns.ids == {
        "record.id": 100,
        "record.tags": 101,
        "record.tags.element": 102,
        "record.place": 103,
        "record.place.x": 104,
        "record.prices": 105,
        "record.prices.key": 106,
        "record.prices.value": 107,
        "record.prices.value.p": 108,
    }
    wider = changed(columns, definition("k STRING"), definition(DDL.replace("x: DOUBLE", "x: DOUBLE, y: DOUBLE")))
    assert wider.ids == {**columns.ids, "key_record.k": 109, "record.place.y": 110}
    again = from_text(to_text(wider))
    assert again == wider and again.ids == wider.ids
    assert again.decodable.ids == wider.ids


def test_stores_without_ids_number_the_fields_in_the_order_of_a_file():
    columns = changed(None, None, definition(DDL))
    text = {name: value for name, value in json.loads(to_text(columns)).items() if name != "ids"}
    assert from_text(json.dumps(text)).ids == columns.ids
    both = changed(columns, replace(definition("k STRING"), format="bytes"), definition(DDL))
    text = {name: value for name, value in json.loads(to_text(both)).items() if name != "ids"}
    assert from_text(json.dumps(text)).decodable.ids == from_text(json.dumps(text)).ids


@given(SCHEMAS, SCHEMAS)
def test_a_path_keeps_its_id_and_ids_are_distinct(before, after):
    first = numbered([pa.field("record", before)], {})
    second = numbered([pa.field("record", after)], first)
    assert second.items() >= first.items()
    assert len(set(second.values())) == len(second) and min(second.values()) == FIRST_TYPED_ID
    schema = segment_schema(pa.struct([("record_error", pa.string()), ("record", after)]))
    identified = with_ids(schema, second)
    assert ids_in(identified) == {
        path: number for path, number in {**BASE_IDS, **second}.items() if path in ids_in(identified)
    }
    assert without_ids(identified).equals(schema, check_metadata=True)


def test_segment_files_have_ids_that_readers_do_not_see():
    columns = changed(None, None, definition(DDL))
    sink = io.BytesIO()
    writer = SegmentWriter(sink, columns=columns)
    value = b'{"id": 1, "tags": ["t"], "place": {"x": 1.5}, "prices": {"a": {"p": 2}}}'
    writer.write(pa.table([[b"k"], [value], pa.nulls(1, RECORD_SCHEMA.field("headers").type), [0]], RECORD_SCHEMA))
    facts = writer.close()
    content = sink.getvalue()
    assert ids_in(pq.ParquetFile(io.BytesIO(content)).schema_arrow) == {
        **{path: number for path, number in BASE_IDS.items() if number > 2 and "key_record" not in path},
        **columns.ids,
    }
    file = open_segment(pa.BufferReader(content), ExpectedSegment("s", facts.bytes, 1))
    schema = read_schema(include_headers=True, typed=columns.fields)
    [batch] = read_slice(file, ReadShape("t", 0, 0, TimestampType.CREATE_TIME, schema))
    assert batch.schema.equals(schema, check_metadata=True)
    with pa.ipc.open_stream(_stream(batch)) as stream:
        assert stream.schema.equals(schema, check_metadata=True)


def _stream(batch):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()
