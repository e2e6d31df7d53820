"""Finds where the log of a partition has other records than a reader has read. Pure.

A position is the offset to read next and a leader epoch: that of the last record read, or that of the partition in the
snapshot in which the position was found. An election that truncates the log at S begins a new epoch E, and later
records get the offsets from S on again. The records that a reader has read below `offset` are those of the log if

    for every truncation:  truncation.leader_epoch <= leader_epoch  or  truncation.start_offset >= offset
"""

from collections.abc import Iterable

from spark_log.log.partitions.replication_rules import Truncation

UNKNOWN_EPOCH = -1
"""The leader epoch of a position with only a known offset. It is never judged to have diverged, as in Kafka."""


def diverging_offset(offset: int, leader_epoch: int, truncations: Iterable[Truncation]) -> int | None:
    """Return the first offset at which the log has, or will have, other records than the reader has read.

    Returns None if there is no such offset below the position. The returned offset with the same leader epoch is a
    position that has not diverged.
    """
    if leader_epoch == UNKNOWN_EPOCH:
        return None
    later = (each.start_offset for each in truncations if each.leader_epoch > leader_epoch)
    return min((start for start in later if start < offset), default=None)
