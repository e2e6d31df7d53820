"""Collects the schemas to which a schema refers, from the cluster's registry or another one."""

from collections.abc import Callable, Sequence

from spark_log.errors import InvalidSchemaError
from spark_log.registry.schemas import Reference, Schema, SchemaText

_DEPTH_MAX = 100
_IMPORTS_MAX, _CHARACTERS_MAX = 1_000, 2 << 20
"""The limits of all schemas to which one refers, directly or not: a short reference may name a schema of 1 MiB."""


def with_references(schema: Schema, find: Callable[[Reference], Schema]) -> SchemaText:
    """Return the schema with the texts of all schemas that it refers to, directly or not.

    Raises InvalidSchemaError for too many or too long schemas, and the errors of `find`.
    """
    imports: dict[str, str] = {}
    characters = 0

    def add(references: Sequence[Reference], depth: int) -> None:
        nonlocal characters
        if depth > _DEPTH_MAX:
            raise InvalidSchemaError(f"references: a chain of more than {_DEPTH_MAX} schemas")
        for reference in references:
            if reference.name not in imports:
                imported = find(reference)
                characters += len(reference.name) + len(imported.text)
                if len(imports) >= _IMPORTS_MAX:
                    raise InvalidSchemaError(f"references: more than {_IMPORTS_MAX:,} schemas")
                if characters > _CHARACTERS_MAX:
                    raise InvalidSchemaError(f"references: schemas of more than {_CHARACTERS_MAX:,} characters")
                add(imported.references, depth + 1)
                imports[reference.name] = imported.text

    add(schema.references, 0)
    return SchemaText(schema.type, schema.text, tuple(imports.items()))
