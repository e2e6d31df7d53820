"""Reads Avro types that have no parts. See readers.py."""

import numpy as np
import pyarrow as pa

from spark_log.log.columns.avro.cursor import Cursor
from spark_log.log.columns.types import FIRST_DATE, FIRST_TIMESTAMP, LAST_DATE, LAST_TIMESTAMP, type_name
from spark_log.log.columns.value_bytes import slices

_DECIMAL_BYTES = 16


def zigzag(data: memoryview, pos: int) -> tuple[int, int]:
    """Return the zigzag varint at `pos`, and the position after it. Raise IndexError if it exceeds the data or has too
    many bytes.
    """
    byte = data[pos]
    value, shift = byte & 0x7F, 7
    while byte & 0x80:
        if shift > 63:
            raise IndexError
        pos += 1
        byte = data[pos]
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), pos + 1


class Number:
    """Reads int and long, as numbers or as times."""

    def __init__(self, bits: int, logical: str, column: pa.DataType | None, path: str) -> None:
        self._bits, self._logical, self._column, self._path = bits, logical, column, path

    def read(self, cursor: Cursor) -> pa.Array | None:
        number = cursor.numbers(self._path, self._bits)
        if self._column is None:
            return None
        if self._column == pa.int64():
            return pa.array(number)
        if self._column == pa.date32():
            outside = (number < FIRST_DATE) | (number > LAST_DATE)
            number = number.astype(np.int32)
        else:
            first, last = FIRST_TIMESTAMP, LAST_TIMESTAMP
            if self._logical.endswith("nanos"):
                number = number // 1000
            elif self._logical.endswith("millis"):
                outside = (number < first // 1000) | (number > last // 1000)
                number = np.where(outside, last + 1, number * 1000)
            outside = (number < first) | (number > last)
        cursor.fail(outside, f"{self._path}: not a time of the years 1 to 9999")
        return pa.array(number).view(self._column)

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        return zigzag(data, pos)[1]


class Floating:
    """Reads float and double, of `size` bytes."""

    def __init__(self, size: int, column: pa.DataType | None) -> None:
        self._size, self._column = size, column

    def read(self, cursor: Cursor) -> pa.Array | None:
        start = cursor.skip(self._size)
        if self._column is None:
            return None
        places = cursor.data[start[:, None] + np.arange(self._size)]
        return pa.array(places.view(f"<f{self._size}").ravel().astype(np.float64))

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        return pos + self._size


class Boolean:
    def __init__(self, column: pa.DataType | None, path: str) -> None:
        self._column, self._path = column, path

    def read(self, cursor: Cursor) -> pa.Array | None:
        byte = cursor.data[cursor.skip(1)]
        cursor.fail(byte > 1, f"{self._path}: a boolean other than 0 and 1")
        return self._column and pa.array(byte == 1)

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        return pos + 1


class Enum:
    """Reads an enum. The last one of `symbols` is null."""

    def __init__(self, symbols: pa.StringArray, column: pa.DataType | None, path: str) -> None:
        self._symbols, self._column, self._path = symbols, column, path

    def read(self, cursor: Cursor) -> pa.Array | None:
        index, count = cursor.numbers(self._path), len(self._symbols) - 1
        missing = (index < 0) | (index >= count)
        cursor.fail(missing, f"{self._path}: no such symbol of the Avro enum")
        return self._column and self._symbols.take(pa.array(np.where(missing, count, index)))

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        return zigzag(data, pos)[1]


class Bytes:
    """Reads string and bytes."""

    def __init__(self, column: pa.DataType | None, path: str) -> None:
        self._column, self._path = column, path

    def read(self, cursor: Cursor) -> pa.Array | None:
        start = cursor.skip(cursor.numbers(self._path))
        if self._column is None:
            return None
        values = slices(pa.py_buffer(cursor.data), start, cursor.pos)
        if self._column == pa.binary():
            return values
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [_text(value) for value in values.to_pylist()]
        cursor.fail(np.array([text is None for text in texts]), f"{self._path}: not UTF-8")
        return pa.array([text or "" for text in texts], pa.string())

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        length, pos = zigzag(data, pos)
        if length < 0:
            raise IndexError
        return pos + length


class Fixed:
    def __init__(self, size: int, column: pa.DataType | None) -> None:
        self._size, self._column = size, column

    def read(self, cursor: Cursor) -> pa.Array | None:
        start = cursor.skip(self._size)
        return self._column and slices(pa.py_buffer(cursor.data), start, cursor.pos)

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        return pos + self._size


class Decimal:
    """Reads decimal as bytes or fixed: the unscaled number in two's complement, big-endian."""

    def __init__(self, digits: Bytes | Fixed, scale: int, column: pa.DataType | None, path: str) -> None:
        self._digits, self._scale, self._column, self._path = digits, scale, column, path

    def read(self, cursor: Cursor) -> pa.Array | None:
        digits = self._digits.read(cursor)
        if self._column is None or digits is None:
            return None
        up = 10 ** (self._column.scale - self._scale)
        numbers = [int.from_bytes(value, "big", signed=True) * up for value in digits.to_pylist()]
        limit = 10**self._column.precision
        unfit = np.array([not -limit < number < limit for number in numbers], np.bool_)
        if unfit.any():
            cursor.fail(unfit, f"{self._path}: more digits than {type_name(self._column)} has")
            numbers = [0 if bad else number for bad, number in zip(unfit.tolist(), numbers, strict=True)]
        data = b"".join(number.to_bytes(_DECIMAL_BYTES, "little", signed=True) for number in numbers)
        return pa.Array.from_buffers(self._column, len(numbers), [None, pa.py_buffer(data)])

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        return self._digits.skip(data, pos, end)


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
