"""The parts of messages that a role hides. Pure.

A mask is `key`, `value`, `headers`, `headers.NAME`, or a field: `value.person.ssn`, `record.person.ssn`, and `key...`,
`key_record...` for keys. Bytes and typed columns show the same data, so a mask on either holds for both. Names are
compared without regard to case, and a column that a reset has made (`ssn__v2`) counts as its field. Masks pass through
arrays. What cannot be parsed is hidden whole.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from spark_log.errors import InvalidConfigurationError

HIDDEN = "(hidden)"
"""Shown in place of a masked field."""

_SOURCES = {"key": "key", "key_record": "key", "value": "value", "record": "value", "headers": "headers"}
_ERRORS = ("record_error", "key_record_error")
"""Reasons of bad records never contain data of the record."""

Path = tuple[str, ...]


@dataclass(frozen=True)
class Masks:
    """The paths that are hidden in keys, values and headers, in normal form; the empty path hides the whole."""

    key: frozenset[Path] = frozenset()
    value: frozenset[Path] = frozenset()
    headers: frozenset[Path] = frozenset()

    def of(self, source: str) -> frozenset[Path]:
        return {"key": self.key, "value": self.value, "headers": self.headers}[source]

    def hides(self, path: Path) -> bool:
        """Whether this column, such as ("record", "email") or ("headers", "token"), shows something hidden."""
        if path[0] not in _SOURCES:
            return False
        here = _normal(path[1:])
        return any(
            mask[: len(here)] == here[: len(mask)] for mask in self.of(_SOURCES[path[0]])
        )  # one begins with the other

    def json_text(self, source: str, data: bytes) -> bytes | None:
        """Bytes of a key or value without the hidden fields; None if they are hidden whole."""
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
        """The struct of typed columns, as Python objects, without the hidden fields."""
        masks = self.of(source)
        return HIDDEN if () in masks and fields is not None else masked(fields, masks) if masks else fields


@lru_cache(maxsize=256)
def masks_of(texts: frozenset[str]) -> Masks:
    """The masks of a role. InvalidConfigurationError for a text that is no mask: better no page than too much on it."""
    paths_of: dict[str, set[Path]] = {"key": set(), "value": set(), "headers": set()}
    for text in texts:
        first, *rest = text.split(".")
        if first not in _SOURCES or "" in rest:
            raise InvalidConfigurationError(
                f"masked: {text!r} is none of key, value, headers, headers.NAME, value.FIELD, record.FIELD, key.FIELD"
            )
        path = (".".join(rest),) if first == "headers" and rest else tuple(rest)
        paths_of[_SOURCES[first]].add(_normal(path))
    return Masks(*(frozenset(paths_of[source]) for source in ("key", "value", "headers")))


def masked(value: Any, masks: Iterable[Path]) -> Any:
    """A value of JSON in which each field on one of the paths is HIDDEN; so is a scalar where a path leads on."""
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
