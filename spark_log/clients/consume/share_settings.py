"""Defines a share consumer's settings, with names and defaults of Kafka's Java client, in kafka-python's spelling."""

from dataclasses import dataclass
from typing import Any

from kafka.errors import KafkaConfigurationError

from spark_log.clients.client_settings import check_number, check_text, limit_times
from spark_log.config.values import can_be_stored


@dataclass(frozen=True)
class ShareConsumerSettings:
    """Settings of a ShareConsumer. Those of its group, such as the duration of locks, are configs of the group."""

    group_id: str = ""
    """The share group. Required."""

    client_id: str = "spark-log-share-consumer"
    """Name of this program, shown in descriptions of the group."""

    client_rack: str = ""
    """Rack of this program. Segments are read from a replica in this rack, if there is one."""

    key_deserializer: Any = None
    """A kafka-python Deserializer, or a function of the bytes (also called with None). None returns the bytes."""

    value_deserializer: Any = None
    """Like key_deserializer, for values."""

    share_acknowledgement_mode: str = "implicit"
    """implicit: the next poll or commit accepts the records of the last poll. explicit: the program calls `acknowledge`
    for each record (Kafka's share.acknowledgement.mode)."""

    share_acquire_mode: str = "batch_optimized"
    """batch_optimized: a poll acquires up to max_poll_records at once, and the rest of the last batch. record_limit: it
    acquires exactly as many as it returns (Kafka's share.acquire.mode)."""

    max_poll_records: int = 500
    """Maximum number of records that one poll returns."""

    fetch_max_bytes: int = 52_428_800
    """Maximum bytes of the records of one poll. A single larger record is still returned."""

    request_timeout_ms: int = 30_000
    """Default time limit of commit and close."""

    retry_backoff_ms: int = 100
    """Pause after a retriable error, such as an unavailable metadata store."""

    consumer_timeout_ms: float = float("inf")
    """Iteration ends after this time without a record. If infinite or negative, it never ends."""

    def __post_init__(self) -> None:
        group = self.group_id
        if not isinstance(group, str) or not 0 < len(group) <= 249 or not can_be_stored(group):
            raise KafkaConfigurationError(f"group_id: expected a name of 1 to 249 characters, got {group!r}")
        for name in ("client_id", "client_rack"):
            check_text(name, getattr(self, name))
        for name, choices in (
            ("share_acknowledgement_mode", ("implicit", "explicit")),
            ("share_acquire_mode", ("batch_optimized", "record_limit")),
        ):
            if getattr(self, name) not in choices:
                raise KafkaConfigurationError(f"{name}: expected {' or '.join(choices)}, got {getattr(self, name)!r}")
        for name in ("max_poll_records", "fetch_max_bytes", "request_timeout_ms"):
            check_number(name, getattr(self, name), 1)
        check_number("retry_backoff_ms", self.retry_backoff_ms, 0)
        check_number("consumer_timeout_ms", self.consumer_timeout_ms, float("-inf"), whole=False)
        limit_times(self, ("request_timeout_ms", "retry_backoff_ms"))
        for name in ("key_deserializer", "value_deserializer"):
            given = getattr(self, name)
            if given is not None and not callable(given) and not callable(getattr(given, "deserialize", None)):
                raise KafkaConfigurationError(f"{name}: expected a function, a Deserializer or None, got {given!r}")

    @property
    def explicit(self) -> bool:
        return self.share_acknowledgement_mode == "explicit"
