"""Defines the rules of share groups (KIP-932): the states of a partition's records, and what an acknowledgement, the
end of a lock, retention or an election does to them. `acquisition_rules` has the rules by which a member gets records.

A record of a partition is in one of these states. Its offset is a key: there is no other identity.

    new            at or above `next`
    Acquired       in a range with a lock; one member works on it until the lock ends
    Available      in a range without a lock; the next poll may acquire it
    delayed        in table share_delayed, until its due time
    Archiving      in a range that waits for its dead letter
    finished       acknowledged, archived, or without a record: everything else below `next`

A lock has a number, and an acknowledgement names it. So a late or repeated acknowledgement changes nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from spark_log.errors import InvalidRecordStateError

AVAILABLE, REJECTED, EXHAUSTED = 0, -1, -2
"""Values of `Range.lock` below the first lock number: Available, and Archiving after a REJECT or after too many
deliveries.
"""


class AcknowledgeType(IntEnum):
    """The types of an acknowledgement, with Kafka's numbers."""

    GAP = 0
    """The offset has no record."""
    ACCEPT = 1
    """The record was processed."""
    RELEASE = 2
    """The record is delivered again, to any member."""
    REJECT = 3
    """The record cannot be processed, and is not delivered again."""
    RENEW = 4
    """The lock starts again."""


class Range(NamedTuple):
    """Consecutive records with the same state: offsets first <= offset < end."""

    first: int
    end: int
    lock: int
    """The number of the lock, or AVAILABLE, REJECTED or EXHAUSTED."""
    until_ms: int
    """The lease clock's time at which the lock ends. Of an Archiving range, the time since which it waits."""
    batch: int
    """The number of records that were acquired together at the first delivery. It limits later deliveries."""
    deliveries: int
    """The number of deliveries so far. It never falls."""
    member: str
    """The member that has the lock; empty without one."""

    @property
    def length(self) -> int:
        return self.end - self.first


@dataclass(frozen=True)
class Window:
    """The state of a partition in a share group: start <= next, and each range ends at or below `next`.

    The ranges are sorted and do not overlap. A range below `start` has delayed records whose time came.
    """

    start: int
    """The first unfinished offset (Kafka's SPSO). It never falls, except by `reset` and `truncate`."""
    next: int
    """The first offset that was never acquired (Kafka's SPEO + 1)."""
    ranges: tuple[Range, ...] = ()
    last_lock: int = 0
    """The number of the last lock. It grows with each acquisition."""
    delayed: int = 0
    """The number of delayed records."""

    @property
    def available(self) -> int:
        """The number of Available records."""
        return sum(r.end - r.first for r in self.ranges if r.lock == AVAILABLE)

    @property
    def archiving(self) -> int:
        """The number of Archiving records."""
        return sum(r.end - r.first for r in self.ranges if r.lock < AVAILABLE)

    @property
    def unfinished(self) -> int:
        """The number of records in ranges. share.partition.max.record.locks limits it."""
        return sum(r.end - r.first for r in self.ranges)

    @property
    def wake_ms(self) -> int | None:
        """The lease clock's time at which the first lock ends."""
        return min((r.until_ms for r in self.ranges if r.lock > 0), default=None)

    def with_ranges(self, ranges: Iterable[Range]) -> "Window":
        """Return the window with these sorted ranges. `start` moves up to the first one, or to `next`."""
        merged = merged_ranges(ranges)
        first = next((r.first for r in merged if r.first >= self.start), self.next)
        # A range below `start` has records that were delayed. It does not move `start` back.
        covering = any(r.first < self.start < r.end for r in merged)
        return replace(self, ranges=merged, start=self.start if covering else max(self.start, first))


@dataclass(frozen=True)
class Limits:
    """The group's configs that the rules need."""

    delivery_count: int = 5
    """share.delivery.count.limit: after so many deliveries a record is archived."""
    record_locks: int = 2_000
    """share.partition.max.record.locks: the largest number of records in ranges."""
    lock_ms: int = 30_000
    """share.record.lock.duration.ms"""
    delayed: int = 1_000_000
    """share.partition.max.delayed.records"""
    backoff_ms: int = 0
    """share.retry.backoff.ms: the delay of a first RELEASE; 0 is none."""
    backoff_max_ms: int = 60_000
    """share.retry.backoff.max.ms"""
    dead_letters: bool = False
    """Whether an archived record is written to a dead letter topic."""
    renew: bool = True
    """share.renew.acknowledge.enable"""


@dataclass(frozen=True)
class Time:
    """The store's time: `lease_ms` for locks, `wall_ms` for delays."""

    lease_ms: int
    wall_ms: int


