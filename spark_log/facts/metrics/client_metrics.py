"""Exports metrics of producers and consumers to Prometheus, with the names that Micrometer gives Kafka's clients."""

from collections.abc import Iterator
from typing import Any, Protocol

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

_PARTITIONS = "consumer-fetch-manager-metrics."


class Client(Protocol):
    """A Producer or Consumer."""

    @property
    def client_id(self) -> str: ...
    def metrics(self, raw: bool = False) -> dict[str, Any] | None: ...


def export(*clients: Client, registry: CollectorRegistry = REGISTRY) -> Collector:
    """Export the metrics of these clients, such as `kafka_producer_record_send_total` and
    `kafka_consumer_fetch_manager_records_lag_max`, each with the label client_id;
    `kafka_consumer_fetch_manager_records_lag` also with topic and partition.

    `registry.unregister` of the result ends the export. Serve the registry with `prometheus_client.start_http_server`.
    """
    collector = _ClientCollector(clients)
    registry.register(collector)
    return collector


class _ClientCollector(Collector):
    def __init__(self, clients: tuple[Client, ...]) -> None:
        self._clients = clients

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for client in self._clients:
            for group, values in (client.metrics() or {}).items():
                for name, value in values.items():
                    _add(families, client.client_id, group, name, value)
        yield from families.values()


def _add(families: dict[str, Metric], client_id: str, group: str, name: str, value: float) -> None:
    labels = {"client_id": client_id}
    if group.startswith(_PARTITIONS):
        labels["topic"], _, labels["partition"] = group.removeprefix(_PARTITIONS).rpartition("-")
        group = _PARTITIONS.removesuffix(".")
    full = f"kafka_{group.removesuffix('-metrics')}_{name}".replace("-", "_")
    kind = CounterMetricFamily if full.endswith("_total") else GaugeMetricFamily
    family = families.get(full)
    if family is None:
        family = families[full] = kind(full, f"{name} of kafka-python's {group}.", labels=list(labels))
    family.add_metric(list(labels.values()), value)  # type: ignore[attr-defined]
