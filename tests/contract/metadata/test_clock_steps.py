"""A wall clock that jumps by days: nothing is deleted because of its age."""

import sqlalchemy as sa

from spark_log import clock
from spark_log.log.append.producer_rows import register_producer
from spark_log.maintenance import run_tasks
from spark_log.metadata import tables as t
from tests.support.producing import change

MONTH_MS = 30 * 86_400_000


def test_a_clock_step_deletes_nothing_by_age(cluster, monkeypatch):
    store = cluster.store
    assert store.clock_is_steady()
    producer_id = register_producer(store, 10_000)
    if store.sqlite:
        wall_ms = clock.wall_ms
        monkeypatch.setattr(clock, "wall_ms", lambda: wall_ms() + MONTH_MS)
    else:  # the server's clock cannot be set here: the host's boot clock falls behind it instead
        boot_ms = clock.boot_ms
        monkeypatch.setattr(clock, "boot_ms", lambda: boot_ms() - MONTH_MS)
        change(cluster, t.producer.update().values(last_used_ms=t.producer.c.last_used_ms - MONTH_MS))
    tasks = ["files", "expire"]
    for task, report in zip(tasks, run_tasks(cluster, tasks), strict=True):
        assert report.task == task and "clock" in str(report)
    known = sa.select(t.producer.c.producer_id)
    assert store.read(lambda connection: connection.execute(known).scalars().all()) == [producer_id]
    monkeypatch.undo()
    if store.sqlite:
        assert list(run_tasks(cluster, tasks)) == [], "set back: all is as it was"
