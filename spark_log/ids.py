"""Defines the types of ids, which mypy distinguishes, and the types of partitions and of ranges of offsets."""

from collections.abc import Iterable
from typing import NamedTuple, NewType, TypeVar

Topic = TypeVar("Topic")

TopicId = NewType("TopicId", int)
"""Key of a topic in the metadata store. Never reused: a recreated topic gets another one."""

StoreId = NewType("StoreId", int)
"""Number of a metadata store of the cluster."""
HOME = StoreId(0)
"""The home store, which every cluster has."""
HOME_NAME = "home"

BrokerId = NewType("BrokerId", int)
LogDirId = NewType("LogDirId", int)

WriteId = NewType("WriteId", str)
"""The id of a writer's leased right to create files. The names of all files of the writer begin with it."""


class TopicPartition(NamedTuple):
    """A topic's name and the number of one of its partitions.

    It equals kafka-python's `TopicPartition` with the same values, and has the same hash, because both are tuples.
    kafka-python is not imported here because that takes 0.3 s in every Spark worker.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def numbers_by_topic(partitions: Iterable[tuple[Topic, int]]) -> dict[Topic, list[int]]:
    """Return the partition numbers by topic. Topics and numbers are in ascending order, each once."""
    numbers: dict[Topic, list[int]] = {}
    for topic, number in sorted(set(partitions)):
        numbers.setdefault(topic, []).append(number)
    return numbers


class OffsetRange(NamedTuple):
    """A half-open range of offsets: start <= offset < end."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start
