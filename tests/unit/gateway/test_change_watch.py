"""The thread that wakes waiting requests after a change of the store."""

import asyncio
from types import SimpleNamespace

from spark_log.gateway import change_watch
from spark_log.gateway.change_watch import ChangeWatch
from tests.support.waiting import LIMIT_S


async def test_the_watch_continues_after_an_error_of_the_runtime(monkeypatch):
    """Such as "can't start new thread"."""
    monkeypatch.setattr(change_watch, "_WAIT_S", 0.01)
    outcomes = [RuntimeError("can't start new thread"), 1, 2]

    def current():
        outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    changes = SimpleNamespace(current=current, wait=lambda _seen, _timeout_s: True)
    watch = ChangeWatch(SimpleNamespace(changes=changes), asyncio.get_running_loop())
    watch._seen = 0  # as after a first read: it waits for the next change
    watch.start()
    began_s = asyncio.get_running_loop().time()
    await watch.wait(0, LIMIT_S)
    passed_s = asyncio.get_running_loop().time() - began_s
    watch.stop()
    await asyncio.to_thread(watch.join)
    assert passed_s < LIMIT_S
