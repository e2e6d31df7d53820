"""Reads and writes assignments in the JSON of Kafka's kafka-reassign-partitions.

{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}]}
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from spark_log.cluster.names import validate_topic_name
from spark_log.errors import InvalidReplicationAssignmentError, InvalidTopicError
from spark_log.ids import TopicPartition

VERSION = 1
_INT32_MAX = 2**31 - 1
_BrokerId = Annotated[int, msgspec.Meta(ge=1, le=_INT32_MAX)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    partition: Annotated[int, msgspec.Meta(ge=0, le=_INT32_MAX)]
    replicas: Annotated[tuple[_BrokerId, ...], msgspec.Meta(min_length=1)]
    log_dirs: tuple[Literal["any"], ...] | None = None
    """Only "any" is allowed: a replica goes to its broker's log dir with the fewest replicas."""


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    version: Literal[1]
    partitions: list[_Entry]


def dump_assignments(assignments: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    """Return the JSON document of these assignments, sorted by topic and partition."""
    return {
        "version": VERSION,
        "partitions": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "replicas": list(replicas),
                "log_dirs": ["any"] * len(replicas),
            }
            for tp, replicas in sorted(assignments.items())
        ],
    }


def parse_assignments(text: str) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the assignments (broker ids by partition) of a JSON document.

    Raises InvalidReplicationAssignmentError for invalid and unknown fields. It names the field.
    """
    try:
        document = msgspec.json.decode(text, type=_Document)
    except msgspec.ValidationError as error:
        raise InvalidReplicationAssignmentError(f"assignment: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidReplicationAssignmentError(f"assignment: not JSON: {error}") from error
    assignments: dict[TopicPartition, tuple[int, ...]] = {}
    for at, entry in enumerate(document.partitions):
        tp = _checked(f"partitions[{at}]", entry)
        if tp in assignments:
            raise InvalidReplicationAssignmentError(f"partitions[{at}]: {tp} comes twice")
        assignments[tp] = entry.replicas
    return assignments


def _checked(where: str, entry: _Entry) -> TopicPartition:
    """Check an entry, and return its partition."""
    try:
        topic = validate_topic_name(entry.topic, f"{where}.topic")
    except InvalidTopicError as error:
        raise InvalidReplicationAssignmentError(str(error)) from error
    if len(set(entry.replicas)) < len(entry.replicas):
        raise InvalidReplicationAssignmentError(
            f"{where}.replicas: expected distinct broker ids, got {list(entry.replicas)}"
        )
    if entry.log_dirs is not None and len(entry.log_dirs) != len(entry.replicas):
        raise InvalidReplicationAssignmentError(
            f"{where}.log_dirs: expected one for each of the {len(entry.replicas)} replicas, got {len(entry.log_dirs)}"
        )
    return TopicPartition(topic, entry.partition)
