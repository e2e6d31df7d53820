"""Decides which records of a partition compaction drops, and when, as Kafka's log cleaner (KIP-58, KIP-354, KIP-534).
Pure.

    log start          first dirty offset        cleanable end        high watermark
        |--------- clean ------|--------- dirty -------|-- too young ------|

A *pass* drops every record below the cleanable end whose key occurs again below it, and every record without a key (a
topic that was not compacted may have some; Kafka's cleaner drops them too). All other records keep their offsets and
their order. Records at or above the cleanable end do not change.

A tombstone (null value) that is the last record of its key stays too, so that a reader from the start learns of the
deletion. It is dropped delete.retention.ms after the completion of the first pass whose end was above it. That is safe
because a pass is recorded only when all of it is done: from then on no record below the tombstone has its key, so
dropping the tombstone cannot bring back an older value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spark_log.config import TopicConfig
from spark_log.maintenance.rewrite.rewrite_plan import Segment

_SPACING = 16
"""Number of intervals in delete.retention.ms. Of passes that are closer together than one interval, fewer are kept."""


@dataclass(frozen=True)
class Pass:
    """A completed pass over a partition, as recorded in table `compaction`."""

    end_offset: int
    at_ms: int
    tombstone_count: int
    """Upper bound of the tombstones that the pass left below end_offset; 0 only if it left none."""


def first_dirty_offset(passes: Sequence[Pass]) -> int:
    """Return the start of the part of the log that no pass has covered."""
    return max((done.end_offset for done in passes), default=0)


def tombstone_horizon(passes: Sequence[Pass], now_ms: int, retention_ms: int) -> int:
    """Return the offset below which tombstones may be dropped: a pass that covered them was completed retention_ms
    ago.
    """
    return max((done.end_offset for done in passes if done.at_ms <= now_ms - retention_ms), default=0)


def cleanable(
    segments: Sequence[Segment], log_start: int, first_dirty: int, now_ms: int, lag_min_ms: int
) -> list[Segment]:
    """Return the segments that a pass may cover: from the log start up to the first segment that no pass has covered
    completely and that has a record younger than min.compaction.lag.ms. `segments` are all below the high watermark, by
    offset.

    Segments that lie completely below the log start are left to retention.
    """
    segments_below: list[Segment] = []
    for segment in segments:
        if segment.end_offset <= log_start:
            continue
        if lag_min_ms and segment.end_offset > first_dirty and segment.max_timestamp_ms > now_ms - lag_min_ms:
            break
        segments_below.append(segment)
    return segments_below


def is_due(
    segments: Sequence[Segment], first_dirty: int, passes: Sequence[Pass], now_ms: int, config: TopicConfig
) -> bool:
    """Whether the topic's configs make a pass over these segments, which are `cleanable`, due.

    That is so if the share of dirty bytes reaches min.cleanable.dirty.ratio, if a dirty record is older than
    max.compaction.lag.ms, or if tombstones that the last pass left have expired.
    """
    if any(segment.end_offset > first_dirty for segment in segments):
        dirty = sum(_dirty_bytes(segment, first_dirty) for segment in segments)
        if dirty >= config.min_cleanable_dirty_ratio * sum(segment.bytes for segment in segments):
            return True
        oldest_ms = now_ms - config.max_compaction_lag_ms
        if any(s.end_offset > first_dirty and s.record_count and s.min_timestamp_ms < oldest_ms for s in segments):
            return True
    last = max(passes, key=lambda done: done.end_offset, default=None)
    return bool(segments) and last is not None and tombstones_expired(last, now_ms, config.delete_retention_ms)


def tombstones_expired(last: Pass, now_ms: int, retention_ms: int) -> bool:
    """Whether a pass may drop tombstones that the last pass left."""
    return last.tombstone_count > 0 and last.at_ms <= now_ms - retention_ms


def _dirty_bytes(segment: Segment, first_dirty: int) -> float:
    """Return the dirty bytes of a segment. If it was merged across the first dirty offset, its bytes are divided in
    proportion to the offsets.
    """
    span = segment.end_offset - segment.base_offset
    return segment.bytes * min(max(segment.end_offset - first_dirty, 0), span) / span


def is_last(offsets: npt.NDArray[np.int64], last_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mark the records that are the last of their keys, shape (records,).

    `last_offsets` has, in ascending order, every offset among `offsets` (and others) that is the last of its key.
    """
    places = np.searchsorted(last_offsets, offsets)
    found = places < len(last_offsets)
    found[found] = last_offsets[places[found]] == offsets[found]
    return found


def has_expired(
    offsets: npt.NDArray[np.int64], tombstones: npt.NDArray[np.bool_], horizon: int
) -> npt.NDArray[np.bool_]:
    """Mark the tombstones that may be dropped although they are the last of their keys."""
    return tombstones & (offsets < horizon)


def remember(passes: Sequence[Pass], done: Pass, retention_ms: int) -> list[Pass]:
    """Return the passes to keep once `done` is completed, by offset. Their number is bounded, whatever the number of
    passes.

    The latest pass gives the start of the dirty part. The earlier ones determine which tombstones may be dropped, now
    or later. If a pass is not kept, tombstones stay longer, by at most a sixteenth of delete.retention.ms. A pass from
    the future, which was recorded while the clock was ahead, counts as one of now.
    """
    passes = [replace(recorded, at_ms=min(recorded.at_ms, done.at_ms)) for recorded in passes]
    end_offset = max(done.end_offset, first_dirty_offset(passes))
    same = [recorded.at_ms for recorded in passes if recorded.end_offset == end_offset]
    # it ends where an earlier pass ended: its tombstones have been waiting since that pass
    latest = Pass(end_offset, min([done.at_ms, *same]), done.tombstone_count)
    horizon = tombstone_horizon(passes, done.at_ms, retention_ms)
    earlier = sorted((each for each in passes if horizon <= each.end_offset < end_offset), key=lambda p: p.end_offset)
    kept = earlier[:1]
    for candidate, following in pairwise([*earlier[1:], latest]):
        if following.at_ms - kept[-1].at_ms > retention_ms // _SPACING:
            kept.append(candidate)
    return [*kept, latest]
