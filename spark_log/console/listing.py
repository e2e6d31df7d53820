"""Lists of a page: search, sorting and paging by query parameters. Pure.

`q`: text that the name has. `sort`: a column, with `-` before it for descending order. `page`: from 1. `size`: rows of
a page.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from spark_log.errors import InvalidConfigurationError

Row = TypeVar("Row")

SIZE = 100
SIZE_MAX = 1_000


@dataclass(frozen=True)
class Listing(Generic[Row]):
    """One page of a list. `total`: rows that match the search, on all pages. `query`: the parameters of this page."""

    rows: Sequence[Row]
    total: int
    page: int
    pages: int
    sort: str
    q: str
    query: Mapping[str, str]


def listing(
    rows: Collection[Row],
    query: Mapping[str, str],
    *,
    columns: Collection[str],
    sort: str,
    name: Callable[[Row], str],
    first: Callable[[Row], bool] | None = None,
) -> Listing[Row]:
    """The rows that a request asks for. `columns`: fields that may be sorted by; `sort`: the one without a parameter.

    Rows with equal values are in the order of their names, and rows without a value come last. `first`: rows before all
    others. Raises InvalidConfigurationError.
    """
    substring = query.get("q", "").strip()
    by = query.get("sort") or sort
    field, descending = by.removeprefix("-"), by.startswith("-")
    if field not in columns:
        raise InvalidConfigurationError(f"sort: there is no column {field!r}: choose of {', '.join(columns)}")
    matching = [row for row in rows if substring.lower() in name(row).lower()]
    matching.sort(key=name)
    matching.sort(key=lambda row: _sortable(getattr(row, field)), reverse=descending)
    matching.sort(key=lambda row: ((not first(row)) if first else False, getattr(row, field) is None))
    size = _number(query, "size", SIZE, SIZE_MAX)
    pages = max(1, -(-len(matching) // size))
    page = min(_number(query, "page", 1, 2**31), pages)
    shown = matching[(page - 1) * size : page * size]
    return Listing(shown, len(matching), page, pages, by, substring, dict(query))


def _sortable(value: Any) -> Any:
    """Text before the case of its letters; None like nothing, since those rows are moved to the end."""
    return ("" if value is None else value.lower(), value or "") if isinstance(value, str) else (value or 0, "")


def _number(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name) or str(default)
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:12]) <= most:
        raise InvalidConfigurationError(f"{name}: expected a number from 1 to {most}, got {text!r}")
    return int(text)
