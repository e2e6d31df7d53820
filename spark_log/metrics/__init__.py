"""Metrics for Prometheus, health and readiness: `--metrics-port` of coordinator, broker and gateway, and `export` for
programs with producers and consumers.
"""

from spark_log.metrics.client_metrics import export

__all__ = ["export"]
