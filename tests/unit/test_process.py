"""A stop that signal handlers set, whatever they interrupt."""

import os
import signal
import sys
import threading

import pytest

from spark_log import process
from spark_log.process import Pause, Stop, begin, in_parallel, start_thread
from tests.support.waiting import LIMIT_S, wait_until


def interrupted_everywhere(call, handler, timeout_s):
    """`call()`, with what a handler does done before each line that Python runs for it."""

    def trace(_frame, event, _argument):
        if event == "line":
            handler()
        return trace

    def run():
        sys.settrace(trace)
        call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()


def test_it_is_waited_for():
    stop = Stop()
    assert not stop.is_set() and not stop.wait(0.01)
    waiting = [threading.Thread(target=stop.wait, args=[60]) for _ in range(3)]
    for thread in waiting:
        thread.start()
    stop.set()
    for thread in waiting:
        thread.join(timeout=60)
        assert not thread.is_alive(), "all who wait are told"
    assert stop.is_set() and stop.wait(60) and stop.wait(60)


@pytest.mark.parametrize(("kind", "timeout_s"), [(Stop, 60), (threading.Event, 0.5)])
def test_handlers_interrupt_waits_and_each_other(kind, timeout_s):
    """A signal may interrupt a wait or another handler. An Event does not support that."""
    waiting, telling = kind(), kind()
    ended = [
        interrupted_everywhere(lambda: waiting.wait(60), waiting.set, timeout_s),
        interrupted_everywhere(telling.set, telling.set, timeout_s),
    ]
    assert ended == ([True, True] if kind is Stop else [False, False])


def test_sigterm_and_sigint_set_it():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number in before:
            stop = Stop().on_signals()
            os.kill(os.getpid(), number)
            assert stop.wait(60)
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def test_work_goes_on_without_threads_at_their_limit(monkeypatch, caplog):
    def refuse(*_arguments, **_others):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(process, "_limit_logged", False)
    monkeypatch.setattr(threading, "_start_new_thread", refuse)
    assert start_thread(lambda: None, "a name") is None
    assert in_parallel(lambda number: -number, [1, 2, 3], threads=3, name="a name") == [-1, -2, -3]
    assert len(caplog.records) == 1 and "a name" in caplog.text


def test_a_thread_is_used_again_and_one_that_hangs_holds_up_no_other_work():
    goes_on, threads = threading.Event(), []
    hanging = begin(lambda: goes_on.wait(LIMIT_S), "hanging")
    for _ in range(20):
        begin(lambda: threads.append(threading.current_thread()), "a name").result(LIMIT_S)
        wait_until(lambda: threads[-1].name == "spark-log-idle")
    assert len(set(threads)) == 1
    assert not hanging.done()
    goes_on.set()
    assert hanging.result(LIMIT_S)


def test_work_that_fails_gives_its_error_and_its_thread_works_on():
    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        begin(fail, "failing").result(LIMIT_S)
    assert begin(lambda: 1, "working").result(LIMIT_S) == 1


def test_a_pause_is_twice_as_long_as_the_earlier_one_up_to_ten_minutes():
    pauses = [Pause.after(None)]
    for _ in range(5):
        pauses.append(Pause.after(pauses[-1]))
    assert [pause.length_s for pause in pauses] == [60, 120, 240, 480, 600, 600]
