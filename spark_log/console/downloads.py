"""Limits downloads: how many run at a time, and how long a browser may take for a part."""

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
"""The maximum number of downloads of all users at a time. Each holds a row group of records in memory."""

PART_S_MAX = 30.0
"""The maximum time that a browser may take to receive a part."""


class RunningDownloads:
    """The running downloads. At most one download of each name runs at a time: a new one cancels the one before,
    whatever its browser does.

    At most `most` downloads of all names run at a time. An instance is used in one event loop only.
    """

    def __init__(self, most: int = DOWNLOADS_MAX) -> None:
        self._most = most
        self._running: dict[anyio.CancelScope, str] = {}

    @property
    def count(self) -> int:
        """The number of downloads that run or are about to end."""
        return len(self._running)

    @contextmanager
    def of(self, name: str) -> Iterator[anyio.CancelScope]:
        """Begin a download, which ends if the yielded scope is cancelled. Raises HTTPException 503 if too many run."""
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
    """Sends a download under the name `name`.

    The download ends, and its connection is closed, when a later download of this name begins, or if the browser takes
    longer than PART_S_MAX to receive a part. `left` is set when the transfer ends.
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
    """Yield the parts of a download. The parts' iterator is closed at the end, also if the browser disconnects."""
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
