"""Parses and writes the JSON texts of the connector: offsets, timestamps and assigned partitions.

    offsets      {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}     -1 latest, -2 earliest
    timestamps   {"topicA":{"0":1700000000000}}                   milliseconds since 1970
    assign       {"topicA":[0,1],"topicB":[0]}

Source: "Structured Streaming + Kafka Integration Guide" and JsonUtils of Spark's connector. Unlike Spark, this module
refuses ambiguous input: duplicate keys, floats, booleans, "01" for a partition and numbers beyond int64. The output is
canonical (topics sorted, partitions in numeric order, no spaces), so equal offsets are equal texts.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from spark_log.errors import InvalidOptionError
from spark_log.ids import TopicPartition

LATEST = -1
EARLIEST = -2

OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
TIMESTAMPS_EXAMPLE = '{"topicA": {"0": 123456789, "1": 123456789}, "topicB": {"0": 123456789, "1": 123456789}}'
ASSIGN_EXAMPLE = '{"topicA":[0,1],"topicB":[0,1]}'

_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
_PARTITION_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_SHOWN_CHARS_MAX = 1000


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """Parse offsets by partition. An offset may be -1 (latest) or -2 (earliest).

    Raises InvalidOptionError "Expected e.g. {…}, got …".
    """
    return _parse_nested(text, OFFSETS_EXAMPLE, EARLIEST)


def parse_timestamps(text: str) -> dict[TopicPartition, int]:
    """Parse timestamps (ms, >= 0) by partition. Raises InvalidOptionError "Expected e.g. {…}, got …"."""
    return _parse_nested(text, TIMESTAMPS_EXAMPLE, 0)


def parse_assign(text: str) -> tuple[TopicPartition, ...]:
    """Return the named partitions, sorted, without duplicates. Raises InvalidOptionError "Expected e.g. {…}, got …"."""
    partitions = set()
    for topic, numbers in _load(text, ASSIGN_EXAMPLE).items():
        if not isinstance(numbers, list):
            _refuse(ASSIGN_EXAMPLE, text, f"{topic!r} needs a list of partitions")
        for number in numbers:
            if type(number) is not int or not 0 <= number <= _PARTITION_MAX:
                _refuse(ASSIGN_EXAMPLE, text, f"{_short(number)} is not a partition of {topic!r}")
            partitions.add(TopicPartition(topic, number))
    return tuple(sorted(partitions))


def offsets_to_dict(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return the nested dict that Spark stores and shows: topic -> partition as text -> offset, in canonical order."""
    nested: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        nested.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return nested


def offsets_from_dict(nested: object, *, resolved: bool = True) -> dict[TopicPartition, int]:
    """Convert a result of `offsets_to_dict` back to offsets, with the checks of `parse_offsets`. With `resolved`, as in
    a checkpoint, -1 and -2 are refused.
    """
    return _flatten(nested, nested, OFFSETS_EXAMPLE, 0 if resolved else EARLIEST)


def _parse_nested(text: str, example: str, least: int) -> dict[TopicPartition, int]:
    return _flatten(_load(text, example), text, example, least)


def _flatten(nested: object, text: object, example: str, least: int) -> dict[TopicPartition, int]:
    if not isinstance(nested, dict):
        _refuse(example, text)
    flat: dict[TopicPartition, int] = {}
    for topic, values in nested.items():
        if not isinstance(topic, str) or not isinstance(values, dict):
            _refuse(example, text, f"{topic!r} needs an object of partition: number")
        for partition, value in values.items():
            if not isinstance(partition, str) or not _PARTITION.fullmatch(partition) or int(partition) > _PARTITION_MAX:
                _refuse(example, text, f"{_short(partition)} is not a partition of {topic!r}")
            if type(value) is not int or not least <= value <= _INT64_MAX:
                _refuse(
                    example, text, f"{_short(value)} of {topic}-{partition} is not a whole number >= {least}, < 2^63"
                )
            flat[TopicPartition(topic, int(partition))] = value
    return flat


def _load(text: str, example: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        loaded = dict(pairs)
        if len(loaded) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    raise ValueError(f"the key {_short(key)} is there twice")
                seen.add(key)
        return loaded

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a number")

    try:
        loaded = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except json.JSONDecodeError:
        _refuse(example, text)
    except ValueError as error:
        _refuse(example, text, str(error))
    except RecursionError:
        _refuse(example, text, "it is nested too deeply")
    if not isinstance(loaded, dict):
        _refuse(example, text)
    return loaded


def _refuse(example: str, given: object, reason: str = "") -> NoReturn:
    text = given if isinstance(given, str) else repr(given)
    shown = text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}… ({len(text)} characters)"
    raise InvalidOptionError(f"Expected e.g. {example}, got {shown}" + (f" ({reason})" if reason else "")) from None


def _short(value: object) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    shown = json.dumps(value, default=repr)
    return shown if len(shown) <= 50 else shown[:50] + "…"
