"""Serves metrics for Prometheus, health and readiness: `--metrics-port` of coordinator, broker and gateway, and
`export` for programs with producers and consumers.
"""

from typing import Any

__all__ = ["export"]


def __getattr__(name: str) -> Any:  # prometheus_client is an extra, and `spark-log top` does not need it
    if name != "export":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spark_log.facts.metrics.client_metrics import export

    return export
