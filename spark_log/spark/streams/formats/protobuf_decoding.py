"""Protobuf messages to columns in Spark's Python workers. It needs no JAR.

The descriptor set is sent with the function; each worker creates the message's class once.
"""

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type

from spark_log.log.columns.protobuf.columns import structs_of
from spark_log.log.columns.protobuf.messages import message_class
from spark_log.spark.streams.formats.parsing import Parser
from spark_log.spark.streams.formats.protobuf_types import schema_of


def protobuf_parser(name: str, descriptor_set: bytes) -> Parser:
    """InvalidOptionError for an invalid descriptor, message or field."""
    schema = schema_of(message_class(name, descriptor_set).DESCRIPTOR)
    result = st.StructType().add("value", schema).add("error", st.StringType())
    arrow = to_arrow_type(result, timezone="UTC")

    def parsed(values: pa.Array) -> pa.Array:
        return structs_of(values, message_class(name, descriptor_set), arrow)

    # Declared as not deterministic: otherwise Spark pushes down a filter on `error` and parses everything twice.
    function = arrow_udf(parsed, result).asNondeterministic()  # type: ignore[call-overload]  # its overloads leave structs out
    return Parser(function, lambda _bare, parsed: parsed["error"])
