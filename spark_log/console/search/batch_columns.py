"""The columns of one batch of records that a filter names. Uses Arrow and NumPy without a loop over records."""

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
        """Return what `make` returned when it was called first for this batch and this name."""
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
        return pc.if_else(pa.array(utf8_rows(values)), values.view(pa.string()), pa.scalar(None, pa.string()))


def utf8_rows(values: pa.BinaryArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows are UTF-8 by RFC 3629, without overlong forms and surrogates. The result for a null is
    undefined.
    """
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]] if data_buffer else np.zeros(0, np.uint8)
    lengths = np.diff(offsets)
    row = np.repeat(np.arange(len(values)), lengths)
    # NUL bytes follow each row, so that no sequence continues in the next row.
    spaced = np.zeros(len(data) + 4 * len(values) + 4, np.uint8)
    place = np.arange(len(data)) + 4 * row
    spaced[place] = data
    row_of = np.repeat(np.arange(len(values) + 1), np.append(lengths + 4, 4))
    byte, second = spaced[:-1], spaced[1:]
    continuation = (spaced & 0xC0) == 0x80
    expected = np.zeros(len(spaced), bool)
    for distance, first in ((1, 0xC2), (2, 0xE0), (3, 0xF0)):
        expected[distance:] |= spaced[:-distance] >= first
    bad = continuation != expected
    bad |= (spaced == 0xC0) | (spaced == 0xC1) | (spaced > 0xF4)
    bad[:-1] |= (byte == 0xE0) & (second < 0xA0) | (byte == 0xED) & (second > 0x9F)
    bad[:-1] |= (byte == 0xF0) & (second < 0x90) | (byte == 0xF4) & (second > 0x8F)
    good = np.ones(len(values) + 1, bool)
    good[row_of[bad]] = False
    return good[:-1]


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
