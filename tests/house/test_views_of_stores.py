"""Code that answers for the whole cluster reads the rows of a topic in the store of the topic.

`cluster.store` is the home store, which has no partitions, segments and publications of topics of data stores. So a
function that uses it for such rows also takes a view: the cluster as another store has it (`Cluster.of`, `Cluster.at`).
A function that gets a view as a parameter calls it `view` or `data`, not `cluster`.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_log.metadata import tables as t

PACKAGE = Path(__file__).parents[2] / "spark_log"
ROOMS = ("cli", "clients", "console", "facts", "gateway", "groups")
OWNERS = ("log/segments", "log/partitions", "tables")
"""The folders whose functions and SQL tables are of the topics of one store."""

CLUSTERS = ("cluster", "_cluster", "opened")
"""The names of a cluster as its home store has it."""
VIEWS = ("of", "at", "in_each", "of_partitions", "ask_stores", "in_each_store", "in_stores_of", "with_data_stores")
"""Functions that return a view of one store, or call a function with the view of each store."""

EXCEPTIONS = {
    "cli/topics/table.py:rebuild": "tables/verification.py takes the view",
    "cli/topics/table.py:verify": "tables/verification.py takes the view",
    "facts/metrics/cluster_snapshot.py:_read_home": "reads the facts of home; read_cluster adds the data stores",
    "facts/metrics/recorded_reads.py:read_records": "internal topics are in the home store",
    "groups/share/": "share groups read topics of the home store only",
}

_MODULES = tuple(f"spark_log.{owner.replace('/', '.')}" for owner in OWNERS)
_TABLES = {name for name, table in t.metadata.tables.items() if table.info["owner"] in OWNERS}
_COLUMNS = {name.upper() for name in _TABLES}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def reads_of_home(source: str) -> list[str]:
    """The functions and methods of a module that use the home store for rows of topics, and take no view."""
    if ".store" not in source:
        return []
    tree = ast.parse(source)
    functions = dict(_functions(tree))
    takes_view = _closure(functions, lambda function, names: _calls(function, {*VIEWS, *names}))
    given = set(_imported(tree))
    # functions for which the caller opens the snapshot count as those of the owners
    asking = _closure(
        {name: each for name, each in functions.items() if name not in takes_view and not _uses_home(each)},
        lambda function, names: _has(function, given | names),
    )
    rows = given | {_last(name) for name in asking}
    return [
        name
        for name, function in functions.items()
        if name not in takes_view and _uses_home(function) and _has(function, rows)
    ]


def _closure(functions: dict[str, Function], test: Callable[[Function, set[str]], bool]) -> set[str]:
    """The functions that pass the test, which is given the names of those that are known to pass it."""
    passed: set[str] = set()
    while True:
        names = {_last(name) for name in passed}
        more = {name for name, function in functions.items() if test(function, names)} - passed
        if not more:
            return passed
        passed |= more


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    for node in tree.body:
        if isinstance(node, Function):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{each.name}", each) for each in node.body if isinstance(each, Function))


def _imported(tree: ast.Module) -> Iterator[str]:
    """The functions, modules and columns of the owners that the module imports, by the name that it uses."""
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            path = f"{node.module}.{alias.name}"
            of_owner = any(path.startswith(f"{module}.") for module in _MODULES)
            if (of_owner and alias.name.islower()) or alias.name in _COLUMNS:
                yield alias.asname or alias.name


def _has(function: Function, names: set[str]) -> bool:
    """Whether it has one of the names, a method of `self` with one, or a table of the owners."""
    return any(
        (isinstance(node, ast.Name) and node.id in names)
        or (isinstance(node, ast.Attribute) and _name(node.value) == "self" and node.attr in names)
        or (isinstance(node, ast.Attribute) and _name(node.value) in ("t", "tables") and node.attr in _TABLES)
        for node in ast.walk(function)
    )


def _uses_home(function: Function) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == "store" and _name(node.value) in CLUSTERS
        for node in ast.walk(function)
    )


def _calls(function: Function, names: set[str]) -> bool:
    return any(isinstance(node, ast.Call) and _name(node.func) in names for node in ast.walk(function))


def _name(node: ast.AST) -> str | None:
    """The last name of an expression such as `call.cluster`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


IMPORTS = """
from spark_log.log.segments.file_pruning import without_excluded
from spark_log.log.segments import plan as planner
from spark_log.metadata.sql_columns import GROUP_OFFSET, SEGMENT
"""


@pytest.mark.parametrize(
    ("function", "found"),
    [
        ("    return cluster.store.read(without_excluded)", True),
        ("    return cluster.of(topic).store.read(without_excluded)", False),
        ("    return view.store.read(without_excluded)", False),
        ("    with call.cluster.store.snapshot() as c:\n        return planner.plan(c)", True),
        ("    return self._cluster.store.read(lambda c: c.execute(sa.select(SEGMENT.path)))", True),
        ("    return self._cluster.store.read(lambda c: c.execute(sa.select(GROUP_OFFSET.topic_id)))", False),
        ("    return cluster.store.read(lambda c: c.execute(t.replica.delete()))", True),
        ("    return cluster.store.read(g)\ndef g(c):\n    return planner.plan(c)", True),
        ("    return cluster.store.read(g)\ndef g(c):\n    return h(c)\ndef h(c):\n    return planner.plan(c)", True),
        (
            "    return cluster.store.read(planner.plan), g()\ndef g():\n    return ask_stores(cluster, h)",
            False,
        ),
        ("    return cluster.store.now()", False),
    ],
)
def test_reads_of_the_home_store_are_recognised(function: str, found: bool) -> None:
    assert reads_of_home(f"{IMPORTS}\ndef f(cluster):\n{function}") == (["f"] if found else [])


def test_rows_of_topics_are_read_in_the_store_of_the_topic() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{name}"
        for room in ROOMS
        for path in (PACKAGE / room).rglob("*.py")
        for name in reads_of_home(path.read_text())
    }
    excepted = {place for place in found for start in EXCEPTIONS if place.startswith(start)}
    assert found - excepted == set()
    assert {start for start in EXCEPTIONS if not any(place.startswith(start) for place in found)} == set()
