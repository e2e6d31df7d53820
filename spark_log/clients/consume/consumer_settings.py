"""Defines the consumer's settings with kafka-python's names and defaults, and validates them once."""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import KafkaConfigurationError
from kafka.protocol.consumer import IsolationLevel

from spark_log.clients.client_settings import check_number, check_text, limit_times
from spark_log.config.values import can_be_stored
from spark_log.groups.assignors import ASSIGNORS

logger = logging.getLogger(__name__)

_CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_OLD_RESETS = {"smallest": "earliest", "largest": "latest"}


@dataclass(frozen=True)
class ConsumerSettings:
    """Validated settings of a consumer. KafkaConfigurationError names an invalid setting and its value."""

    client_id: str = "spark-log"
    """Name of this program, shown in descriptions of the group."""

    client_rack: str = ""
    """Rack of this program. Segments are read from a replica in this rack, if there is one."""

    group_id: str | None = None
    """Group to join and to commit offsets for. Without a group, `subscribe` assigns all partitions."""

    group_instance_id: str | None = None
    """Makes this a static member: it keeps its partitions over a restart of up to session_timeout_ms."""

    key_deserializer: Any = None
    """A kafka-python Deserializer, or a function of the bytes (also called with None). None returns the bytes."""

    value_deserializer: Any = None
    """Like key_deserializer, for values."""

    fetch_max_wait_ms: int = 500
    """Maximum wait for fetch_min_bytes. It must be below request_timeout_ms."""

    fetch_min_bytes: int = 1
    """Minimum stored bytes of a fetch. With fewer, the fetch waits up to fetch_max_wait_ms for more."""

    fetch_max_bytes: int = 52_428_800
    """Maximum bytes of buffered decoded records over all partitions. A single larger batch is still read."""

    max_partition_fetch_bytes: int = 1_048_576
    """Maximum bytes of buffered decoded records per partition, but always at least one batch."""

    request_timeout_ms: int = 30_000
    """Default time limit of commit, position and close. Queries of the store have a limit of their own."""

    retry_backoff_ms: int = 100
    """Pause after a retriable error, such as an unavailable metadata store, and between heartbeats during a rebalance.
    """

    auto_offset_reset: str = "latest"
    """Position if there is no committed offset, or if the position is out of range: earliest, latest, or none, which
    raises an error."""

    enable_auto_commit: bool = True
    """Commit positions every auto_commit_interval_ms, before partitions are revoked, and on close."""

    auto_commit_interval_ms: int = 5_000
    """Time between automatic commits."""

    default_offset_commit_callback: Callable[[Mapping[Any, Any], Any], Any] | None = None
    """Called with (offsets, None or the error) after a background commit that has no callback of its own."""

    isolation_level: Any = "read_uncommitted"
    """read_committed or read_uncommitted. They are equal here: no reader sees the records of an open transaction."""

    allow_auto_create_topics: bool = True
    """Create a missing topic with one partition if it is subscribed by name or assigned."""

    metadata_max_age_ms: int = 300_000
    """Maximum time between two reads of the list of topics."""

    partition_assignment_strategy: Any = (RangePartitionAssignor, RoundRobinPartitionAssignor)
    """Assignors in order of preference: kafka-python's classes or instances, range, roundrobin, sticky or
    cooperative-sticky, or class paths. With these four, partitions that do not move stay with their owner. A custom
    one assigns as in Kafka: the leader of the group calls it, and all members of the group must have it."""

    max_poll_records: int = 500
    """Maximum number of records that one poll returns."""

    max_poll_interval_ms: int = 300_000
    """The member leaves its group after this time without a poll. It has the same time to give up partitions."""

    session_timeout_ms: int = 45_000
    """The membership ends after this time without a heartbeat. It must be above heartbeat_interval_ms."""

    heartbeat_interval_ms: int = 3_000
    """Time between the heartbeats of the background thread."""

    consumer_timeout_ms: float = float("inf")
    """Iteration ends after this time without a record. If infinite or negative, it never ends."""

    metrics_enabled: bool = True
    """If False, `metrics()` returns None."""

    exclude_internal_topics: bool = True
    """If True, a pattern matches no internal topics, such as `__consumer_offsets` and `__audit`."""

    def __post_init__(self) -> None:
        for name, least in _WHOLE_NUMBERS.items():
            check_number(name, getattr(self, name), least)
        check_number("consumer_timeout_ms", self.consumer_timeout_ms, float("-inf"), whole=False)
        for name in ("enable_auto_commit", "allow_auto_create_topics", "metrics_enabled", "exclude_internal_topics"):
            _check(name, getattr(self, name), isinstance(getattr(self, name), bool), "True or False")
        for name in ("client_id", "client_rack"):
            check_text(name, getattr(self, name))
        object.__setattr__(self, "auto_offset_reset", _reset_policy(self.auto_offset_reset))
        self._check_group()
        self._check_functions()
        try:
            IsolationLevel.build_from(self.isolation_level)
        except ValueError:
            _check("isolation_level", self.isolation_level, False, "read_committed or read_uncommitted")
        strategy = _assignors(self.partition_assignment_strategy)
        object.__setattr__(self, "partition_assignment_strategy", strategy)
        if self.fetch_max_wait_ms >= self.request_timeout_ms:
            raise KafkaConfigurationError(
                f"fetch_max_wait_ms: {self.fetch_max_wait_ms} must be below"
                f" request_timeout_ms {self.request_timeout_ms}"
            )
        limit_times(self, [name for name in _WHOLE_NUMBERS if name.endswith("_ms")])

    def _check_group(self) -> None:
        group, instance = self.group_id, self.group_instance_id
        named = isinstance(group, str) and 0 < len(group) <= 249 and can_be_stored(group)
        _check("group_id", group, group is None or named, "a name of 249 characters at most, or None")
        if instance is not None:
            legal = isinstance(instance, str) and _NAME.fullmatch(instance) and instance not in (".", "..")
            _check("group_instance_id", instance, bool(legal), "1 to 249 of the characters a-z A-Z 0-9 . _ -")
            _check("group_instance_id", instance, group is not None, "a group_id beside it")
        if group is not None and self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise KafkaConfigurationError(
                f"heartbeat_interval_ms: {self.heartbeat_interval_ms} must be below"
                f" session_timeout_ms {self.session_timeout_ms}"
            )

    def _check_functions(self) -> None:
        for name in ("key_deserializer", "value_deserializer"):
            given = getattr(self, name)
            usable = given is None or callable(given) or callable(getattr(given, "deserialize", None))
            _check(name, given, usable, "a function, a Deserializer or None")
        callback = self.default_offset_commit_callback
        _check("default_offset_commit_callback", callback, callback is None or callable(callback), "a function")

    @property
    def auto_commit(self) -> bool:
        """Whether positions are committed automatically."""
        return self.enable_auto_commit and self.group_id is not None


