"""Listens to Spark's streaming queries, and reports their lag, rates and state to Prometheus and to the history.

Spark waits for a listener's callbacks: `start()` waits for onQueryStarted, and the other callbacks delay the events of
all queries. So the callbacks only put events into a bounded queue. One thread takes them, reads the lag from the store
and appends to `__metrics`. The listener never delays a query and never lets it fail. If the store does not answer,
reports are lost.
"""

import logging
import queue
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_log import clock
from spark_log.cluster.cluster import Cluster, cluster_of
from spark_log.cluster.each_store import by_store, in_each_store
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import SparkLogError, needing, redact
from spark_log.facts.metrics.query_facts import QueryFacts, query_record, with_progress
from spark_log.facts.metrics.recorded_topics import METRICS
from spark_log.ids import HOME, TopicPartition
from spark_log.log.segments import plan as planner
from spark_log.maintenance.recorded_appends import append_records
from spark_log.metadata.sql_columns import CLUSTER
from spark_log.process import stop_at_exit
from spark_log.spark.datasource.checkpoint.stream_offsets import Positions, StreamOffset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

RECORD_INTERVAL_S = 10.0
"""The minimum time between two records of a running query. An unchanged query is not recorded."""

_EVENTS_MAX = 1_000
_QUERIES_MAX = 200
"""The maximum number of remembered queries, including those that have ended."""

_LAG_CACHED_S = 1.0
_PAUSE_S = 10.0
"""The pause after a failure: the lag of the query is not read, or nothing is recorded."""
_TIMEOUT_MS = 2_000
_CLOSE_S = 10.0


@dataclass
class _Query:
    """A query and its last report.

    `reported` has the facts of the last record, and `reported_s` the time at which that record was written.
    """

    facts: QueryFacts
    reported: QueryFacts | None = None
    reported_s: float = float("-inf")
    lag_s: float = float("-inf")
    """The time at which the query's lag was read."""
    lag_paused_until_s: float = float("-inf")
    """After a failure, the time until which the query's lag is not read."""


