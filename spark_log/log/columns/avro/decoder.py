"""Decodes Avro to columns: one field of all records at a time, with NumPy.

A value has exactly the bytes of one record of its schema. It is bad if bytes are missing or left over, or if it has
text that is not UTF-8, an index of an enum or union that does not exist, a boolean other than 0 and 1, a number of too
many bits, a time outside of the years 1 to 9999, or a decimal with too many digits. Of several map entries with the
same key, the last one counts.
"""

import pyarrow as pa

from spark_log.log.columns.avro.cursor import Cursor
from spark_log.log.columns.avro.readers import record_reader, values_per_byte
from spark_log.log.columns.avro.schema import avro_type
from spark_log.log.columns.bad_rows import Bad
from spark_log.log.columns.schema_id_decoder import Read
from spark_log.log.columns.value_bytes import Ints

ROWS = 8192
"""Number of values whose fields are decoded together."""


def avro_values_per_byte(schema: str, fields: pa.StructType) -> float:
    """Return `values_per_byte` of SchemaIdDecoder for an Avro schema, given as JSON text."""
    return values_per_byte(avro_type(schema), fields)


def avro_reader(schema: str, fields: pa.StructType) -> Read:
    """Return a function that decodes records of an Avro schema, given as JSON text."""
    reader = record_reader(avro_type(schema), fields)

    def read(values: pa.BinaryArray, rows: Ints, bad: Bad) -> pa.StructArray:
        cursor = Cursor.of(values, rows, bad)
        record = reader.read(cursor)
        cursor.fail(cursor.pos != cursor.end, "bytes left over after the Avro record")
        return record

    return read
