"""Decodes Protobuf messages to columns. columns.py describes which values are bad."""

import pyarrow as pa

from spark_log.log.columns.bad_rows import Bad
from spark_log.log.columns.expansion import widest_item
from spark_log.log.columns.protobuf.columns import message_columns
from spark_log.log.columns.protobuf.messages import message_indexes
from spark_log.log.columns.protobuf.parsed_size import widest_repeated
from spark_log.log.columns.protobuf.schema import message_of
from spark_log.log.columns.schema_id_decoder import Read
from spark_log.log.columns.value_bytes import Ints

ROWS = 2048
"""Number of values whose messages exist at the same time."""

_FIRST_MESSAGE = (b"\0", b"\2\0")  # Confluent's short form, and the list with the one index 0


def protobuf_values_per_byte(schema: str, fields: pa.StructType) -> float:
    """Return `values_per_byte` of SchemaIdDecoder. An empty message takes two bytes."""
    return max(widest_item(fields), widest_repeated(message_of(schema)[0].DESCRIPTOR)) / 2


def protobuf_reader(schema: str, fields: pa.StructType, framed: bool) -> Read:
    """Return a function that decodes messages of a text of `protobuf_schema`.

    `framed` is whether each message follows its index in the schema's file, as in Confluent's framing. The index must
    be that of the schema's message.
    """
    kind, name, descriptor_set = message_of(schema)
    indexes = message_indexes(name, descriptor_set) if framed else b""
    forms = _FIRST_MESSAGE if indexes == b"\0" else (indexes,)

    def read(values: pa.BinaryArray, rows: Ints, bad: Bad) -> pa.StructArray:
        errors: dict[int, str] = {}
        messages = values.take(pa.array(rows)).to_pylist()
        if framed:
            for position, value in enumerate(messages):
                form = next((form for form in forms if value.startswith(form)), None)
                if form is None:
                    errors[position] = f"its index in Confluent's framing is not that of Protobuf type {name}"
                messages[position] = None if form is None else value[len(form) :]
        record = message_columns(messages, kind, fields, errors)
        for position, reason in errors.items():
            bad.add(int(rows[position]), reason)
        return record

    return read