class SparkLogListener(StreamingQueryListener):
    """Reports the streaming queries of a Spark session to a cluster.

        listener = SparkLogListener("/data/log", metrics_port=9405)
        spark.streams.addListener(listener)
        ...
        listener.close()                       # or: with observing_queries(spark, "/data/log"): ...

    The lag is that of the query's spark_log sources on this cluster, in total and by partition. Rates, duration and
    state are those of the whole query. Over Spark Connect, the listener sees the queries of its own session.
    `metrics_port` needs the extra `metrics` of spark-log. With 0, a free port is taken (attribute `port`). With
    `record=False`, or metrics.interval.ms=-1, nothing is written to `__metrics`.
    """

    def __init__(
        self,
        cluster: str | Cluster,
        *,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        record: bool = True,
        record_interval_s: float = RECORD_INTERVAL_S,
    ) -> None:
        self._closing = ExitStack()
        self._cluster = self._closing.enter_context(cluster_of(cluster))
        self._record, self._interval_s = record, record_interval_s
        self._events: queue.Queue[Any] = queue.Queue(_EVENTS_MAX)
        self._queries: dict[str, _Query] = {}
        self._lock = threading.RLock()
        self._handled = threading.Condition(self._lock)
        self._stopping = threading.Event()
        self._last_failure: str | None = None
        self._record_paused_until_s = float("-inf")
        self.dropped = 0
        """The number of events that were lost because the queue was full."""
        self.port: int | None = None
        if metrics_port is not None:
            self.port = self._serve_metrics(metrics_host, metrics_port)
        self._thread = threading.Thread(target=self._run, name="spark-log-queries", daemon=True)
        self._thread.start()
        stop_at_exit(self)

    # Called by Spark, must neither wait nor raise -----------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._put(QueryFacts(str(event.id), str(event.runId), event.name))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._put(event)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: an idle query has no new facts, and its lag is read at intervals."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._put(event)

    def _put(self, event: object) -> None:
        try:
            self._events.put_nowait((event, clock.wall_ms()))
        except queue.Full:
            self.dropped += 1

    # Called by the program ---------------------------------------------------------------------------------------

    def queries(self) -> list[QueryFacts]:
        """Return the facts of the queries that this listener has seen, in the order of their starts."""
        with self._lock:
            kept = list(self._queries.values())
        for each in kept:
            self._refresh_lag(each)
        return [each.facts for each in kept]

    def wait_for_ends(self, active: Collection[str]) -> bool:
        """Wait, at most 10 s, until Spark has reported the end of all queries except those with the ids `active`.

        Spark reports the end after `awaitTermination` has returned. Returns whether all ends were reported.
        """

        def all_ended() -> bool:
            ended = all(each.facts.state != "running" for name, each in self._queries.items() if name not in active)
            return ended and self._events.empty()

        with self._handled:
            return self._handled.wait_for(all_ended, _CLOSE_S)

    def close(self) -> None:
        """Report the remaining events, for at most 10 s, and stop serving the metrics.

        Remove the listener from the session first.
        """
        self.request_stop()
        self._thread.join(_CLOSE_S)
        self._closing.close()

    def request_stop(self) -> list[threading.Thread]:
        """Ask the thread to report the remaining events and to end. Returns the thread."""
        self._stopping.set()
        self._put(None)
        return [self._thread]

    # In the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            event = None
            with suppress(queue.Empty):
                event = self._events.get(timeout=min(1.0, self._interval_s))
            self._step(event, last=False)
        while not self._events.empty():
            self._step(self._events.get_nowait(), last=self._events.empty())

    def _step(self, event: Any, *, last: bool) -> None:
        try:
            if event is not None:
                with self._handled:
                    self._handle(*event)
                    self._handled.notify_all()
            if last or clock.monotonic_s() >= self._record_paused_until_s:
                self._report(last=last)
                self._last_failure = None
        except Exception as error:  # a query must not end because of its listener
            text = redact(f"{type(error).__name__}: {error}")
            if text != self._last_failure:  # logged once, not at every attempt
                logger.warning("queries are not reported to %s: %s", METRICS.name, text)
            self._last_failure = text

    def _handle(self, event: Any, now_ms: int) -> None:
        if isinstance(event, QueryFacts):
            self._keep(event)
        elif isinstance(event, QueryProgressEvent):
            progress = event.progress
            known = self._known(progress, progress.name)
            known.facts = with_progress(known.facts, progress, now_ms)
            known.lag_s = float("-inf")
        elif isinstance(event, QueryTerminatedEvent):
            ended = self._known(event, None)
            error = None if event.exception is None else redact(event.exception)
            ended.facts = replace(ended.facts, state="terminated" if error is None else "failed", error=error)

    def _known(self, run: Any, name: str | None) -> _Query:
        """Return the query of this run. Add it if it was started before the listener was added."""
        known = self._queries.get(str(run.id))
        if known is None or known.facts.run_id != str(run.runId):
            known = self._keep(QueryFacts(str(run.id), str(run.runId), name))
        return known

    def _keep(self, facts: QueryFacts) -> _Query:
        self._queries.pop(facts.query_id, None)
        self._queries[facts.query_id] = kept = _Query(facts)
        while len(self._queries) > _QUERIES_MAX:
            ended = (name for name, query in self._queries.items() if query.facts.state != "running")
            del self._queries[next(ended, next(iter(self._queries)))]
        return kept

    def _report(self, *, last: bool) -> None:
        """Record the queries that are due: at intervals while they run, and at once when they end."""
        if not self._record or self._cluster.store.settings.metrics_interval_ms < 0:
            return
        now_s = clock.monotonic_s()
        due = []
        for query in list(self._queries.values()):
            ended = query.facts.state != "running" and (query.reported is None or query.reported.state == "running")
            if not (ended or last or now_s - query.reported_s >= self._interval_s):
                continue
            if query.facts.state == "running" or ended:
                self._refresh_lag(query)
            if query.facts != query.reported:
                due.append((query, query.facts))
        for query, facts in due:  # before the attempt, so that a failed write is not repeated at once
            query.reported, query.reported_s = facts, now_s
        try:
            append_records(self._cluster, METRICS, [query_record(facts) for _, facts in due], timeout_ms=_TIMEOUT_MS)
        except Exception:
            self._record_paused_until_s = clock.monotonic_s() + _PAUSE_S
            raise

    def _refresh_lag(self, query_: _Query) -> None:
        now_s = clock.monotonic_s()
        if now_s - query_.lag_s < _LAG_CACHED_S:
            return
        query_.lag_s = now_s
        ends, lags = query_.facts.ends, None
        if now_s >= query_.lag_paused_until_s:
            try:
                lags = lag_by_partition(self._cluster, ends)
            except SparkLogError:  # logged by `in_each_store`, or by the report if it is an error of the home store
                query_.lag_paused_until_s = clock.monotonic_s() + _PAUSE_S
        with self._lock:
            if query_.facts.ends == ends:
                query_.facts = replace(query_.facts, lags=lags)

    def _serve_metrics(self, host: str, port: int) -> int:
        with needing("metrics_port", "metrics"):
            from spark_log.facts.metrics.exporter import registry_of
            from spark_log.facts.metrics.http_server import serving_metrics
            from spark_log.facts.metrics.query_metrics import QueryCollector
        registry = registry_of(QueryCollector(self.queries))
        return self._closing.enter_context(serving_metrics(host, port, registry, lambda: None, lambda: None))


