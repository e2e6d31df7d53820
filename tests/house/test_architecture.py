"""ARCHITECTURE.md and docs/architecture match the repository."""

import ast
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


SAY_NOTHING = {"each", "found", "given", "known", "wanted", "said", "told"}
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def names_in(scope: ast.AST) -> dict[str, list[int]]:
    """The names of this scope alone, with the lines in which they stand."""
    lines: dict[str, list[int]] = {}
    nodes = list(ast.iter_child_nodes(scope))
    for node in nodes:
        if isinstance(node, ast.Name | ast.arg):
            lines.setdefault(node.id if isinstance(node, ast.Name) else node.arg, []).append(node.lineno)
        if not isinstance(node, SCOPES):
            nodes += ast.iter_child_nodes(node)
    return lines


def test_a_name_that_outlives_five_lines_says_what_the_value_is() -> None:
    vague = []
    for path in PACKAGE.rglob("*.py"):
        for scope in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, SCOPES)):
            for name, lines in names_in(scope).items():
                if name in SAY_NOTHING and max(lines) - min(lines) > 5:
                    vague.append(f"{path.relative_to(PACKAGE)}:{min(lines)}: {name}")
    assert vague == []


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
