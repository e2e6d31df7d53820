"""The bytes that clients send, in frames, and the end of their connections."""

import asyncio
import contextlib
import select
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from spark_log.gateway.limits.memory_budget import Hold
from spark_log.gateway.protocol.wire import MalformedRequestError

STREAM_BYTES = 32 * 1024
"""asyncio reads ahead until it has more than twice as much, of each connection that is read from."""
_READ_BYTES = 16 * 1024
"""Bytes that asyncio reads at a time, without TLS; more while it reads a frame that has memory."""
_HEADER_BYTES, _ID_START = 8, 10
"""Bytes of API key, version and correlation id; and of the length of the client id besides."""
_STEP_BYTES = 256 * 1024
_ID_BYTES_MAX = 4 * 1024
"""Of a client id. It is read before its frame has memory."""
_LAST_BYTES_S = 10.0
"""How long a client may take for the last bytes of a connection that is closed, and for the end of TLS."""
_RECEIVED_END = getattr(select, "POLLRDHUP", 0)
"""The client has closed its side, whether its bytes before that were read or not. Linux has it."""


class ClientReader(asyncio.StreamReader):
    """`gone` has a result when the client has closed the connection: who waits for something else can wait for both."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(STREAM_BYTES, loop)
        self.gone: asyncio.Future[None] = loop.create_future()
        self._reads_from: Any = None

    def set_transport(self, transport: asyncio.BaseTransport) -> None:
        super().set_transport(transport)
        self._reads_from = transport
        self.read_at_once(_READ_BYTES)

    def read_at_once(self, size: int) -> None:
        """Let asyncio read up to so many bytes at a time. A TLS transport has a size of its own."""
        if hasattr(self._reads_from, "max_size"):
            self._reads_from.max_size = size

    @property
    def paused_socket(self) -> int | None:
        """The descriptor of the socket from which asyncio does not read now, so that it would not see its end."""
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
    """Complete `gone` of those whose clients have closed connections that are not read from at the moment."""
    paused = {socket: reader for reader in readers if (socket := reader.paused_socket) is not None}
    poll = select.poll()
    for socket in paused:
        poll.register(socket, _RECEIVED_END)
    for socket, _ in poll.poll(0) if paused else ():
        paused[socket].is_gone()


async def end_connection(writer: asyncio.StreamWriter) -> None:
    """Close the connection, and return when it is closed: it has a place until then."""
    if not writer.is_closing():  # a TLS transport that is closed twice cannot be aborted any more
        writer.close()
    try:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LAST_BYTES_S):
                await writer.wait_closed()
    finally:
        writer.transport.abort()


Connected = Callable[[ClientReader, asyncio.StreamWriter], Any]


async def start_server(connected: Connected, host: str, port: int, *, reuse_port: bool) -> asyncio.Server:
    """As asyncio.start_server, with readers of ours."""
    loop = asyncio.get_running_loop()

    def protocol() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(ClientReader(loop), connected, loop=loop)  # type: ignore[arg-type]

    return await loop.create_server(protocol, host, port, reuse_port=reuse_port)


class FrameStart(NamedTuple):
    """`data` has the bytes up to the end of the client id, or the whole frame if it is small.

    `size` is the number of bytes of the whole frame, without its length.
    """

    size: int
    api_key: int
    client_id: str
    data: bytes


async def read_start(
    reader: asyncio.StreamReader, bytes_max: Callable[[int], int], uncounted_bytes: Callable[[], int]
) -> FrameStart:
    """The start of the next frame. MalformedRequestError.

    `bytes_max`: of a frame, by its API key. `uncounted_bytes`: of a small frame, asked for when the frame begins.
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
    """Read a frame that has begun to its `size`, without its length. One that is counted is read as soon as there is
    memory for all of it.
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