class Acknowledgement(NamedTuple):
    """An acknowledgement of the records at first <= offset < end."""

    first: int
    end: int
    lock: int
    member: str
    type: AcknowledgeType
    delay_ms: int = 0
    """With RELEASE: the time until the next delivery."""


class Delayed(NamedTuple):
    """A record that is not delivered before its due time."""

    offset: int
    due_ms: int
    deliveries: int


@dataclass(frozen=True)
class Change:
    """The result of a rule: the new window, and what happened to records."""

    window: Window
    delayed: tuple[Delayed, ...] = ()
    """Records to add to table share_delayed."""
    became_available: bool = False
    """Whether another member may acquire records that it could not acquire before."""
    ended: int = 0
    """The number of records whose lock ended."""
    expired: int = 0
    """The number of records in ranges that retention removed."""


def clip(window: Window, log_start: int) -> Change:
    """Drop the ranges below the log start offset. The caller deletes the delayed records there, and counts them."""
    if log_start <= window.start and not (window.ranges and window.ranges[0].first < log_start):
        return Change(window)
    kept, expired = [], 0
    for r in window.ranges:
        if r.first < log_start:
            expired += min(r.end, log_start) - r.first
            r = r._replace(first=log_start)
        if r.first < r.end:
            kept.append(r)
    after = replace(window, start=max(window.start, log_start), next=max(window.next, log_start))
    return Change(after.with_ranges(kept), expired=expired)


def truncate(window: Window, offset: int) -> Window:
    """Drop what the group knows of records at and above `offset`: an unclean election removed them. The caller deletes
    the delayed records there.
    """
    kept = [r._replace(end=min(r.end, offset)) for r in window.ranges if r.first < offset]
    start, following = min(window.start, offset), min(window.next, offset)
    return replace(window, start=start, next=following).with_ranges(kept)


def reset(window: Window, offset: int) -> Window:
    """Begin at `offset` and forget everything else. The caller deletes the delayed records."""
    return Window(offset, offset, last_lock=window.last_lock)


def acknowledge(
    window: Window, acknowledgements: Iterable[Acknowledgement], log_start: int, limits: Limits, now: Time
) -> Change:
    """Apply acknowledgements, which do not overlap. Offsets below the log start offset are ignored.

    Raises InvalidRecordStateError, without a change, unless each offset is in a range of a live lock with this number
    and member.
    """
    ranges: list[Range] = []
    delayed: list[Delayed] = []
    became_available = False
    remaining = iter(window.ranges)
    current = next(remaining, None)
    for ack in sorted(acknowledgements):
        position = max(ack.first, log_start)
        while current is not None and current.end <= position:
            ranges.append(current)
            current = next(remaining, None)
        while position < ack.end:
            if current is None or not current.first <= position or not _is_live(current, ack, now):
                raise InvalidRecordStateError(
                    f"offsets {ack.first} to {ack.end - 1}: record {position} is not acquired by {ack.member!r} with"
                    f" lock {ack.lock}"
                )
            if ack.type == AcknowledgeType.RENEW and not limits.renew:
                raise InvalidRecordStateError("share.renew.acknowledge.enable is false")
            end = min(current.end, ack.end)
            if current.first < position:
                ranges.append(current._replace(end=position))
            piece = current._replace(first=position, end=end)
            kept, due_ms = _acknowledged(piece, ack, limits, now)
            if kept is not None:
                ranges.append(kept)
                became_available |= kept.lock == AVAILABLE
            if due_ms is not None:
                delayed += (Delayed(offset, due_ms, piece.deliveries) for offset in range(position, end))
            position = end
            current = current._replace(first=end) if end < current.end else next(remaining, None)
    if current is not None:
        ranges += [current, *remaining]
    after = replace(window, delayed=window.delayed + len(delayed))
    return Change(after.with_ranges(ranges), tuple(delayed), became_available)


def move(
    window: Window, acknowledgements: Iterable[Acknowledgement], log_start: int, owner: str, until_ms: int, now: Time
) -> tuple[Window, tuple[Acknowledgement, ...]]:
    """Give acquired records a new lock of a producer's transaction, and return the window and the same acknowledgements
    with that lock. Offsets below the log start offset are left out.

    Raises InvalidRecordStateError, without a change, under the same conditions as `acknowledge`.
    """
    lock = window.last_lock + 1
    mine = [ack._replace(first=max(ack.first, log_start)) for ack in sorted(acknowledgements) if ack.end > log_start]
    ranges: list[Range] = []
    remaining = list(reversed(window.ranges))
    for ack in mine:
        position = ack.first
        while position < ack.end:
            while remaining and remaining[-1].end <= position:
                ranges.append(remaining.pop())
            if not remaining or not remaining[-1].first <= position or not _is_live(remaining[-1], ack, now):
                raise InvalidRecordStateError(
                    f"record {position} is not acquired by {ack.member!r} with lock {ack.lock}"
                )
            r = remaining.pop()
            end = min(r.end, ack.end)
            ranges += [r._replace(end=position)] if r.first < position else []
            ranges.append(r._replace(first=position, end=end, lock=lock, until_ms=until_ms, member=owner))
            remaining += [r._replace(first=end)] if end < r.end else []
            position = end
    moved = tuple(ack._replace(lock=lock, member=owner) for ack in mine)
    return replace(window, last_lock=lock).with_ranges([*ranges, *reversed(remaining)]), moved


