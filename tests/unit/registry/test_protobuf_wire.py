"""Protobuf changes that keep or change the wire format, which has the numbers of fields and no names."""

import pytest

from spark_log.registry import protobuf_wire
from spark_log.registry.compatibility import incompatibilities
from spark_log.registry.protobuf_schemas import problems
from spark_log.registry.schemas import SchemaText

ALLOWED = [
    ("int64 a = 1;", "int64 b = 1;"),
    ("int64 a = 1;", "bool b = 1;"),
    ("int32 a = 1;", "uint32 a = 1;"),
    ("Color a = 1;", "int32 b = 1;"),
    ("sint32 a = 1;", "sint64 a = 1;"),
    ("fixed32 a = 1;", "sfixed32 a = 1;"),
    ("fixed64 a = 1;", "sfixed64 b = 1;"),
    ("string a = 1;", "bytes b = 1;"),
    ("string a = 1;", "repeated string b = 1;"),
    ("int32 a = 1;", "optional int32 a = 1;"),
    ("int32 a = 1;", "oneof one { int32 a = 1; string s = 2; }"),
    ("map<string, int32> a = 1;", "map<string, uint32> b = 1;"),
    ("Part a = 1;", "repeated Part b = 1;"),
    ("M a = 1; int32 n = 2;", "M b = 1; uint32 n = 2;"),
    ("int64 a = 1;", "sint64 b = 2;"),
]
REFUSED = [
    ("int64 a = 1;", "sint64 a = 1;"),
    ("int64 a = 1;", "sint64 b = 1;"),
    ("int32 a = 1;", "string b = 1;"),
    ("int32 a = 1;", "fixed32 a = 1;"),
    ("int32 a = 1;", "sfixed64 a = 1;"),
    ("sfixed32 a = 1;", "sfixed64 a = 1;"),
    ("float a = 1;", "double a = 1;"),
    ("float a = 1;", "fixed32 b = 1;"),
    ("Color a = 1;", "string a = 1;"),
    ("int32 a = 1;", "repeated int32 b = 1;"),
    ("Part a = 1;", "bytes b = 1;"),
    ("Part a = 1;", "Other b = 1;"),
    ("Part a = 1;", "map<string, int32> b = 1;"),
    ("map<string, int32> a = 1;", "map<string, sint32> a = 1;"),
    ("map<int32, int32> a = 1;", "map<sint32, int32> a = 1;"),
    ("M a = 1; int32 n = 2;", "M a = 1; sint32 n = 2;"),
    ("oneof one { int32 a = 1; }", "sint32 a = 1;"),
    ("message In { int32 a = 1; } In a = 1;", "message In { sint32 a = 1; } In a = 1;"),
]


def schema(fields: str, imports: tuple[tuple[str, str], ...] = ()) -> SchemaText:
    head = 'syntax = "proto3"; package shop;' + "".join(f'import "{name}";' for name, _ in imports)
    others = "enum Color { RED = 0; } message Part { int32 n = 1; } message Other { int32 n = 1; }"
    return SchemaText("PROTOBUF", f"{head} {others} message M {{ {fields} }}", imports)


@pytest.mark.parametrize("level", ["BACKWARD", "FORWARD", "FULL"])
def test_a_changed_encoding_of_a_number_is_refused_in_each_direction(level: str) -> None:
    plain, zigzag = schema("int64 a = 1;"), schema("sint64 a = 1;")
    for old, new in ((plain, zigzag), (zigzag, plain)):
        [first, *_] = incompatibilities(level, new, 1, old)
        assert "shop.M.a: the type of field 1 is" in first


@pytest.mark.parametrize(("old", "new"), ALLOWED)
def test_one_encoding(old: str, new: str) -> None:
    found = problems(schema(new), schema(old)) + problems(schema(old), schema(new))
    assert [each for each in found if "the type of field" in each] == []
    if new.split()[-3] != "a":
        assert found == [], "another name is another column"


@pytest.mark.parametrize(("old", "new"), REFUSED)
def test_another_encoding(old: str, new: str) -> None:
    for reader, writer in ((new, old), (old, new)):
        assert any("the type of field" in each for each in problems(schema(reader), schema(writer)))


def test_messages_of_imported_files_are_compared() -> None:
    def with_import(kind: str, package: str = "common") -> SchemaText:
        imported = f'syntax = "proto3"; package {package}; message Money {{ {kind} units = 1; }}'
        return schema(f"{package}.Money a = 1;", (("money.proto", imported),))

    assert problems(with_import("int32"), with_import("int32")) == []
    assert problems(with_import("uint32", "other"), with_import("int32")) == [], "the package is not on the wire"
    assert problems(with_import("sint32"), with_import("int32")) == [
        "common.Money.units: the type of field 1 is sint32, not int32"
    ]


def test_the_number_of_compared_fields_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_wire, "_FIELDS_MAX", 3)
    assert "more than 3 fields" in problems(schema("int32 a = 1;"), schema("bool b = 1;"))[0]
