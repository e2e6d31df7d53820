"""Decodes requests and encodes responses of Kafka's protocol with kafka-python's message classes.

A frame is 4 bytes of length, then a header and a body: https://kafka.apache.org/protocol
"""

import struct
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

from kafka.protocol.schemas.fields.array import ArrayField

from spark_log.gateway.protocol.null_checks import NullCheck
from spark_log.gateway.protocol.request_limits import (
    ELEMENTS_MAX,
    ON_LOOP_BYTES,
    ON_LOOP_ELEMENTS,
    UNCHECKED_BYTES,
    CostlyRequestError,
    check_cost,
    read_varint,
)

Message = Any
"""A kafka-python ApiMessage."""

_HEADER = struct.Struct(">hhi")
_HEADER_TAGS_MAX = 100
"""The limit of tagged fields of a header, which is read on the event loop. Kafka defines none so far."""
_LONG_ARRAY = 200
_DECODE_ERRORS = (ValueError, IndexError, TypeError, KeyError, OverflowError, struct.error, UnicodeError)


class MalformedRequestError(Exception):
    """The bytes are not a request that this gateway can decode. The connection is closed."""


class Elements(NamedTuple):
    """The number of elements of a request that was not decoded."""

    number: int


class RequestHeader(NamedTuple):
    """The header of a request. `body` is the position in the frame at which the body begins."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: int


def read_request_header(frame: memoryview, flexible: Callable[[int, int], bool]) -> RequestHeader:
    """Read the header of a request. Raises MalformedRequestError.

    `flexible(api_key, version)` is whether tagged fields follow the client id (KIP-482).
    """
    try:
        api_key, version, correlation_id = _HEADER.unpack_from(frame)
        (size,) = struct.unpack_from(">h", frame, _HEADER.size)
        at = _HEADER.size + 2
        client_id = bytes(frame[at : at + max(size, 0)]).decode()
        at += max(size, 0)
        if flexible(api_key, version):
            at = _after_tags(frame, at)
    except (*_DECODE_ERRORS, CostlyRequestError) as error:
        raise MalformedRequestError(f"a request header: {error}") from None
    if at > len(frame):
        raise MalformedRequestError("a request header is cut off")
    return RequestHeader(api_key, version, correlation_id, client_id, at)


def is_quick(kind: type[Message], version: int, body: memoryview, elements_max: int) -> bool:
    """Whether `decode_body` may run in the event loop, because it takes less than a millisecond."""
    if len(body) <= UNCHECKED_BYTES:
        return True
    if len(body) > ON_LOOP_BYTES:
        return False
    try:
        check_cost(kind, version, body, min(elements_max, ON_LOOP_ELEMENTS))
    except CostlyRequestError:
        return False
    return True


def read_body(
    kind: type[Message],
    version: int,
    body: memoryview,
    elements_max: int = ELEMENTS_MAX,
    elements_held: int | None = None,
) -> Message | Elements:
    """Decode a body, but if it has more elements than `elements_held`, for which there is memory, return their number.

    Raises MalformedRequestError like `decode_body`, and if there are more than `elements_max` elements.
    """
    if len(body) > UNCHECKED_BYTES:
        try:
            elements = check_cost(kind, version, body, elements_max)
        except CostlyRequestError as error:
            raise MalformedRequestError(f"{kind.name} v{version}: {error}") from None
        if elements_held is not None and elements > elements_held:
            return Elements(elements)
    return decode_body(kind, version, body)


def decode_body(kind: type[Message], version: int, body: memoryview) -> Message:
    """Decode a body. Raises MalformedRequestError if it is shorter than its fields, or has a null that is not allowed.

    As in Kafka, bytes after the fields are ignored: librdkafka sends three with a request for all topics.
    """
    decode = _decoder(kind, version)  # type: ignore[arg-type]  # classes are hashable
    try:
        message, end = decode(body, 0)
    except _DECODE_ERRORS as error:
        raise MalformedRequestError(f"{kind.name} v{version}: {error}") from None
    if end > len(body):  # a string that is cut off is decoded as a shorter one
        raise MalformedRequestError(f"{kind.name} v{version}: {len(body)} bytes, of which its fields take {end}")
    null = _null_check(kind, version).find(message)  # type: ignore[arg-type]  # classes are hashable
    if null is not None:
        raise MalformedRequestError(f"{kind.name} v{version}: {null} is null")
    message._version = version
    return message


class _ResponseHeader(NamedTuple):
    """Replaces kafka-python's response headers v0 and v1, whose encoding takes a third of a small response's time."""

    correlation_id: int

    def encode(self, flexible: bool) -> bytes:
        return self.correlation_id.to_bytes(4, "big", signed=True) + (b"\0" if flexible else b"")


def encode_response(response: Message, version: int, correlation_id: int) -> bytes:
    """Encode a response into a whole frame. A response can be encoded again after a change.

    If `version` is above the newest of the schema, it has the fields of that one, such as version 5 of ApiVersions.
    """
    response._header = None  # kafka-python would set the version in a header that exists
    response.API_VERSION = min(version, response.max_version)
    response._header = _ResponseHeader(correlation_id)
    return response.encode(header=True, framed=True)  # type: ignore[no-any-return]


@lru_cache(maxsize=512)
def _decoder(kind: type[Message], version: int) -> Any:
    flexible = kind.flexible_version_q(version)
    return kind._struct.compiled_decode_from(version, compact=flexible, tagged=flexible, data_class=kind)


@lru_cache(maxsize=512)
def _null_check(kind: type[Message], version: int) -> NullCheck:
    return NullCheck.of(kind._struct, version)


def _after_tags(frame: memoryview, at: int) -> int:
    count, at = read_varint(frame, at)
    if count > _HEADER_TAGS_MAX:
        raise ValueError(f"{count} tagged fields")
    for _ in range(count):
        _, at = read_varint(frame, at)
        size, at = read_varint(frame, at)
        at += size
    return at


@cache
def _array_fields(kind: type) -> list[str]:
    fields = kind._struct.fields  # type: ignore[attr-defined]
    return [name for name, field in fields.items() if isinstance(field, ArrayField)]


def has_long_array(response: Message) -> bool:
    """Whether encoding may take long, because the response or the first element of its arrays has a long array."""
    for _ in range(2):
        if not (fields := _array_fields(type(response))):  # type: ignore[arg-type]
            return False
        arrays = [value for field in fields if (value := getattr(response, field))]
        if any(len(array) > _LONG_ARRAY for array in arrays):
            return True
        response = next((array[0] for array in arrays if hasattr(array[0], "_struct")), None)
        if response is None:
            return False
    return False
