"""Creates msgspec classes for the structs of a schema, so that a record is parsed and checked in one step."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import msgspec
import pyarrow as pa

_LONG = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
LEAF_CLASSES: dict[pa.DataType, Any] = {
    pa.int64(): _LONG,
    pa.float64(): float,
    pa.bool_(): bool,
    pa.binary(): bytes,  # base64
    pa.string(): str,
    pa.timestamp("us", "UTC"): str,
    pa.date32(): str,
}
"""The class of each leaf that is not a DECIMAL."""


class RecordClasses:
    """The classes of the structs of one schema. Attribute `f3` is the field at position 3, None if it is missing."""

    def __init__(self) -> None:
        self._classes: dict[pa.StructType, type[msgspec.Struct]] = {}

    def of(self, kind: pa.StructType) -> type[msgspec.Struct]:
        if kind not in self._classes:
            names = {f"f{position}": field.name for position, field in enumerate(kind)}
            fields = [(f"f{position}", self._type(field.type), None) for position, field in enumerate(kind)]
            # gc=False, because the objects are never part of a cycle; eq=False, because they are never compared.
            self._classes[kind] = msgspec.defstruct("Record", fields, rename=names, gc=False, eq=False)
        return self._classes[kind]

    def _type(self, kind: pa.DataType) -> Any:
        if pa.types.is_decimal(kind):
            return msgspec.Raw  # the number's text, which is exact
        return self._not_null(kind) | None

    def _not_null(self, kind: pa.DataType) -> Any:
        if pa.types.is_struct(kind):
            return self.of(kind)
        if pa.types.is_list(kind):
            return list[self._type(kind.value_type)]  # type: ignore[misc]
        if pa.types.is_map(kind):
            return dict[str, self._type(kind.item_type)]  # type: ignore[misc]
        return LEAF_CLASSES[kind]


def splitting(kind: pa.StructType) -> Callable[[Sequence[Any]], Iterable[Sequence[Any]]]:
    """Return a function from objects of the struct's class to the values of each field.

    Its source is generated, because a comprehension with the attribute's name takes half the time of attrgetter.
    """
    each = [_attribute(position) for position in range(kind.num_fields)]
    return lambda objects: (values(objects) for values in each)


@functools.cache
def _attribute(position: int) -> Callable[[Sequence[Any]], list[Any]]:
    return eval(f"lambda objects: [each.f{position} for each in objects]")  # type: ignore[no-any-return]
