"""Consumers that poll until they have what a test expects, and a listener that records its calls."""

import time
from collections.abc import Callable, Collection, Sequence

from kafka import ConsumerRebalanceListener
from kafka.consumer.fetcher import ConsumerRecord
from kafka.structs import TopicPartition

from spark_log import Consumer, ShareConsumer
from tests.support.waiting import LIMIT_S


def read(consumer: Consumer, count: int) -> dict[int, list[str]]:
    """The next `count` values, by partition number."""
    seen: dict[int, list[str]] = {}
    deadline = time.monotonic() + LIMIT_S
    while sum(map(len, seen.values())) < count:
        assert time.monotonic() < deadline, seen
        for partition, records in consumer.poll(1_000).items():
            seen.setdefault(partition.partition, []).extend(record.value.decode() for record in records)
    return seen


def settle(
    *consumers: Consumer, until: Callable[[], object] = lambda: True, share: Sequence[int] | None = None
) -> list[list[str]]:
    """Poll all consumers in turn until each has `share` partitions; returns the values that each got."""
    seen: list[list[str]] = [[] for _ in consumers]
    deadline = time.monotonic() + LIMIT_S
    while True:
        for consumer, values in zip(consumers, seen, strict=True):
            for records in consumer.poll(20).values():
                values += [record.value.decode() for record in records]
        shares = sorted(len(consumer.assignment()) for consumer in consumers)
        if (share is None or shares == sorted(share)) and until():
            return seen
        assert time.monotonic() < deadline, shares


def take(consumer: ShareConsumer, count: int) -> list[ConsumerRecord]:
    """Poll until `count` records came."""
    found: list[ConsumerRecord] = []
    while len(found) < count:
        polled = consumer.poll(int(1000 * LIMIT_S))
        assert polled, f"only {len(found)} of {count} records came"
        found += [record for records in polled.values() for record in records]
    return found


class Told(ConsumerRebalanceListener):  # type: ignore[misc]
    """Records its calls; `on_revoked` runs inside the callback."""

    def __init__(self, on_revoked: Callable[[Collection[TopicPartition]], object] = lambda partitions: None) -> None:
        self.events: list[tuple[str, set[TopicPartition]]] = []
        self.on_revoked = on_revoked

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.events.append(("revoked", set(revoked)))
        self.on_revoked(revoked)

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self.events.append(("assigned", set(assigned)))

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self.events.append(("lost", set(lost)))
