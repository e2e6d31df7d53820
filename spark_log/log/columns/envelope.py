"""Unwraps the change events of Debezium: the columns of a topic are those of the row, with two more.

    op    event                               columns of the row
    c, r  a row was inserted, or existed      after
    u     a row was updated                   after
    d     a row was deleted                   before

`__op` has the op, and `__sequence` the whole number at `value.envelope.sequence`, null if there is none. The names are
like those of Debezium's event flattening (ExtractNewRecordState, `add.fields`). All other ops are bad records: t and m,
a truncation and a message, change no row. JSON with `schema` and `payload` (`schemas.enable=true`) is unwrapped too.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events
"""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_log.errors import InvalidConfigurationError, InvalidSchemaError
from spark_log.log.columns.decoded import ColumnsDefinition, Decoded, Decoder

DEBEZIUM = "debezium"
OP, SEQUENCE = "__op", "__sequence"
_ADDED = (pa.field(OP, pa.string()), pa.field(SEQUENCE, pa.int64()))
_INT64_MAX = 2**63 - 1
_NO_EVENT = "not a change event of Debezium: it has no op"
_OTHER_OP = "op: expected c, r, u or d: other events change no row"
_NO_ROW = "after: missing"


def row_fields(format: str, fields: pa.StructType) -> pa.StructType:
    """Return the fields of a row. `fields` are those of value.schema: the row itself with format json, and the event
    with avro. Raises InvalidSchemaError.
    """
    if format == "avro":
        if fields.get_field_index("after") < 0 or not pa.types.is_struct(fields.field("after").type):
            raise InvalidSchemaError("schema: not an event of Debezium: it has no record `after`")
        fields = fields.field("after").type
    for name in (OP, SEQUENCE):
        if fields.get_field_index(name) >= 0:
            raise InvalidSchemaError(f"schema: {name}: a row cannot have a field of this name")
    return fields


def sequence_path(path: str, format: str, fields: pa.StructType) -> str:
    """Return the path of the sequence in an event, empty if its schema has no whole number there. `fields` are those of
    value.schema. Raises InvalidConfigurationError for a path at which no event has a sequence.
    """
    names = path.split(".")
    if not all(names) or names[0] in ("before", "after", "op", "payload", "schema"):
        raise InvalidConfigurationError(
            f"value.envelope.sequence {path!r}: expected the path of a whole number in an event, such as source.lsn"
        )
    kind: pa.DataType = fields
    for name in names if format == "avro" else ():
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return ""
        kind = kind.field(name).type
    return path if format != "avro" or pa.types.is_int64(kind) else ""


def with_event(row: pa.StructType) -> pa.StructType:
    """Return the fields of the columns: those of a row, then `__op` and `__sequence`."""
    return pa.struct([*row, *_ADDED])


def has_op(definition: ColumnsDefinition | None) -> bool:
    """Whether column record has the op of its event."""
    return definition is not None and definition.envelope == DEBEZIUM and definition.format != "bytes"


class EnvelopeDecoder:
    """Decodes events to the columns of a definition with an envelope. `decoder` makes the decoder of the event."""

    def __init__(self, definition: ColumnsDefinition, decoder: Callable[[ColumnsDefinition], Decoder]) -> None:
        self._fields = definition.fields
        row = pa.struct([field for field in definition.fields if field.name not in (OP, SEQUENCE)])
        self._wrapped = definition.format == "json"
        self._path = definition.sequence.split(".") if definition.sequence else []
        # JSON may have any value there, and a string column takes its text
        sequence: pa.DataType = pa.string() if self._wrapped else pa.int64()
        for name in reversed(self._path[1:]):
            sequence = pa.struct([(name, sequence)])
        at_path = [(self._path[0], sequence)] if self._path else []
        event = pa.struct([("before", row), ("after", row), ("op", pa.string()), *at_path])
        inner = pa.struct([*event, ("payload", event)]) if self._wrapped else event
        self._decoder = decoder(replace(definition, envelope="none", fields=inner))

    def decode(self, values: pa.BinaryArray) -> Decoded:
        events, reasons = self._decoder.decode(values)
        if self._wrapped:
            payload = events.field("payload")
            if payload.null_count < len(payload):
                wrapped = payload.is_valid()
                columns = [
                    pc.if_else(wrapped, of_payload, plain)
                    for of_payload, plain in zip(payload.flatten(), events.flatten()[:-1], strict=True)
                ]
                fields = list(payload.type)
                events = pa.StructArray.from_arrays(columns, fields=fields, mask=events.is_null())
        return self._unwrapped(events, pa.nulls(len(events), pa.string()) if reasons is None else reasons)

    def most_values(self, values: pa.BinaryArray) -> float:
        return self._decoder.most_values(values)

    def _unwrapped(self, events: pa.StructArray, reasons: pa.StringArray) -> Decoded:
        flat = dict(zip((field.name for field in events.type), events.flatten(), strict=True))
        op, before, after = flat["op"], flat["before"], flat["after"]
        sequence = flat[self._path[0]] if self._path else pa.nulls(len(events), pa.int64())
        for name in self._path[1:]:
            sequence = pc.struct_field(sequence, name)
        if pa.types.is_string(sequence.type):
            whole = pc.match_substring_regex(sequence, r"^-?[0-9]{1,19}$")
            numbers = pc.if_else(whole, sequence, pa.scalar(None, pa.string())).cast(pa.decimal128(19))
            fits = pc.and_(pc.less_equal(numbers, _INT64_MAX), pc.greater_equal(numbers, -_INT64_MAX))
            sequence = pc.if_else(fits, numbers, pa.scalar(None, numbers.type)).cast(pa.int64())
        deletes = pc.fill_null(pc.equal(op, "d"), False)
        changes = pc.is_in(op, value_set=pa.array(["c", "r", "u"]))
        fault = pc.if_else(
            op.is_null(),
            _NO_EVENT,
            pc.if_else(
                pc.or_(changes, deletes),
                pc.if_else(pc.and_(changes, after.is_null()), _NO_ROW, pa.scalar(None, pa.string())),
                _OTHER_OP,
            ),
        )
        fault = pc.if_else(events.is_valid(), fault, pa.scalar(None, pa.string()))
        reasons = pc.coalesce(reasons, fault)
        row = pc.if_else(deletes, before, after)
        columns = {**dict(zip((f.name for f in row.type), row.flatten(), strict=True)), OP: op, SEQUENCE: sequence}
        record = pa.StructArray.from_arrays(
            [columns[field.name] for field in self._fields],
            fields=list(self._fields),
            mask=pc.or_(events.is_null(), reasons.is_valid()),
        )
        return Decoded(record, reasons if reasons.null_count < len(reasons) else None)
