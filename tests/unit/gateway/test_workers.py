"""The further processes of a gateway."""

import asyncio

from spark_log.gateway import workers
from tests.support.waiting import LIMIT_S


class Running:
    """A process that runs until it is terminated."""

    def __init__(self):
        self.returncode = None
        self.ended = asyncio.Event()

    async def wait(self):
        await self.ended.wait()

    def terminate(self):
        self.returncode = -15
        self.ended.set()


async def test_a_worker_that_cannot_be_started_is_started_later(monkeypatch, caplog):
    monkeypatch.setattr(workers, "_RESTART_S", 0.0)
    started, second = [], asyncio.Event()

    async def create(*_arguments):
        started.append(None)
        if len(started) == 1:
            raise BlockingIOError("Resource temporarily unavailable")
        second.set()
        return Running()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
    async with workers.Workers([["--port", "1"]]):
        await asyncio.wait_for(second.wait(), LIMIT_S)
    assert len(started) == 2 and "cannot be started" in caplog.text
