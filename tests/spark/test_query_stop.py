"""A signal ends a job's query after its current batch: every batch is complete and counted, or it never began."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.client_log import ClientLog
from spark_log.spark.jobs.options.run_options import Every, Shared
from spark_log.spark.jobs.queries import query_runner
from spark_log.spark.jobs.queries.measurement import bytes_of, measured
from spark_log.spark.jobs.queries.query_runner import run_to_end
from tests.support.topics import append, make, read_stream

SOON_S = 10.0


@pytest.fixture(autouse=True)
def handlers_of_pytest() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class BatchBeginsAfterStatus:
    """A query that begins a batch between the answer of `status` and `stop`."""

    def __init__(self, query: StreamingQuery, begin: Any, begun: threading.Event, stopping: threading.Event) -> None:
        self._query, self._begin, self._begun, self._stopping = query, begin, begun, stopping

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    @property
    def status(self) -> dict[str, Any]:
        status = self._query.status
        if not status["isTriggerActive"]:
            self._begin()
            while self._query.isActive and not self._begun.wait(0.01):
                pass
        return status

    def stop(self) -> None:
        self._stopping.set()
        self._query.stop()


@pytest.mark.parametrize("trigger", ["0 seconds", "1 hour"])
def test_every_written_record_is_counted(
    spark: SparkSession, cluster: Cluster, log: ClientLog, tmp_path: Path, trigger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 0 seconds a batch can begin at any time; with 1 hour the query waits when the signal comes."""
    make(cluster, "in")
    append(log, "in", "first")
    frame = read_stream(spark, cluster, subscribe="in", startingOffsets="earliest")
    second_begun, stopping, written = threading.Event(), threading.Event(), []

    def write(batch: DataFrame, _batch_id: int) -> None:
        values = [bytes(row.value) for row in batch.collect()]
        if values == [b"second"]:
            second_begun.set()
            stopping.wait(SOON_S)
        written.extend(values)

    observed = measured(frame, bytes_of("value"), None, None).writeStream.foreachBatch(write)
    writer = observed.trigger(processingTime=trigger).option("checkpointLocation", str(tmp_path / "checkpoint"))

    def start() -> Any:
        return BatchBeginsAfterStatus(writer.start(), lambda: append(log, "in", "second"), second_begun, stopping)

    monkeypatch.setattr(query_runner, "print_lines", lambda _batch: os.kill(os.getpid(), signal.SIGTERM))
    shared = Shared("", Every(0), None, json=False, metrics=False)
    totals = run_to_end(spark, start, shared, ())
    assert written[:1] == [b"first"]
    assert totals.counted.records == len(written)
