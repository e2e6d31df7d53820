"""Counts the work of a gateway for its metrics."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field


@dataclass
class Requests:
    """The requests of an API. `seconds` is the time from reading a request until its response is encoded, including the
    time that a fetch waits for records.
    """

    count: int = 0
    seconds: float = 0.0


@dataclass
class Counters:
    """Counts since the start of the process. The event loop writes them, except those of appends, which the appender's
    thread writes.
    """

    requests: defaultdict[str, Requests] = field(default_factory=lambda: defaultdict(Requests))
    """Requests by the name of the API, such as Produce."""
    produced_bytes: int = 0
    """Bytes of produce requests."""
    fetched_bytes: int = 0
    """Bytes of fetch responses."""
    throttled_seconds: float = 0.0
    """Time that requests waited because of quotas."""
    appends: int = 0
    append_seconds: float = 0.0
    appended_records: int = 0
    failed_appends: int = 0
    acknowledgements: "Counter[str]" = field(default_factory=Counter)
    """Acknowledged records of share groups by the acknowledgement type in lower case, such as accept."""
