"""Reads and writes assignments in the JSON of Kafka's kafka-reassign-partitions.

    {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}]}

An InvalidReplicationAssignmentError names the invalid field and its value.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spark_log.cluster.names import validate_topic_name
from spark_log.errors import InvalidReplicationAssignmentError, InvalidTopicError
from spark_log.ids import TopicPartition

VERSION = 1
_INT32_MAX = 2**31 - 1


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

    Raises InvalidReplicationAssignmentError, also for unknown and repeated members.
    """
    try:
        document = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise InvalidReplicationAssignmentError(f"assignment: not JSON: {error}") from error
    _check_members("assignment", document, {"version", "partitions"}, {"version", "partitions"})
    if document["version"] != VERSION or isinstance(document["version"], bool):
        raise InvalidReplicationAssignmentError(f"version: expected {VERSION}, got {document['version']!r}")
    if not isinstance(document["partitions"], list):
        raise InvalidReplicationAssignmentError(f"partitions: expected a list, got {document['partitions']!r}")
    assignments: dict[TopicPartition, tuple[int, ...]] = {}
    for at, entry in enumerate(document["partitions"]):
        tp, replicas = _entry(f"partitions[{at}]", entry)
        if tp in assignments:
            raise InvalidReplicationAssignmentError(f"partitions[{at}]: {tp} comes twice")
        assignments[tp] = replicas
    return assignments


def _entry(where: str, entry: Any) -> tuple[TopicPartition, tuple[int, ...]]:
    _check_members(where, entry, {"topic", "partition", "replicas", "log_dirs"}, {"topic", "partition", "replicas"})
    try:
        topic = validate_topic_name(entry["topic"], f"{where}.topic")
    except InvalidTopicError as error:
        raise InvalidReplicationAssignmentError(str(error)) from error
    partition = _number(f"{where}.partition", entry["partition"], 0)
    if not isinstance(entry["replicas"], list):
        raise InvalidReplicationAssignmentError(f"{where}.replicas: expected a list, got {entry['replicas']!r}")
    replicas = tuple(_number(f"{where}.replicas[{i}]", broker, 1) for i, broker in enumerate(entry["replicas"]))
    if not replicas or len(set(replicas)) < len(replicas):
        raise InvalidReplicationAssignmentError(
            f"{where}.replicas: expected distinct broker ids, at least one, got {list(replicas)}"
        )
    log_dirs = entry.get("log_dirs", ["any"] * len(replicas))
    if not isinstance(log_dirs, list) or len(log_dirs) != len(replicas):
        raise InvalidReplicationAssignmentError(
            f"{where}.log_dirs: expected one for each of the {len(replicas)} replicas, got {log_dirs!r}"
        )
    for i, log_dir in enumerate(log_dirs):
        if log_dir != "any":
            raise InvalidReplicationAssignmentError(
                f"{where}.log_dirs[{i}]: expected 'any', got {log_dir!r}: a replica goes to its broker's log dir with"
                " the fewest replicas"
            )
    return TopicPartition(topic, partition), replicas


def _check_members(where: str, json_object: Any, known: set[str], needed: set[str]) -> None:
    if not isinstance(json_object, dict):
        raise InvalidReplicationAssignmentError(f"{where}: expected an object, got {json_object!r}")
    for name in sorted(needed - json_object.keys()):
        raise InvalidReplicationAssignmentError(f"{where}: {name!r} is missing")
    for name in sorted(json_object.keys() - known):
        raise InvalidReplicationAssignmentError(f"{where}: {name!r} is unknown: {json_object[name]!r}")


def _number(where: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _INT32_MAX:
        raise InvalidReplicationAssignmentError(f"{where}: expected a number from {least}, got {value!r}")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} comes twice in one object")
        found[name] = value
    return found
