"""Reads Avro types. `read` of a reader reads one value at each position of a cursor, as an Arrow array.

A reader without a column skips its values and returns None. `skip` skips a single value, because the items of arrays
and maps have to be found one by one.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_log.log.columns.avro.cursor import TRUNCATED, Cursor
from spark_log.log.columns.avro.scalars import Boolean, Bytes, Decimal, Enum, Fixed, Floating, Number, zigzag
from spark_log.log.columns.avro.schema import AvroType
from spark_log.log.columns.expansion import item_type, struct_width
from spark_log.log.columns.schema_id_decoder import taken
from spark_log.log.columns.value_bytes import Ints


class Reader(Protocol):
    def read(self, cursor: Cursor) -> pa.Array | None: ...

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        """Return the position after the value at `pos`, or raise IndexError. A position after `end` means that the
        value is cut off.
        """


def record_reader(kind: AvroType, fields: pa.StructType) -> Reader:
    """Return the reader of a record's columns. Columns that are not fields of its schema are null."""
    return Record(kind, fields, "")


def values_per_byte(kind: AvroType, column: pa.DataType | None) -> float:
    """Return the largest number of struct fields within arrays and maps to which one byte can be decoded. An item with
    few fields, or a null of a union, may take one byte and is decoded to all fields of the column.
    """
    if column is None or kind.column is None:
        return 0
    if kind.name == "record":
        columns = {field.name: field.type for field in column}
        return max(map(values_per_byte, kind.parts, (columns.get(name) for name in kind.names)), default=0)
    if kind.name == "union":
        return max(values_per_byte(branch, column) for branch in kind.parts)
    item = item_type(column)
    if item is None:
        return 0
    item_bytes = kind.parts[0].min_bytes + (kind.name == "map")
    return max(struct_width(item) / item_bytes, values_per_byte(kind.parts[0], item))


def _reader(kind: AvroType, column: pa.DataType | None, path: str) -> Reader:
    if kind.name == "record":
        return Record(kind, column, path)
    if kind.name == "union":
        return Union([_reader(branch, column, path) for branch in kind.parts], column, path)
    if kind.name == "array":
        return Array(_reader(kind.parts[0], column and column.value_type, f"{path}[]"), column, path)
    if kind.name == "map":
        return Map(_reader(kind.parts[0], column and column.item_type, f"{path}{{}}"), column, path)
    if kind.name == "null":
        return Null(column)
    if pa.types.is_decimal(kind.column):
        digits = Fixed(kind.size, pa.binary()) if kind.name == "fixed" else Bytes(pa.binary(), path)
        return Decimal(digits, kind.scale, column, path)
    if kind.name == "fixed":
        return Fixed(kind.size, column)
    if kind.name in ("string", "bytes"):
        return Bytes(column, path)
    if kind.name == "enum":
        return Enum(kind.symbol_texts, column, path)
    if kind.name in ("float", "double"):
        return Floating(4 if kind.name == "float" else 8, column)
    if kind.name == "boolean":
        return Boolean(column, path)
    return Number(32 if kind.name == "int" else 64, kind.logical, column, path)


class Null:
    def __init__(self, column: pa.DataType | None) -> None:
        self._column = column

    def read(self, cursor: Cursor) -> pa.Array | None:
        return self._column and pa.nulls(len(cursor), self._column)

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        return pos


class Record:
    def __init__(self, kind: AvroType, column: pa.StructType | None, path: str) -> None:
        self._column = column
        columns = {field.name: field.type for field in column} if column else {}
        parts = [
            (name, part, _reader(part, columns.get(name), f"{path}.{name}".lstrip(".")))
            for name, part in zip(kind.names, kind.parts, strict=True)
        ]
        # Fields without bytes are not skipped one by one, because an item of one byte may have thousands of them.
        self._read = [(name, reader) for name, part, reader in parts if part.min_bytes or name in columns]
        self._skipped = [reader for _, part, reader in parts if part.min_bytes]

    def read(self, cursor: Cursor) -> pa.StructArray | None:
        arrays = {name: reader.read(cursor) for name, reader in self._read}
        if self._column is None:
            return None
        columns = [
            arrays[field.name] if field.name in arrays else pa.nulls(len(cursor), field.type) for field in self._column
        ]
        return pa.StructArray.from_arrays(columns, fields=list(self._column))

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        for reader in self._skipped:
            pos = reader.skip(data, pos, end)
        return pos


