"""Reads typed columns: from the file if they have the topic's present version, otherwise by decoding keys and values.

Blobs never have typed columns, and a file has the typed columns of the version with which it was written. A reader
always sees each key and value decoded with the definitions that the topic had when the read was planned.
"""

from collections.abc import Callable, Collection, Iterator

import pyarrow as pa

from spark_log.errors import InvalidOptionError
from spark_log.log.columns.key_and_value import PARTS, TYPED
from spark_log.log.columns.topic_columns import TopicColumns, decoded, slices
from spark_log.log.records.schema import read_schema, typed_fields
from spark_log.log.segments.slices import Slice

Read = Callable[[Slice, pa.Schema], Iterator[pa.RecordBatch]]
"""A function that reads the stored columns of a slice as batches of a schema."""


def wants_columns(schema: pa.Schema) -> bool:
    """Return whether a read schema has typed columns."""
    return any(name in schema.names for name in TYPED)


def check_typed_columns(topic: str, columns: TopicColumns | None, wanted: Collection[str]) -> TopicColumns:
    """Return the typed columns of the topic. Raise InvalidOptionError if they lack one that is named in `wanted`."""
    there = () if columns is None else columns.fields.names
    for part in PARTS:
        if not {part.error, part.record} & {*wanted} <= {*there}:
            what = "typed columns" if columns is None else f"column {part.record}"
            raise InvalidOptionError(
                f"topic {topic!r} has no {what}: set {part.source}.format and {part.source}.schema"
            )
    assert columns is not None, "typed columns are wanted"
    return columns


def has_present_columns(piece: Slice) -> bool:
    """Return whether the slice is of a file that has the present version of the topic's typed columns."""
    return piece.data is None and piece.columns is not None and piece.columns_version == piece.columns.version


def read_with_columns(read: Read, piece: Slice, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield batches of `schema`, which has typed columns. Raise InvalidOptionError if the topic does not have them."""
    wanted = typed_fields(schema)
    columns = check_typed_columns(piece.topic, piece.columns, wanted.names)
    of_topic = pa.struct([columns.fields.field(name) for name in wanted.names])
    if has_present_columns(piece):
        # only the fields of the schema are read from the file
        present = _with_types(schema, common(of_topic, wanted))
        batches = read(piece, present)
    else:
        present = _with_types(schema, of_topic)
        batches = add_columns(read(piece, without_columns(schema)), columns, present)
    if present.equals(schema):
        yield from batches
        return
    for batch in batches:  # the topic's columns have changed since the reader took its schema
        yield pa.RecordBatch.from_arrays(
            [project(batch.column(field.name), field.type) for field in schema], schema=schema
        )


def without_columns(schema: pa.Schema) -> pa.Schema:
    """Return the schema to read before the typed columns of `schema` are decoded. In their place it has key and value,
    from which they are decoded.
    """
    sources = {part.source for part in PARTS if part.error in schema.names or part.record in schema.names}
    names = ({*schema.names} | sources) - {*TYPED}
    return read_schema("headers" in names, [name for name in read_schema(True).names if name in names])


def add_columns(
    batches: Iterator[pa.RecordBatch], columns: TopicColumns, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Decode the typed columns of batches that were read with `without_columns(schema)`, and yield batches of `schema`.
    Also runs in Spark's Python workers.
    """
    for batch in batches:
        for rows in slices(batch, columns, schema.names):
            typed = decoded(rows, columns, schema.names)
            arrays = [typed[name] if name in typed else rows.column(name) for name in schema.names]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def common(whole: pa.DataType, part: pa.DataType) -> pa.DataType:
    """Return `whole` with only the fields, at any depth, that `part` has too. A struct without any such field keeps all
    its fields.
    """
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
    """Return `array` with the fields of `kind`, at any depth. Other fields are left out, and missing ones are null.

    Raises InvalidOptionError if a type of the array differs in another way.
    """
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


def _with_types(schema: pa.Schema, typed: pa.StructType) -> pa.Schema:
    """Return `schema` with the types that its typed columns have in `typed`."""
    return pa.schema([typed.field(field.name) if field.name in typed.names else field for field in schema])
