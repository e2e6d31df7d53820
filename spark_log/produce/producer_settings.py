"""The producer's settings: kafka-python's names and defaults."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka.errors import KafkaConfigurationError
from kafka.partitioner import DefaultPartitioner
from kafka.producer import KafkaProducer

from spark_log.append.rules import Acks
from spark_log.client_settings import check_number, check_text, parse_settings, takes_headers

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProducerSettings:
    """Checked settings. KafkaConfigurationError names the setting and the value."""

    client_id: str | None = None
    """A name for people: it stands in logs and beside the producer's write id. None: `spark-log-producer-<n>`."""

    key_serializer: Any = None
    """From what `send` is given as key to bytes: a callable of one argument, or a kafka-python Serializer."""

    value_serializer: Any = None
    """The same for values."""

    acks: Any = -1
    """0: the future succeeds before anything is stored; 1: the leader has the record; -1 or "all": every in-sync
    replica has it."""

    enable_idempotence: bool | None = None
    """Each record once, whatever is retried. None: yes, unless another setting given conflicts with it (acks 0 or 1,
    retries 0), which is logged; True: such a conflict is an error (KIP-679)."""

    retries: float = float("inf")
    """How often an append that failed with a retriable error is tried again."""

    delivery_timeout_ms: float = 120_000
    """From `send` to success or failure at the latest. At least linger_ms + request_timeout_ms."""

    request_timeout_ms: float = 30_000
    """How long one try of an append may wait for the metadata store."""

    retry_backoff_ms: float = 100
    """Pause before an append is tried again."""

    batch_size: int = 16_384
    """Bytes: a topic's records do not wait out linger_ms when there are this many for each of its partitions. No upper
    bound: whatever waits when the append before is done goes together."""

    linger_ms: float = 0
    """How long a record may wait for others to share its append. With a transactional_id the default is 5, as Kafka's
    has been since 4.0: nobody sees a record before the commit, which takes those along that still wait."""

    partitioner: Any = None
    """Where a record without explicit partition goes. None, and kafka-python's own: the key's hash, and runs of one
    partition for null keys; else a kafka.partitioner.Partitioner, or a callable (key bytes, all partitions, available
    partitions) -> partition."""

    buffer_memory: int = 33_554_432
    """Bytes of records that may wait; `send` blocks above it (Kafka's buffer.memory)."""

    max_block_ms: float = 60_000
    """How long `send` and `partitions_for` may wait for a topic or for room in the buffer."""

    max_request_size: int = 1_048_576
    """Largest record, in bytes as Kafka counts them."""

    allow_auto_create_topics: bool = True
    """A topic that is missing is made, with one partition."""

    metadata_max_age_ms: float = 300_000
    """Partition count and configs of a topic are looked up again after this, and while records flow every second."""

    metrics_enabled: bool = True
    """False: `metrics()` returns None."""

    max_in_flight_requests_per_connection: int = 5
    """Any bound is kept: a producer has one append in flight, and order with it."""

    compression_type: str | None = None
    """gzip, snappy, lz4 or zstd for topics whose compression.type nobody has set; None leaves it to the topic."""

    transactional_id: str | None = None
    """A name that stays the same over restarts of the program: its next producer fences this one, and aborts what it
    left open. Needed for transactions, and then everything is sent in one."""

    transaction_timeout_ms: int = 60_000
    """How long a transaction may be open, from its first records on; then it is aborted. At most the cluster's
    transaction.max.timeout.ms."""

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
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise KafkaConfigurationError(
                f"delivery_timeout_ms={self.delivery_timeout_ms} must be at least linger_ms + request_timeout_ms"
                f" ({self.linger_ms + self.request_timeout_ms})"
            )
        self._decide_idempotence()

    @property
    def log_acks(self) -> Acks:
        """`acks` as the log calls it."""
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
"""kafka-python's settings and defaults; its partitioner is the one of None here."""

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
    """`serializer` as a function of topic, headers and data. KafkaConfigurationError if it is nothing of the kind."""
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
    """(address, settings) of a producer's keyword arguments. ValueError for a name that kafka-python has not either."""
    rest = dict(given)
    if type(rest.get("partitioner")) is DefaultPartitioner:
        rest["partitioner"] = None
    if rest.get("transactional_id") is not None and "delivery_timeout_ms" not in rest:
        rest.setdefault("linger_ms", _TRANSACTION_LINGER_MS)
    return parse_settings(ProducerSettings, rest, KAFKA_DEFAULTS, ValueError)
