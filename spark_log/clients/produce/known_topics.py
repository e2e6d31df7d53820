"""Caches a producer's topics: they are read at first use and when outdated, and created when missing."""

import contextlib
import random
import threading
from typing import Any

from kafka import errors as theirs

from spark_log import clock
from spark_log.clients.kafka_errors import kafka_errors
from spark_log.clients.produce.accumulator import Accumulator, Queue
from spark_log.clients.produce.producer_settings import ProducerSettings
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import validate_user_topic
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import (
    InvalidTopicError,
    KafkaTimeoutError,
    RetriableError,
    SparkLogError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_log.log.append.encoding import Encoding
from spark_log.replication.controller.topic_operations import create_topic

REFRESH_S = 1.0
"""Time between two reads of a topic while records are sent: its configs and partition count may have changed."""
_RETRY_S = 0.05
_TRANSACTION_BYTES = 1024 * 1024
"""Minimum batch size in a transaction. No reader sees its records before the commit, so more of them are stored
together, at best all with the commit.
"""


class KnownTopic:
    """A topic and its queue. `first_run` modulo the partition count is the partition of the next null keys."""

    __slots__ = ("encoding", "first_run", "looked_up_s", "queue", "topic")

    def __init__(self, topic: Topic, queue: Queue) -> None:
        self.queue = queue
        self.update(topic)
        # random, so that the first null keys of all producers do not go to partition 0
        self.first_run = random.randrange(topic.partition_count)

    def update(self, topic: Topic) -> None:
        """Store the topic that has just been looked up."""
        self.topic, self.encoding = topic, Encoding.of(topic)
        self.looked_up_s = clock.monotonic_s()


class MissingTopicError(UnknownTopicOrPartitionError, theirs.UnknownTopicOrPartitionError, theirs.KafkaTimeoutError):  # type: ignore[misc]
    """The topic was not found within max_block_ms. Callers can catch it as an unknown topic or as a timeout."""


class IllegalTopicNameError(InvalidTopicError, theirs.InvalidTopicError, ValueError):  # type: ignore[misc]
    """The topic's name is illegal. It is also a ValueError, as in kafka-python's `send`."""


class KnownTopics:
    """The cached topics by name. Safe to share between threads."""

    def __init__(self, cluster: Cluster, settings: ProducerSettings, accumulator: Accumulator) -> None:
        self._cluster, self._settings, self._accumulator = cluster, settings, accumulator
        self._lock = threading.Lock()
        self.by_name: dict[str, KnownTopic] = {}

    @kafka_errors()
    def find(self, name: str) -> KnownTopic:
        """Return the cached topic, or read it; wait up to max_block_ms until it exists.

        Raises TypeError for a name that is not text, IllegalTopicNameError, PolicyViolationError (internal topics),
        MissingTopicError, and KafkaTimeoutError when the store does not answer.
        """
        cached = self.by_name.get(name)
        if cached is not None:
            age_s, age_s_max = clock.monotonic_s() - cached.looked_up_s, self._settings.metadata_max_age_ms / 1000
            if cached.encoding.rejects_bad_records:  # a new version of the schema may accept the records
                age_s_max = min(age_s_max, REFRESH_S)
            if age_s <= age_s_max:
                return cached
        if not isinstance(name, str):
            raise TypeError(f"topic: expected text, got {name!r}")
        try:
            validate_user_topic(name, "write to")
        except InvalidTopicError as error:
            raise IllegalTopicNameError(*error.args) from None
        deadline = clock.monotonic_s() + self._settings.max_block_ms / 1000
        while True:
            failure: SparkLogError | None = None
            try:
                found = self.read_topic(name)
                if found is not None:
                    return found
            except RetriableError as error:
                failure = error
            left = deadline - clock.monotonic_s()
            if left <= 0:
                if failure is not None:
                    raise KafkaTimeoutError(f"topic {name!r}: could not be read within max_block_ms: {failure}")
                raise MissingTopicError(f"topic {name!r}: unknown topic or partition, waited for max_block_ms")
            clock.sleep_s(min(left, _RETRY_S))

    def read_topic(self, name: str) -> KnownTopic | None:
        """Read a topic. If it does not exist, create it (with allow_auto_create_topics) or return None."""
        topic = self._cluster.store.read(
            lambda connection: find_topics(connection, [name]), timeout_ms=min(10_000, int(self._settings.max_block_ms))
        ).get(name)
        if topic is None and self._settings.allow_auto_create_topics:
            with contextlib.suppress(TopicAlreadyExistsError):  # another client has just created it
                return self._know(create_topic(self._cluster, name))
            topic = self._cluster.store.read(lambda connection: find_topics(connection, [name])).get(name)
            if topic is None:
                create_topic(self._cluster, name)  # its name collides with another topic's: this raises the error
        return self._know(topic)

    def checked_partition(self, name: str, given: Any) -> int:
        """Return the number of a partition of a cached topic. Raises TypeError, or ValueError if there is none."""
        if isinstance(given, bool) or not hasattr(given, "__index__"):
            raise TypeError(f"partition: expected a whole number, got {given!r}")
        number = int(given)
        if number < 0:
            raise ValueError(f"partition must be >= 0, got {number}")
        if number >= self.by_name[name].topic.partition_count:
            with kafka_errors():
                known = self.read_topic(name)  # it may have more partitions now
            if known is None or number >= known.topic.partition_count:
                raise ValueError(f"Unrecognized partition {number} for topic {name}")
        return number

    def refresh(self, name: str, *, force: bool = False) -> KnownTopic | None:
        """Return the cached topic, read again if it is outdated or with `force`; None if it is missing and not created.
        If the store does not answer, return the cached one.
        """
        cached = self.by_name[name]
        age_s = clock.monotonic_s() - cached.looked_up_s
        if not force and age_s < min(REFRESH_S, self._settings.metadata_max_age_ms / 1000):
            return cached
        try:
            return self.read_topic(name)
        except RetriableError:
            return cached

    def _know(self, topic: Topic | None) -> KnownTopic | None:
        if topic is None:
            return None
        full_bytes = self._settings.batch_size * topic.partition_count
        if self._settings.transactional_id is not None:
            full_bytes = max(full_bytes, _TRANSACTION_BYTES)
        queue = self._accumulator.queue(topic.name, full_bytes)
        with self._lock:
            known = self.by_name.get(topic.name)
            if known is None:
                known = self.by_name[topic.name] = KnownTopic(topic, queue)
            else:
                known.update(topic)
            return known
