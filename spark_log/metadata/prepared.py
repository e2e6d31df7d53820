"""Statements that are compiled once: SQLAlchemy's own work for each execution takes ten times as long as SQLite's.

They are built with SQLAlchemy and executed by the driver directly. No type is converted: both drivers accept and return
numbers, text, bytes and booleans (SQLite returns 0 and 1 for booleans).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.compiler import SQLCompiler

_Row = tuple[Any, ...]


class Prepared:
    """A statement with named parameters, all of which each execution gives. Safe to share between threads."""

    def __init__(self, statement: sa.Executable) -> None:
        self._statement = statement
        self._compiled: dict[str, tuple[str, Sequence[str] | None]] = {}

    def rows(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> list[_Row]:
        """Run a query."""
        cursor = self._run(connection, [parameters])
        try:
            found: list[_Row] = cursor.fetchall()
            return found
        finally:
            cursor.close()

    def run(self, connection: sa.Connection, parameters: Sequence[Mapping[str, Any]]) -> None:
        """Run an INSERT, UPDATE or DELETE once for each set of parameters."""
        self._run(connection, parameters).close()

    def _run(self, connection: sa.Connection, parameters: Sequence[Mapping[str, Any]]) -> Any:
        text, order = self._text(connection, parameters[0])
        driver = connection.connection.dbapi_connection
        assert driver is not None
        bound: Sequence[Any] = parameters
        if order is not None:
            bound = [[one[name] for name in order] for one in parameters]
        try:
            cursor = driver.cursor()
            if len(bound) == 1:
                cursor.execute(text, bound[0])
            else:
                cursor.executemany(text, bound)
        except connection.dialect.loaded_dbapi.Error as error:
            raise as_sqlalchemy(connection, text, error) from error
        return cursor

    def _text(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> tuple[str, Sequence[str] | None]:
        """The statement's text for the driver, and the order of its parameters if the driver has no named ones."""
        name = connection.dialect.name
        if name not in self._compiled:
            assert isinstance(self._statement, sa.ClauseElement)
            columns = list(parameters) if isinstance(self._statement, sa.Insert) else None
            compiled = self._statement.compile(dialect=connection.dialect, column_keys=columns)
            assert isinstance(compiled, SQLCompiler)
            self._compiled[name] = (str(compiled), compiled.positiontup)
        return self._compiled[name]


def as_sqlalchemy(connection: sa.Connection, text: str, error: Exception) -> Exception:
    """The driver's error as SQLAlchemy would raise it, which is what `Store.transact` handles."""
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
