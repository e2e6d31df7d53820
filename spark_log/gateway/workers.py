"""Runs further processes of a gateway on the same port."""

import asyncio
import contextlib
import ctypes
import logging
import signal
import sys
from collections.abc import Sequence
from types import TracebackType

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_RESTART_S = 1.0


class Workers:
    """Runs this command with --no-lease in further processes during the `async with` block: one process for each
    element of `options`. A process that ends is started again.
    """

    def __init__(self, options: Sequence[Sequence[str]]) -> None:
        self._options = options
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Workers":
        self._tasks = [asyncio.create_task(self._keep_one(options)) for options in self._options]
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _keep_one(self, options: Sequence[str]) -> None:
        while True:
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "spark_log", *sys.argv[1:], *options, "--no-lease"
                )
            except (OSError, RuntimeError) as error:  # the limit of processes, or of threads, is reached
                logger.error("a worker of the gateway cannot be started, tried again in %g s: %s", _RESTART_S, error)
                await asyncio.sleep(_RESTART_S)
                continue
            try:
                code = await process.wait()
                logger.error("a worker of the gateway ended with exit code %d; another is started", code)
                await asyncio.sleep(_RESTART_S)
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.terminate()
                    await process.wait()


def end_with_the_parent() -> None:
    """Let the kernel send SIGTERM to this process when its parent ends for any reason (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