class Union:
    def __init__(self, branches: Sequence[Reader], column: pa.DataType | None, path: str) -> None:
        self._branches, self._column, self._path = branches, column, path

    def read(self, cursor: Cursor) -> pa.Array | None:
        index = cursor.numbers(self._path)
        cursor.fail((index < 0) | (index >= len(self._branches)), f"{self._path}: no such branch of the Avro union")
        if len(index) and (index == index[0]).all() and 0 <= index[0] < len(self._branches):
            return self._branches[index[0]].read(cursor)
        arrays, order, count = [], np.full(len(cursor), -1, np.int64), 0
        by_branch = np.argsort(index, kind="stable")  # visits the branches that occur: a union may have thousands
        pos = cursor.pos.copy()
        for chosen in np.split(by_branch, np.flatnonzero(np.diff(index[by_branch])) + 1):
            number = index[chosen[0]] if len(chosen) else -1
            branch = self._branches[number] if 0 <= number < len(self._branches) else None
            if branch is None or isinstance(branch, Null):
                continue
            part = cursor.part(chosen)
            arrays.append(branch.read(part))
            pos[chosen] = part.pos
            order[chosen] = np.arange(count, count + len(chosen))
            count += len(chosen)
        cursor.pos = pos
        if self._column is None:
            return None
        return taken(pa.concat_arrays([pa.array([], self._column), *arrays]), order)

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        index, pos = zigzag(data, pos)
        if index < 0:
            raise IndexError
        return self._branches[index].skip(data, pos, end)


class Array:
    def __init__(self, item: Reader, column: pa.ListType | None, path: str) -> None:
        self._item, self._column, self._path = item, column, path
        self._width = struct_width(column.value_type) if column else 0

    def read(self, cursor: Cursor) -> pa.Array | None:
        items, offsets = _items(cursor, self._item.skip, self._width, self._path)
        array = self._item.read(items)
        return self._column and pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), array, type=self._column)

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        return _skip_items(data, pos, end, self._item.skip, [])


class Map:
    def __init__(self, item: Reader, column: pa.MapType | None, path: str) -> None:
        self._key, self._item, self._column = Bytes(pa.string(), f"{path}{{}}"), item, column
        self._width, self._path = struct_width(column.item_type) if column else 0, path

    def read(self, cursor: Cursor) -> pa.Array | None:
        entries, offsets = _items(cursor, self._skip_entry, self._width, self._path)
        keys, values = self._key.read(entries), self._item.read(entries)
        if self._column is None or keys is None or values is None:
            return None
        maps = np.repeat(np.arange(len(cursor)), np.diff(offsets))
        codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
        _, last = np.unique((maps * len(keys) + codes)[::-1], return_index=True)
        if len(last) < len(keys):  # the last of several entries with one key counts
            kept = np.sort(len(keys) - 1 - last)
            keys, values = keys.take(pa.array(kept)), values.take(pa.array(kept))
            offsets = np.concatenate(([0], np.cumsum(np.bincount(maps[kept], minlength=len(cursor)))))
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, values, type=self._column)

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        return _skip_items(data, pos, end, self._skip_entry, [])

    def _skip_entry(self, data: memoryview, pos: int, end: int) -> int:
        return self._item.skip(data, self._key.skip(data, pos, end), end)


_Skip = Callable[[memoryview, int, int], int]


def _items(cursor: Cursor, skip: _Skip, width: int, path: str) -> tuple[Cursor, Ints]:
    """Skip an array or map at each position. Return a cursor at all their items, and for each array or map the number
    of its first item, followed by the number of all items.

    If the items, of `width` values each, are too many for the row (`Bad.has_room`), the row is bad and they are left
    out. Each item has its own end, so that the positions stay in ascending order if an item is bad.
    """
    data = memoryview(cursor.data)  # type: ignore[arg-type]
    bounds, counts, ends = list[int](), list[int](), list[int]()
    failed = np.zeros(len(cursor), np.bool_)
    for number, (pos, end) in enumerate(zip(cursor.pos.tolist(), cursor.end.tolist(), strict=True)):
        before = len(bounds)
        try:
            pos = _skip_items(data, pos, end, skip, bounds)
        except IndexError:
            del bounds[before:]
            failed[number] = True
        rows_items = (len(bounds) - before) // 2
        if width and not cursor.bad.has_room(int(cursor.row[number]), rows_items * width, path):
            del bounds[before:]
        ends.append(pos)
        counts.append((len(bounds) - before) // 2)
    cursor.pos = np.array(ends, np.int64)
    cursor.fail(failed, TRUNCATED)
    each = np.repeat(np.arange(len(cursor)), counts)
    first, last = np.array(bounds, np.int64).reshape(-1, 2).T
    return Cursor(cursor.data, first, last, cursor.row[each], cursor.bad), np.concatenate(
        ([0], np.cumsum(counts, dtype=np.int64))
    )


def _skip_items(data: memoryview, pos: int, end: int, skip: _Skip, bounds: list[int]) -> int:
    """Return the position after the blocks of an array or map, and append the start and the end of each item to
    `bounds`. Raise IndexError if the blocks exceed `end`.
    """
    while True:
        count, pos = zigzag(data, pos)
        if count < 0:  # the block's length in bytes follows
            count, pos = -count, zigzag(data, pos)[1]
        if pos > end:
            raise IndexError
        if not count:
            return pos
        for _ in range(count):
            bounds.append(pos)
            pos = skip(data, pos, end)
            if pos > end:
                raise IndexError
            bounds.append(pos)
