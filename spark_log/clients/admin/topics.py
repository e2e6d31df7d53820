"""Manages topics, partitions, offsets and records, with kafka-python's arguments and results."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from kafka.admin import OffsetSpec, OffsetTimestamp
from kafka.errors import InvalidReplicationAssignmentError, KafkaTimeoutError
from kafka.structs import OffsetAndTimestamp

from spark_log import clock
from spark_log.clients.admin.admin_settings import check_timeout
from spark_log.clients.admin.configs import config_text, entries_of
from spark_log.clients.admin.outcomes import error_fields, outcome_of, raise_first
from spark_log.clients.kafka_errors import kafka_errors
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_stores_of
from spark_log.cluster.names import is_internal
from spark_log.cluster.topics import Topic, find_topic, find_topics, list_topics
from spark_log.errors import UnknownTopicOrPartitionError
from spark_log.facts.topics import TopicDescription, describe, with_data_stores
from spark_log.ids import TopicPartition
from spark_log.log.segments.plan import TimeLookup, plan_time_lookups, positions
from spark_log.log.segments.timed_offsets import first_records
from spark_log.maintenance.removal import retention
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.replication.controller import topic_operations as engine

UNKNOWN_TOPIC_OR_PARTITION = 3
"""Kafka's error code of a topic or partition that does not exist."""
NUM_PARTITIONS = 1
"""Partition count of a topic that is created with -1, as Kafka's num.partitions."""
REPLICATION_FACTOR = 1
"""Replication factor of a topic that is created with -1, as Kafka's default.replication.factor."""


@dataclass(frozen=True)
class _RequestedTopic:
    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, Any] = field(default_factory=dict)


def _create(cluster: Cluster, requested: _RequestedTopic, validate_only: bool) -> Topic | None:
    if requested.assignments:
        raise InvalidReplicationAssignmentError(
            f"topic {requested.name!r}: assignments {dict(requested.assignments)}: placement over brokers and racks is"
            " spark-log's; give num_partitions and replication_factor"
        )
    operation = engine.check_new_topic if validate_only else engine.create_topic
    return operation(
        cluster,
        requested.name,
        _default(requested.num_partitions, NUM_PARTITIONS),
        _default(requested.replication_factor, REPLICATION_FACTOR),
        {name: config_text(name, value) for name, value in requested.configs.items()},
    )


def _default(number: Any, default: int) -> Any:
    return default if number is None or number == -1 else number


def _requested_topics(new_topics: Any) -> list[_RequestedTopic]:
    """Parse names, {name: options}, or objects of kafka-python's NewTopic."""
    if isinstance(new_topics, Mapping):
        for name, options in new_topics.items():
            unknown = sorted(set(options) - {"num_partitions", "replication_factor", "assignments", "configs"})
            if unknown:
                raise ValueError(f"topic {name!r}: unknown option {unknown[0]!r}")
        normalized = [_RequestedTopic(name, **options) for name, options in new_topics.items()]
    elif isinstance(new_topics, str) or not isinstance(new_topics, Iterable):
        raise TypeError(f"new_topics: expected a list of names or a dict of options, got {new_topics!r}")
    else:
        normalized = [
            _RequestedTopic(topic)
            if isinstance(topic, str)
            else _RequestedTopic(
                topic.name,
                topic.num_partitions,
                topic.replication_factor,
                topic.replica_assignments,
                topic.topic_configs,
            )
            for topic in new_topics
        ]
    if not normalized:
        raise ValueError(f"No valid topics found in new_topics: {new_topics}")
    return normalized


def _metadata(name: str, description: TopicDescription | None) -> dict[str, Any]:
    return {
        "error_code": 0 if description else UNKNOWN_TOPIC_OR_PARTITION,
        "name": name,
        "topic_id": uuid.UUID(description.topic.uuid) if description else None,
        "is_internal": is_internal(name),
        "partitions": [
            {
                "error_code": 0,
                "partition_index": partition.partition,
                "leader_id": -1 if partition.leader is None else partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": [replica.broker_id for replica in partition.replicas],
                "isr_nodes": list(partition.isr),
                "offline_replicas": list(partition.dead),
            }
            for partition in (description.partitions if description else ())
        ],
    }


def list_partition_offsets(cluster: Cluster, specs: Mapping[Any, Any]) -> dict[Any, OffsetAndTimestamp]:
    """Return the offset of each partition for an OffsetSpec (EARLIEST, LATEST, MAX_TIMESTAMP) or a timestamp in ms.

    All offsets of a store are from one snapshot. The timestamp is that of the record found; EARLIEST and LATEST have
    -1. If all records are older than the timestamp, offset and timestamp are -1, as in a broker's answer.
    """
    for partition, spec in specs.items():
        if isinstance(spec, bool) or not isinstance(spec, int | OffsetTimestamp):
            raise TypeError(f"{partition[0]}-{partition[1]}: expected an OffsetSpec or milliseconds, got {spec!r}")
        if int(spec) < 0 and int(spec) not in _SPECS:
            raise ValueError(f"{partition[0]}-{partition[1]}: {spec!r} is not supported")

    by_partition = {TopicPartition(*partition): spec for partition, spec in specs.items()}
    offsets = in_stores_of(cluster, by_partition, _partition_offsets)
    return {partition: offsets[TopicPartition(*partition)] for partition in specs}


