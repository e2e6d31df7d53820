"""The number of values that a key or value is decoded to, those that are missing included.

Two bytes in a sparse array of wide structs may stand for thousands of nulls. A key or value has at most MAX_VALUES of
them, or it is bad. Rows are decoded together only if they have no more than MAX_VALUES in all, so that memory is
bounded for every batch.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa

MAX_VALUES = 1 << 24
"""Values of one record in structs within arrays and maps, and of all rows that are decoded together."""


def struct_width(kind: pa.DataType) -> int:
    """The number of fields of a struct, those of structs within it included. Items of arrays and maps do not count."""
    return sum(1 + struct_width(field.type) for field in kind) if pa.types.is_struct(kind) else 0


def item_type(kind: pa.DataType) -> pa.DataType | None:
    """The type of the items of an array or map."""
    if pa.types.is_map(kind):
        return kind.item_type
    return kind.value_type if pa.types.is_list(kind) else None


def widest_item(kind: pa.DataType) -> int:
    """The most fields that one item of an array or map has, those of nested structs included."""
    item = item_type(kind)
    if item is not None:
        return max(struct_width(item), widest_item(item))
    return max((widest_item(field.type) for field in kind), default=0) if pa.types.is_struct(kind) else 0


def slices(
    rows: int, most_values: Callable[[int, int], float], values_max: int | None = None
) -> Iterator[tuple[int, int]]:
    """Start and end of slices with at most `values_max` values, or one row, in order; at least one slice.

    `most_values`: at most how many values the rows from a start to an end have. `values_max`: None: MAX_VALUES.
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
