"""Defines the values that represent schemas, versions and references."""

from typing import NamedTuple

from spark_log.errors import InvalidSchemaError

TYPES = ("AVRO", "JSON", "PROTOBUF")
FORMATS = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}
"""The format of the keys or values that may use a schema of a type."""


class Reference(NamedTuple):
    """A reference to a schema. `name` is an Avro type, the $ref of a JSON Schema, or the path of a .proto file."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema of the registry. `type` is one of TYPES, and `text` is the schema itself. The id of one that is not
    registered yet is 0.
    """

    id: int
    type: str
    text: str
    references: tuple[Reference, ...] = ()


class RegisteredSchema(NamedTuple):
    """A version of a subject."""

    subject: str
    version: int
    schema: Schema

    @property
    def id(self) -> int:
        return self.schema.id


class SchemaText(NamedTuple):
    """A schema with the texts of all schemas that it imports, directly or not, each after its own imports."""

    type: str
    text: str
    imports: tuple[tuple[str, str], ...] = ()
    """Pairs of the name in the reference and the text of the schema."""


def check_type(type_: str) -> str:
    """Return the type of a schema. Raises InvalidSchemaError unless it is one of TYPES."""
    if type_ not in TYPES:
        raise InvalidSchemaError(f"schema type {type_!r}: expected one of {', '.join(TYPES)}")
    return type_
