"""Prints tables for people, JSON for scripts, and lines of text.

Clients choose the texts of names, ids and records. So control characters, which a terminal would execute, are escaped
here. Cells are objects of `rich.text.Text`, in which markup has no effect.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from spark_log.text import bytes_of as bytes_of
from spark_log.text import count_of as count_of
from spark_log.text import duration_of as duration_of
from spark_log.text import printable, printable_json
from spark_log.text import time_of as time_of

if TYPE_CHECKING:
    from rich.text import Text

WIDTH_OF_PIPES = 200
"""Width of a table that is not printed to a terminal. The default of rich is 80 columns."""


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    typer.echo(json_of(value, indent=2))


def json_of(value: Any, indent: int | None = None) -> str:
    """Return the JSON text of a value, with control characters escaped."""
    return printable_json(json.dumps(value, indent=indent, ensure_ascii=False))


def print_table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on stdout. Columns that hold only integers are right-aligned."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown_title = None if title is None else Text(printable(title), style="table.title")
    table = Table(title=shown_title, title_justify="left", header_style="bold")
    for at, column in enumerate(columns):
        numeric = all(isinstance(row[at], int) and not isinstance(row[at], bool) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(cell, row))
    Console(width=None if sys.stdout.isatty() else WIDTH_OF_PIPES).print(table)


def print_rows(
    as_json: bool,
    document: object,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    empty: str | None = None,
    *,
    title: str | None = None,
) -> None:
    """Print the JSON document, or else a table of the rows. Without rows, print `empty` instead, if it is given."""
    if as_json:
        print_json(document)
    elif not rows and empty is not None:
        say(empty)
    else:
        print_table(title, columns, rows)


def print_result(as_json: bool, document: object, *lines: str) -> None:
    """Print the JSON document, or else the lines."""
    if as_json:
        print_json(document)
    else:
        for line in lines:
            say(line)


def cell(value: object) -> "Text":
    """Return a cell of a rich table. A list or tuple has one line for each item."""
    from rich.text import Text

    return Text("\n".join(map(_show, value)) if isinstance(value, list | tuple) else _show(value))


def print_facts(facts: Mapping[str, object]) -> None:
    """Print aligned lines of `name  value` on stdout."""
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        typer.echo(f"{printable(name):<{width}}  {_show(value)}")


def say(text: str) -> None:
    """Print one line about the result, on stdout."""
    typer.echo(printable(text))


def note(text: str) -> None:
    """Print one line that is not data, on stderr."""
    typer.echo(printable(text), err=True)


def _show(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))