def _partition_offsets(view: Cluster, specs: Mapping[TopicPartition, Any]) -> dict[TopicPartition, OffsetAndTimestamp]:
    def read(connection: sa.Connection) -> tuple[dict[TopicPartition, int], dict[TopicPartition, TimeLookup]]:
        offsets: dict[TopicPartition, int] = {}
        lookups: dict[TopicPartition, TimeLookup] = {}
        for name in sorted({tp.topic for tp in specs}):
            topic = find_topic(connection, name)
            limits = positions(connection, [topic])
            times: dict[int, int] = {}
            for tp, spec in specs.items():
                if tp.topic != name:
                    continue
                if tp not in limits:
                    raise UnknownTopicOrPartitionError(f"partition {tp}: unknown topic or partition")
                if int(spec) == OffsetSpec.EARLIEST:
                    offsets[tp] = limits[tp].log_start_offset
                elif int(spec) == OffsetSpec.LATEST:
                    offsets[tp] = limits[tp].high_watermark
                else:
                    youngest = _newest_timestamp_ms(connection, topic, tp.partition)
                    times[tp.partition] = youngest if int(spec) == OffsetSpec.MAX_TIMESTAMP else int(spec)
            lookups |= plan_time_lookups(connection, topic, times)
        return offsets, lookups

    offsets, lookups = view.store.read(read)
    records = first_records(view, lookups)
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    for tp in specs:
        record = records.get(tp)
        offset, timestamp_ms = (offsets.get(tp, -1), -1) if record is None else record
        found[tp] = OffsetAndTimestamp(offset, timestamp_ms, None)
    return found


_SPECS = (OffsetSpec.EARLIEST, OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP)


def _newest_timestamp_ms(connection: sa.Connection, topic: Topic, partition: int) -> int:
    """Return the highest timestamp of the partition's segments, or -1 if there is none."""
    query = sa.select(sa.func.max(SEGMENT.max_timestamp_ms)).where(
        SEGMENT.topic_id == topic.topic_id, SEGMENT.partition == partition
    )
    newest = connection.execute(query).scalar()
    return -1 if newest is None else int(newest)