_WHOLE_NUMBERS = {
    "fetch_max_wait_ms": 0,
    "fetch_min_bytes": 0,
    "fetch_max_bytes": 1,
    "max_partition_fetch_bytes": 1,
    "request_timeout_ms": 1,
    "retry_backoff_ms": 0,
    "auto_commit_interval_ms": 0,
    "metadata_max_age_ms": 0,
    "max_poll_records": 1,
    "max_poll_interval_ms": 1,
    "session_timeout_ms": 1,
    "heartbeat_interval_ms": 1,
}
"""Smallest valid value of each whole number."""


def _check(name: str, value: object, valid: bool, expected: str) -> None:
    if not valid:
        raise KafkaConfigurationError(f"{name}: expected {expected}, got {value!r}")


def _reset_policy(given: object) -> str:
    policy = given.lower() if isinstance(given, str) else given
    if policy in _OLD_RESETS:
        policy = _OLD_RESETS[policy]
        logger.warning("use auto_offset_reset=%s (%s is deprecated)", policy, given)
    _check("auto_offset_reset", given, policy in ("earliest", "latest", "none"), "earliest, latest or none")
    return str(policy)


def _assignors(strategy: Any) -> tuple[Any, ...]:
    """Return the listed assignors: names are replaced by classes, and class paths stay."""
    name = "partition_assignment_strategy"
    listed = [strategy] if isinstance(strategy, str | type | AbstractPartitionAssignor) else strategy
    _check(name, strategy, isinstance(listed, list | tuple) and len(listed) > 0, "a list of assignors")
    assignors = [ASSIGNORS.get(item, item) if isinstance(item, str) else item for item in listed]
    for item in assignors:
        if isinstance(item, str):
            valid = _CLASS_PATH.fullmatch(item) is not None
        else:
            valid = isinstance(item, AbstractPartitionAssignor) or (
                isinstance(item, type) and issubclass(item, AbstractPartitionAssignor)
            )
        _check(name, strategy, valid, f"assignors, class paths or some of {', '.join(ASSIGNORS)}")
    return tuple(assignors)
