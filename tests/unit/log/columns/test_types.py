"""Schemas as DDL and as JSON text."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import Schema
from hypothesis import given, settings

from spark_log.errors import InvalidSchemaError
from spark_log.log.columns.types import from_json, list_of, parse_ddl, to_ddl, to_json

from .strategies import SCHEMAS

# Spark 4.2's StructType.fromDDL accepts these, with the same names and the same kinds of types.
ACCEPTED = {
    "a INT, b STRING": "a BIGINT, b STRING",
    "a: INT": "a BIGINT",  # pyspark's fromDDL
    " a  array<int>\n": "a ARRAY<BIGINT>",
    "select INT, from STRING, struct BIGINT, array STRING, timestamp TIMESTAMP, not INT": (
        "select BIGINT, from STRING, struct BIGINT, array STRING, timestamp TIMESTAMP, not BIGINT"
    ),
    "`select` INT, `x-y` INT, `é` INT": "select BIGINT, `x-y` BIGINT, `é` BIGINT",
    "1a INT, _b INT, `42` INT": "`1a` BIGINT, _b BIGINT, `42` BIGINT",
    "a INT NOT NULL COMMENT \"say 'hi', now\", b INT comment 'it''s', c INT COMMENT 'it\\'s'": (
        "a BIGINT, b BIGINT, c BIGINT"
    ),
    "a INT -- first\n, /* second */ b INT": "a BIGINT, b BIGINT",
    "s STRUCT<x: INT NOT NULL, y ARRAY<STRUCT<z: ARRAY<INT>>> COMMENT 'c'>": (
        "s STRUCT<x: BIGINT, y: ARRAY<STRUCT<z: ARRAY<BIGINT>>>>"
    ),
    "m MAP<STRING, MAP<VARCHAR(3), INT>>": "m MAP<STRING, MAP<STRING, BIGINT>>",
    "a INTEGER, b BYTE, c TINYINT, d SHORT, e SMALLINT, f LONG": (
        "a BIGINT, b BIGINT, c BIGINT, d BIGINT, e BIGINT, f BIGINT"
    ),
    "a REAL, b FLOAT, c DOUBLE": "a DOUBLE, b DOUBLE, c DOUBLE",
    "a DEC, b DECIMAL(10), c NUMERIC(12, 3), d DECIMAL( 5 ,2 )": (
        "a DECIMAL(10, 0), b DECIMAL(10, 0), c DECIMAL(12, 3), d DECIMAL(5, 2)"
    ),
    "a CHAR(3), b VARCHAR(10), c CHARACTER(4)": "a STRING, b STRING, c STRING",
    "a TIMESTAMP_LTZ, b BINARY, c BOOLEAN, d DATE": "a TIMESTAMP, b BINARY, c BOOLEAN, d DATE",
}

REFUSED = {
    # Spark refuses these too.
    "": "expected a name",
    "a": "expected the type of a at character 2, got the end",
    "a INT,": "expected a name",
    ",a INT": "expected a name",
    "a INT b INT": "expected a comma or the end at character 7, got 'b'",
    "a INT NULL": "got 'NULL'",
    "a INT DEFAULT 3": "got 'DEFAULT'",
    "a INT COMMENT 'x' NOT NULL": "got 'NOT'",
    "a INT COMMENT x": "expected a text in quotes",
    "a-b INT": "expected the type of a",
    "é INT": "require backticks",
    "a.b INT": "expected the type of a",
    "1 INT": "expected a name",
    "1e3 INT": "expected a name",
    '"a" INT': "expected a name",
    "a INT;": "got ';'",
    "a ARRAY<INT": "expected > at character 12, got the end",
    "a ARRAY<INT>>": "got '>'",
    "a MAP<STRING>": "expected ,",
    "a STRUCT<x: INT,>": "expected a name",
    "struct<a:int>": "expected the type of struct",
    "a INT(4)": r"got '\('",
    "a TEXT": "field a: type TEXT cannot be a column",
    "a DECIMAL(39, 0)": "the precision is 1 to 38",
    "a DECIMAL(5, 6)": "the scale 0 to the precision",
    "a DECIMAL(3, -1)": "expected a scale",
    # Spark accepts these, but a Delta table of the basic protocol does not have them.
    "a STRUCT<>": "field a: a struct needs at least one field",
    "m MAP<INT, STRING>": "field m: the keys of a MAP have to be STRING",
    "a TIMESTAMP_NTZ": "field a: type TIMESTAMP_NTZ cannot be a column: use TIMESTAMP",
    "a VARIANT": "type VARIANT",
    "a VOID": "type VOID",
    "a INTERVAL DAY": "type INTERVAL",
    "a STRING COLLATE UTF8_LCASE": "got 'COLLATE'",
    "a INT, A STRING": "the name 'A' differs from 'a' in case only",
    "s STRUCT<a: INT, a: INT>": "field s: the name 'a' is there twice",
    "`a b` INT": "the name 'a b' is empty, or has whitespace",
    "`a.b` INT": "the name 'a.b'",
    "`a``b` INT": "the name 'a`b'",
    '`a"b` INT': "the name 'a\"b'",
    "`a\\b` INT": r"the name 'a\\\\b'",
    "`` INT": "the name ''",
}


@pytest.mark.parametrize(("text", "canonical"), ACCEPTED.items())
def test_accepted_ddl(text: str, canonical: str) -> None:
    assert to_ddl(parse_ddl(text)) == canonical


@pytest.mark.parametrize(("text", "message"), REFUSED.items())
def test_refused_ddl(text: str, message: str) -> None:
    with pytest.raises(InvalidSchemaError, match=message):
        parse_ddl(text)


@settings(max_examples=50)
@given(SCHEMAS)
def test_ddl_and_json_text_are_read_back(fields: pa.StructType) -> None:
    assert parse_ddl(to_ddl(fields)).equals(fields)
    assert from_json(to_json(fields)).equals(fields)
    assert Schema.from_json(to_json(fields)).to_json() == to_json(fields), "deltalake reads and writes the same text"


def test_json_text_is_the_one_of_delta_and_spark() -> None:
    ddl = "a INT, d DECIMAL(5, 2), t TIMESTAMP, x ARRAY<FLOAT>, m MAP<STRING, DATE>, s STRUCT<b: BINARY, ok: BOOLEAN>"

    def field(name: str, kind: object) -> object:
        return {"name": name, "type": kind, "nullable": True, "metadata": {}}

    assert json.loads(to_json(parse_ddl(ddl))) == {
        "type": "struct",
        "fields": [
            field("a", "long"),
            field("d", "decimal(5,2)"),
            field("t", "timestamp"),
            field("x", {"type": "array", "elementType": "double", "containsNull": True}),
            field("m", {"type": "map", "keyType": "string", "valueType": "date", "valueContainsNull": True}),
            field("s", {"type": "struct", "fields": [field("b", "binary"), field("ok", "boolean")]}),
        ],
    }


@pytest.mark.parametrize("text", ["", "5", '"long"', "{}", '{"type":"struct","fields":[{"name":"a","type":"int8"}]}'])
def test_another_json_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        from_json(text)


@settings(max_examples=50)
@given(SCHEMAS)
def test_parquet_without_an_arrow_schema_reads_back_the_same_types(fields: pa.StructType) -> None:
    table = pa.table({"record": pa.nulls(1, fields)})
    file = io.BytesIO()
    pq.write_table(table, file, store_schema=False)
    assert pq.read_schema(io.BytesIO(file.getvalue())).field("record").type.equals(fields)


def test_schemas_beyond_the_limits_are_refused() -> None:
    """However deep they are: work that grows with the square of the depth would not end."""
    widest = ", ".join(f"f{number} INT" for number in range(10_000))
    assert parse_ddl(widest).num_fields == 10_000
    with pytest.raises(InvalidSchemaError, match="more than 10000 fields"):
        parse_ddl(f"{widest}, one STRUCT<more: INT>")
    deepest = "a " + "ARRAY<" * 31 + "INT" + ">" * 31
    assert parse_ddl(deepest).field("a").type == _lists(31)
    for opening in ("ARRAY<", "MAP<STRING, ", "STRUCT<a: "):
        with pytest.raises(InvalidSchemaError, match="nested deeper than 32 levels"):
            parse_ddl("a " + opening * 50_000)
    with pytest.raises(InvalidSchemaError):
        from_json('{"type":"array","elementType":' * 100_000)


def _lists(levels: int) -> pa.DataType:
    return list_of(_lists(levels - 1)) if levels else pa.int64()
