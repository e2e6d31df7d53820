"""Manages topics, partitions, offsets and records, with kafka-python's arguments and results."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from kafka.admin import OffsetSpec, OffsetTimestamp
from kafka.errors import InvalidReplicationAssignmentError
from kafka.structs import OffsetAndTimestamp

from spark_log.clients.admin.configs import entries_of
from spark_log.clients.admin.outcomes import error_fields, outcome_of, raise_first
from spark_log.cluster.cluster import Cluster
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
"""Replaces -1, as Kafka's num.partitions does."""
REPLICATION_FACTOR = 1
"""Replaces -1, as Kafka's default.replication.factor does."""


@dataclass(frozen=True)
class _Wanted:
    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, Any] = field(default_factory=dict)


def create_topics(cluster: Cluster, new_topics: Any, *, validate_only: bool, raise_errors: bool) -> dict[str, Any]:
    """Create topics; return {'topics': [...]} with error code, id, partitions, factor and configs of each."""
    entries, errors = [], []
    for wanted in _wanted(new_topics):
        topic, error = outcome_of(_create, cluster, wanted, validate_only)
        errors.append(error)
        entry: dict[str, Any] = {"name": wanted.name, **error_fields(error)}
        if error is None:
            entry["topic_id"] = uuid.UUID(topic.uuid if topic else "0" * 32)
            entry["num_partitions"] = topic.partition_count if topic else _default(wanted.num_partitions, 1)
            entry["replication_factor"] = topic.replication_factor if topic else _default(wanted.replication_factor, 1)
            entry["configs"] = entries_of(topic.overrides if topic else dict(wanted.configs))
        entries.append(entry)
    if raise_errors:
        raise_first(errors)
    return {"topics": entries}


def _create(cluster: Cluster, wanted: _Wanted, validate_only: bool) -> Topic | None:
    if wanted.assignments:
        raise InvalidReplicationAssignmentError(
            f"topic {wanted.name!r}: assignments {dict(wanted.assignments)}: placement over brokers and racks is"
            " spark-log's; give num_partitions and replication_factor"
        )
    return engine.create_topic(
        cluster,
        wanted.name,
        _default(wanted.num_partitions, NUM_PARTITIONS),
        _default(wanted.replication_factor, REPLICATION_FACTOR),
        {name: str(value) for name, value in wanted.configs.items()},
        validate_only=validate_only,
    )


def _default(number: Any, default: int) -> Any:
    return default if number is None or number == -1 else number


