"""Compiles statements once, because SQLAlchemy's work for each execution takes ten times as long as SQLite's.

Prepared statements are built with SQLAlchemy and executed by the driver directly. No type is converted: both drivers
accept and return numbers, text, bytes and booleans (SQLite returns 0 and 1 for booleans). A parameter may be a list,
for `in_list`. PostgreSQL runs a change of many rows as one statement, whose parameters are arrays (`row_arrays`).

A round trip to PostgreSQL takes longer than most statements. Statements can share a round trip in two ways:

    with one_message(connection):         sent together: queries by `Prepared.ask`, whose rows are read after the block
    with sent_with_commit(connection):    the last changes of a transaction, sent in one message with COMMIT

SQLite runs each statement at once.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from spark_log.metadata.row_arrays import ArrayStatement, array_statement, as_arrays

_Row = tuple[Any, ...]


class _List(sa.types.TypeDecorator[Any]):
    """A list as one parameter: an array on PostgreSQL, JSON on SQLite."""

    impl = sa.types.NullType
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        return json.dumps(value) if dialect.name == "sqlite" else value


class in_list(FunctionElement[Any]):  # noqa: N801  # a SQL operator, like sa.between
    """Whether a column has one of the values of a list of any length: `values`, or a parameter of this name.

    The list is one parameter. `Column.in_` has a parameter for each value, of which databases limit the number, and is
    another statement for each number of values.
    """

    inherit_cache = True
    type = sa.types.NullType()  # with Boolean, "= 1" would follow on SQLite, which then would not use an index

    def __init__(self, column: sa.ColumnElement[Any], values: str | Iterable[Any]) -> None:
        if isinstance(values, str):
            super().__init__(column, sa.bindparam(values, type_=_List()))
        else:
            super().__init__(column, sa.bindparam(None, list(values), type_=_List(), unique=True))


@compiles(in_list, "sqlite")
def _in_json(element: in_list, compiler: SQLCompiler, **options: Any) -> str:
    column, values = (compiler.process(part, **options) for part in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({values}))"


@compiles(in_list)
def _in_array(element: in_list, compiler: SQLCompiler, **options: Any) -> str:
    column, values = (compiler.process(part, **options) for part in element.clauses)
    return f"{column} = ANY({values})"


class in_pairs(FunctionElement[Any]):  # noqa: N801
    """Whether two columns have one of the pairs of values of parameter `pairs`, which is JSON: [["a", "b"], ...]."""

    inherit_cache = True
    type = sa.types.NullType()

    def __init__(self, first: sa.ColumnElement[Any], second: sa.ColumnElement[Any]) -> None:
        super().__init__(first, second, sa.bindparam("pairs", type_=sa.Text()))


@compiles(in_pairs, "sqlite")
def _in_json_pairs(element: in_pairs, compiler: SQLCompiler, **options: Any) -> str:
    first, second, pairs = (compiler.process(part, **options) for part in element.clauses)
    values = f"SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each({pairs})"
    return f"({first}, {second}) IN ({values})"


@compiles(in_pairs)
def _in_jsonb_pairs(element: in_pairs, compiler: SQLCompiler, **options: Any) -> str:
    first, second, pairs = (compiler.process(part, **options) for part in element.clauses)
    values = f"SELECT value->>0, value->>1 FROM jsonb_array_elements(CAST({pairs} AS jsonb))"
    return f"({first}, {second}) IN ({values})"


class Answer:
    """The answer to a query that has been sent."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def rows(self) -> list[_Row]:
        """Return the rows. Call it once."""
        try:
            found: list[_Row] = self._cursor.fetchall()
            return found
        finally:
            self._cursor.close()


class _Text(NamedTuple):
    """A statement for the driver, with the order of its parameters if they are positional, as SQLite's are."""

    text: str
    order: Sequence[str] | None
    lists: Sequence[int]
    """The positions of the parameters that are lists."""


