"""Changes many rows with one statement on PostgreSQL: each parameter is an array that has a value for each row.

With `executemany`, client and server exchange messages for each row, which takes most of their time.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.compiler import SQLCompiler

_ROWS_MIN = 16
"""The number of rows from which arrays are used. With fewer, the longer text of the statement costs more."""
_BYTES_MAX = 1_024
"""The average size of a row's byte values up to which arrays are used: the server copies arrays of larger ones."""


class ArrayStatement(NamedTuple):
    """The text of a statement with arrays, and the names of the parameters that are arrays of bytes."""

    text: str
    of_bytes: frozenset[str]


def array_statement(statement: sa.ClauseElement, compiled: SQLCompiler) -> ArrayStatement | None:
    """Return the statement with arrays as parameters. `compiled` is the statement for one row.

    Return None if it is run row by row: a query, an INSERT with more than values, or a condition other than equality,
    which PostgreSQL cannot estimate for an array, so that it might read the whole table.
    """
    if not isinstance(statement, sa.Insert | sa.Update | sa.Delete) or not compiled.binds:
        return None
    types: dict[str, sa.types.TypeEngine[Any]] = {name: each.type for name, each in compiled.binds.items()}
    if isinstance(statement, sa.Insert):
        plain = sa.insert(statement.table).compile(dialect=compiled.dialect, column_keys=list(types))
        if str(plain) != str(compiled):
            return None
    elif not all(isinstance(each, sa.BinaryExpression) and each.operator is operators.eq for each in _ands(statement)):
        return None
    for name, type_ in types.items():
        if isinstance(type_, sa.String):
            types[name] = sa.Text()  # a cast to VARCHAR(n) would cut long values
    arrays = [sa.bindparam(name, type_=sa.ARRAY(type_)) for name, type_ in types.items()]
    columns: list[sa.ColumnClause[Any]] = [sa.column(name, type_) for name, type_ in types.items()]
    rows = sa.func.unnest(*arrays).table_valued(*columns, joins_implicitly=True).render_derived(name="given")

    def column_of(element: Any, **kw: Any) -> Any:
        return rows.c[element.key] if isinstance(element, sa.BindParameter) else None

    if isinstance(statement, sa.Insert):
        changed: Any = sa.insert(statement.table).from_select(list(types), sa.select(*rows.c))
    else:
        changed = visitors.replacement_traverse(cast("Any", statement), {}, column_of)
    text = str(changed.compile(dialect=compiled.dialect))
    of_bytes = frozenset(name for name, type_ in types.items() if isinstance(type_, sa.LargeBinary))
    for name in of_bytes:  # psycopg's binary form: the text form of bytes is twice as long
        text = text.replace(f"%({name})s", f"%({name})b")
    return ArrayStatement(text, of_bytes)


def _ands(statement: sa.Update | sa.Delete) -> Iterable[Any]:
    """Return the conditions of the WHERE clause, which AND joins."""
    where = statement.whereclause
    return where.clauses if isinstance(where, sa.BooleanClauseList) and where.operator is operators.and_ else [where]


def as_arrays(statement: ArrayStatement, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the parameters of the statement for these rows, or None if arrays would not be faster."""
    if len(rows) < _ROWS_MIN:
        return None
    if sum(len(row[name] or b"") for name in statement.of_bytes for row in rows) > _BYTES_MAX * len(rows):
        return None
    columns = {name: list(map(itemgetter(name), rows)) for name in rows[0]}
    return {name: values if name in statement.of_bytes else as_text(values) for name, values in columns.items()}


def as_text(values: Sequence[Any]) -> str:
    """Return PostgreSQL's text form of an array of numbers, booleans or texts, five times as fast as psycopg."""
    if any(issubclass(kind, str) for kind in set(map(type, values))):
        quoted = (
            "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values
        )
        return "{" + ",".join(quoted) + "}"
    return "{" + ",".join(map(str, values)).replace("None", "NULL") + "}"
