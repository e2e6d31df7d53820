"""Runs a streaming query to its end, or until SIGTERM or SIGINT, and reports the progress of each batch."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.ids import TopicPartition
from spark_log.maintenance.client_log import ClientLog
from spark_log.process import Stop
from spark_log.spark.datasource.checkpoint.stream_offsets import Positions, StreamOffset
from spark_log.spark.jobs.options.run_options import AvailableNow, Batch, Every, Shared
from spark_log.spark.jobs.queries.measurement import NAME, Measured
from spark_log.spark.jobs.summary import BatchProgress, Stages, print_lines, progress_line
from spark_log.spark.streams.query_listener import observing_queries
from spark_log.spark.streams.windows import late_in

_PLANNING = ("latestOffset", "getBatch", "queryPlanning")
_WRITING = "addBatch"
_COMMIT = ("walCommit", "commitOffsets", "commitBatch")
"""Stages of a micro-batch by their names in `durationMs` of Spark's progress."""

_POLL_S = 1
STOP_WAIT_S = 60.0
"""After a signal, the current batch has this time to finish. Then it is stopped, and a restart repeats it."""


def triggered(writer: DataStreamWriter, shared: Shared) -> DataStreamWriter:
    """Return `writer` with the job's checkpoint and trigger."""
    assert shared.checkpoint is not None
    writer = writer.option("checkpointLocation", shared.checkpoint)
    match shared.run:
        case AvailableNow():
            return writer.trigger(availableNow=True)
        case Every() as interval:
            return writer.trigger(processingTime=str(interval))
        case Batch():
            raise AssertionError("a batch has no trigger")


@dataclass(frozen=True)
class Totals:
    """The totals of all batches with records of a query in this run."""

    counted: Measured = field(default_factory=Measured)
    late: int = 0
    """Number of late rows that were dropped."""
    first: Any = None
    """Progress of the first batch with records."""
    last: Any = None
    stages: Stages = field(default_factory=Stages)

    def plus(self, progress: Any) -> "Totals":
        first = progress if self.first is None else self.first
        counted, late = self.counted.plus(measured_in(progress)), self.late + late_in(progress)
        return Totals(counted, late, first, progress, self.stages.plus(_stages_of(progress)))


def run_to_end(
    spark: SparkSession,
    start: Callable[[], StreamingQuery],
    shared: Shared,
    topics: Iterable[tuple[str, str]],
) -> Totals:
    """Run a query to its end, and print its progress. Return the totals. A signal makes the current batch the last one.

    `topics` (cluster address, name) are the topics that the query writes. At the end they are sealed, so that their
    Delta tables are complete. Raises StreamingQueryException.
    """
    stop = stop_on_signals(spark)  # before the start, so that a signal never finds a query without a handler
    totals = Totals()
    deadline: float | None = None
    with observing_queries(spark, shared.cluster) if shared.metrics else nullcontext():
        query = start()
        while not query.awaitTermination(_POLL_S):
            totals = _take_new(query, totals, shared.json)
            if stop.is_set():
                deadline = clock.monotonic_s() + STOP_WAIT_S if deadline is None else deadline
                if _is_after_last_batch(query) or clock.monotonic_s() >= deadline:
                    query.stop()
    for address, topic in topics:
        with Cluster.open(address) as cluster:
            log = ClientLog(cluster, holder=f"job {query.name or query.id}")
            log.seal_at_close([log.find_topic(topic)])
            log.close()
    return _take_new(query, totals, shared.json)


def _is_after_last_batch(query: StreamingQuery) -> bool:
    """Prevent the query from starting more batches. Return whether none is running: then `query.stop()` is safe.

    `query.stop()` alone could interrupt a batch that has just started: its records would be written, but not counted.
    Spark checks the state before each batch, and then marks the trigger as active. So if the state is set first, the
    thread is waiting after that, and no trigger is active after that, no batch runs any more.
    """
    if not hasattr(query, "_jsq"):  # Spark Connect: the batch that starts at this moment is repeated at a restart
        return not query.status["isTriggerActive"]
    execution: Any = query._jsq.streamingQuery()
    jvm: Any = SparkContext._jvm
    terminated = getattr(jvm.org.apache.spark.sql.execution.streaming.runtime, "TERMINATED$")
    execution.state().set(getattr(terminated, "MODULE$"))
    waiting = execution.queryExecutionThread().getState().toString() == "TIMED_WAITING"
    return waiting and not query.status["isTriggerActive"]


def measured_in(progress: Any) -> Measured:
    """Return the counts of `measurement.measured` in a batch, over all inputs."""
    total = Measured()
    for name, row in (progress.observedMetrics or {}).items():
        if name.startswith(NAME):
            total = total.plus(Measured.of(row.asDict()))
    return total


def _take_new(query: StreamingQuery, totals: Totals, as_json: bool) -> Totals:
    """Print the batches after those in `totals`. Return the new totals. Spark keeps 100 progresses, oldest first."""
    for progress in query.recentProgress:
        counted = measured_in(progress)
        if not counted.records or (totals.last is not None and progress.batchId <= totals.last.batchId):
            continue
        totals = totals.plus(progress)
        seconds = (progress.durationMs.get("triggerExecution") or 0) / 1000
        rate = counted.records / seconds if seconds else 0.0
        behind, late = _behind(progress), late_in(progress)
        batch = BatchProgress(progress.batchId, counted.records, counted.bytes, rate, behind, late)
        print_lines(progress_line(batch, as_json))
    return totals


def _stages_of(progress: Any) -> Stages:
    def seconds(*names: str) -> float:
        return sum(progress.durationMs.get(name) or 0 for name in names) / 1000

    return Stages(planning=seconds(*_PLANNING), writing=seconds(_WRITING), commit=seconds(*_COMMIT))


def _behind(progress: Any) -> int | None:
    """Return the number of offsets that the query has not read, or None if no source reports its latest offset."""
    behind = None
    for source in progress.sources:
        latest, end = _offsets_in(source.latestOffset), _offsets_in(source.endOffset)
        if latest:
            behind = (behind or 0) + sum(max(0, offset - end.get(tp, 0)) for tp, offset in latest.items())
    return behind


def offsets_around(totals: Totals) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the offsets of the spark_log sources before the first batch and after the last batch, by partition."""
    before: dict[TopicPartition, int] = {}
    after: dict[TopicPartition, int] = {}
    if totals.first is not None:
        for source in totals.first.sources:
            end = StreamOffset.of_text(source.endOffset)
            before.update(_offsets_in(source.startOffset) or _offsets(None if end is None else end.start))
        for source in totals.last.sources:
            after.update(_offsets_in(source.endOffset))
    return before, after


def _offsets_in(text: str | None) -> Mapping[TopicPartition, int]:
    """Return the offsets from the JSON of a progress. They are empty for a source of another kind (files, rate)."""
    offset = StreamOffset.of_text(text)
    return _offsets(None if offset is None else offset.positions)


def _offsets(positions: Positions | None) -> Mapping[TopicPartition, int]:
    return {} if positions is None else positions.offsets


def stop_on_signals(spark: SparkSession) -> Stop:
    """Return a stop flag that SIGTERM or SIGINT to this process, or to the JVM of spark-submit, sets."""
    stop = Stop().on_signals()
    with contextlib.suppress(Exception):  # Spark Connect has no local JVM; the Python handlers remain
        _listen_in_jvm(spark, stop)
    return stop


def _listen_in_jvm(spark: SparkSession, stop: Stop) -> None:
    """Set the flag on signals that spark-submit's JVM receives. Otherwise the JVM would end the query at once."""
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
