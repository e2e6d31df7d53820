"""Metrics for Prometheus, health and readiness: `--metrics-port` of coordinator, broker and gateway."""
