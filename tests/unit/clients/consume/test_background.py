"""The background thread of a consumer: tasks run in order, and heartbeats on time even with a backlog of tasks."""

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
