"""In which direction a compatibility level compares."""

import pytest

from spark_log.registry import compatibility
from spark_log.registry.compatibility import LEVELS, incompatibilities
from spark_log.registry.schemas import SchemaText

NEW, OLD = SchemaText("AVRO", "new"), SchemaText("AVRO", "old")
DIRECTIONS = {
    "NONE": [],
    "BACKWARD": ["new reads old"],
    "FORWARD": ["old reads new"],
    "FULL": ["new reads old", "old reads new"],
}


@pytest.mark.parametrize("level", LEVELS)
def test_directions_that_a_level_compares(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def compare(reader: SchemaText, writer: SchemaText) -> list[str]:
        seen.append(f"{reader.text} reads {writer.text}")
        return ["why"]

    monkeypatch.setattr(compatibility, "problems", compare)
    faults = incompatibilities(level, NEW, 2, OLD)
    assert seen == DIRECTIONS[level.removesuffix("_TRANSITIVE")]
    assert len(faults) == len(seen) and all(fault.startswith("version 2 ") for fault in faults)
