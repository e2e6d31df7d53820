"""Types of offsets, ids and epochs, so that mypy tells them apart."""

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""Position of a record in its partition: 0 <= offset < 2**63 - 1."""

TopicId = NewType("TopicId", int)
"""Key of a topic in the metadata store. Never reused: a recreated topic gets another one."""

Partition = NewType("Partition", int)
"""Number of a partition in its topic: 0 <= partition < partition count."""

BrokerId = NewType("BrokerId", int)
LogDirId = NewType("LogDirId", int)

Epoch = NewType("Epoch", int)
"""Leader, controller or producer epoch. It only grows; a request with a lower one changes nothing."""

ProducerId = NewType("ProducerId", int)
Sequence = NewType("Sequence", int)

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
