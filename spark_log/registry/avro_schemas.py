"""Parses and compares Avro schemas with Apache Avro's own package."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from spark_log.errors import InvalidSchemaError, needing
from spark_log.registry.schemas import SchemaText

if TYPE_CHECKING:
    import avro.schema


_PAIRS_MAX = 100_000_000
"""The maximum of `_pairs`. Avro's package compares the name of each field with those before it. With more pairs, that
takes over a second, during which other threads wait.
"""
_COMPARISONS_MAX = 100_000
"""The maximum of `_comparisons`. Avro's package compares all pairs of fields, of branches of a union, and of enums with
all their symbols; more of them would take seconds.
"""
_FIELDS_PER_BRANCH = 200
"""The number of comparisons of fields that take as long as one comparison of branches of a union."""
_SYMBOLS_PER_BRANCH = 50
"""The same for symbols of enums: a union's comparison compares the symbols of each enum with those of all others."""


def parse(schema: SchemaText) -> "avro.schema.Schema":
    """Parse a schema with its imports.

    Raises InvalidSchemaError, which names the invalid part, and InvalidConfigurationError if package avro is missing.
    """
    with needing("an Avro schema in the registry", "registry"):
        import avro.errors
        import avro.name
        import avro.schema
    names = avro.name.Names()
    try:
        *imports, own = (json.loads(text) for text in (*(text for _, text in schema.imports), schema.text))
        if _pairs([*imports, own]) > _PAIRS_MAX:
            raise InvalidSchemaError("a record, union or enum of the Avro schema has too many elements")
        for each in imports:
            avro.schema.make_avsc_object(each, names)
        return avro.schema.make_avsc_object(own, names)
    except (avro.errors.AvroException, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise InvalidSchemaError(f"not an Avro schema: {error}") from error


def _pairs(parsed: Any) -> int:
    """Return the sum of the squared lengths of all arrays in these JSON values."""
    pairs, waiting = 0, list(parsed)
    while waiting:
        here = waiting.pop()
        if isinstance(here, list):
            pairs += len(here) ** 2
            waiting += here
        elif isinstance(here, dict):
            waiting += here.values()
    return pairs


def column_source(schema: SchemaText, _message: str = "") -> str:
    """Return the text of the schema, including the types of its imports. Raises InvalidSchemaError."""
    return json.dumps(parse(schema).to_json()) if schema.imports else schema.text


def problems(reader: SchemaText, writer: SchemaText) -> list[str]:
    """Return the reasons why `reader` cannot read records of `writer` (`schema_types.problems`)."""
    parsed = parse(reader), parse(writer)
    if max(map(_comparisons, parsed)) > _COMPARISONS_MAX:
        return ["the schemas have so many fields, symbols, or unions of so many types, that they cannot be compared"]
    from avro.compatibility import (
        ReaderWriterCompatibilityChecker,
        SchemaCompatibilityResult,
        SchemaCompatibilityType,
    )

    class Checker(ReaderWriterCompatibilityChecker):
        """Keeps each kind of incompatibility of two types once. Avro's package adds those of a type at each use of it,
        so that types that refer to each other would multiply them.
        """

        def get_compatibility(self, *arguments: Any, **options: Any) -> SchemaCompatibilityResult:
            result = super().get_compatibility(*arguments, **options)
            result.incompatibilities = list(dict.fromkeys(result.incompatibilities))
            return result

    _qualify_aliases(parsed[0])
    try:
        result = Checker().get_compatibility(*parsed)  # type: ignore[no-untyped-call]
    except RecursionError:
        return ["the schemas have types within types on so many levels that they cannot be compared"]
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    kinds = ", ".join(dict.fromkeys(each.value for each in result.incompatibilities))
    return [f"{kinds} at {', '.join(sorted(result.locations))}: {'; '.join(sorted(result.messages))}"]


def _qualify_aliases(schema: "avro.schema.Schema") -> None:
    """Replace the aliases of all named types by full names, which Avro's package compares. An alias without a namespace
    has that of its type.
    """
    from avro.schema import NamedSchema

    for each in _nodes(schema):
        aliases = each.props.get("aliases")
        if isinstance(each, NamedSchema) and isinstance(aliases, list) and each.namespace:
            texts = [alias for alias in aliases if isinstance(alias, str)]
            each.set_prop("aliases", [alias if "." in alias else f"{each.namespace}.{alias}" for alias in texts])


def _comparisons(schema: "avro.schema.Schema") -> int:
    """Estimate the cost of comparing the schema with itself, in comparisons of branches of unions."""
    from avro.schema import EnumSchema, RecordSchema, UnionSchema

    fields = branches = enums = symbols = 0
    for node in _nodes(schema):
        if isinstance(node, RecordSchema):
            fields += len(node.fields)
        elif isinstance(node, EnumSchema):
            enums += 1
            symbols += len(node.symbols)
        elif isinstance(node, UnionSchema):
            branches += len(node.schemas) ** 2
    return branches + fields**2 // _FIELDS_PER_BRANCH + enums * symbols // _SYMBOLS_PER_BRANCH


def _nodes(schema: "avro.schema.Schema") -> "Iterator[avro.schema.Schema]":
    """Yield the schema and all schemas within it, each once."""
    from avro.schema import ArraySchema, MapSchema, RecordSchema, UnionSchema

    waiting, seen = [schema], set[int]()
    while waiting:
        here = waiting.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        yield here
        if isinstance(here, RecordSchema):
            waiting += [field.type for field in here.fields]
        elif isinstance(here, UnionSchema):
            waiting += here.schemas
        elif isinstance(here, ArraySchema):
            waiting.append(here.items)
        elif isinstance(here, MapSchema):
            waiting.append(here.values)
