"""Makes responses that refuse a request, or some of its elements, from the schema of the response."""

import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from spark_log.gateway.protocol.wire import Message

_CODES = ("error_code", "partition_error_code")
_SAME: dict[str, Sequence[str]] = {
    "partition_index": ("partition_index", "partition", "index"),
    "index": ("index", "partition_index", "partition"),
    "partition": ("partition", "partition_index", "index"),
    "topic": ("topic", "name"),
    "name": ("name", "topic"),
    "user": ("user", "name"),
}
"""The request fields that may have the value of a response field, by the name of the response field."""
_BARE = frozenset(
    {"partition_index", "partition_id", "partition", "index", "group_id", "key", "name", "transactional_id"}
)
_COPIED = frozenset({*_SAME, *_BARE, "topic_id", "resource_type", "resource_name", "member_id", "group_instance_id"})
_UNSET = dict.fromkeys(("node_id", "port", "high_watermark", "committed_offset", "base_offset", "low_watermark"), -1)


def refusal(request: Message, code: int) -> Message:
    """Return a response with this error code for the whole request.

    The code is in the outermost struct that has an error code: the response, or each of its elements.
    """
    kind = response_class(type(request))  # type: ignore[arg-type]  # classes are hashable
    return _filled(kind._struct, kind, [request], request.version, code)


def refused_element(request: Message, path: Sequence[str], element: Any, code: int) -> Message:
    """Return the element of the response that refuses an element of the request. `path` names the nested arrays of the
    response that contain it.
    """
    struct = response_class(type(request))._struct  # type: ignore[arg-type]
    for name in path:
        struct = struct.fields[name]
    return _filled(struct, struct.data_class, [element], request.version, code)


@lru_cache(maxsize=256)
def response_class(request: type[Message]) -> Message:
    return getattr(sys.modules[request.__module__], request.__name__.removesuffix("Request") + "Response")


def _filled(struct: Any, kind: Any, sources: Sequence[Any], version: int, code: int) -> Any:
    fields = list(struct.untagged_fields(version))
    has_code = any(field.name in _CODES for field in fields)
    [source] = sources
    values: dict[str, Any] = {}
    for field in fields:
        if field.name in _CODES:
            values[field.name] = code
        elif field.is_array():
            values[field.name] = []
            if field.is_struct_array() and not has_code:
                values[field.name] = [
                    _filled(field, field.data_class, [each], version, code) for each in _elements(source, field.name)
                ]
        else:
            values[field.name] = _value(field, source, version)
    return kind(**values)


def _elements(source: Any, name: str) -> Iterable[Any]:
    """Return the elements of the array with this name. If it is missing or empty, return those of all arrays."""
    same = getattr(source, name, None)
    arrays = [same] if isinstance(same, list) and same else [
        value for value in _fields_of(source).values() if isinstance(value, list)
    ]  # fmt: skip
    return [each for array in arrays for each in array]


def _fields_of(source: Any) -> dict[str, Any]:
    return {name: getattr(source, name, None) for name in type(source)._struct.fields}


def _value(field: Any, source: Any, version: int) -> Any:
    if field.name in _BARE and isinstance(source, str | int):
        return source
    if field.name in _COPIED:
        for name in _SAME.get(field.name, (field.name,)):
            value = getattr(source, name, None)
            if value is not None:
                return value
    if field.type_str == "records":
        return b""  # librdkafka cannot read a null here
    if field.type_str in ("string", "bytes"):
        if field.nullable_for_version_q(version):
            return None
        return "" if field.type_str == "string" else b""
    return _UNSET.get(field.name, field.default)
