"""Selects the decoder of a definition, and finds the columns of a schema, by its format."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_log.errors import InvalidSchemaError, needing
from spark_log.log.columns.column_limits import count_of
from spark_log.log.columns.decoded import ColumnsDefinition, Decoder
from spark_log.log.columns.envelope import DEBEZIUM, EnvelopeDecoder
from spark_log.log.columns.types import parse_ddl
from spark_log.remembered import Remembered

if TYPE_CHECKING:
    from spark_log.log.columns.schema_id_decoder import Read


def schema_fields(format: str, schema: str) -> pa.StructType:
    """Return the columns of a schema: DDL or a JSON Schema for json, Avro's JSON for avro, a text of `protobuf_schema`
    for protobuf.

    Raises InvalidSchemaError, which names the field that cannot be a column; InvalidConfigurationError if a package is
    missing.
    """
    if format == "json":
        if schema.lstrip().startswith("{"):
            from spark_log.log.columns.json.json_schema import json_schema_fields

            return json_schema_fields(schema)
        return parse_ddl(schema)
    if format == "avro":
        from spark_log.log.columns.avro.schema import avro_schema_fields

        return avro_schema_fields(schema)
    if format == "protobuf":
        with needing("format protobuf", "protobuf"):
            from spark_log.log.columns.protobuf.schema import protobuf_schema_fields
        return protobuf_schema_fields(schema)
    raise InvalidSchemaError(f"format {format!r}: cannot be decoded")


def decoder(definition: ColumnsDefinition) -> Decoder:
    """Return the decoder of the definition. Each process remembers the decoders that it used last.

    Raises InvalidSchemaError if the format cannot be decoded, InvalidConfigurationError if a package is missing.
    """
    return _decoders(definition)


def _decoder(definition: ColumnsDefinition) -> Decoder:
    if definition.previous is not None:
        from spark_log.log.columns.resets import ResetDecoder

        return ResetDecoder(definition, decoder)
    if definition.envelope == DEBEZIUM:
        return EnvelopeDecoder(definition, decoder)
    if definition.format == "json":
        from spark_log.log.columns.json.decoder import JsonDecoder

        return JsonDecoder(definition.fields, definition.framing == "confluent")
    if definition.format == "avro":
        from spark_log.log.columns.avro.decoder import ROWS, avro_reader, avro_values_per_byte

        return _with_schemas(definition, avro_reader, avro_values_per_byte, ROWS)
    if definition.format == "protobuf":
        with needing("format protobuf", "protobuf"):
            from spark_log.log.columns.protobuf.decoder import ROWS, protobuf_reader, protobuf_values_per_byte

        framed = definition.framing == "confluent"
        reader = partial(protobuf_reader, framed=framed)
        return _with_schemas(definition, reader, protobuf_values_per_byte, ROWS)
    raise InvalidSchemaError(f"format {definition.format!r}: cannot be decoded")


def _size(_decoder: Decoder, definition: ColumnsDefinition) -> int:
    """Estimate the bytes of a decoder: those of its texts, and of each field in the reader of each schema."""
    texts = [definition.schema, *definition.schemas_by_id.values()]
    return sum(map(len, texts)) + (4_000 + 1_000 * len(definition.schemas_by_id)) * count_of(definition.fields)


_decoders = Remembered(_decoder, _size, 128 << 20)


def _with_schemas(
    definition: ColumnsDefinition,
    reader: "Callable[[str, pa.StructType], Read]",
    values_per_byte: Callable[[str, pa.StructType], float],
    rows: int,
) -> Decoder:
    from spark_log.log.columns.schema_id_decoder import SchemaIdDecoder

    if definition.framing != "confluent":
        one = reader(definition.schema, definition.fields)
        return SchemaIdDecoder(definition.fields, one, rows, values_per_byte(definition.schema, definition.fields))
    readers = {number: reader(text, definition.fields) for number, text in definition.schemas_by_id.items()}
    most = max((values_per_byte(text, definition.fields) for text in definition.schemas_by_id.values()), default=0)
    return SchemaIdDecoder(definition.fields, readers, rows, most)
