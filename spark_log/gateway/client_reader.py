"""The bytes that clients send, in frames."""

import asyncio
from collections.abc import Callable
from typing import Any

from spark_log.gateway.memory_budget import UNCOUNTED_BYTES, Hold
from spark_log.gateway.wire import MalformedRequestError

STREAM_BYTES = 64 * 1024
"""asyncio reads ahead up to twice as much, of each connection."""
FRAME_START_BYTES = 8
"""API key, version and correlation id."""
_STEP_BYTES = 256 * 1024
"""A large frame holds memory only for what has arrived, in such steps."""


class ClientReader(asyncio.StreamReader):
    """`gone` has a result when the client has closed the connection: who waits for something else can wait for both."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(STREAM_BYTES, loop)
        self.gone: asyncio.Future[None] = loop.create_future()

    def feed_eof(self) -> None:
        super().feed_eof()
        self._is_gone()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self._is_gone()

    def _is_gone(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)


Connected = Callable[[ClientReader, asyncio.StreamWriter], Any]


async def start_server(connected: Connected, host: str, port: int, *, reuse_port: bool) -> asyncio.Server:
    """As asyncio.start_server, with readers of ours."""
    loop = asyncio.get_running_loop()

    def protocol() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(ClientReader(loop), connected, loop=loop)  # type: ignore[arg-type]

    return await loop.create_server(protocol, host, port, reuse_port=reuse_port)


async def read_start(reader: asyncio.StreamReader, bytes_max: int) -> tuple[int, bytes]:
    """The size of the next frame and its first FRAME_START_BYTES. MalformedRequestError, IncompleteReadError."""
    size = int.from_bytes(await reader.readexactly(4), "big", signed=True)
    if not FRAME_START_BYTES <= size <= bytes_max:
        raise MalformedRequestError(f"a frame of {size} bytes")
    return size, await reader.readexactly(FRAME_START_BYTES)


async def read_rest(reader: asyncio.StreamReader, start: bytes, size: int, hold: Hold) -> memoryview:
    """The whole frame, without its length."""
    if size <= UNCOUNTED_BYTES:
        return memoryview(start + await reader.readexactly(size - len(start)))
    frame = bytearray(start)
    hold.waits_for_client(True)
    while (left := size - len(frame)) > 0:
        step = min(left, _STEP_BYTES)
        await hold.more(step)
        frame += await reader.readexactly(step)
    hold.waits_for_client(False)
    return memoryview(frame)
