"""Downloads: how many there are at a time, and how long a browser may take for a part."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from threading import Event
from urllib.parse import quote

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from spark_log.console.routes import Download

DOWNLOADS_MAX = 8
"""Downloads at a time, of all users: each holds a row group of records in memory."""

PART_S_MAX = 30.0
"""How long a browser may take to receive a part."""


class RunningDownloads:
    """One download of each name at a time: the next one ends the one before, whatever its browser does. At most `most`
    of all names. For one event loop.
    """

    def __init__(self, most: int = DOWNLOADS_MAX) -> None:
        self._most = most
        self._running: dict[anyio.CancelScope, str] = {}

    @property
    def count(self) -> int:
        """Downloads that run now, or are about to end."""
        return len(self._running)

    @contextmanager
    def of(self, name: str) -> Iterator[anyio.CancelScope]:
        """Begin a download; the scope is cancelled to end it. HTTPException 503."""
        for scope, other in self._running.items():
            if other == name:
                scope.cancel()
        if sum(not scope.cancel_called for scope in self._running) >= self._most:
            raise HTTPException(503, f"There are {self._most} downloads at the moment: try again later.")
        with anyio.CancelScope() as own:
            self._running[own] = name
            try:
                yield own
            finally:
                del self._running[own]


class DownloadResponse(StreamingResponse):
    """Sends a download, as one of those of `name`.

    It ends, with the connection, when a later one of this name begins, or if the browser takes longer than PART_S_MAX
    to receive a part. `left` is set then.
    """

    def __init__(self, download: Download, running: RunningDownloads, name: str, left: Event) -> None:
        self._generator = _parts(download, left)
        super().__init__(self._generator, media_type=download.content_type)
        self._running, self._name = running, name
        if download.filename is not None:
            filename = quote(download.filename, safe="")
            self.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{filename}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._running.of(self._name) as until_ended:

            async def send_in_time(message: Message) -> None:
                with anyio.move_on_after(PART_S_MAX) as in_time:
                    await send(message)
                if in_time.cancelled_caught:
                    until_ended.cancel()
                    await anyio.lowlevel.checkpoint()

            try:
                await super().__call__(scope, receive, send_in_time)
            finally:
                with anyio.CancelScope(shield=True):
                    await self._generator.aclose()


async def _parts(download: Download, left: Event) -> AsyncGenerator[bytes]:
    """The parts of a download; its iterator is closed at the end, also when the browser leaves."""
    following: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            following = asyncio.ensure_future(run_in_threadpool(next, download.parts, None))
            part = await asyncio.shield(following)  # a thread cannot be cancelled
            if part is None:
                return
            yield part
    finally:
        left.set()
        with anyio.CancelScope(shield=True):
            if following is not None:
                await asyncio.wait([following])
        close = getattr(download.parts, "close", None)
        if close is not None:
            close()
