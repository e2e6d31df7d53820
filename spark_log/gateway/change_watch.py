"""Wakes all requests that wait for a change of the store, with one thread."""

import asyncio
import logging
import threading

from spark_log import clock
from spark_log.errors import SparkLogError
from spark_log.metadata.store import Store

logger = logging.getLogger(__name__)

_WAIT_S = 1.0


class ChangeWatch(threading.Thread):
    """A thread that reads the number of the store's last change, but only while a request waits."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="gateway change watch", daemon=True)
        self._store, self._loop = store, loop
        self._seen = -1
        self._waiting = 0
        self._wanted = threading.Event()
        self._stopped = False
        self._next: asyncio.Future[None] = loop.create_future()

    def current(self) -> int:
        """Return the number of the last change. Blocks. Call it before you read the state, and `wait` after that."""
        return self._store.changes.current()

    async def wait(self, seen: int, timeout_s: float, sooner: "asyncio.Future[None] | None" = None) -> None:
        """Return when the store has changed since change number `seen`, when `sooner` is done, or after the timeout."""
        self._waiting += 1
        self._wanted.set()
        try:
            following = self._next
            # if the last change that the thread has seen is `seen`, it wakes this request at the next change
            if self._seen != seen and await self._loop.run_in_executor(None, self.current) != seen:
                return
            ends = [following] if sooner is None else [following, sooner]
            await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting -= 1

    def run(self) -> None:
        while not self._stopped:
            if not self._waiting:
                self._wanted.wait()
                self._wanted.clear()
            try:
                if self._seen < 0 or self._store.changes.wait(self._seen, _WAIT_S):
                    self._seen = self._store.changes.current()
                    self._loop.call_soon_threadsafe(self._wake)
            except (SparkLogError, RuntimeError) as error:
                if self._loop.is_closed():
                    return
                logger.warning("the store cannot be watched: %s", error)
                clock.sleep_s(_WAIT_S)

    def stop(self) -> None:
        self._stopped = True
        self._wanted.set()

    def _wake(self) -> None:
        done, self._next = self._next, self._loop.create_future()
        if not done.done():
            done.set_result(None)
