"""Searches and sorts lists, and selects one page of them, by query parameters. Pure.

`q` is a substring of the name. `sort` is a column, with `-` before it for descending order. `page` is the number of the
page, beginning with 1. `size` is the number of rows of a page.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from spark_log.errors import InvalidConfigurationError

Row = TypeVar("Row")

SIZE = 100
SIZE_MAX = 1_000


@dataclass(frozen=True)
class Listing(Generic[Row]):
    """One page of a list. `total` is the number of rows that match the search, on all pages. `query` has the parameters
    of this page.
    """

    rows: Sequence[Row]
    total: int
    page: int
    pages: int
    sort: str
    q: str
    query: Mapping[str, str]


def row_of(kind: type[Row], source: object, **others: object) -> Row:
    """Return a row of this dataclass, with the fields `others`, and the other fields from attributes of `source`."""
    rest = [field.name for field in fields(kind) if field.name not in others]  # type: ignore[arg-type]
    return kind(**others, **{name: getattr(source, name) for name in rest})


def listing(
    rows: Collection[Row],
    query: Mapping[str, str],
    *,
    columns: Collection[str],
    sort: str,
    name: Callable[[Row], str],
    first: Callable[[Row], bool] | None = None,
) -> Listing[Row]:
    """Return the rows that a request asks for.

    `columns` are the fields that rows may be sorted by. `sort` is the order if the request has no parameter `sort`.
    Rows with equal values are in the order of their names, and rows without a value come last. Rows for which `first`
    is true precede all others. Raises InvalidConfigurationError.
    """
    substring = query.get("q", "").strip()
    by = query.get("sort") or sort
    field, descending = by.removeprefix("-"), by.startswith("-")
    if field not in columns:
        raise InvalidConfigurationError(f"sort: there is no column {field!r}: choose one of {', '.join(columns)}")
    matching = [row for row in rows if substring.lower() in name(row).lower()]
    matching.sort(key=name)
    matching.sort(key=lambda row: _sortable(getattr(row, field)), reverse=descending)
    matching.sort(key=lambda row: ((not first(row)) if first else False, getattr(row, field) is None))
    size = number_in(query, "size", SIZE, SIZE_MAX)
    pages = max(1, -(-len(matching) // size))
    page = min(number_in(query, "page", 1, 2**31), pages)
    shown = matching[(page - 1) * size : page * size]
    return Listing(shown, len(matching), page, pages, by, substring, dict(query))


def _sortable(value: Any) -> Any:
    """Return the sort key of a value.

    Text is compared without regard to case first, and then with it. None has the key of an empty value, since rows with
    None are moved to the end.
    """
    return ("" if value is None else value.lower(), value or "") if isinstance(value, str) else (value or 0, "")


def number_in(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    """Return the number from 1 to `most` in a parameter. Raises InvalidConfigurationError."""
    text = query.get(name) or str(default)
    if not text.isascii() or not text.isdecimal() or len(text) > 12 or not 1 <= int(text) <= most:
        raise InvalidConfigurationError(f"{name}: expected a number from 1 to {most}, got {text[:40]!r}")
    return int(text)
