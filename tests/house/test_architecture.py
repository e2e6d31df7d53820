"""ARCHITECTURE.md and docs/architecture match the repository."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "spark_log"
PAGES = [REPOSITORY / "ARCHITECTURE.md", *sorted((REPOSITORY / "docs" / "architecture").glob("*.md"))]


def test_the_folder_table_has_every_folder() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    rows = re.findall(r"^\| (`[^|]+) \|", PAGES[0].read_text(), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == folders


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
