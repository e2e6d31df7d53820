"""Which versions a compatibility level compares, and in which direction."""

import pytest

from spark_log.registry.compatibility import LEVELS, incompatibilities
from spark_log.registry.schemas import SchemaText

NEW, OLD = SchemaText("AVRO", "new"), [(number, SchemaText("AVRO", f"v{number}")) for number in (1, 2)]


@pytest.mark.parametrize(
    ("level", "compared"),
    [
        ("NONE", []),
        ("BACKWARD", ["new reads v2"]),
        ("FORWARD", ["v2 reads new"]),
        ("FULL", ["new reads v2", "v2 reads new"]),
        ("BACKWARD_TRANSITIVE", ["new reads v1", "new reads v2"]),
        ("FORWARD_TRANSITIVE", ["v1 reads new", "v2 reads new"]),
        ("FULL_TRANSITIVE", ["new reads v1", "v1 reads new", "new reads v2", "v2 reads new"]),
    ],
)
def test_pairs_that_a_level_compares(level: str, compared: list[str]) -> None:
    assert level in LEVELS
    seen: list[str] = []

    def compare(reader: SchemaText, writer: SchemaText) -> list[str]:
        seen.append(f"{reader.text} reads {writer.text}")
        return ["why"]

    assert len(incompatibilities(level, NEW, OLD, compare)) == len(compared)
    assert seen == compared
    assert incompatibilities(level, NEW, [], compare) == []
