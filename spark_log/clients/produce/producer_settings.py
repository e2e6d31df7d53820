"""Defines the producer's settings with kafka-python's names and defaults, and checks them."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka.errors import KafkaConfigurationError
from kafka.partitioner import DefaultPartitioner
from kafka.producer import KafkaProducer

from spark_log.clients.client_settings import check_number, check_text, limit_times, parse_settings, takes_headers
from spark_log.config.values import INT32_MAX
from spark_log.log.append.rules import Acks

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProducerSettings:
    """Checked settings of a producer. KafkaConfigurationError names an invalid setting and its value; for
    compression_type it is a ValueError, as in kafka-python.
    """

    client_id: str | None = None
    """Name of the producer in logs and as the holder of its write id. The default is `spark-log-producer-<n>`."""

    key_serializer: Any = None
    """Converts the key given to `send` to bytes: a callable with one argument, or a kafka-python Serializer."""

    value_serializer: Any = None
    """Like key_serializer, for values."""

    acks: Any = -1
    """With 0, the future succeeds before anything is stored. With 1, the leader has the record; with -1 or "all", every
    in-sync replica has it.
    """

    enable_idempotence: bool | None = None
    """Retries append no record twice. By default it is enabled unless another given setting conflicts with it (acks 0
    or 1, retries 0, more than 5 requests in flight), which is logged. If True, such a conflict is an error (KIP-679).
    """

    retries: float = float("inf")
    """Maximum number of retries of an append that failed with a retriable error."""

    delivery_timeout_ms: float = 120_000
    """Maximum time from `send` to success or failure. It must be at least linger_ms + request_timeout_ms."""

    request_timeout_ms: float = 30_000
    """Maximum time that one attempt of an append waits for the metadata store."""

    retry_backoff_ms: float = 100
    """Pause before a retry of an append."""

    batch_size: int = 16_384
    """Bytes per partition. When the waiting records of a topic reach this size for each of its partitions, they are
    sent before linger_ms is over. It is not an upper limit: the next append takes all waiting records.
    """

    linger_ms: float = 0
    """Maximum time that a record waits for others to share its append. With a transactional_id and without
    a given delivery_timeout_ms the default is 5, as in Kafka since 4.0: no reader sees a record before the commit, and
    the commit includes the waiting records."""

    partitioner: Any = None
    """Chooses the partition of a record without an explicit one. By default, and with kafka-python's own partitioners,
    the key's hash decides, and null keys go to one partition in runs. Otherwise it is a kafka.partitioner.Partitioner,
    or a callable (key bytes, all partitions, available partitions) -> partition.
    """

    buffer_memory: int = 33_554_432
    """Maximum bytes of waiting records; `send` blocks above it (Kafka's buffer.memory)."""

    max_block_ms: float = 60_000
    """Maximum time that `send` and `partitions_for` wait for a topic or for room in the buffer."""

    max_request_size: int = 1_048_576
    """Maximum size of a record, in bytes as Kafka counts them."""

    allow_auto_create_topics: bool = True
    """Create a missing topic, with one partition."""

    metadata_max_age_ms: float = 300_000
    """Time after which a topic's partition count and configs are read again. While records are sent, it is 1 s."""

    metrics_enabled: bool = True
    """If False, `metrics()` returns None."""

    max_in_flight_requests_per_connection: int = 5
    """Only a value above 5 has an effect: it conflicts with idempotence. A producer has only one append in flight."""

    compression_type: str | None = None
    """gzip, snappy, lz4 or zstd, for topics without a compression.type of their own. By default it is the topic's."""

    transactional_id: str | None = None
    """A name that stays the same over restarts of the program: the next producer with it fences this one and aborts its
    open transaction. Required for transactions; with it, all records must be sent in transactions."""

    transaction_timeout_ms: int = 60_000
    """Maximum time that a transaction is open after its first stored records. Then it is aborted. It must be at most
    the cluster's transaction.max.timeout.ms.
    """

    def __post_init__(self) -> None:
        self._check_numbers()
        if isinstance(self.acks, bool) or not (self.acks == "all" or (type(self.acks) is int and self.acks in _ACKS)):
            raise KafkaConfigurationError(f"acks: expected 0, 1, -1 or 'all', got {self.acks!r}")
        object.__setattr__(self, "acks", -1 if self.acks == "all" else self.acks)
        if self.compression_type not in (None, "gzip", "snappy", "lz4", "zstd"):
            raise ValueError(f"Not supported codec: compression_type={self.compression_type!r}")
        name = self.transactional_id
        if name is not None and not (isinstance(name, str) and _TRANSACTIONAL_ID.fullmatch(name)):
            raise KafkaConfigurationError(
                "transactional_id: expected text of 1 to 249 characters that can be stored (no NUL, no surrogates),"
                f" got {name!r}"
            )
        if self.client_id is not None:
            check_text("client_id", self.client_id)
        for name in ("allow_auto_create_topics", "metrics_enabled"):
            if not isinstance(getattr(self, name), bool):
                raise KafkaConfigurationError(f"{name}: expected True or False, got {getattr(self, name)!r}")
        if self.delivery_timeout_ms < min(self.linger_ms + self.request_timeout_ms, INT32_MAX):
            raise KafkaConfigurationError(
                f"delivery_timeout_ms={self.delivery_timeout_ms} must be at least linger_ms + request_timeout_ms"
                f" ({self.linger_ms + self.request_timeout_ms})"
            )
        limit_times(self, _NUMBERS)
        self._decide_idempotence()

    @property
    def log_acks(self) -> Acks:
        """Return `acks` in the form that the log accepts."""
        return "all" if self.acks == -1 else self.acks

    def _check_numbers(self) -> None:
        for name, least in _NUMBERS.items():
            check_number(name, getattr(self, name), least, whole=False)
        for name, least in _WHOLE_NUMBERS.items():
            check_number(name, getattr(self, name), least)
        if self.retries != float("inf"):
            check_number("retries", self.retries, 0)

    def _decide_idempotence(self) -> None:
        wish = self.enable_idempotence
        if wish is not None and not isinstance(wish, bool):
            raise KafkaConfigurationError(f"enable_idempotence: expected True or False, got {wish!r}")
        conflicts = [f"acks={self.acks}"] if self.acks != -1 else []
        conflicts += ["retries=0"] if self.retries == 0 else []
        in_flight = self.max_in_flight_requests_per_connection
        conflicts += [f"max_in_flight_requests_per_connection={in_flight}"] if in_flight > 5 else []
        if wish and conflicts:
            raise KafkaConfigurationError(f"enable_idempotence=True is incompatible with {', '.join(conflicts)}")
        if wish is None and conflicts:
            logger.warning("producer without idempotence, because of %s", ", ".join(conflicts))
        idempotent = not conflicts if wish is None else wish
        if self.transactional_id is not None and not idempotent:
            raise KafkaConfigurationError(
                f"transactional_id={self.transactional_id!r} needs enable_idempotence"
                + (f", which is incompatible with {', '.join(conflicts)}" if conflicts else "")
            )
        object.__setattr__(self, "enable_idempotence", idempotent)


KAFKA_DEFAULTS = {**KafkaProducer.DEFAULT_CONFIG, "partitioner": None}
"""kafka-python's settings and defaults; None stands for its default partitioner here."""

_ACKS = (0, 1, -1)
_NUMBERS = {
    "delivery_timeout_ms": 0,
    "request_timeout_ms": 1,
    "retry_backoff_ms": 0,
    "linger_ms": 0,
    "max_block_ms": 0,
    "metadata_max_age_ms": 0,
}
_WHOLE_NUMBERS = {
    "batch_size": 0,
    "buffer_memory": 1,
    "max_request_size": 0,
    "max_in_flight_requests_per_connection": 1,
    "transaction_timeout_ms": 1,
}
_TRANSACTION_LINGER_MS = 5
_TRANSACTIONAL_ID = re.compile(r"[^\0\ud800-\udfff]{1,249}")

Serialize = Callable[[str, list[tuple[str, bytes]], Any], Any]


def serialize_with(name: str, serializer: Any) -> Serialize | None:
    """Return a function of topic, headers and data. Raises KafkaConfigurationError if it is not a serializer."""
    if serializer is None:
        return None
    if hasattr(serializer, "serialize"):
        serialize: Any = serializer.serialize
        if not takes_headers(serialize):
            return lambda topic, _headers, data: serialize(topic, data)
        return serialize  # type: ignore[no-any-return]
    if callable(serializer):
        return lambda _topic, _headers, data: serializer(data)
    raise KafkaConfigurationError(f"{name}: expected a callable or a kafka.serializer.Serializer, got {serializer!r}")


def parse(given: dict[str, Any]) -> tuple[str, ProducerSettings]:
    """Return (address, settings) of a producer's keyword arguments. Raises ValueError for an unknown name."""
    rest = dict(given)
    if type(rest.get("partitioner")) is DefaultPartitioner:
        rest["partitioner"] = None
    if rest.get("transactional_id") is not None and "delivery_timeout_ms" not in rest:
        rest.setdefault("linger_ms", _TRANSACTION_LINGER_MS)
    return parse_settings(ProducerSettings, rest, KAFKA_DEFAULTS, ValueError)
