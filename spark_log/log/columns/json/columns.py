"""Converts the objects of JSON records to Arrow columns.

A value that its column cannot store makes its row bad, with a reason. The value is null in the column, and the other
rows are not affected.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain

import pyarrow as pa

from spark_log.log.columns.bad_rows import Bad
from spark_log.log.columns.expansion import item_type, struct_width
from spark_log.log.columns.json.leaves import Convert, Values, json_leaf
from spark_log.log.columns.json.record_classes import RecordClasses, splitting

_RowOf = Callable[[int], int]


class Columns:
    """Converts a list of objects of these classes, and of None, to structs of the columns."""

    def __init__(self, fields: pa.StructType, classes: RecordClasses) -> None:
        self._classes = classes
        self._build = self._column(fields, "")

    def array(self, objects: Values, bad: Bad) -> pa.StructArray:
        return self._build(objects, lambda row: row, bad)

    def _column(self, kind: pa.DataType, path: str) -> Callable[[Values, _RowOf, Bad], pa.Array]:
        if pa.types.is_struct(kind):
            return self._struct(kind, path)
        if pa.types.is_list(kind):
            return self._list(kind, path)
        if pa.types.is_map(kind):
            return self._map(kind, path)
        convert, problem, plausible = json_leaf(kind)
        reason = f"{path}: {problem}"

        def leaf(values: Values, row_of: _RowOf, bad: Bad) -> pa.Array:
            try:
                return convert(values)
            except (ValueError, OverflowError):
                may_fit = plausible(values) if plausible else [True] * len(values)
                unfit = {position for position, may in enumerate(may_fit) if not may}
            left = [value if may else None for value, may in zip(values, may_fit, strict=True)]
            for position in unfit:
                bad.add(row_of(position), reason)
            for position in _unfit(convert, left, 0, len(left)):
                row = row_of(position)
                bad.add(row, reason)
                # One reason for a row is enough, so the row's other values are not tried.
                while position < len(left) and row_of(position) == row:
                    left[position] = None
                    position += 1
            return convert(left)

        return leaf

    def _struct(self, kind: pa.StructType, path: str) -> Callable[[Values, _RowOf, Bad], pa.Array]:
        fields = list(kind)
        columns = [self._column(field.type, f"{path}.{field.name}".lstrip(".")) for field in fields]
        empty, split = self._classes.of(kind)(), splitting(kind)

        def struct(values: Values, row_of: _RowOf, bad: Bad) -> pa.Array:
            mask = _nulls(values)
            if mask is not None:
                values = [empty if value is None else value for value in values]
            parts = split(values) if values else [()] * len(fields)
            arrays = [column(part, row_of, bad) for column, part in zip(columns, parts, strict=True)]
            return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)

        return struct

    def _list(self, kind: pa.ListType, path: str) -> Callable[[Values, _RowOf, Bad], pa.Array]:
        elements = self._column(kind.value_type, f"{path}[]")
        limited = _limited(kind, path)

        def several(values: Values, row_of: _RowOf, bad: Bad) -> pa.Array:
            values = limited(values, row_of, bad)
            mask, offsets = _nulls(values), _offsets(values)
            flat = list(chain.from_iterable(value for value in values if value))
            items = elements(flat, _outer(offsets, row_of), bad)
            return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=kind, mask=mask)

        return several

    def _map(self, kind: pa.MapType, path: str) -> Callable[[Values, _RowOf, Bad], pa.Array]:
        entries = self._column(kind.item_type, f"{path}{{}}")
        limited = _limited(kind, path)

        def pairs(values: Values, row_of: _RowOf, bad: Bad) -> pa.Array:
            values = limited(values, row_of, bad)
            mask, offsets = _nulls(values), _offsets(values)
            keys = pa.array(list(chain.from_iterable(value for value in values if value)), pa.string())
            flat = list(chain.from_iterable(value.values() for value in values if value))
            items = entries(flat, _outer(offsets, row_of), bad)
            return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, type=kind, mask=mask)

        return pairs


def _limited(kind: pa.ListType | pa.MapType, path: str) -> Callable[[Values, _RowOf, Bad], Values]:
    """Return a function that replaces the arrays or maps with too many values by None, and makes their rows bad."""
    width = struct_width(item_type(kind))

    def limited(values: Values, row_of: _RowOf, bad: Bad) -> Values:
        if not width or not bad.counting:
            return values
        return [
            value if value and bad.has_room(row_of(position), len(value) * width, path) else value and None
            for position, value in enumerate(values)
        ]

    return limited


def _nulls(values: Values) -> pa.BooleanArray | None:
    return pa.array([value is None for value in values], pa.bool_()) if None in values else None


def _offsets(values: Values) -> list[int]:
    return list(accumulate((len(value) if value else 0 for value in values), initial=0))


def _outer(offsets: Sequence[int], row_of: _RowOf) -> _RowOf:
    """Return a function from the position of an element to its row, by the offsets of the lists."""
    return lambda position: row_of(bisect_right(offsets, position) - 1)


def _unfit(convert: Convert, values: Values, start: int, end: int) -> Iterator[int]:
    """Yield the positions of the values that do not fit, in order, found by bisection. The caller may replace values
    after a yielded position by None.
    """
    try:
        convert(values[start:end])
    except (ValueError, OverflowError):
        if end - start == 1:
            yield start
            return
        middle = (start + end) // 2
        yield from _unfit(convert, values, start, middle)
        yield from _unfit(convert, values, middle, end)
