"""Compaction's rules: which records of a partition go, and when. Pure. Kafka's log cleaner (KIP-58, KIP-354, KIP-534).

    log start          first dirty offset        cleanable end        high watermark
        |--------- clean ------|--------- dirty -------|-- too young ------|

A *pass* takes away every record below the cleanable end whose key occurs again below it, and every record without a
key (a topic that was not compacted may have some; Kafka's cleaner takes them away too). What stays keeps its offset and
its place. Records at or above the cleanable end are as they were.

A tombstone (null value) that is the last of its key stays too, so that a reader from the start learns of the deletion,
and goes delete.retention.ms after the first pass that had it below its end. That is safe because a pass is noted only
once all of it is done: since then nothing below the tombstone has its key, so nothing comes back when it goes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spark_log.config import TopicConfig
from spark_log.maintenance.rewrite.rewrite import Segment

_SPACING = 16
"""Into so many parts delete.retention.ms is divided; of passes nearer to each other than one, fewer are remembered."""


@dataclass(frozen=True)
class Pass:
    """A pass over a partition that was completed, as table `compaction` remembers it."""

    end_offset: int
    at_ms: int
    tombstone_count: int
    """At least the tombstones that it left below end_offset; 0 only if it left none."""


def first_dirty_offset(passes: Sequence[Pass]) -> int:
    """Where the part of the log begins that no pass has been over."""
    return max((done.end_offset for done in passes), default=0)


def tombstone_horizon(passes: Sequence[Pass], now_ms: int, retention_ms: int) -> int:
    """Tombstones below this offset may go: a pass that was over them was completed long enough ago."""
    return max((done.end_offset for done in passes if done.at_ms <= now_ms - retention_ms), default=0)


def cleanable(
    segments: Sequence[Segment], log_start: int, first_dirty: int, now_ms: int, lag_min_ms: int
) -> list[Segment]:
    """The segments that a pass may be over: from the log start up to the first that no pass has been over whole and
    that has a record younger than min.compaction.lag.ms. `segments` are all below the high watermark, by offset.

    Those wholly below the log start are retention's.
    """
    found: list[Segment] = []
    for segment in segments:
        if segment.end_offset <= log_start:
            continue
        if lag_min_ms and segment.end_offset > first_dirty and segment.max_timestamp_ms > now_ms - lag_min_ms:
            break
        found.append(segment)
    return found


def is_due(
    found: Sequence[Segment], first_dirty: int, passes: Sequence[Pass], now_ms: int, config: TopicConfig
) -> bool:
    """Whether a pass over these segments, which are `cleanable`, is worth it by the topic's configs.

    By bytes enough is new (min.cleanable.dirty.ratio), a new record is older than max.compaction.lag.ms, or the last
    pass left tombstones whose time has come.
    """
    if any(segment.end_offset > first_dirty for segment in found):
        dirty = sum(_dirty_bytes(segment, first_dirty) for segment in found)
        if dirty >= config.min_cleanable_dirty_ratio * sum(segment.bytes for segment in found):
            return True
        oldest_ms = now_ms - config.max_compaction_lag_ms
        if any(s.end_offset > first_dirty and s.record_count and s.min_timestamp_ms < oldest_ms for s in found):
            return True
    last = max(passes, key=lambda done: done.end_offset, default=None)
    return bool(found) and last is not None and tombstones_expired(last, now_ms, config.delete_retention_ms)


def tombstones_expired(last: Pass, now_ms: int, retention_ms: int) -> bool:
    """Whether a pass would find that the tombstones that the last one left may go."""
    return last.tombstone_count > 0 and last.at_ms <= now_ms - retention_ms


def _dirty_bytes(segment: Segment, first_dirty: int) -> float:
    """Of a segment that was merged across the first dirty offset, the share of offsets decides."""
    span = segment.end_offset - segment.base_offset
    return segment.bytes * min(max(segment.end_offset - first_dirty, 0), span) / span


def is_last(offsets: npt.NDArray[np.int64], last_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of the records are the last of their keys, shape (records,).

    `last_offsets`: ascending, every offset among `offsets` (and others) that is the last of its key.
    """
    places = np.searchsorted(last_offsets, offsets)
    found = places < len(last_offsets)
    found[found] = last_offsets[places[found]] == offsets[found]
    return found


def has_expired(
    offsets: npt.NDArray[np.int64], tombstones: npt.NDArray[np.bool_], horizon: int
) -> npt.NDArray[np.bool_]:
    """Which of the records are tombstones that may go though they are the last of their keys."""
    return tombstones & (offsets < horizon)


def remember(passes: Sequence[Pass], done: Pass, retention_ms: int) -> list[Pass]:
    """The passes to remember once `done` is completed, by offset: few, whatever the number of passes.

    The latest says where the dirty part begins; of the earlier ones those matter by which tombstones may go, now or
    later. One that is forgotten lets tombstones stay longer, by a sixteenth of delete.retention.ms at most.
    """
    end_offset = max(done.end_offset, first_dirty_offset(passes))
    same = [each.at_ms for each in passes if each.end_offset == end_offset]
    # over no more than the one before: tombstones have been waiting since that
    latest = Pass(end_offset, min([done.at_ms, *same]), done.tombstone_count)
    horizon = tombstone_horizon(passes, done.at_ms, retention_ms)
    earlier = sorted((each for each in passes if horizon <= each.end_offset < end_offset), key=lambda p: p.end_offset)
    kept = earlier[:1]
    for each, following in pairwise([*earlier[1:], latest]):
        if following.at_ms - kept[-1].at_ms > retention_ms // _SPACING:
            kept.append(each)
    return [*kept, latest]
