"""Reads of typed columns: those in the file if they are the topic's present ones, otherwise decoded from the values.

Blobs never have typed columns, and a file has those of the version with which it was written. So a reader sees each
value decoded with the definition that the topic had when the read was planned, whether it is stored like that or not.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa

from spark_log.columns.decoding import ColumnsDefinition, decoder
from spark_log.errors import InvalidOptionError
from spark_log.records.schema import TYPED, read_schema
from spark_log.segments.slices import Slice

Read = Callable[[Slice, pa.Schema], Iterator[pa.RecordBatch]]
"""Reads the stored columns of a slice."""


def wants_columns(schema: pa.Schema) -> bool:
    """Whether a read schema has typed columns."""
    return any(name in schema.names for name in TYPED)


def no_typed_columns(topic: str) -> InvalidOptionError:
    return InvalidOptionError(f"topic {topic!r} has no typed columns: set value.format and value.schema")


def has_present_columns(piece: Slice) -> bool:
    """Whether the file has the topic's present columns."""
    return piece.data is None and piece.columns is not None and piece.columns_version == piece.columns.version


def read_with_columns(read: Read, piece: Slice, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of `schema`, which has typed columns. InvalidOptionError if the topic has none."""
    columns = piece.columns
    if columns is None:
        raise no_typed_columns(piece.topic)
    if has_present_columns(piece):
        # of the file only the fields of the schema are read
        wanted = schema.field("record").type if "record" in schema.names else columns.fields
        present = _with_record(schema, common(columns.fields, wanted))
        batches = read(piece, present)
    else:
        present = _with_record(schema, columns.fields)
        batches = add_columns(read(piece, without_columns(schema)), columns, present)
    if present.equals(schema):
        yield from batches
        return
    for batch in batches:  # the topic's columns have changed since the reader took its schema
        yield pa.RecordBatch.from_arrays(
            [project(batch.column(field.name), field.type) for field in schema], schema=schema
        )


def without_columns(schema: pa.Schema) -> pa.Schema:
    """The schema to read with where the typed columns of `schema` are to be decoded: it has value instead of them."""
    names = {*schema.names, "value"} - {*TYPED}
    return read_schema("headers" in names, [name for name in read_schema(True).names if name in names])


def add_columns(
    batches: Iterator[pa.RecordBatch], columns: ColumnsDefinition, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """`batches`, read with `without_columns(schema)`, as batches of `schema`. Also runs in Spark's Python workers."""
    decode = decoder(columns).decode
    for batch in batches:
        record, reasons = decode(batch.column("value"))
        typed = {"record": record, "record_error": pa.nulls(len(record), pa.string()) if reasons is None else reasons}
        arrays = [typed[name] if name in typed else batch.column(name) for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def common(whole: pa.DataType, part: pa.DataType) -> pa.DataType:
    """The fields of `whole`, at any depth and in its order, that `part` has too. A struct without any stays whole."""
    if whole.id != part.id:
        return whole
    if pa.types.is_struct(whole):
        both = [field for field in whole if part.get_field_index(field.name) >= 0]
        fields = [field.with_type(common(field.type, part.field(field.name).type)) for field in both]
        return pa.struct(fields) if fields else whole
    if pa.types.is_list(whole):
        return pa.list_(whole.value_field.with_type(common(whole.value_type, part.value_type)))
    if pa.types.is_map(whole):
        return pa.map_(whole.key_type, whole.item_field.with_type(common(whole.item_type, part.item_type)))
    return whole


def project(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """`array` with the fields of `kind`, at any depth: others are left out, missing ones are null."""
    if array.type.equals(kind):
        return array
    if array.type.id != kind.id or not pa.types.is_nested(kind):
        raise InvalidOptionError(f"record: {array.type} of the topic cannot be read as {kind}")
    if pa.types.is_struct(kind):
        names = {field.name: number for number, field in enumerate(array.type)}
        children = [
            project(array.field(names[field.name]), field.type)
            if field.name in names
            else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if array.offset:  # a list is built from offsets and a mask only if it is not a slice
        array = pa.concat_arrays([array])
    offsets = array.offsets
    if pa.types.is_list(kind):
        items = project(array.values, kind.value_type)
        return pa.ListArray.from_arrays(offsets, items, type=kind, mask=array.is_null())
    items = project(array.items, kind.item_type)
    return pa.MapArray.from_arrays(offsets, array.keys, items, type=kind, mask=array.is_null())


def _with_record(schema: pa.Schema, fields: pa.StructType) -> pa.Schema:
    place = schema.get_field_index("record")
    return schema if place < 0 else schema.set(place, pa.field("record", fields))
