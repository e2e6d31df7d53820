"""CONTRIBUTING.md and the list of the helpers of tests match the repository."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "CONTRIBUTING.md").read_text()


def test_every_file_named_in_contributing_exists() -> None:
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]*|\w+\.py)`", TEXT)
    assert len(named) > 20
    folders = [REPOSITORY, REPOSITORY / "spark_log" / "clients" / "admin", REPOSITORY / "tests" / "support"]
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []


def test_the_list_of_helpers_has_every_module() -> None:
    support = REPOSITORY / "tests" / "support"
    listed = re.findall(r"`(\w+)`", (support / "__init__.py").read_text())
    assert sorted(listed) == sorted(path.stem for path in support.glob("*.py") if path.stem != "__init__")
