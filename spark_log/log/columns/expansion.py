"""Limits the number of values that a key or value is decoded to, including missing ones.

Two bytes in a sparse array of wide structs may decode to thousands of nulls. A key or value with more than MAX_VALUES
values in arrays and maps is bad. Rows are decoded together only if they have at most MAX_VALUES values in total, so
that memory is bounded for every batch.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa

MAX_VALUES = 1 << 24
"""Limit of the values of one record in structs within arrays and maps, and of all rows that are decoded together."""


def struct_width(kind: pa.DataType) -> int:
    """Return the number of fields of a struct, including those of nested structs, without items of arrays and maps."""
    return sum(1 + struct_width(field.type) for field in kind) if pa.types.is_struct(kind) else 0


def item_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of the items of an array or map, None for another type."""
    if pa.types.is_map(kind):
        return kind.item_type
    return kind.value_type if pa.types.is_list(kind) else None


def widest_item(kind: pa.DataType) -> int:
    """Return the largest number of fields, including nested ones, of an item of an array or map in `kind`."""
    item = item_type(kind)
    if item is not None:
        return max(struct_width(item), widest_item(item))
    return max((widest_item(field.type) for field in kind), default=0) if pa.types.is_struct(kind) else 0


def slices(
    rows: int, most_values: Callable[[int, int], float], values_max: int | None = None
) -> Iterator[tuple[int, int]]:
    """Yield start and end of slices of at most `values_max` values (default MAX_VALUES) or one row, in order.

    `most_values` returns an upper bound of the number of values in the rows from a start to an end. There is at least
    one slice, even without rows.
    """
    limit = MAX_VALUES if values_max is None else values_max
    stack = [(0, rows)]
    while stack:
        start, end = stack.pop()
        if end - start > 1 and most_values(start, end) > limit:
            middle = (start + end) // 2
            stack += [(middle, end), (start, middle)]
        else:
            yield start, end
