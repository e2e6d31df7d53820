"""ARCHITECTURE.md and docs/architecture match the repository."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "spark_log"
ROOMS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"errors"}
"""The rooms, and not the errors, which are below all rooms as the modules are."""
PAGES = [REPOSITORY / "ARCHITECTURE.md", *sorted((REPOSITORY / "docs" / "architecture").glob("*.md"))]


def test_the_room_table_has_every_room() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGES[0].read_text(), re.MULTILINE)) == ROOMS


def test_no_file_has_more_than_400_lines() -> None:
    lengths = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines > 400} == {}


def test_there_are_few_rooms_and_modules_and_no_crowded_folder() -> None:
    modules = [path for path in PACKAGE.glob("*.py") if not path.name.startswith("__")]
    assert len(ROOMS) <= 16
    assert len(modules) <= 6
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [folder.name for folder in folders if len(list(folder.glob("*.py"))) > 20] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"`([\w./]+\.py|[\w]+(?:/[\w]+)*/)`", text)
    everywhere = {path.name for folder in ("spark_log", "tests") for path in (REPOSITORY / folder).rglob("*.py")}
    missing = [
        name
        for name in named
        if not ((REPOSITORY / name).exists() or (PACKAGE / name).exists() or ("/" not in name and name in everywhere))
    ]
    assert missing == []
    links = re.findall(r"\]\(((?!http)[^)#]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
