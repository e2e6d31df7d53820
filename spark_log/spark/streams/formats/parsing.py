"""Parses bytes to columns, and detects bad bytes.

Spark's parsers stop at the end of a value and ignore the bytes that follow, and its Avro parser returns the same nulls
for bad bytes as for a record of nulls. Therefore the value is parsed inside an envelope. The envelope is complete only
if the value fills its place exactly.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from spark_log.errors import InvalidConfigurationError, InvalidOptionError

_PERMISSIVE = {"mode": "PERMISSIVE"}
_CORRUPT = "corrupt"
_SHOWN_MAX = 100
"""Number of characters of a bad value that the reason shows."""

_END = uuid.uuid4().bytes
"""The bytes that follow the Avro record in its envelope. Writers of records cannot know them."""


class Parser(NamedTuple):
    """`parsed` parses bytes to a struct, and `value` returns the value in the struct. `reason(bytes, parsed)` returns
    why bytes are bad, or null if they are valid; the bytes must not be null.
    """

    parsed: Callable[[Column], Column]
    reason: Callable[[Column, Column], Column]
    value: Callable[[Column], Column] = lambda parsed: parsed["value"]


def from_column(given: str | Column) -> Column:
    return sf.col(given) if isinstance(given, str) else given


def column_named(name: str) -> Column:
    """Return the column of this name. A dot in the name is no path to a field."""
    return sf.col(f"`{name.replace('`', '``')}`")


def avro_parser(schema: str) -> Parser:
    """Return the parser of Avro records. Raises InvalidOptionError unless the schema is that of a record."""
    try:
        record = json.loads(schema)
        if not isinstance(record, dict) or record.get("type") != "record":
            raise ValueError('its type is not "record"')
    except ValueError as error:
        raise InvalidOptionError(f"schema {schema[:_SHOWN_MAX]!r}: not the JSON of an Avro record: {error}") from error
    end = {"type": "fixed", "name": "spark_log_end", "size": len(_END)}
    fields = [{"name": "value", "type": record}, {"name": "end", "type": end}]
    envelope = json.dumps({"type": "record", "name": "spark_log_envelope", "fields": fields})
    bad = sf.lit(f"not a record of Avro schema {record.get('name')}: truncated, too long, or of another schema")

    def parsed(bare: Column) -> Column:
        from pyspark.sql.avro.functions import from_avro

        return from_avro(sf.concat(bare, sf.lit(_END)), envelope, _PERMISSIVE)

    def reason(_bare: Column, parsed: Column) -> Column:
        return sf.when(~sf.coalesce(parsed["end"] == sf.lit(_END), sf.lit(False)), bad)

    return Parser(parsed, reason)


def json_parser(schema: StructType, options: Mapping[str, str]) -> Parser:
    """Return the parser of JSON objects. A text T is exactly one JSON object if {"name":[T,{"end":""}]} parses to an
    array of T and the end.

    Writers of records cannot know the names `name` and `end`, so no T can close the array and continue the envelope.
    """
    name, end = uuid.uuid4().hex, uuid.uuid4().hex
    items = ArrayType(StructType([*schema.fields, StructField(end, StringType())]))
    envelope = StructType().add(name, items).add(_CORRUPT, StringType())
    given = {"allowSingleQuotes": "false", **options, **_PERMISSIVE, "columnNameOfCorruptRecord": _CORRUPT}

    def parsed(bare: Column) -> Column:
        whole = sf.concat(sf.lit(f'{{"{name}":['), bare.cast(StringType()), sf.lit(f',{{"{end}":""}}]}}'))
        return sf.from_json(whole, envelope, given)

    def item(parsed: Column) -> Column:
        return sf.get(parsed[name], sf.lit(0))

    def value(parsed: Column) -> Column:
        fields = (item(parsed).getField(field.name).alias(field.name) for field in schema.fields)
        return sf.when(item(parsed).isNotNull(), sf.struct(*fields))

    def reason(bare: Column, parsed: Column) -> Column:
        text, value, corrupt = bare.cast(StringType()), item(parsed), parsed[_CORRUPT]
        follows = sf.get(parsed[name], sf.lit(1)).getField(end) == sf.lit("")
        alone = sf.coalesce((sf.size(parsed[name]) == 2) & follows, sf.lit(False))
        misfits = [
            sf.when(
                value[field.name].isNull(),
                _reason(
                    f"field {field.name}: not of type {field.dataType.simpleString()}: ", _member(text, field.name)
                ),
            )
            for field in schema.fields
            if _can_be_named(field.name)
        ]
        missing = [
            sf.when(is_null(value), sf.lit(f"field {path}: null or missing, and NOT NULL"))
            for path, is_null in _forbidden_nulls(schema)
        ]
        return (
            sf.when(~sf.is_valid_utf8(text), sf.lit("not UTF-8"))
            .when(~alone | value.isNull(), sf.lit("not one JSON object"))
            .when(corrupt.isNotNull(), sf.coalesce(*misfits, sf.lit("a field is not of the schema's type")))
            .otherwise(sf.coalesce(*missing, sf.lit(None).cast(StringType())))
        )

    return Parser(parsed, reason, value)


def _can_be_named(name: str) -> bool:
    """Whether a JSON path can name the field."""
    return "'" not in name and "]" not in name


def _member(text: Column, name: str) -> Column:
    return sf.get_json_object(text, f"$['{name}']")


def _reason(text: str, shown: Column) -> Column:
    """Return the text followed by the shown value, or null if `shown` is null."""
    return sf.concat(sf.lit(text), shown.substr(1, _SHOWN_MAX))


IsNull = Callable[[Column], Column]
"""Tells whether a value contains a null that the schema forbids; false for a value that is null itself."""


def _forbidden_nulls(kind: DataType, path: str = "") -> list[tuple[str, IsNull]]:
    """Return the places that are NOT NULL in the schema, with their checks, because from_json does not check them."""
    match kind:
        case StructType():
            return [
                (where, _of_field(each.name, is_null))
                for each in kind.fields
                for where, is_null in _of_part(each.dataType, each.nullable, f"{path}.{each.name}".lstrip("."))
            ]
        case ArrayType():
            parts = _of_part(kind.elementType, kind.containsNull, f"{path}[]")
            return [(where, _of_items(lambda value: value, is_null)) for where, is_null in parts]
        case MapType():
            parts = _of_part(kind.valueType, kind.valueContainsNull, f"{path}{{}}")
            return [(where, _of_items(sf.map_values, is_null)) for where, is_null in parts]
        case _:
            return []


def _of_part(kind: DataType, may_be_null: bool, path: str) -> list[tuple[str, IsNull]]:
    mine: list[tuple[str, IsNull]] = [] if may_be_null else [(path, lambda value: value.isNull())]
    return mine + _forbidden_nulls(kind, path)


def _of_field(name: str, is_null: IsNull) -> IsNull:
    return lambda value: value.isNotNull() & is_null(value[name])


def _of_items(items: Callable[[Column], Column], is_null: IsNull) -> IsNull:
    return lambda value: sf.coalesce(sf.exists(items(value), is_null), sf.lit(False))


@contextmanager
def needing_avro(spark: SparkSession) -> Iterator[None]:
    """Convert Spark's error for missing Avro functions to an InvalidConfigurationError that says what to do."""
    try:
        yield
    except AnalysisException as error:
        if "_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE" not in str(error.getCondition()):
            raise
        package = f"org.apache.spark:spark-avro_2.13:{spark.version}"
        raise InvalidConfigurationError(
            f"Avro needs Spark's Avro JAR, which is not loaded: spark-submit --packages {package} …, or"
            f" spark.jars.packages={package} when the session is made"
        ) from error
