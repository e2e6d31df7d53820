"""Converts values in the rows of groups to and from JSON. Most parsed values are remembered for equal texts."""

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from spark_log.groups.consumer.rules import EpochState, Partitions, TopicFacts
from spark_log.ids import TopicPartition, numbers_by_topic
from spark_log.remembered import Remembered

T = TypeVar("T")

_CHARACTERS_MAX = 2 * 1024 * 1024
"""The maximum number of characters of all remembered texts of one kind. A value may need 40 bytes for each of them."""


def _remembered(function: Callable[[str], T]) -> Remembered[[str], T]:
    return Remembered(function, lambda _value, text: len(text), _CHARACTERS_MAX)


class TopicSet(NamedTuple):
    """Identifies the set of topics that exist. Any creation or deletion changes it, as ids are never used again."""

    size: int
    last_id: int | None


@dataclass(frozen=True)
class Pattern:
    """A regular expression (RE2) of topic names. `matched` is the set of topics to which it was last applied."""

    regex: str
    names: frozenset[str]
    """Topics that are subscribed by name."""
    matched: TopicSet


@dataclass(frozen=True)
class Subscription:
    topics: frozenset[str]
    """The topics, including those that the pattern matches."""
    assignors: tuple[str, ...]
    """Assignor names in order of preference."""
    pattern: Pattern | None = None


@_remembered
def partitions_of(text: str) -> Partitions:
    return frozenset(TopicPartition(topic, number) for topic, numbers in json.loads(text).items() for number in numbers)


def partitions_json(partitions: Iterable[TopicPartition]) -> str:
    return json.dumps(numbers_by_topic(partitions), separators=(",", ":"))


@_remembered
def facts_of(text: str) -> Mapping[str, TopicFacts]:
    return {name: TopicFacts(*facts) for name, facts in json.loads(text).items()}


def facts_json(facts: Mapping[str, TopicFacts]) -> str:
    shown = {name: [fact.topic_id, fact.partition_count] for name, fact in sorted(facts.items())}
    return json.dumps(shown, separators=(",", ":"))


@_remembered
def subscription_of(text: str) -> Subscription:
    facts = json.loads(text)
    assignors = tuple(facts["assignors"])
    pattern = None
    if "regex" in facts:
        pattern = Pattern(facts["regex"], frozenset(facts["names"]), TopicSet(*facts["matched"]))
    return Subscription(frozenset(facts["topics"]), assignors, pattern)


def subscription_json(subscription: Subscription) -> str:
    facts: dict[str, Any] = {"topics": sorted(subscription.topics), "assignors": subscription.assignors}
    if subscription.pattern is not None:
        regex, names, matched = subscription.pattern.regex, subscription.pattern.names, subscription.pattern.matched
        facts |= {"regex": regex, "names": sorted(names), "matched": list(matched)}
    return json.dumps(facts, separators=(",", ":"))


def protocols_of(text: str) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, base64.b64decode(metadata)) for name, metadata in json.loads(text))


def protocols_json(protocols: Iterable[tuple[str, bytes]]) -> str:
    encoded = [(name, base64.b64encode(metadata).decode()) for name, metadata in protocols]
    return json.dumps(encoded, separators=(",", ":"))


@_remembered
def epochs_of(text: str) -> EpochState:
    facts = json.loads(text)
    return EpochState(
        facts["claim"], facts["rebalance_timeout_ms"], facts["reported"], facts["rack"], facts["previous"],
        partitions_of(facts["told"]), frozenset(facts["topic_ids"]), facts["revoke_by_ms"],
    )  # fmt: skip


def epochs_json(epochs: EpochState) -> str:
    facts = {
        "claim": epochs.connection_id,
        "rebalance_timeout_ms": epochs.rebalance_timeout_ms,
        "reported": epochs.reported,
        "rack": epochs.rack,
        "previous": epochs.previous,
        "told": partitions_json(epochs.current),
        "topic_ids": sorted(epochs.topic_ids),
        "revoke_by_ms": epochs.revoke_by_ms,
    }
    return json.dumps(facts, separators=(",", ":"))
