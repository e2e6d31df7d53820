"""The interface of the decoders: bytes to a struct of columns, the same for drivers, Spark tasks and maintenance.

One bad record never affects another: its struct is null and its reason names the field and the problem. A reason has at
most 200 characters and never contains data of the record. A null value, which is a tombstone, has neither.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

from spark_log.columns.types import parse_ddl
from spark_log.errors import InvalidConfigurationError, InvalidSchemaError
from spark_log.extras import install_extra

if TYPE_CHECKING:
    from spark_log.columns.schema_id_decoder import Read


@dataclass(frozen=True)
class ColumnsDefinition:
    """The columns that the keys or values of a topic are decoded to.

    `format`: json, avro or protobuf.
    `framing`: none or confluent.
    `schema`: the source text: DDL or a JSON Schema, Avro's JSON, or that of `protobuf_schema`.
    `fields`: the columns, those of removed fields included.
    `schemas_by_id`: with framing confluent, the source text of each schema id that is known. json does not need it: its
    values have the names of their fields.
    `renamed`: the column of each field of the present schema that has a column of another name, since a reset.
    `replaced`: the columns that the present schema does not fill, since a reset.
    `previous`: the definition before the last reset.
    """

    format: str
    framing: str
    schema: str
    fields: pa.StructType
    schemas_by_id: Mapping[int, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    previous: "ColumnsDefinition | None" = None

    def __hash__(self) -> int:
        return hash((self.format, self.framing, self.schema))


class Decoded(NamedTuple):
    """`record`: a struct of the definition's fields for each value. `reasons`: why a value is bad, null for the others;
    None if there are no bad values.
    """

    record: pa.StructArray
    reasons: pa.StringArray | None


def concatenated(parts: Sequence[Decoded], fields: pa.StructType) -> Decoded:
    """The parts of one column, decoded one after the other."""
    if not parts:
        return Decoded(pa.array([], fields), None)
    record = pa.concat_arrays([part.record for part in parts])
    if all(part.reasons is None for part in parts):
        return Decoded(record, None)
    reasons = [pa.nulls(len(part.record), pa.string()) if part.reasons is None else part.reasons for part in parts]
    return Decoded(record, pa.concat_arrays(reasons))


class Decoder(Protocol):
    def decode(self, values: pa.BinaryArray) -> Decoded: ...


def schema_fields(format: str, schema: str) -> pa.StructType:
    """The columns of a schema: DDL or a JSON Schema for json, Avro's JSON for avro, a text of `protobuf_schema` for
    protobuf.

    InvalidSchemaError names what cannot be a column.
    """
    if format == "json":
        if schema.lstrip().startswith("{"):
            from spark_log.columns.json.json_schema import json_schema_fields

            return json_schema_fields(schema)
        return parse_ddl(schema)
    if format == "avro":
        from spark_log.columns.avro.schema import avro_schema_fields

        return avro_schema_fields(schema)
    if format == "protobuf":
        with needing_protobuf():
            from spark_log.columns.protobuf.schema import protobuf_schema_fields
        return protobuf_schema_fields(schema)
    raise InvalidSchemaError(f"format {format!r}: cannot be decoded")


@contextmanager
def needing_protobuf() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise InvalidConfigurationError(
            f"format protobuf needs a package that is not installed: {install_extra('protobuf')}"
        ) from error


@lru_cache(maxsize=64)
def decoder(definition: ColumnsDefinition) -> Decoder:
    """The decoder of the definition. Each process keeps the last ones.

    InvalidSchemaError if it cannot be decoded, InvalidConfigurationError if a package is missing.
    """
    if definition.previous is not None:
        from spark_log.columns.resets import ResetDecoder

        return ResetDecoder(definition)
    if definition.format == "json":
        from spark_log.columns.json.decoder import JsonDecoder

        return JsonDecoder(definition.fields, definition.framing == "confluent")
    if definition.format == "avro":
        from spark_log.columns.avro.decoder import ROWS, avro_reader

        return _with_schemas(definition, avro_reader, ROWS)
    if definition.format == "protobuf":
        with needing_protobuf():
            from spark_log.columns.protobuf.decoder import ROWS, protobuf_reader

        framed = definition.framing == "confluent"
        return _with_schemas(definition, partial(protobuf_reader, framed=framed), ROWS)
    raise InvalidSchemaError(f"format {definition.format!r}: cannot be decoded")


def _with_schemas(definition: ColumnsDefinition, reader: "Callable[[str, pa.StructType], Read]", rows: int) -> Decoder:
    from spark_log.columns.schema_id_decoder import SchemaIdDecoder

    if definition.framing != "confluent":
        return SchemaIdDecoder(definition.fields, reader(definition.schema, definition.fields), rows)
    readers = {number: reader(text, definition.fields) for number, text in definition.schemas_by_id.items()}
    return SchemaIdDecoder(definition.fields, readers, rows)
