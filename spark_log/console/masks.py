"""Hides parts of messages by the masks of a role. Pure.

A mask is `key`, `value`, `headers`, `headers.NAME`, or a field. A field of a value is `value.person.ssn` or
`record.person.ssn`. A field of a key begins with `key` or `key_record`. Bytes and typed columns show the same data, so
a mask on either applies to both. In an event of Debezium (value.envelope=debezium), a field of the row is in `after`,
in `before`, and in a column: a mask on one of them applies to all, also in other topics, which may have had such events
before. Names are compared without regard to case, and a column that a schema reset has created (`ssn__v2`) counts as
its field. Masks apply to the items of arrays. Data that cannot be parsed is hidden completely.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from spark_log.errors import InvalidConfigurationError

HIDDEN = "(hidden)"
"""The text that is shown in place of a masked field."""

_SOURCES = {"key": "key", "key_record": "key", "value": "value", "record": "value", "headers": "headers"}
_ERRORS = ("record_error", "key_record_error")
"""The columns with the reasons of bad records. The reasons never contain data of the record."""

Path = tuple[str, ...]


@dataclass(frozen=True)
class Masks:
    """The paths that are hidden in keys, values and headers, in normal form. The empty path hides everything."""

    key: frozenset[Path] = frozenset()
    value: frozenset[Path] = frozenset()
    headers: frozenset[Path] = frozenset()

    def of(self, source: str) -> frozenset[Path]:
        return {"key": self.key, "value": self.value, "headers": self.headers}[source]

    def hides(self, path: Path) -> bool:
        """Return whether this column, such as ("record", "email") or ("headers", "token"), shows something hidden."""
        if path[0] not in _SOURCES:
            return False
        here = _normal(path[1:])
        return any(
            mask[: len(here)] == here[: len(mask)] for mask in self.of(_SOURCES[path[0]])
        )  # one path is a prefix of the other

    def json_text(self, source: str, data: bytes) -> bytes | None:
        """Return the bytes of a key or value without the hidden fields, or None if all of it is hidden."""
        masks = self.of(source)
        if not masks:
            return data
        if () in masks:
            return None
        try:
            found = msgspec.json.decode(data)
            return msgspec.json.encode(masked(found, masks)) if isinstance(found, dict) else None
        except (ValueError, RecursionError):
            return None

    def record(self, source: str, fields: Any) -> Any:
        """Return the struct of typed columns, as Python objects, without the hidden fields."""
        masks = self.of(source)
        return HIDDEN if () in masks and fields is not None else masked(fields, masks) if masks else fields


@lru_cache(maxsize=256)
def masks_of(texts: frozenset[str], *, envelope: bool = False) -> Masks:
    """Return the masks of a role for a topic. With `envelope`, the topic's values are events of Debezium, and a mask
    may hide the whole row.

    Raises InvalidConfigurationError for a text that is not a mask. An error is better than a page that shows too much.
    """
    paths_of: dict[str, set[Path]] = {"key": set(), "value": set(), "headers": set()}
    for text in texts:
        first, *rest = text.split(".")
        if first not in _SOURCES or "" in rest:
            raise InvalidConfigurationError(
                f"masked: {text!r} is none of key, value, headers, headers.NAME, value.FIELD, record.FIELD, key.FIELD"
            )
        path = (".".join(rest),) if first == "headers" and rest else tuple(rest)
        paths_of[_SOURCES[first]].add(_normal(path))
    paths_of["value"] |= {path for mask in paths_of["value"] for path in _of_row(mask) if path or envelope}
    return Masks(*(frozenset(paths_of[source]) for source in ("key", "value", "headers")))


_ROWS = (("after",), ("before",), ("payload", "after"), ("payload", "before"))
"""The places of a row in an event of Debezium."""


def _of_row(mask: Path) -> Iterable[Path]:
    """Return the paths of the same field of the row: its column, and its places in the event."""
    field = mask
    for place in _ROWS:
        if mask[: len(place)] == place[: len(mask)]:
            field = mask[len(place) :]  # all of the row if the mask ends above it
    return (field, *(place + field for place in _ROWS))


def masked(value: Any, masks: Iterable[Path]) -> Any:
    """Return a JSON value in which each field on one of the paths is HIDDEN.

    A scalar is also HIDDEN if a path continues below it.
    """
    masks = list(masks)
    if value is None or not masks:
        return value
    if () in masks:
        return HIDDEN
    if isinstance(value, list):
        return [masked(item, masks) for item in value]
    if not isinstance(value, dict):
        return HIDDEN
    return {
        name: masked(item, [mask[1:] for mask in masks if mask[:1] == _normal((str(name),))])
        for name, item in value.items()
    }


_RESET = re.compile(r"__v[0-9]+$")


def _normal(path: Iterable[str]) -> Path:
    return tuple(_RESET.sub("", name).casefold() for name in path)
