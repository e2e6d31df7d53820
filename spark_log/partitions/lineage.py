"""The lineage of a partition's records: whether a reader's position is still in the log, and if not, where they part.

A position is the offset to read next with a leader epoch: of the last record read, or the partition's own at the
snapshot in which the position was found. An election that truncates the log at S begins a new epoch E, and later
records get the offsets from S up once more. The records that a reader has read below `offset` are those of the log if

    for every truncation:  truncation.leader_epoch <= leader_epoch  or  truncation.start_offset >= offset
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.metadata.columns import TRUNCATION
from spark_log.partitions.partition_rows import Key, by_topic

UNKNOWN_EPOCH = -1
"""Leader epoch of a position of which only the offset is known. It is never judged to have diverged, as in Kafka."""


@dataclass(frozen=True)
class Truncation:
    """An election began `leader_epoch`, and cut off every record at or above `start_offset`."""

    leader_epoch: int
    start_offset: int


def truncated_to(offset: int, leader_epoch: int, truncations: Iterable[Truncation]) -> int | None:
    """The first offset at which the log has, or will have, other records than the reader of this position has read.

    None if there is no such offset below the position. The returned offset with the same leader epoch is a position
    that has not diverged.
    """
    if leader_epoch == UNKNOWN_EPOCH:
        return None
    later = (each.start_offset for each in truncations if each.leader_epoch > leader_epoch)
    return min((start for start in later if start < offset), default=None)


def read_truncations(connection: sa.Connection, partitions: Collection[Key]) -> dict[Key, list[Truncation]]:
    """All truncations of the partitions, by (topic id, partition), in the order of their epochs.

    Partitions without one are not in it.
    """
    found: dict[Key, list[Truncation]] = {}
    for topic_id, numbers in by_topic(list(partitions)):
        query = (
            sa.select(TRUNCATION.partition, TRUNCATION.leader_epoch, TRUNCATION.start_offset)
            .where(TRUNCATION.topic_id == topic_id, TRUNCATION.partition.in_(numbers))
            .order_by(TRUNCATION.leader_epoch)
        )
        for number, leader_epoch, start_offset in connection.execute(query):
            found.setdefault((topic_id, number), []).append(Truncation(leader_epoch, start_offset))
    return found