class Prepared:
    """A statement with named parameters. Each execution passes all of them. Safe to share between threads."""

    def __init__(self, statement: sa.Executable) -> None:
        assert isinstance(statement, sa.ClauseElement)
        self._statement: sa.ClauseElement = statement
        self._texts: dict[str, _Text] = {}
        self._for_rows: ArrayStatement | None = None

    def rows(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> list[_Row]:
        """Run a query and return its rows."""
        return self.ask(connection, parameters).rows()

    def ask(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> Answer:
        """Send a query and return its answer. Inside `one_message`, read the rows only after the block."""
        return Answer(self._run(connection, [parameters]))

    def run(self, connection: sa.Connection, parameters: Sequence[Mapping[str, Any]]) -> None:
        """Run an INSERT, UPDATE or DELETE once for each set of parameters; no two sets concern the same row. Inside
        `sent_with_commit`, PostgreSQL runs it with the commit.
        """
        last = LastChanges.of(connection)
        if last is not None and last.collecting:
            last.add(self, parameters)
        else:
            self._run(connection, parameters).close()

    def _run(self, connection: sa.Connection, parameters: Sequence[Mapping[str, Any]]) -> Any:
        driver = driver_of(connection)
        text, bound = self._bound(connection, parameters)
        try:
            cursor = driver.cursor()
            if len(bound) == 1:
                cursor.execute(text, bound[0])
            else:
                cursor.executemany(text, bound)
        except connection.dialect.loaded_dbapi.Error as error:
            raise as_sqlalchemy(connection, text, error) from error
        return cursor

    def _bound(self, connection: sa.Connection, parameters: Sequence[Mapping[str, Any]]) -> tuple[str, Sequence[Any]]:
        """Return the text for the driver, and the parameters of each execution."""
        dialect = connection.dialect
        if dialect.name not in self._texts:
            columns = list(parameters[0]) if isinstance(self._statement, sa.Insert) else None
            compiled = self._statement.compile(dialect=dialect, column_keys=columns)
            assert isinstance(compiled, SQLCompiler)
            if dialect.name == "postgresql":
                self._for_rows = array_statement(self._statement, compiled)
            names = compiled.positiontup
            of_lists = [i for i, name in enumerate(names or ()) if isinstance(compiled.binds[name].type, _List)]
            self._texts[dialect.name] = _Text(str(compiled), names, of_lists)
        text, order, lists = self._texts[dialect.name]
        if order is not None:
            rows = [[one[name] for name in order] for one in parameters]
            for i in lists:
                for row in rows:
                    row[i] = json.dumps(row[i])
            return text, rows
        arrays = None if self._for_rows is None else as_arrays(self._for_rows, parameters)
        if self._for_rows is not None and arrays is not None:
            return self._for_rows.text, [arrays]
        return text, parameters


@contextlib.contextmanager
def one_message(connection: sa.Connection) -> Iterator[None]:
    """Send the prepared statements of the block to PostgreSQL together. The block must not execute statements through
    SQLAlchemy. After a failed statement, the following ones are not run.
    """
    if connection.dialect.name != "postgresql":
        yield
        return
    failure: BaseException | None = None
    try:
        with driver_of(connection).pipeline():
            try:
                yield
            except BaseException as error:  # raised below: psycopg would log the loss of the connection as a warning
                failure = error
    except connection.dialect.loaded_dbapi.Error as error:
        failure = failure or error
    if isinstance(failure, connection.dialect.loaded_dbapi.Error):
        raise as_sqlalchemy(connection, "statements sent together", failure) from failure
    if failure is not None:
        raise failure


class LastChanges:
    """The changes that a transaction on PostgreSQL sends with COMMIT. They are kept in its connection's options."""

    OPTION = "spark_log_last_changes"

    def __init__(self) -> None:
        self.collecting = False
        self._changes: list[tuple[Prepared, Sequence[Mapping[str, Any]]]] = []

    @classmethod
    def of(cls, connection: sa.Connection) -> "LastChanges | None":
        found: LastChanges | None = connection.get_execution_options().get(cls.OPTION)
        return found

    def add(self, statement: Prepared, parameters: Sequence[Mapping[str, Any]]) -> None:
        self._changes.append((statement, parameters))

    def send(self, connection: sa.Connection) -> None:
        """Send the changes. Only the commit calls this, inside `one_message`."""
        for statement, parameters in self._changes:
            statement.run(connection, parameters)


@contextlib.contextmanager
def sent_with_commit(connection: sa.Connection) -> Iterator[None]:
    """On PostgreSQL, let the commit send the changes that the block makes with `Prepared.run`.

    They must be the last statements of the transaction. The commit raises their errors.
    """
    last = LastChanges.of(connection)
    if last is None:
        yield
        return
    last.collecting = True
    try:
        yield
    finally:
        last.collecting = False


def driver_of(connection: sa.Connection) -> Any:
    """Return the connection of sqlite3 or psycopg."""
    driver = connection.connection.dbapi_connection
    assert driver is not None
    return driver


def as_sqlalchemy(connection: sa.Connection, text: str, error: Exception) -> Exception:
    """Return the driver's error as the SQLAlchemy exception that `Store.transact` handles."""
    dialect = connection.dialect
    base = dialect.loaded_dbapi.Error
    lost = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)  # type: ignore[arg-type]
    if lost:
        connection.invalidate(error)
    raised = sa.exc.DBAPIError.instance(
        text, None, error, base, connection_invalidated=lost, dialect=dialect, hide_parameters=True
    )
    assert isinstance(raised, Exception)
    return raised