class TopicCalls:
    """The methods of Admin for topics, their partitions and records."""

    _cluster: Cluster

    @kafka_errors()
    def list_topics(self) -> list[str]:
        return [topic.name for topic in list_topics(self._cluster)]

    @kafka_errors()
    def describe_topics(self, topics: Iterable[str | uuid.UUID] | None = None) -> list[dict[str, Any]]:
        """Return a dict for each topic, by default for all: its partitions with leader, replicas and ISR. A topic that
        does not exist has `error_code` 3.
        """
        asked = None if topics is None else list(topics)

        def read(connection: sa.Connection) -> tuple[list[str], list[TopicDescription]]:
            known = find_topics(connection)
            by_id = {topic.uuid: topic.name for topic in known.values()}
            names = [by_id.get(each.hex, str(each)) if isinstance(each, uuid.UUID) else each for each in asked or ()]
            answered = sorted(known) if asked is None else names
            there = [known[name] for name in dict.fromkeys(answered) if name in known]
            return answered, describe(connection, there, self._cluster.store.clock(connection))

        answered, at_home = self._cluster.store.read(read)
        found = with_data_stores(self._cluster, at_home)
        described = {description.topic.name: description for description in found}
        return [_metadata(name, described.get(name)) for name in answered]

    @kafka_errors()
    def create_topics(
        self,
        new_topics: Any,
        timeout_ms: int | None = None,
        validate_only: bool = False,
        raise_errors: bool = True,
        wait_for_metadata: bool = False,
    ) -> dict[str, Any]:
        """Create topics: names, NewTopic objects, or {name: {num_partitions, replication_factor, configs}}. A number -1
        means one.

        With `raise_errors`, raises the first error, such as TopicAlreadyExistsError, when all topics have been tried;
        otherwise returns error codes. A created topic has leaders at once, so `wait_for_metadata` has no effect.
        """
        check_timeout(timeout_ms)
        if validate_only and wait_for_metadata:
            raise ValueError("validate_only and wait_for_metadata are mutually exclusive")
        entries, errors = [], []
        for requested in _requested_topics(new_topics):
            topic, error = outcome_of(_create, self._cluster, requested, validate_only)
            errors.append(error)
            entry: dict[str, Any] = {"name": requested.name, **error_fields(error)}
            if error is None:
                entry["topic_id"] = uuid.UUID(topic.uuid if topic else "0" * 32)
                entry["num_partitions"] = topic.partition_count if topic else _default(requested.num_partitions, 1)
                entry["replication_factor"] = (
                    topic.replication_factor if topic else _default(requested.replication_factor, 1)
                )
                entry["configs"] = entries_of(topic.overrides if topic else dict(requested.configs))
            entries.append(entry)
        if raise_errors:
            raise_first(errors)
        return {"topics": entries}

    def wait_for_topics(self, topic_names: Iterable[str], timeout_ms: float = 10_000) -> None:
        """Wait until all these topics exist. Raises KafkaTimeoutError with the names of those that do not."""
        wanted = set(topic_names)
        deadline = clock.monotonic_s() + timeout_ms / 1000
        while True:
            seen = self._cluster.store.changes.current()
            missing = sorted(wanted - set(self.list_topics()))
            left = deadline - clock.monotonic_s()
            if not missing:
                return
            if left <= 0:
                raise KafkaTimeoutError(f"Topics not ready after {timeout_ms}ms: {missing}")
            self._cluster.store.changes.wait(seen, min(left, 0.1))

    @kafka_errors()
    def delete_topics(
        self, topics: Iterable[str | uuid.UUID], timeout_ms: int | None = None, raise_errors: bool = True
    ) -> dict[str, Any]:
        """Delete topics (names or UUIDs). With `raise_errors`, raises the first error, such as
        UnknownTopicOrPartitionError, when all topics have been tried; otherwise returns error codes.
        """
        check_timeout(timeout_ms)
        by_id = {topic.uuid: topic for topic in list_topics(self._cluster)}
        entries, errors = [], []
        for given in topics:
            topic = by_id.get(given.hex) if isinstance(given, uuid.UUID) else None
            name = "" if isinstance(given, uuid.UUID) else given
            if topic is not None:
                name = topic.name
            topic_id = None if topic is None else topic.topic_id
            _, error = outcome_of(engine.delete_topic, self._cluster, name, topic_id=topic_id)
            errors.append(error)
            entries.append({"name": name or None, **error_fields(error)})
        if raise_errors:
            raise_first(errors)
        return {"topics": entries}

    @kafka_errors()
    def create_partitions(
        self,
        topic_partitions: Mapping[str, Any],
        timeout_ms: int | None = None,
        validate_only: bool = False,
        raise_errors: bool = True,
    ) -> dict[str, Any]:
        """Add partitions, given {topic: total number of partitions, NewPartitions or {'count': total number}}. Manual
        assignments are ignored. With `raise_errors`, raises UnknownTopicOrPartitionError, InvalidPartitionsError or
        InvalidReplicationFactorError; otherwise returns error codes.
        """
        check_timeout(timeout_ms)
        results, errors = [], []
        for name, given in topic_partitions.items():
            count: Any = given if isinstance(given, int) else getattr(given, "total_count", None)
            if isinstance(given, Mapping):
                count = given["count"]
            _, error = outcome_of(engine.add_partitions, self._cluster, name, count, validate_only=validate_only)
            errors.append(error)
            results.append({"name": name, **error_fields(error)})
        if raise_errors:
            raise_first(errors)
        return {"results": results}

    @kafka_errors()
    def delete_records(
        self,
        records_to_delete: Mapping[Any, int],
        timeout_ms: int | None = None,
        partition_leader_id: int | None = None,
    ) -> dict[Any, dict[str, int]]:
        """Delete the records of each TopicPartition before its offset; -1 means the high watermark. If a partition is
        refused, nothing is deleted in its store.

        Returns the new log start offset of each partition as `low_watermark`. Raises OffsetOutOfRangeError,
        UnknownTopicOrPartitionError, or PolicyViolationError if the topic is internal or cleanup.policy has no delete.
        """
        check_timeout(timeout_ms)
        offsets = {TopicPartition(*partition): offset for partition, offset in records_to_delete.items()}
        low = retention.delete_records(self._cluster, offsets)
        return {
            partition: {"partition_index": partition[1], "low_watermark": low[partition], "error_code": 0}
            for partition in records_to_delete
        }

    @kafka_errors()
    def list_partition_offsets(
        self, topic_partition_specs: Mapping[Any, Any], isolation_level: Any = None, timeout_ms: int | None = None
    ) -> dict[Any, OffsetAndTimestamp]:
        """Return the offset for an OffsetSpec or a timestamp in ms, by TopicPartition. All offsets of a store are from
        one snapshot.

        The results are the same in both isolation levels. UnknownTopicOrPartitionError names a partition that does not
        exist.
        """
        check_timeout(timeout_ms)
        return list_partition_offsets(self._cluster, topic_partition_specs)
