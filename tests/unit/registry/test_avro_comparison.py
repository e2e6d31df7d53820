"""Comparisons of Avro schemas: aliases, and schemas that are made to take too much memory or time."""

import json
import tracemalloc
from typing import Any

from spark_log.registry.avro_schemas import problems
from spark_log.registry.schemas import SchemaText


def record(name: str, *fields: Any, **others: Any) -> dict[str, Any]:
    named = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(fields)]
    return {"type": "record", "name": name, "fields": named, **others}


def compared(reader: Any, writer: Any) -> list[str]:
    return problems(*(SchemaText("AVRO", json.dumps(each)) for each in (reader, writer)))


def test_an_alias_has_the_namespace_of_its_type() -> None:
    old = record("R", "int", namespace="n")
    for alias in ("R", "n.R"):
        assert compared(record("R2", "int", namespace="n", aliases=[alias]), old) == []
        assert compared(record("n.R2", "int", aliases=[alias]), old) == []
    assert "name_mismatch" in compared(record("R2", "int", namespace="m", aliases=["R"]), old)[0]
    assert "name_mismatch" in compared(record("R2", "int", namespace="n", aliases=["R"]), record("R", "int"))[0]
    assert "name_mismatch" in compared(record("R2", "int", namespace="n", aliases=[5, None]), old)[0]
    assert compared(record("R2", "int", aliases=["R"]), record("R", "int")) == []
    assert "name_mismatch" in compared(old, record("R2", "int", namespace="n", aliases=["R"]))[0]


def test_nested_types_have_the_enclosing_namespace() -> None:
    def outer(suffix: str, **aliases: Any) -> dict[str, Any]:
        kinds: list[dict[str, Any]] = [
            record(f"In{suffix}", "int"),
            {"type": "enum", "name": f"E{suffix}", "symbols": ["A"]},
            {"type": "fixed", "name": f"F{suffix}", "size": 4},
        ]
        for kind, alias in zip(kinds, aliases.values(), strict=False):
            kind["aliases"] = [alias]
        first, second, third = kinds
        return record("Out", {"type": "array", "items": first}, ["null", second], {"type": "map", "values": third},
                      namespace="n")  # fmt: skip

    assert compared(outer("2", record="In", enum="E", fixed="F"), outer("")) == []
    assert compared(outer("2"), outer("")) != []
    assert compared(outer("2", record="m.In", enum="E", fixed="F"), outer("")) != []


def doubled(leaf: str) -> dict[str, Any]:
    """Twenty records that each have the record below twice: 2**19 uses of the innermost field."""
    kind = record("R0", leaf)
    for level in range(1, 20):
        kind = record(f"R{level}", kind, f"R{level - 1}")
    return kind


def test_types_of_types_do_not_multiply_the_reasons() -> None:
    tracemalloc.start()
    try:
        [reason] = compared(doubled("long"), doubled("string"))
        bytes_max = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reason.startswith("type_mismatch at /fields/0/type") and bytes_max < 4 << 20


def test_symbols_of_many_enums_are_not_compared_with_each_other() -> None:
    def union(letter: str, enums: int) -> list[Any]:
        symbols = [f"{letter}{number}" for number in range(300)]
        return [{"type": "enum", "name": f"E{number}", "symbols": symbols} for number in range(enums)]

    assert "cannot be compared" in compared(union("a", 300), union("b", 300))[0]  # 90,000 pairs of enums
    assert "missing_union_branch" in compared(union("a", 2), union("b", 2))[0]


def test_schemas_of_too_many_levels_are_not_compared() -> None:
    def chain(leaf: str) -> dict[str, Any]:
        """Each record has the one before. Fields that the other schema does not have declare them one by one."""
        kinds = [record("R0", leaf), *(record(f"R{level}", f"R{level - 1}") for level in range(1, 1_000))]
        declared = [{"name": f"{leaf}{n}", "type": ["null", kind], "default": None} for n, kind in enumerate(kinds)]
        return {"type": "record", "name": "T", "fields": [*declared, {"name": "f", "type": "R999"}]}

    assert "cannot be compared" in compared(chain("long"), chain("string"))[0]