def _wanted(new_topics: Any) -> list[_Wanted]:
    """Parse names, {name: options}, or objects of kafka-python's NewTopic."""
    if isinstance(new_topics, Mapping):
        for name, options in new_topics.items():
            unknown = sorted(set(options) - {"num_partitions", "replication_factor", "assignments", "configs"})
            if unknown:
                raise ValueError(f"topic {name!r}: unknown option {unknown[0]!r}")
        normalized = [_Wanted(name, **options) for name, options in new_topics.items()]
    elif isinstance(new_topics, str) or not isinstance(new_topics, Iterable):
        raise TypeError(f"new_topics: expected a list of names or a dict of options, got {new_topics!r}")
    else:
        normalized = [
            _Wanted(topic)
            if isinstance(topic, str)
            else _Wanted(
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


def delete_topics(cluster: Cluster, topics: Iterable[str | uuid.UUID], *, raise_errors: bool) -> dict[str, Any]:
    """Delete topics; return {'topics': [...]} with the error code of each. A UUID is a topic id."""
    by_id = {topic.uuid: topic for topic in list_topics(cluster)}
    entries, errors = [], []
    for given in topics:
        topic = by_id.get(given.hex) if isinstance(given, uuid.UUID) else None
        name = "" if isinstance(given, uuid.UUID) else given
        if topic is not None:
            name = topic.name
        topic_id = None if topic is None else topic.topic_id
        _, error = outcome_of(engine.delete_topic, cluster, name, topic_id=topic_id)
        errors.append(error)
        entries.append({"name": name or None, **error_fields(error)})
    if raise_errors:
        raise_first(errors)
    return {"topics": entries}


def describe_topics(cluster: Cluster, topics: Iterable[str | uuid.UUID] | None) -> list[dict[str, Any]]:
    """Return a dict for each topic as in Kafka's metadata. An unknown topic has an error code and no partitions."""
    asked = None if topics is None else list(topics)

    def read(connection: sa.Connection) -> tuple[list[str], list[TopicDescription]]:
        known = find_topics(connection)
        by_id = {topic.uuid: topic.name for topic in known.values()}
        names = [by_id.get(each.hex, str(each)) if isinstance(each, uuid.UUID) else each for each in asked or ()]
        answered = sorted(known) if asked is None else names
        there = [known[name] for name in dict.fromkeys(answered) if name in known]
        return answered, describe(connection, there, cluster.store.clock(connection))

    answered, at_home = cluster.store.read(read)
    found = with_data_stores(cluster, at_home)
    described = {description.topic.name: description for description in found}
    return [_metadata(name, described.get(name)) for name in answered]


def _metadata(name: str, found: TopicDescription | None) -> dict[str, Any]:
    return {
        "error_code": 0 if found else UNKNOWN_TOPIC_OR_PARTITION,
        "name": name,
        "topic_id": uuid.UUID(found.topic.uuid) if found else None,
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
            for partition in (found.partitions if found else ())
        ],
    }


def create_partitions(
    cluster: Cluster, topic_partitions: Mapping[str, Any], *, validate_only: bool, raise_errors: bool
) -> dict[str, Any]:
    """Add partitions; return {'results': [...]} with the error code of each topic."""
    results, errors = [], []
    for name, given in topic_partitions.items():
        count: Any = given if isinstance(given, int) else getattr(given, "total_count", None)
        if isinstance(given, Mapping):
            count = given["count"]
        _, error = outcome_of(engine.add_partitions, cluster, name, count, validate_only=validate_only)
        errors.append(error)
        results.append({"name": name, **error_fields(error)})
    if raise_errors:
        raise_first(errors)
    return {"results": results}


def delete_records(cluster: Cluster, before: Mapping[Any, int]) -> dict[Any, dict[str, int]]:
    """Delete records; return the new low watermark of each partition."""
    offsets = {TopicPartition(*partition): offset for partition, offset in before.items()}
    low = retention.delete_records(cluster, offsets)
    return {
        partition: {"partition_index": partition[1], "low_watermark": low[partition], "error_code": 0}
        for partition in before
    }


def list_partition_offsets(cluster: Cluster, specs: Mapping[Any, Any]) -> dict[Any, OffsetAndTimestamp]:
    """Return the offset of each partition for an OffsetSpec (EARLIEST, LATEST, MAX_TIMESTAMP) or a timestamp in ms.

    All are of the same moment. The timestamp is that of the record found; EARLIEST and LATEST have -1. If all records
    are older than the timestamp, offset and timestamp are -1, as in a broker's answer.
    """
    for partition, spec in specs.items():
        if isinstance(spec, bool) or not isinstance(spec, int | OffsetTimestamp):
            raise TypeError(f"{partition[0]}-{partition[1]}: expected an OffsetSpec or milliseconds, got {spec!r}")
        if int(spec) < 0 and int(spec) not in _SPECS:
            raise ValueError(f"{partition[0]}-{partition[1]}: {spec!r} is not supported")

    def read(connection: sa.Connection) -> tuple[dict[Any, int], dict[TopicPartition, TimeLookup]]:
        offsets: dict[Any, int] = {}
        lookups: dict[TopicPartition, TimeLookup] = {}
        for name in sorted({partition[0] for partition in specs}):
            topic = find_topic(connection, name)
            limits = positions(connection, [topic])
            times: dict[int, int] = {}
            for partition, spec in specs.items():
                tp = TopicPartition(*partition)
                if tp.topic != name:
                    continue
                if tp not in limits:
                    raise UnknownTopicOrPartitionError(f"partition {tp}: unknown topic or partition")
                if int(spec) == OffsetSpec.EARLIEST:
                    offsets[partition] = limits[tp].log_start_offset
                elif int(spec) == OffsetSpec.LATEST:
                    offsets[partition] = limits[tp].high_watermark
                else:
                    youngest = _newest_timestamp_ms(connection, topic, tp.partition)
                    times[tp.partition] = youngest if int(spec) == OffsetSpec.MAX_TIMESTAMP else int(spec)
            lookups |= plan_time_lookups(connection, topic, times)
        return offsets, lookups

    offsets, lookups = cluster.store.read(read)
    records = first_records(cluster, lookups)
    found: dict[Any, OffsetAndTimestamp] = {}
    for partition in specs:
        record = records.get(partition)
        offset, timestamp_ms = (offsets.get(partition, -1), -1) if record is None else record
        found[partition] = OffsetAndTimestamp(offset, timestamp_ms, None)
    return found


_SPECS = (OffsetSpec.EARLIEST, OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP)


def _newest_timestamp_ms(connection: sa.Connection, topic: Topic, partition: int) -> int:
    """Return the highest timestamp of the partition's segments, or -1 if there is none."""
    query = sa.select(sa.func.max(SEGMENT.max_timestamp_ms)).where(
        SEGMENT.topic_id == topic.topic_id, SEGMENT.partition == partition
    )
    newest = connection.execute(query).scalar()
    return -1 if newest is None else int(newest)
