"""Counts the work of one producer since its start, and returns it as metrics with kafka-python's names."""

from dataclasses import dataclass


@dataclass
class Metrics:
    """Totals that only the sender's thread writes. Times are in seconds."""

    sent: int = 0
    sent_bytes: int = 0
    failed: int = 0
    retried: int = 0
    appends: int = 0
    batches: int = 0
    append_s: float = 0.0
    append_s_max: float = 0.0

    def record_append(self, seconds: float, batches: int) -> None:
        self.appends += 1
        self.batches += batches
        self.append_s += seconds
        self.append_s_max = max(self.append_s_max, seconds)

    def as_kafka(self, buffer_total: int, buffer_available: int) -> dict[str, float]:
        """Return totals and averages since the start; latencies are in milliseconds."""
        batches, appends = max(1, self.batches), max(1, self.appends)
        return {
            "record-send-total": float(self.sent),
            "byte-total": float(self.sent_bytes),
            "record-error-total": float(self.failed),
            "record-retry-total": float(self.retried),
            "request-total": float(self.appends),
            "records-per-request-avg": self.sent / appends,
            "batch-size-avg": self.sent_bytes / batches,
            "request-latency-avg": 1000 * self.append_s / appends,
            "request-latency-max": 1000 * self.append_s_max,
            "buffer-total-bytes": float(buffer_total),
            "buffer-available-bytes": float(buffer_available),
        }
