"""Requests to a gateway in any version of the protocol, byte by byte: clients choose one version."""

import select
import socket
import ssl
import struct
from types import TracebackType
from typing import Any
from uuid import UUID

from kafka.protocol.api_header import ResponseClassRegistry

from spark_log.gateway.protocol.wire import Message, read_body

_CORRELATION_ID = 7
_API_VERSIONS = 18


class WireConnection:
    """A connection that sends one request at a time. A context manager."""

    def __init__(
        self, port: int, timeout_s: float = 30.0, context: ssl.SSLContext | None = None,
        client_id: str = "test", source: str = "127.0.0.1",
    ) -> None:  # fmt: skip
        """`context`: for a gateway with TLS. `source`: the loopback address of the client."""
        self._client_id = client_id
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s, (source, 0))
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname="127.0.0.1")

    def __enter__(self) -> "WireConnection":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._socket.close()

    def exchange(self, request: Message, version: int) -> Message:
        """The response, decoded by kafka-python: exactly as long as its fields."""
        self.send(request, version)
        return self.receive(request, version)

    def send(self, request: Message, version: int) -> None:
        request.API_VERSION = version
        request.with_header(_CORRELATION_ID, self._client_id)
        self._socket.sendall(request.encode(header=True, framed=True))

    def send_start(self, request: Message, version: int, size: int) -> None:
        """Only the first `size` bytes of the request."""
        request.API_VERSION = version
        request.with_header(_CORRELATION_ID, self._client_id)
        self._socket.sendall(request.encode(header=True, framed=True)[:size])

    def fileno(self) -> int:
        return self._socket.fileno()

    def readable(self, timeout_s: float) -> bool:
        """Whether bytes of the gateway, or its end of the connection, arrive within this time."""
        return bool(select.select([self._socket], [], [], timeout_s)[0])

    def send_bytes(self, data: bytes) -> None:
        """A frame without a header."""
        self.send_frame(struct.pack(">i", len(data)) + data)

    def send_frame(self, frame: bytes) -> None:
        """A request as it is sent: its length, header and body."""
        self._socket.sendall(frame)

    def receive_bytes(self) -> bytes:
        [size] = struct.unpack(">i", self._read(4))
        return self._read(size)

    def receive(self, request: Message, version: int) -> Message:
        """The response to the first request, one like this, that was sent and is not answered."""
        request.API_VERSION = version
        request.with_header(_CORRELATION_ID, self._client_id)
        frame = self.receive_bytes()
        assert frame[:4] == _CORRELATION_ID.to_bytes(4, "big")
        flexible = request.flexible_version_q(version) and request.API_KEY != _API_VERSIONS
        assert not flexible or frame[4] == 0, "the header has tagged fields"
        request.header.request_api_version = 0  # the class of all versions, also of those that kafka-python lacks
        kind = ResponseClassRegistry.get_response_class(request.header)[None]
        return read_body(kind, min(version, kind.max_version), memoryview(frame)[4 + flexible :])

    def is_closed(self) -> bool:
        """Whether the gateway closes the connection, and sends nothing before."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            assert more, "the gateway has closed the connection"
            found += more
        return found


def request_about(name: str, kind: type[Message], version: int) -> Message:
    """One element in each array, `name` for each text, 1 for each number."""
    return _filled(kind._struct, kind, name, version)


def _filled(struct: Any, kind: Any, name: str, version: int) -> Any:
    simple = {"string": name, "bool": False, "uuid": UUID(int=5), "bytes": b"", "records": b""}
    values: dict[str, Any] = {}
    for field in struct.untagged_fields(version):
        if field.is_struct_array() or field.is_struct():
            value = _filled(field, field.data_class, name, version)
        else:
            value = simple.get(field.array_of.type_str if field.is_array() else field.type_str, 1)
        values[field.name] = [value] if field.is_array() else value
    return kind(**values)


def forbidden_nulls(message: Message, version: int) -> list[str]:
    """Paths of the fields that are null although Kafka's schema does not allow it."""
    return [
        path
        for field in message._struct.untagged_fields(version)
        for path in _nulls(field, getattr(message, field.name), version, field.name)
    ]


def _nulls(field: Any, value: Any, version: int, path: str) -> list[str]:
    if value is None:
        nullable = field.nullable_for_version_q(version) or field.type_str in ("bitfield", "uuid")
        return [] if nullable else [path]
    if not (field.is_struct_array() or field.is_struct()):
        return []
    return [
        wrong
        for each in (value if field.is_array() else [value])
        for inner in field.untagged_fields(version)
        for wrong in _nulls(inner, getattr(each, inner.name), version, f"{path}.{inner.name}")
    ]


def codes_of(message: Message, version: int) -> set[int]:
    """All error codes of a response."""
    return _codes(message._struct, message, version)


def _codes(struct: Any, element: Any, version: int) -> set[int]:
    found: set[int] = set()
    for field in struct.untagged_fields(version):
        value = getattr(element, field.name)
        if field.name.endswith("error_code"):
            found.add(value)
        elif field.is_struct_array():
            found |= {code for each in value or () for code in _codes(field, each, version)}
    return found
