"""Computes the columns that a filter names from one batch of records. Uses Arrow and NumPy, and a loop over records
only if some are not UTF-8.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.log.columns.json.decoder import JsonDecoder


@dataclass(frozen=True)
class BatchColumns:
    """A batch of a `read_schema` with its derived columns. Each derived column is computed once."""

    batch: pa.RecordBatch
    _made: dict[Any, Any] = field(default_factory=dict)

    def stored(self, name: str) -> pa.Array:
        return self.batch.column(name)

    def text(self, name: str) -> pa.Array:
        """Return column key or value as text, with null where it is not UTF-8."""
        return self.once(("text", name), lambda: text_of(self.batch.column(name)))

    def header(self, name: str) -> pa.Array:
        """Return the value of the last header of this name as text, or null where there is none."""
        return self.once(("header", name), lambda: text_of(last_header(self.batch.column("headers"), name)))

    def typed(self, path: tuple[str, ...]) -> pa.Array:
        """Return a field of a typed column, with null where a struct around it is null."""
        whole = self.batch.column(path[0])
        return self.once(("typed", path), lambda: pc.struct_field(whole, list(path[1:]))) if path[1:] else whole

    def json(self, source: str, path: tuple[str, ...], kind: pa.DataType) -> pa.Array:
        """Return a field of the JSON objects in key or value, with null where it is missing or not of this type."""
        return self.once(("json", source, path, kind), lambda: self._json(source, path, kind))

    def _json(self, source: str, path: tuple[str, ...], kind: pa.DataType) -> pa.Array:
        values = self.batch.column(source)
        return pc.struct_field(_json_decoder(path, kind).decode(values).record, list(path))

    def once(self, name: Any, make: Callable[[], Any]) -> Any:
        """Return the result of `make`, which is called only once for this batch and this name."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]


@lru_cache(maxsize=256)  # users choose the paths
def _nested(path: tuple[str, ...], kind: pa.DataType) -> pa.StructType:
    for name in reversed(path):
        kind = pa.struct([(name, kind)])
    return kind


def _json_decoder(path: tuple[str, ...], kind: pa.DataType) -> JsonDecoder:
    return JsonDecoder(_nested(path, kind))


def text_of(values: pa.Array) -> pa.Array:
    """Return bytes as text, with null where they are not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(map(_utf8, values.to_pylist()), pa.string())


def _utf8(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def last_header(headers: pa.ListArray, name: str) -> pa.Array:
    """Return the value of the last header of this name in each row, or null where there is none."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(headers), 0))
    items = headers.flatten()
    names, values = items.field("key"), items.field("value")
    found = np.flatnonzero(pc.fill_null(pc.equal(names, name), False).to_numpy(zero_copy_only=False))
    rows = np.repeat(np.arange(len(headers)), lengths)
    place = np.full(len(headers), -1)
    np.maximum.at(place, rows[found], found)
    return values.take(pa.array(place, mask=place < 0))


def any_header(headers: pa.ListArray, name: str, value: bytes | None) -> pa.BooleanArray:
    """Return whether each row has a header of this name, and of this value if one is given."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(headers), 0))
    items = headers.flatten()
    matches = pc.equal(items.field("key"), name)
    if value is not None:
        matches = pc.and_(matches, pc.equal(items.field("value"), pa.scalar(value, pa.binary())))
    rows = np.repeat(np.arange(len(headers)), lengths)
    found = np.zeros(len(headers), bool)
    found[rows[pc.fill_null(matches, False).to_numpy(zero_copy_only=False)]] = True
    return pa.array(found)
