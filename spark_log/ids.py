"""Types of ids, so that mypy tells them apart; partitions and ranges of offsets."""

from typing import NamedTuple, NewType

TopicId = NewType("TopicId", int)
"""Key of a topic in the metadata store. Never reused: a recreated topic gets another one."""

BrokerId = NewType("BrokerId", int)
LogDirId = NewType("LogDirId", int)

WriteId = NewType("WriteId", str)
"""A writer's registered right to create files; it prefixes the name of every file that it writes."""


class TopicPartition(NamedTuple):
    """A topic's name and the number of one of its partitions.

    Equal (and of equal hash) to kafka-python's `TopicPartition`, which is a tuple too. That one is not imported here
    because importing its package takes 0.3 s in every Spark worker.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetRange(NamedTuple):
    """Records with start <= offset < end."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start
