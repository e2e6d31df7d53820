"""Counters of a gateway, for its metrics."""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Requests:
    """`seconds`: from the whole request until its response is encoded, with the time that a fetch waits for records."""

    count: int = 0
    seconds: float = 0.0


@dataclass
class Counters:
    """Counts since the start of the process. The event loop writes them, except those of appends, which the appender's
    thread writes.
    """

    requests: defaultdict[str, Requests] = field(default_factory=lambda: defaultdict(Requests))
    """By the name of the API, such as Produce."""
    produced_bytes: int = 0
    """Of produce requests."""
    fetched_bytes: int = 0
    """Of fetch responses."""
    throttled_seconds: float = 0.0
    """Time that requests waited because of quotas."""
    appends: int = 0
    append_seconds: float = 0.0
    appended_records: int = 0
    failed_appends: int = 0
