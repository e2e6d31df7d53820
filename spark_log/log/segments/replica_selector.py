"""Orders the replicas of a segment as a reader tries them: the replica selector. Pure."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from spark_log.ids import LogDirId


class Copy(NamedTuple):
    """A log dir that may have a segment, and its distance from the reader (`distance`)."""

    log_dir_id: LogDirId
    distance: int


class Copies(NamedTuple):
    """The replicas of a partition, in the order of its assigned replicas (AR). Each has all segments below its log end
    offset completely.
    """

    copies: tuple[Copy, ...]
    log_end_offsets: tuple[int, ...]
    log_end_offset_min: int


def distance(*, online: bool, same_rack: bool, in_sync: bool) -> int:
    """Return the distance of a log dir from the reader. Smaller distances are tried first.

    Offline log dirs are the last choice. The rack counts more than being in sync, because a lagging replica that is
    selected has the segment completely too.
    """
    return 4 * (not online) + 2 * (not same_rack) + (not in_sync)


def select_replicas(replicas: Copies, segment_name: str, end_offset: int) -> tuple[LogDirId, ...]:
    """Return the log dirs that have the whole segment (log end offset >= its `end_offset`), in the order to try them.

    The segment's name decides which of the nearest log dirs is the first. So reads of different segments are spread
    over the log dirs, and all readers of one segment use the same page cache.
    """
    copies = replicas.copies
    if end_offset > replicas.log_end_offset_min:
        copies = tuple(copy for copy, end in zip(copies, replicas.log_end_offsets, strict=True) if end >= end_offset)
    orders = _orders(copies)
    return orders[0] if len(orders) == 1 else orders[crc32(segment_name.encode()) % len(orders)]


@lru_cache(maxsize=4096)
def _orders(copies: Sequence[Copy]) -> tuple[tuple[LogDirId, ...], ...]:
    """Return the orders in which to try the log dirs, by distance. Each begins with another one of the nearest."""
    ranked = sorted(copies, key=lambda copy: copy.distance)
    ids = tuple(copy.log_dir_id for copy in ranked)
    nearest = sum(copy.distance == ranked[0].distance for copy in ranked)
    return tuple(ids[first:nearest] + ids[:first] + ids[nearest:] for first in range(max(1, nearest)))
