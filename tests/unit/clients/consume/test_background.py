"""The background thread of a consumer: tasks run in order, and heartbeats on time even with a backlog of tasks."""

import sys
import threading

from spark_log.clients.consume.background import Background


def test_heartbeats_run_between_queued_tasks():
    background, begin, events = Background("test"), threading.Event(), []
    background.call_every(0.0, lambda: events.append("beat"))
    background.submit(lambda: begin.wait(60))
    background.submit(lambda: events.append("first"))
    background.submit(lambda: events.append("second"))
    begin.set()
    background.run(lambda: None, 10)
    assert "beat" in events[events.index("first") : events.index("second")]
    background.close(10)


def test_a_callback_that_exits_does_not_end_the_thread(caplog):
    background, begin = Background("test"), threading.Event()
    for task in (lambda: begin.wait(60), lambda: 1 / 0):
        background.submit(task).add_both(lambda _: sys.exit(1))
    begin.set()
    assert background.run(lambda: "done", 10) == "done"
    assert caplog.text.count("SystemExit") == 2
    background.close(10)
