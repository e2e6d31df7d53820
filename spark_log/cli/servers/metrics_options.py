"""Defines the options `--metrics-port` and `--metrics-host`, and starts the metrics server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from spark_log.cli.output import say
from spark_log.errors import SparkLogError, needing

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from spark_log.cluster.cluster import Cluster
    from spark_log.facts.metrics.http_server import Probe
    from spark_log.gateway.server import Gateway
    from spark_log.maintenance.coordinator.coordinator import Coordinator

MetricsPort_ = Annotated[
    int | None,
    typer.Option(
        "--metrics-port", min=0, max=65535, metavar="PORT",
        help="Serve metrics for Prometheus, /health and /ready at this port; 0: a free one. [default: none]",
    ),
]  # fmt: skip
MetricsHost_ = Annotated[
    str, typer.Option("--metrics-host", metavar="ADDRESS", help="The address to serve them at; 0.0.0.0: all.")
]


@contextmanager
def metrics_of_coordinator(
    host: str, port: int | None, cluster: "Cluster", coordinator: "Coordinator", health: "Probe"
) -> Iterator[None]:
    """Serve the metrics of the coordinator's tasks, and while it is active also those of the cluster."""
    if port is None:
        yield
        return
    with needing("--metrics-port", "metrics"):
        from spark_log.facts.metrics.exporter import ClusterCollector, TaskCollector
    collectors = (
        ClusterCollector(cluster, lambda: coordinator.acting),
        TaskCollector(coordinator.runners),
    )
    with _metrics(host, port, cluster, collectors, health):
        yield


@contextmanager
def metrics_of_gateway(host: str, port: int | None, cluster: "Cluster", gateway: "Gateway") -> Iterator[None]:
    """Serve the metrics of this gateway process."""
    if port is None:
        yield
        return
    with needing("--metrics-port", "metrics"):
        from spark_log.gateway.metrics import GatewayCollector
    with _metrics(host, port, cluster, (GatewayCollector(gateway),), gateway.health):
        yield


@contextmanager
def metrics_of_console(
    host: str, port: int | None, cluster: "Cluster", tasks: "Coordinator | None", health: "Probe"
) -> Iterator[None]:
    """Serve the metrics of the cluster, and of the console's periodic tasks."""
    if port is None:
        yield
        return
    from spark_log.console.server import collectors

    with _metrics(host, port, cluster, tuple(collectors(cluster, tasks)), health):
        yield


@contextmanager
def _metrics(
    host: str, port: int, cluster: "Cluster", collectors: "tuple[Collector, ...]", health: "Probe"
) -> Iterator[None]:
    """Serve these metrics. The process is ready if its metadata store answers."""
    with needing("--metrics-port", "metrics"):
        from spark_log.facts.metrics.exporter import registry_of
        from spark_log.facts.metrics.http_server import serving_metrics
    with serving_metrics(host, port, registry_of(*collectors), health, lambda: _store_failure(cluster)) as at:
        say(f"Metrics at http://{host}:{at}/metrics.")
        yield


def _store_failure(cluster: "Cluster") -> str | None:
    from spark_log.errors import redact

    try:
        cluster.store.read(cluster.store.clock, timeout_ms=2_000)
    except SparkLogError as error:
        return redact(str(error))
    return None
