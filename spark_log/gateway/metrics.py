"""Exports the metrics of a gateway process, by the names that Strimzi's rules give to Kafka's JMX metrics."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from spark_log.gateway.server import Gateway


class GatewayCollector(Collector):
    """Collects the metrics of the connections, requests and appends of this process."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics, for each scrape."""
        counters = self._gateway.services.counters
        yield GaugeMetricFamily(
            "kafka_server_socket_server_metrics_connection_count", "Connected clients.", self._gateway.connections
        )
        requests = CounterMetricFamily(
            "kafka_network_requestmetrics_requests", "Requests answered.", labels=["request"]
        )
        seconds = CounterMetricFamily(
            "spark_log_gateway_request_seconds",
            "Time until the answers; a fetch waits for records.",
            labels=["request"],
        )
        for name, done in sorted(counters.requests.items()):
            requests.add_metric((name,), done.count)
            seconds.add_metric((name,), done.seconds)
        yield from (requests, seconds)
        prefix = "kafka_server_brokertopicmetrics_"
        yield CounterMetricFamily(f"{prefix}bytesin", "Bytes of produce requests.", counters.produced_bytes)
        yield CounterMetricFamily(f"{prefix}bytesout", "Bytes of fetch responses.", counters.fetched_bytes)
        yield CounterMetricFamily(
            "spark_log_gateway_throttled_seconds",
            "Time that requests waited because of quotas.",
            counters.throttled_seconds,
        )
        yield SummaryMetricFamily(
            "spark_log_append_seconds", "Append transactions of one or more requests.", counters.appends,
            counters.append_seconds,
        )  # fmt: skip
        yield CounterMetricFamily("spark_log_appended_records", "Records given to appends.", counters.appended_records)
        yield CounterMetricFamily("spark_log_failed_appends", "Appends that raised an error.", counters.failed_appends)
        acknowledged = CounterMetricFamily(
            "spark_log_share_acknowledgements", "Acknowledged records of share groups.", labels=["type"]
        )
        for name, count in sorted(counters.acknowledgements.items()):
            acknowledged.add_metric((name,), count)
        yield acknowledged
