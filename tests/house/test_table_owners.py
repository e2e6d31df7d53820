"""Each SQL table is written by one folder: the owner that its definition in spark_log/metadata/tables names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_log.metadata import tables as t

PACKAGE = Path(__file__).parents[2] / "spark_log"

CASCADE = "metadata/cascade.py"
"""The module that deletes rows of every table whose definition says that they are deleted with a topic or a log dir."""

MIGRATIONS = "metadata/migrations/"
"""They change the rows of an earlier release in whatever table has them."""

_WRITES = re.compile(r"insert|update|delete", re.IGNORECASE)
"""What the text of a module that writes a table contains."""

_SQL = re.compile(r"\b(?:INSERT INTO|DELETE FROM|UPDATE)\s+([a-z_]+)")


def written_tables(source: str) -> set[str]:
    """The tables that the code of a module inserts into, updates or deletes from."""
    if not _WRITES.search(source):
        return set()
    scopes = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)
    found: set[str] = set()
    for scope in (node for node in ast.walk(ast.parse(source)) if isinstance(node, scopes)):
        for statement in scope.body:
            found |= {name for node in _own_nodes(statement) for name in _written_by(node, scope)}
    return found & t.metadata.tables.keys()


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The node and its descendants, without the bodies of nested functions."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _own_nodes(child)


def _written_by(node: ast.AST, scope: ast.AST) -> set[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return set(_SQL.findall(node.value))
    if not isinstance(node, ast.Call):
        return set()
    if isinstance(node.func, ast.Name) and node.func.id == "insert_if_missing":
        return _tables_in(node.args[1])
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("insert", "update", "delete") and not node.args:
        if isinstance(node.func.value, ast.Name):  # a variable: every table that the function lists
            listed = [each for each in ast.walk(scope) if isinstance(each, ast.Tuple | ast.List)]
            return {name for each in listed for element in each.elts for name in _tables_in(element)}
        return _tables_in(node.func.value)
    return set()


def _tables_in(node: ast.AST) -> set[str]:
    """{"segment"} for the expression `t.segment`."""
    is_table = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    return {node.attr} if is_table and node.value.id in ("t", "tables") else set()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("_NEW = Prepared(t.segment.insert())", {"segment"}),
        ("def f(c):\n    c.execute(tables.broker.update().where(tables.broker.c.served))", {"broker"}),
        ("insert_if_missing(c, t.lease, {})", {"lease"}),
        ("c.execute('DELETE FROM commit_token WHERE token = 1')", {"commit_token"}),
        ("def f(c):\n    for x in (t.replica, t.topic):\n        c.execute(x.delete())", {"replica", "topic"}),
        ("sa.select(t.segment.c.name, t.blob.c.data)\nnames.update(t.blob)\n{}.update(a=1)", set()),
    ],
)  # fmt: skip
def test_writes_are_recognised(source: str, written: set[str]) -> None:
    assert written_tables(source) == written


def test_every_owner_is_a_folder() -> None:
    owners = {table.info["owner"] for table in t.metadata.tables.values()}
    assert {owner for owner in owners if not (PACKAGE / owner).is_dir()} == set()


def test_each_table_is_written_by_its_owner_only() -> None:
    foreign = set()
    for path in PACKAGE.rglob("*.py"):
        module = path.relative_to(PACKAGE)
        for table in () if module.as_posix().startswith((CASCADE, MIGRATIONS)) else written_tables(path.read_text()):
            if not module.is_relative_to(t.metadata.tables[table].info["owner"]):
                foreign.add((module.as_posix(), table))
    assert foreign == set(), "call a function of the table's owner instead"


def test_columns_have_one_name_in_every_module() -> None:
    renamed = re.compile(r"^ *[\w, ]+ = (t|tables)\.\w+\.c(,|$)", re.MULTILINE)
    modules = [
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if renamed.search(path.read_text())
    ]
    assert modules == ["metadata/sql_columns.py"], "import the name from spark_log.metadata.sql_columns"
