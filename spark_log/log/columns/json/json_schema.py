"""Converts JSON Schemas to columns.

    object with properties; with additionalProperties alone   STRUCT, MAP<STRING, ...>
    array with items                                          ARRAY
    integer; number; boolean                                  BIGINT, DOUBLE, BOOLEAN
    string; with format date-time, date                       STRING; TIMESTAMP, DATE
    string with contentEncoding base64                        BINARY
    null and one other type                                   that type
    allOf                                                     the fields of all
    anything else, such as several types                      STRING: the JSON text of the value

A $ref may refer to a part of the schema (`#/definitions/...`, `#/$defs/...`), or to an imported schema by its name. In
an imported schema, `#/...` is a part of that schema. If a schema contains itself, the inner one becomes STRING.
"""

import json
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from spark_log.errors import InvalidSchemaError
from spark_log.log.columns.column_limits import MAX_FIELDS, checked
from spark_log.log.columns.types import list_of

IMPORTS = "$imports"
"""The key of a schema text under which it has the imported schemas, by name."""

_TYPES_MAX = 16 * MAX_FIELDS
"""Limit of the types, references, branches and names that are visited, because references to references multiply them.
"""
_NAME_CHARACTERS = 256
"""Characters of the name of a reference that count as one type, because they take as much time."""

_SCALARS = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_STRINGS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}


def json_schema_fields(text: str) -> pa.StructType:
    """Return the columns of the objects of a JSON Schema. Raise InvalidSchemaError if its values are not objects with
    properties.
    """
    try:
        root = json.loads(text)
        kind = _Schema(root).type_of(root, ())
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise InvalidSchemaError(f"schema: not a JSON schema: {error!r}") from error
    if not pa.types.is_struct(kind):
        raise InvalidSchemaError("schema: expected a JSON schema of an object with properties")
    return checked(kind)


_Reference = str | tuple[str, str]
"""The text of a $ref, or for a part of the imported schema that has it, a pair of this schema's name and the text."""


class _Schema:
    def __init__(self, root: Any) -> None:
        self._root, self._types = root, 0
        imports = root.get(IMPORTS) if isinstance(root, dict) else None
        self._imports: dict[str, Any] = imports if isinstance(imports, dict) else {}
        for name, document in self._imports.items():
            _name_own_references(name, document)

    def type_of(self, schema: Any, within: tuple[_Reference, ...]) -> pa.DataType:
        """Return the type of the column of a schema. `within` has the references that lead to the schema."""
        found = self._resolved(schema, within)
        if found is None:
            return pa.string()
        schema, within = found
        kinds = schema.get("type", "object" if "properties" in schema else "")
        self._count(0 if isinstance(kinds, str) else len(kinds))
        names = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
        kind = names[0] if len(names) == 1 else ""
        if kind == "object":
            return self._object(schema, within)
        if kind == "array" and isinstance(schema.get("items"), dict):
            return list_of(self.type_of(schema["items"], within))
        if kind == "string":
            encoded = schema.get("contentEncoding") == "base64"
            return pa.binary() if encoded else _STRINGS.get(schema.get("format", ""), pa.string())
        return _SCALARS.get(kind, pa.string())

    def _object(self, schema: Any, within: tuple[_Reference, ...]) -> pa.DataType:
        properties = schema.get("properties") or {}
        if properties:
            return pa.struct([pa.field(name, self.type_of(each, within)) for name, each in properties.items()])
        more = schema.get("additionalProperties")
        return pa.map_(pa.string(), self.type_of(more, within)) if isinstance(more, dict) else pa.string()

    def _resolved(self, schema: Any, within: tuple[_Reference, ...]) -> tuple[Any, tuple[_Reference, ...]] | None:
        """Return the schema with $ref, allOf and unions with null resolved, and the references that lead to it; None if
        it allows several types or contains itself.
        """
        while isinstance(schema, dict):
            self._count(1)
            if reference := schema.get("$ref"):
                name = reference[1] if isinstance(reference, tuple) else reference
                self._count(len(within) + len(name) // _NAME_CHARACTERS)
                if reference in within:
                    return None
                schema, within = self._referred(reference), (*within, reference)
            elif "oneOf" in schema or "anyOf" in schema:
                every = schema.get("oneOf") or schema["anyOf"]
                self._count(len(every))
                branches = [branch for branch in every if branch.get("type") != "null"]
                if len(branches) != 1:
                    return None
                [schema] = branches
            elif "allOf" in schema:
                parts = [self._resolved(subschema, within) for subschema in schema["allOf"]]
                known = [part[0] for part in parts if part is not None]
                rest = {key: value for key, value in schema.items() if key != "allOf"}
                properties: dict[str, Any] = {}
                merged: dict[str, Any] = {}
                for subschema in (*known, rest):
                    self._count(len(subschema) + len(subschema.get("properties") or ()))
                    merged |= subschema
                    properties |= subschema.get("properties") or {}
                schema = {**merged, "properties": properties} if properties else merged
                within = tuple(name for part in parts if part is not None for name in part[1]) or within
            else:
                return schema, within
        return None

    def _count(self, more: int) -> None:
        self._types += more
        if self._types > _TYPES_MAX:
            raise InvalidSchemaError(f"schema: more than {_TYPES_MAX} types, references to references included")

    def _referred(self, reference: _Reference) -> Any:
        if isinstance(reference, tuple):
            place, name = self._imports[reference[0]], reference[1]
        elif reference in self._imports:
            return self._imports[reference]
        else:
            name, document = reference, reference.partition("#")[0]
            own = not document or document == self._root.get("$id")
            place = self._root if own else self._imports.get(document)
        try:
            for part in name.partition("#")[2].split("/")[1:]:
                place = place[unquote(part).replace("~1", "/").replace("~0", "~")]
        except (KeyError, TypeError):
            place = None
        if place is None:
            raise InvalidSchemaError(f"schema: $ref {name[:100]!r}: there is no such schema")
        return place


def _name_own_references(name: str, document: Any) -> None:
    """Replace each $ref of an imported schema to a part of itself by a pair of the schema's name and the text."""
    own = ("", document.get("$id")) if isinstance(document, dict) else ()
    waiting = [document]
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict):
            reference = here.get("$ref")
            if isinstance(reference, str) and reference.partition("#")[0] in own:
                here["$ref"] = name, reference
            waiting += here.values()
        elif isinstance(here, list):
            waiting += here
