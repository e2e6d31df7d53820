"""Reads frames from client connections, and notices and completes the end of connections."""

import asyncio
import contextlib
import select
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from spark_log.gateway.limits.memory_budget import Hold
from spark_log.gateway.protocol.wire import MalformedRequestError

STREAM_BYTES = 32 * 1024
"""asyncio reads ahead on each connection until it has more than twice this number of bytes."""
_READ_BYTES = 16 * 1024
"""asyncio reads up to this number of bytes at a time without TLS, and up to `_STEP_BYTES` while a frame has memory."""
_HEADER_BYTES, _ID_START = 8, 10
"""The size of API key, version and correlation id together, and the offset of the client id after its length field."""
_STEP_BYTES = 256 * 1024
_ID_BYTES_MAX = 4 * 1024
"""The longest client id. The gateway reads it before the frame has memory."""
_LAST_BYTES_S = 10.0
"""How long a client may take to read the last bytes of a closed connection, and to end TLS."""
_RECEIVED_END = getattr(select, "POLLRDHUP", 0)
"""The event that the client has closed its side, even if bytes that it sent before are unread. Only Linux has it."""


class ClientReader(asyncio.StreamReader):
    """A reader whose future `gone` completes when the client has closed the connection; tasks can wait for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(STREAM_BYTES, loop)
        self.gone: asyncio.Future[None] = loop.create_future()
        self._reads_from: Any = None

    def set_transport(self, transport: asyncio.BaseTransport) -> None:
        super().set_transport(transport)
        self._reads_from = transport
        self.read_at_once(_READ_BYTES)

    def read_at_once(self, size: int) -> None:
        """Let asyncio read up to `size` bytes at a time. A TLS transport keeps its own size."""
        if hasattr(self._reads_from, "max_size"):
            self._reads_from.max_size = size

    @property
    def paused_socket(self) -> int | None:
        """The descriptor of the socket while asyncio does not read from it and cannot see its end; otherwise None."""
        transport = self._reads_from
        if self.gone.done() or transport is None or transport.is_closing() or transport.is_reading():
            return None
        return int(transport.get_extra_info("socket").fileno())

    def feed_eof(self) -> None:
        super().feed_eof()
        self.is_gone()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.is_gone()

    def is_gone(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)


def notice_gone(readers: Iterable[ClientReader]) -> None:
    """Complete `gone` of the readers that do not read at the moment and whose clients have closed the connection."""
    paused = {socket: reader for reader in readers if (socket := reader.paused_socket) is not None}
    poll = select.poll()
    for socket in paused:
        poll.register(socket, _RECEIVED_END)
    for socket, _ in poll.poll(0) if paused else ():
        paused[socket].is_gone()


async def end_connection(writer: asyncio.StreamWriter) -> None:
    """Close the connection, and return when it is closed, after `_LAST_BYTES_S` at most. Until then it counts as a
    connection.
    """
    if not writer.is_closing():  # a TLS transport that is closed twice cannot be aborted any more
        writer.close()
    try:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LAST_BYTES_S):
                await writer.wait_closed()
    finally:
        abort(writer.transport)


def abort(transport: asyncio.WriteTransport) -> None:
    """Close a connection at once. Python 3.11.2 cannot abort a TLS transport that has been closed twice."""
    with contextlib.suppress(AttributeError):
        transport.abort()


Connected = Callable[[ClientReader, asyncio.StreamWriter], Any]


async def start_server(connected: Connected, host: str, port: int, *, reuse_port: bool) -> asyncio.Server:
    """Start a server like asyncio.start_server, but with a ClientReader for each connection."""
    loop = asyncio.get_running_loop()

    def protocol() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(ClientReader(loop), connected, loop=loop)  # type: ignore[arg-type]

    return await loop.create_server(protocol, host, port, reuse_port=reuse_port)


class FrameStart(NamedTuple):
    """The start of a frame. `data` has the bytes up to the end of the client id, or the whole frame if it is small.

    `size` is the number of bytes of the whole frame, without the length field.
    """

    size: int
    api_key: int
    client_id: str
    data: bytes


async def read_start(
    reader: asyncio.StreamReader, bytes_max: Callable[[int], int], uncounted_bytes: Callable[[], int]
) -> FrameStart:
    """Read the start of the next frame. Raises MalformedRequestError, or IncompleteReadError if the connection ends.

    `bytes_max` gives the limit of a frame by its API key. `uncounted_bytes` gives the limit of a small frame; it is
    called when the frame begins.
    """
    size = int.from_bytes(await reader.readexactly(4), "big", signed=True)
    if size < _ID_START:
        raise MalformedRequestError(f"a frame of {size} bytes")
    is_small = size <= uncounted_bytes()
    data = await reader.readexactly(size if is_small else _HEADER_BYTES)
    api_key = int.from_bytes(data[:2], "big", signed=True)
    if size > bytes_max(api_key):
        raise MalformedRequestError(f"a request of API {api_key} with {size} bytes")
    if len(data) < _ID_START:
        data += await reader.readexactly(_ID_START - len(data))
    id_size = max(0, int.from_bytes(data[_HEADER_BYTES:_ID_START], "big", signed=True))
    if id_size > _ID_BYTES_MAX:
        raise MalformedRequestError(f"a client id of {id_size} bytes")
    if _ID_START + id_size > size:
        raise MalformedRequestError("a request header is cut off")
    if not is_small:
        data += await reader.readexactly(id_size)
    return FrameStart(size, api_key, data[_ID_START : _ID_START + id_size].decode(errors="replace"), data)


async def read_rest(reader: ClientReader, frame: bytearray, size: int, hold: Hold) -> None:
    """Read the rest of a frame up to its `size`, as soon as there is memory for the whole frame. Raises
    IncompleteReadError if the client ends the connection.
    """
    if len(frame) == size:
        return
    await hold.more(size)
    hold.waits_for_client(True)
    reader.read_at_once(_STEP_BYTES)
    while (left := size - len(frame)) > 0:
        part = await reader.read(min(left, _STEP_BYTES))
        if not part:
            raise asyncio.IncompleteReadError(bytes(frame[:_HEADER_BYTES]), size)
        frame += part
        hold.has_moved(len(part))
    reader.read_at_once(_READ_BYTES)
    hold.waits_for_client(False)
