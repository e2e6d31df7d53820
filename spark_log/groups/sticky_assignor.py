"""Implements the assignors sticky and cooperative-sticky: they balance the members, and move few partitions.

    kept      each partition stays with its owner, if that is a member that subscribes to its topic
    given     each other partition goes to the subscriber with the fewest partitions
    levelled  while two subscribers of a topic differ by more than one, the larger one gives a partition of it away

Invariant: after `levelled`, no single move of a partition would make two members more equal. Members with the same
subscription differ by at most one, and no assignment that balances them so moves fewer partitions. Members whose
subscriptions overlap in long chains may need more than `_ROUNDS_MAX` rounds, and then differ by more.

Topics with the same subscribers are levelled together, so the time is O(n log n) in partitions and subscriptions.
kafka-python's assignors of these names try the moves one by one. That takes tens of seconds for 15,000 partitions, in
a thread that other members wait for.
"""

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from spark_log.groups.consumer.rules import Partitions
from spark_log.ids import TopicPartition

_ROUNDS_MAX = 20


@dataclass
class _Class:
    """A class of topics that have the same subscribers. Members are numbered in the order of `subscriptions`."""

    subscribers: Sequence[int]
    topics: list[str] = field(default_factory=list)
    held: dict[int, list[TopicPartition]] = field(default_factory=dict)
    """The partitions of these topics, by member."""


def assign_sticky(
    subscriptions: Mapping[str, Collection[str]], owned: Mapping[str, Partitions], counts: Mapping[str, int]
) -> dict[str, Partitions]:
    """Return the partitions of each member of `subscriptions`. If new partitions do not divide equally, the first
    members get more.

    `counts` has the partition count of each topic. Topics that are not in it do not exist.
    """
    classes = _classes(subscriptions, counts)
    loads = [0] * len(subscriptions)
    owners = _kept(subscriptions, owned)
    for topic_class in classes:
        _give(topic_class, loads, owners, counts)
    for _ in range(_ROUNDS_MAX):
        moves = [_level(topic_class, loads) for topic_class in classes]
        if len(classes) == 1 or not any(moves):
            break
    given: list[list[TopicPartition]] = [[] for _ in subscriptions]
    for topic_class in classes:
        for member, partitions in topic_class.held.items():
            given[member] += partitions
    return {name: frozenset(given[member]) for member, name in enumerate(subscriptions)}


def _classes(subscriptions: Mapping[str, Collection[str]], counts: Mapping[str, int]) -> list[_Class]:
    """Return the classes, those with the fewest subscribers first, because their partitions have the least choice."""
    subscribers: dict[str, list[int]] = {topic: [] for topic in sorted(counts)}
    for member, topics in enumerate(subscriptions.values()):
        for topic in topics:
            if topic in subscribers:
                subscribers[topic].append(member)
    classes: dict[tuple[int, ...], _Class] = {}
    for topic, members in subscribers.items():
        if members:
            classes.setdefault(tuple(members), _Class(members)).topics.append(topic)
    return sorted(classes.values(), key=lambda each: len(each.subscribers))


def _kept(subscriptions: Mapping[str, Collection[str]], owned: Mapping[str, Partitions]) -> dict[TopicPartition, int]:
    """Return the owner of each partition that a subscriber of its topic owns: the first one, if several claim it."""
    owners: dict[TopicPartition, int] = {}
    for member, (name, topics) in enumerate(subscriptions.items()):
        for partition in owned.get(name, ()):
            if partition.topic in topics:
                owners.setdefault(partition, member)
    return owners


def _give(
    topic_class: _Class, loads: list[int], owners: Mapping[TopicPartition, int], counts: Mapping[str, int]
) -> None:
    """Fill `held`: owners keep their partitions, and the others go to the least loaded subscriber."""
    free = []
    numbers_max = max(counts[topic] for topic in topic_class.topics)
    for number in range(numbers_max):  # the topics in turn, so that a member gives away some of each
        for topic in topic_class.topics:
            if number < counts[topic]:
                partition = TopicPartition(topic, number)
                owner = owners.get(partition)
                if owner is None:
                    free.append(partition)
                else:
                    topic_class.held.setdefault(owner, []).append(partition)
                    loads[owner] += 1
    least = [(loads[member], member) for member in topic_class.subscribers]
    heapq.heapify(least)
    for partition in sorted(free):  # topic by topic, so that each topic is spread over the members
        load, member = least[0]
        topic_class.held.setdefault(member, []).append(partition)
        loads[member] = load + 1
        heapq.heapreplace(least, (load + 1, member))


def _level(topic_class: _Class, loads: list[int]) -> int:
    """Move partitions from the most to the least loaded subscribers, and return the number of moves."""
    least = [(loads[member], member) for member in topic_class.subscribers]
    most = [(-loads[member], -member) for member, partitions in topic_class.held.items() if partitions]
    heapq.heapify(least)
    heapq.heapify(most)
    moves = 0
    while most:
        giver, taker = -most[0][1], least[0][1]
        if -most[0][0] != loads[giver] or not topic_class.held[giver]:
            heapq.heappop(most)  # its load has changed since, or it has none of these topics left
        elif least[0][0] != loads[taker]:
            heapq.heappop(least)
        elif loads[giver] - loads[taker] <= 1:
            break
        else:
            topic_class.held.setdefault(taker, []).append(topic_class.held[giver].pop())
            for member, change in ((giver, -1), (taker, 1)):
                loads[member] += change
                heapq.heappush(most, (-loads[member], -member))
                heapq.heappush(least, (loads[member], member))
            moves += 1
    return moves
