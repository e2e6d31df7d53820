"""Aliases of Avro's named types: one without a namespace has the namespace of its type."""

import json
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
