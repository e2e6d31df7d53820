"""A data store that does not answer counts as lost until it does."""

import threading
from types import SimpleNamespace

from spark_log.cluster.store_probe import StoreProbe
from spark_log.ids import StoreId
from spark_log.process import Stop
from tests.support.waiting import wait_until


def test_a_thread_that_cannot_be_started_does_not_lose_the_store(monkeypatch):
    closed, asked = Stop(), threading.Event()
    store = SimpleNamespace(read=lambda *_, **__: asked.set())
    probe = StoreProbe(SimpleNamespace(at=lambda _store_id: SimpleNamespace(store=store)), StoreId(1), closed)

    def refuse(*_arguments, **_others):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading, "_start_new_thread", refuse)
        probe.suspect(OSError("no answer"))
    assert not probe.is_lost
    probe.suspect(OSError("no answer"))
    assert asked.wait(60)
    wait_until(lambda: not probe.is_lost)
