"""Exports the metrics of Spark queries for Prometheus."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spark_log.facts.metrics.query_facts import QueryFacts

_LABELS = ("query", "name")

_GAUGES: tuple[tuple[str, str, Callable[[QueryFacts], float | None]], ...] = (
    ("lag_records", "Records of its spark_log topics that the query has not read yet.", lambda q: q.lag),
    ("input_rows_per_second", "Rows that arrived, of the last micro-batch.", lambda q: q.input_rate),
    ("processed_rows_per_second", "Rows processed, of the last micro-batch.", lambda q: q.processed_rate),
    ("batch_seconds", "Duration of the last micro-batch.", lambda q: q.batch_s),
    ("state_rows", "Rows of state, all operators.", lambda q: q.state_rows),
    ("state_bytes", "Memory of state, all operators.", lambda q: q.state_bytes),
    ("last_progress_timestamp_seconds", "When Spark last reported a progress.",
     lambda q: None if q.progress_ms is None else q.progress_ms / 1000),
    ("active", "1 while the query runs.", lambda q: q.state == "running"),
    ("failed", "1 if the query has ended with an exception.", lambda q: q.state == "failed"),
)  # fmt: skip


class QueryCollector(Collector):
    """Collects the queries that this process has seen, with the labels query (its id) and name."""

    def __init__(self, queries: Callable[[], Sequence[QueryFacts]]) -> None:
        self._queries = queries

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of a scrape."""
        queries = [((query.query_id, query.name or ""), query) for query in self._queries()]
        for name, text, value_of in _GAUGES:
            gauge = GaugeMetricFamily(f"spark_log_query_{name}", text, labels=_LABELS)
            for labels, query in queries:
                value = value_of(query)
                if value is not None:
                    gauge.add_metric(labels, value)
            yield gauge
        by_partition = GaugeMetricFamily(
            "spark_log_query_partition_lag_records",
            "Records of the partition that the query has not read yet.",
            labels=(*_LABELS, "topic", "partition"),
        )
        for labels, query in queries:
            for here, lag in (query.lags or {}).items():
                by_partition.add_metric((*labels, here.topic, str(here.partition)), lag)
        yield by_partition
        rows = CounterMetricFamily("spark_log_query_input_rows", "Rows read since its start.", labels=_LABELS)
        for labels, query in queries:
            rows.add_metric(labels, query.total_rows)
        yield rows
