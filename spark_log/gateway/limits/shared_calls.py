"""Shares calls of a function that takes a list: the arguments that arrive while one call runs share the next one."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from spark_log.errors import SparkLogError

A = TypeVar("A")
R = TypeVar("R")


class SharedCalls(Generic[A, R]):
    """Makes one call at a time, so that the speed of the function, not the number of clients, limits the calls.

    If a call fails with another error than a SparkLogError, it is repeated for each half of its arguments. So the
    function may fail for one argument without an effect on the others. Used by one event loop.
    """

    def __init__(self, function: Callable[[Sequence[A]], Awaitable[Sequence[R]]], together_max: int) -> None:
        """`function` returns one result for each argument; at most `together_max` share a call."""
        self._function, self._together_max = function, together_max
        self._waiting: deque[tuple[A, asyncio.Future[R]]] = deque()
        self._running: asyncio.Task[None] | None = None

    def submit(self, argument: A) -> "asyncio.Future[R]":
        """Return a future that gets the result for this argument, or the error of the call."""
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((argument, done))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return done

    async def _run(self) -> None:
        try:
            while self._waiting:
                count = min(len(self._waiting), self._together_max)
                await self._call([self._waiting.popleft() for _ in range(count)])
        finally:
            self._running = None

    async def _call(self, together: Sequence[tuple[A, "asyncio.Future[R]"]]) -> None:
        try:
            results = await self._function([argument for argument, _ in together])
        except Exception as error:
            if len(together) > 1 and not isinstance(error, SparkLogError):
                half = len(together) // 2
                await self._call(together[:half])
                await self._call(together[half:])
                return
            for _, done in together:
                if not done.done():
                    done.set_exception(error)
            return
        for (_, done), result in zip(together, results, strict=True):
            if not done.done():
                done.set_result(result)
