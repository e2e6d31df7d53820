"""Runs a streaming query to its end, or until SIGTERM or SIGINT, and tells what each batch did."""

import contextlib
import json
import signal
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_log import clock
from spark_log.ids import TopicPartition
from spark_log.jobs.arguments import AvailableNow, Batch, Every, Shared
from spark_log.jobs.measure import NAME, Measured
from spark_log.jobs.summary import BatchProgress

_POLL_S = 1
STOP_WAIT_S = 60.0
"""How long a batch in flight may take after a signal before it is given up; a restart then does it again."""


def triggered(writer: DataStreamWriter, shared: Shared) -> DataStreamWriter:
    """`writer` with the job's checkpoint and trigger."""
    assert shared.checkpoint is not None
    writer = writer.option("checkpointLocation", shared.checkpoint)
    match shared.run:
        case AvailableNow():
            return writer.trigger(availableNow=True)
        case Every(interval):
            return writer.trigger(processingTime=interval)
        case Batch():
            raise AssertionError("a batch has no trigger")


def run_to_end(spark: SparkSession, query: StreamingQuery, tell: Callable[[BatchProgress], None]) -> list[Any]:
    """Progress of every batch with records, in order. Raises StreamingQueryException.

    A signal lets the batch in flight finish first.
    """
    stop = _stop_on_signals(spark)
    seen: dict[int, Any] = {}
    deadline: float | None = None
    while not query.awaitTermination(_POLL_S):
        _take_new(query, seen, tell)
        if stop.is_set():
            deadline = clock.monotonic_s() + STOP_WAIT_S if deadline is None else deadline
            if not query.status["isTriggerActive"] or clock.monotonic_s() >= deadline:
                query.stop()
    _take_new(query, seen, tell)
    return [seen[batch_id] for batch_id in sorted(seen)]


def measured_in(progress: Any) -> Measured:
    """What `measure.measured` counted in a batch."""
    row = (progress.observedMetrics or {}).get(NAME)
    return Measured.of(row.asDict()) if row is not None else Measured()


def _take_new(query: StreamingQuery, seen: dict[int, Any], tell: Callable[[BatchProgress], None]) -> None:
    for progress in query.recentProgress:
        counted = measured_in(progress)
        if progress.batchId in seen or not counted.records:
            continue
        seen[progress.batchId] = progress
        seconds = (progress.durationMs.get("triggerExecution") or 0) / 1000
        rate = counted.records / seconds if seconds else 0.0
        tell(BatchProgress(progress.batchId, counted.records, counted.bytes, rate, _behind(progress)))


def _behind(progress: Any) -> int | None:
    latest, end = _offsets_in(progress.sources[0].latestOffset), _offsets_in(progress.sources[0].endOffset)
    return sum(max(0, offset - end.get(partition, 0)) for partition, offset in latest.items()) if latest else None


def offsets_around(progresses: Sequence[Any]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Next offset of each partition of a spark_log source, before the first and after the last of these batches."""
    if not progresses:
        return {}, {}
    first, last = progresses[0].sources[0], progresses[-1].sources[0]
    after = _offsets_in(last.endOffset)
    before = _offsets_in(first.startOffset) or _offsets_in(first.endOffset, "@start")
    return before, after


def _offsets_in(text: str | None, field: str | None = None) -> dict[TopicPartition, int]:
    """Offsets from the JSON of a progress; empty for a source of another kind (files, rate)."""
    try:
        shown = json.loads(text or "null")
        shown = shown.get(field) if field else shown
        named = {topic: partitions for topic, partitions in shown.items() if not topic.startswith("@")}
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in named.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        return {}


def _stop_on_signals(spark: SparkSession) -> Event:
    """An event that SIGTERM or SIGINT to this process, or to the JVM that spark-submit is, sets."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with contextlib.suppress(Exception):  # no JVM of our own (Spark Connect): the handlers above remain
        _listen_in_jvm(spark, stop)
    return stop


def _listen_in_jvm(spark: SparkSession, stop: Event) -> None:
    """A kill of spark-submit reaches its JVM, which would tear the query down; now it only tells this process."""
    from pyspark.java_gateway import ensure_callback_server_started

    class Handler:
        def handle(self, _signal: Any) -> None:
            stop.set()

        class Java:
            implements = ("sun.misc.SignalHandler",)

    gateway = spark.sparkContext._gateway
    assert gateway is not None
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    jvm: Any = gateway.jvm
    handler = Handler()
    for name in ("TERM", "INT"):
        jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal(name), handler)
