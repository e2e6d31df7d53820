"""Names for the numbers that travel through the log, so that mypy keeps them apart."""

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
"""Leader, controller or producer epoch. It only grows; whoever carries a lower one changes nothing."""

ProducerId = NewType("ProducerId", int)
Sequence = NewType("Sequence", int)

WriteId = NewType("WriteId", str)
"""A writer's registered right to create files; it prefixes the name of every file that it writes."""


class TopicPartition(NamedTuple):
    """A topic's name and the number of one of its partitions.

    Equal (and of equal hash) to kafka-python's `TopicPartition`, which is a tuple too; it is not imported here because
    importing that package takes 0.3 s, which every Spark worker would pay.
    """

    topic: str
    partition: int


class OffsetRange(NamedTuple):
    """Records with start <= offset < end."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start