@contextmanager
def observing_queries(spark: "SparkSession", cluster: str | Cluster, **settings: Any) -> Iterator[SparkLogListener]:
    """Observe the session's queries with a SparkLogListener inside the context. `settings` are the listener's."""
    listener = SparkLogListener(cluster, **settings)
    try:
        spark.streams.addListener(listener)
        try:
            yield listener
        finally:
            with suppress(Exception):  # Spark may have been stopped, or the body's error says more
                listener.wait_for_ends({str(query.id) for query in spark.streams.active})
            spark.streams.removeListener(listener)
    finally:
        listener.close()


def lag_by_partition(cluster: Cluster, ends: Sequence[str]) -> dict[TopicPartition, int] | None:
    """Return the lag of each partition that the sources read on this cluster: the number of offsets from the source's
    end to the high watermark.

    `ends` are the end offsets of the sources, as JSON. Returns None if no source reads this cluster. A partition or
    topic that is newer than the offsets counts with all its records. If two sources read a partition, the larger lag
    counts. Raises the error of a store that has some of the topics. A store that could not be reached is not asked
    again for some seconds.
    """
    shown = (StreamOffset.of_text(text) for text in ends if '"@topics"' in text)  # other sources have no such key
    found = [offset for offset in shown if offset is not None]
    if not found:
        return None

    names = {name for offset in found for name, _ in offset.positions.offsets}

    def read(connection: sa.Connection) -> tuple[str, dict[str, Topic]]:
        # not Cluster.cluster_id: if the store does not answer, that waits as long as any other read
        return connection.execute(sa.select(CLUSTER.cluster_id)).scalar_one(), find_topics(connection, names)

    cluster_id, topics = in_each_store(cluster, lambda home: home.store.read(read, timeout_ms=_TIMEOUT_MS), [HOME])[
        HOME
    ]
    ours = [offset.positions for offset in found if offset.cluster_id in (None, cluster_id)]
    if not ours:
        return None
    topics_by_store = by_store(topics.values())

    def lags_in(view: Cluster) -> dict[TopicPartition, int]:
        there = {topic.name: topic for topic in topics_by_store[view.store_id]}
        return view.store.read(partial(_lag_in_store, ours=ours, topics=there), timeout_ms=_TIMEOUT_MS)

    lags: dict[TopicPartition, int] = {}
    for found_there in in_each_store(cluster, lags_in, topics_by_store).values():
        lags |= found_there
    return lags


def _lag_in_store(
    connection: sa.Connection, ours: Sequence[Positions], topics: Mapping[str, Topic]
) -> dict[TopicPartition, int]:
    """Return the lags in the topics of one store."""
    lags: dict[TopicPartition, int] = {}
    for positions in ours:
        read = [topics[name] for name in {name for name, _ in positions.offsets} if name in topics]
        for here, limits in planner.positions(connection, read).items():
            same = positions.topic_ids.get(here.topic, topics[here.topic].topic_id) == topics[here.topic].topic_id
            done = positions.offsets.get(here, 0) if same else 0
            lag = max(0, limits.high_watermark - max(done, limits.log_start_offset))
            lags[here] = max(lag, lags.get(here, 0))
    return lags
