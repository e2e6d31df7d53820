"""The threads of coordinators and brokers."""

import threading

from spark_log.maintenance.coordinator import background_loops
from spark_log.maintenance.coordinator.background_loops import BackgroundLoops, ended
from tests.support.waiting import LIMIT_S


def test_a_step_that_fails_is_called_again(monkeypatch, caplog):
    monkeypatch.setattr(background_loops, "_AGAIN_S", 0.0)
    loops, called, again = BackgroundLoops("loops"), [], threading.Event()

    def step():
        called.append(True)
        if len(called) == 1:
            raise OSError("the disk is gone")
        again.set()
        return 60.0

    loops.start("step", step)
    assert again.wait(LIMIT_S)
    assert ended(loops.threads) is None
    loops.request_stop()
    loops.join()
    assert ended(loops.threads) == "threads have ended: loops: step"
    assert "loops: step failed" in caplog.text
