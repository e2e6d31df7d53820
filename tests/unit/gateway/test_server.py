"""The background tasks of a gateway."""

import asyncio
import contextlib

from spark_log.gateway import server
from tests.support.waiting import LIMIT_S


async def test_a_background_task_that_fails_runs_again(monkeypatch, caplog):
    monkeypatch.setattr(server, "_AGAIN_S", 0.0)
    runs = []

    async def task():
        runs.append(True)
        if len(runs) == 1:
            raise OSError("the disk is gone")
        await asyncio.sleep(60)

    async with asyncio.timeout(LIMIT_S):
        kept = asyncio.create_task(server._kept(task))
        while len(runs) < 2:
            await asyncio.sleep(0)
        kept.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await kept
    assert "a background task of the gateway failed" in caplog.text
