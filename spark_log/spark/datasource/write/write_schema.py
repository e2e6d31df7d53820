"""Checks the columns of a DataFrame to write, with the messages of Spark's KafkaWriter.validateQuery."""

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType, TimestampType

from spark_log.errors import InvalidOptionError
from spark_log.spark.datasource.options.source_options import WriteOptions

_STRING_OR_BINARY = (StringType, BinaryType)


def check_write_schema(schema: StructType, options: WriteOptions) -> None:
    """Raise InvalidOptionError for invalid columns. Names are case-sensitive; columns of other names are ignored."""
    columns = {field.name: field.dataType for field in schema.fields}
    if options.topic is None and "topic" not in columns:
        raise InvalidOptionError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    if "value" not in columns:
        raise InvalidOptionError("Required attribute 'value' not found")
    _check("topic", columns, (StringType,), "a string")
    _check("value", columns, _STRING_OR_BINARY, "a(n) string or binary")
    _check("key", columns, _STRING_OR_BINARY, "a(n) string or binary")
    _check("partition", columns, (IntegerType,), "a(n) int")
    _check("timestamp", columns, (TimestampType,), "a(n) timestamp")
    headers = columns.get("headers")
    if headers is not None and not _are_headers(headers):
        raise InvalidOptionError(
            f"headers attribute unsupported type {headers.simpleString()}."
            " headers must be a(n) array<struct<key:string,value:binary>>"
        )


def _check(name: str, columns: dict[str, DataType], types: tuple[type[DataType], ...], expected: str) -> None:
    found = columns.get(name)
    if found is not None and not isinstance(found, types):
        raise InvalidOptionError(f"{name} attribute unsupported type {found.simpleString()}. {name} must be {expected}")


def _are_headers(found: DataType) -> bool:
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in found.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]