def _is_live(r: Range, ack: Acknowledgement, now: Time) -> bool:
    return r.lock == ack.lock and r.lock > 0 and r.member == ack.member and r.until_ms > now.lease_ms


def _acknowledged(r: Range, ack: Acknowledgement, limits: Limits, now: Time) -> tuple[Range | None, int | None]:
    """Return the range that remains of an acknowledged one, if any, and the due time if its records are delayed."""
    if ack.type == AcknowledgeType.RENEW:
        return r._replace(until_ms=now.lease_ms + limits.lock_ms), None
    if ack.type == AcknowledgeType.REJECT:
        return _archived(r, REJECTED, limits, now), None
    if ack.type != AcknowledgeType.RELEASE:
        return None, None
    backoff_ms = min(limits.backoff_ms << min(r.deliveries - 1, 40), limits.backoff_max_ms)
    delay_ms = max(ack.delay_ms, backoff_ms)
    if delay_ms and r.deliveries < limits.delivery_count:
        return None, now.wall_ms + delay_ms
    return _released(r, limits, now), None


def _released(r: Range, limits: Limits, now: Time) -> Range | None:
    if r.deliveries >= limits.delivery_count:
        return _archived(r, EXHAUSTED, limits, now)
    return r._replace(lock=AVAILABLE, until_ms=0, member="")


def _archived(r: Range, cause: int, limits: Limits, now: Time) -> Range | None:
    return r._replace(lock=cause, until_ms=now.lease_ms, member="") if limits.dead_letters else None


def lapse(window: Window, limits: Limits, now: Time) -> Change:
    """End the locks whose time is over. Their records become Available, or are archived after the last delivery."""
    return _end_locks(window, [r.lock > 0 and r.until_ms <= now.lease_ms for r in window.ranges], limits, now, True)


def release(window: Window, member: str, locks: frozenset[int] | None, limits: Limits, now: Time) -> Change:
    """End these locks of a member that closes, or all its locks with None. The delivery counts stay."""
    ends = [r.lock > 0 and r.member == member and (locks is None or r.lock in locks) for r in window.ranges]
    return _end_locks(window, ends, limits, now, False)


def _end_locks(window: Window, ends: Sequence[bool], limits: Limits, now: Time, over: bool) -> Change:
    if not any(ends):
        return Change(window)
    ranges: list[Range] = []
    available, ended = False, 0
    for r, end in zip(window.ranges, ends, strict=True):
        kept: Range | None = r
        if end:
            ended += r.length if over else 0
            kept = _released(r, limits, now)
            available |= kept is not None and kept.lock == AVAILABLE
        if kept is not None:
            ranges.append(kept)
    return Change(window.with_ranges(ranges), became_available=available, ended=ended)


def end_archiving(window: Window, ranges: Iterable[tuple[int, int]]) -> Change:
    """Finish Archiving records whose dead letters were written. Raises InvalidRecordStateError, without a change,
    unless all of them are Archiving.
    """
    kept = list(window.ranges)
    for first, end in ranges:
        position = first
        while position < end:
            index = next((i for i, r in enumerate(kept) if r.first <= position < r.end), None)
            if index is None or kept[index].lock >= AVAILABLE:
                raise InvalidRecordStateError(f"record {position} is not archiving")
            r = kept[index]
            upto = min(end, r.end)
            pieces = (r._replace(end=position), r._replace(first=upto))
            kept[index : index + 1] = [piece for piece in pieces if piece.first < piece.end]
            position = upto
    return Change(window.with_ranges(kept))


def forget_archiving(window: Window) -> Change:
    """Finish all Archiving records without dead letters: the group has no dead letter topic any more."""
    return Change(window.with_ranges([r for r in window.ranges if r.lock >= AVAILABLE]))


def merged_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the sorted ranges, with adjacent ranges of the same state joined."""
    merged: list[Range] = []
    for r in ranges:
        if merged and merged[-1].end == r.first and merged[-1][2:] == r[2:]:
            merged[-1] = merged[-1]._replace(end=r.end)
        else:
            merged.append(r)
    return tuple(merged)
