"""Limits what a request may cost its gateway, by a check of its bytes before any object is made of them.

An attacker chooses every byte. kafka-python's decoder makes an object for each element, reads a varint of any length,
and copies the rest of the frame for each struct that has tagged fields. So the bytes of a request are first checked
against the schema, and the request is refused if it would cost more than its API allows.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from spark_log.errors import SparkLogError

TINY_BYTES = 16 * 1024
"""The limit of requests that name one object. Before authentication sasl.server.max.receive.size applies."""
UNCHECKED_BYTES = 1024
"""A request of up to this size is decoded without a check: it cannot cost more than a fraction of a millisecond."""
ON_LOOP_BYTES, ON_LOOP_ELEMENTS = 16 * 1024, 256
"""Requests of more bytes or elements are decoded in a thread, and other work on their elements is done there, too."""
ELEMENT_BYTES = 600
"""The memory of a decoded element of a request, including what its handler makes of it."""
ELEMENTS_MAX = 20_000
"""The limit of elements of all arrays of a request together."""
ELEMENTS_OF_TRANSACTIONS_MAX = 2_000
"""The same limit if each element may cost a transaction of the store (a broker's max.request.partition.size.limit)."""
_COPIED_BYTES_MAX = 16 * 1024 * 1024
"""The limit of bytes that the decoder copies because of tagged fields, or twice the request's size if that is more."""
_VARINT_BYTES_MAX = 5


class CostlyRequestError(SparkLogError):
    """A request has more elements than allowed, or its bytes do not match its schema."""


@dataclass(frozen=True)
class RequestLimits:
    """The limits of requests of one API. If `bytes_max` is None, GatewaySettings.small_frame_bytes_max applies."""

    bytes_max: int | None = None
    elements_max: int = ELEMENTS_MAX


ORDINARY = RequestLimits()
TINY = RequestLimits(TINY_BYTES)
RECORDS = RequestLimits(bytes_max=2**31 - 1)
"""The limits of requests with records. Only socket.request.max.bytes limits their bytes."""
TRANSACTIONS = RequestLimits(elements_max=ELEMENTS_OF_TRANSACTIONS_MAX)


def check_cost(kind: Any, version: int, body: memoryview, elements_max: int) -> int:
    """Return the number of elements that the body has when kafka-python's message class `kind` decodes it. Raises
    CostlyRequestError for more than `elements_max`, too many tagged structs, or a length, count or varint beyond it.
    """
    walk = _Walk(body, elements_max)
    try:
        walk.fields(_plan(kind, version), 0)
    except (IndexError, struct.error):
        raise CostlyRequestError("a field is cut off") from None
    return walk.elements


class _Step(NamedTuple):
    """A field, or consecutive fields of fixed sizes. `size` is the bytes of the fields, or of one array element; 0 if
    they vary. `inner` are the steps of a struct or element. `sized_by` is the bytes of the length or count, or 0 for a
    varint.
    """

    what: str
    size: int = 0
    inner: "Sequence[_Step]" = ()
    sized_by: int = 0


_SIZES = {
    "bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "bitfield": 4, "int64": 8, "float64": 8,
    "uuid": 16,
}  # fmt: skip


@lru_cache(maxsize=512)
def _plan(kind: Any, version: int) -> Sequence[_Step]:
    return _steps(kind._struct, version, bool(kind.flexible_version_q(version)))


def _steps(fields: Any, version: int, flexible: bool) -> Sequence[_Step]:
    steps: list[_Step] = []
    for field in fields.untagged_fields(version):
        step = _step(field, version, flexible)
        if step.what == "fixed" and steps and steps[-1].what == "fixed":
            step = _Step("fixed", steps.pop().size + step.size)
        steps.append(step)
    return (*steps, _Step("tags")) if flexible else tuple(steps)


def _step(field: Any, version: int, flexible: bool) -> _Step:
    if field.is_struct_array():
        return _Step("array", 0, _steps(field, version, flexible), 0 if flexible else 4)
    if field.is_array():
        element = field.array_of.type_str
        if element in _SIZES:
            return _Step("array", _SIZES[element], (), 0 if flexible else 4)
        return _Step("array", 0, (_text(element, flexible),), 0 if flexible else 4)
    if field.is_struct():
        inner = _steps(field, version, flexible)
        return _Step("nullable" if field.nullable_for_version_q(version) else "struct", 0, inner)
    if field.type_str in _SIZES:
        return _Step("fixed", _SIZES[field.type_str])
    return _text(field.type_str, flexible)


def _text(type_str: str, flexible: bool) -> _Step:
    assert type_str in ("string", "bytes", "records"), type_str
    return _Step("text", 0, (), 0 if flexible else 2 if type_str == "string" else 4)


class _Walk:
    """A walk through the bytes of one body."""

    def __init__(self, data: memoryview, elements_max: int) -> None:
        self._data, self._size = data, len(data)
        self._elements_left, self._elements_max = elements_max, elements_max
        self._copied_left = max(_COPIED_BYTES_MAX, 2 * self._size)

    @property
    def elements(self) -> int:
        return self._elements_max - self._elements_left

    def fields(self, steps: Sequence[_Step], at: int) -> int:
        """Return the position after a struct that begins at `at`."""
        for step in steps:
            what = step.what
            if what == "fixed":
                at += step.size
            elif what == "text":
                size, at = self._length(step.sized_by, at)
                at += max(size, 0)
            elif what == "array":
                at = self._array(step, at)
            elif what == "tags":
                at = self._tags(at)
            elif what == "struct" or self._data[at] != 0xFF:
                at = self.fields(step.inner, at + (what == "nullable"))
            else:
                at += 1
            if at > self._size:
                raise CostlyRequestError("a field is longer than its request")
        return at

    def _array(self, step: _Step, at: int) -> int:
        count, at = self._length(step.sized_by, at)
        if count <= 0:
            return at
        self._count(count)
        if step.size:
            return at + count * step.size
        for _ in range(count):
            at = self.fields(step.inner, at)
        return at

    def _tags(self, at: int) -> int:
        if self._data[at] == 0:
            return at + 1
        self._copied_left -= self._size - at
        if self._copied_left < 0:
            raise CostlyRequestError("too many structs have tagged fields")
        count, at = read_varint(self._data, at)
        self._count(count)
        for _ in range(count):
            _, at = read_varint(self._data, at)
            size, at = read_varint(self._data, at)
            at += size
        return at

    def _count(self, elements: int) -> None:
        self._elements_left -= elements
        if self._elements_left < 0:
            raise CostlyRequestError(f"more than {self._elements_max} elements")

    def _length(self, sized_by: int, at: int) -> tuple[int, int]:
        """Return a length or a count, which is -1 for null, and the position after it."""
        if sized_by == 0:
            value, at = read_varint(self._data, at)
            return value - 1, at
        value = int.from_bytes(self._data[at : at + sized_by], "big", signed=True)
        return value, at + sized_by


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the unsigned varint at a position, and the position after it. Raises CostlyRequestError above 5 bytes."""
    value = 0
    for place in range(_VARINT_BYTES_MAX):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at
    raise CostlyRequestError(f"a varint of more than {_VARINT_BYTES_MAX} bytes")
