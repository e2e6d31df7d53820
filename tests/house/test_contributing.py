"""CONTRIBUTING.md matches the repository."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "CONTRIBUTING.md").read_text()


def test_every_file_named_in_contributing_exists() -> None:
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]*|\w+\.py)`", TEXT)
    assert len(named) > 40
    folders = [REPOSITORY, REPOSITORY / "spark_log" / "admin", REPOSITORY / "tests" / "support"]
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []


def test_the_map_in_contributing_has_every_folder_of_the_package() -> None:
    packages = {folder.parent.name for folder in (REPOSITORY / "spark_log").glob("*/__init__.py")}
    assert {name for name in packages if f"`spark_log/{name}`" not in TEXT} == set()
