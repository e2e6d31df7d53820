"""The rules of share groups (KIP-932): which records of a partition a member may acquire, and what an acknowledgement
does. They are pure functions over frozen values.

A record of a partition is in one of these states. Its offset is a key: there is no other identity.

    new            at or above `next`
    Acquired       in a range with a lock; one member works on it until the lock ends
    Available      in a range without a lock; the next poll may acquire it
    delayed        in table share_delayed, until its due time
    Archiving      in a range that waits for its dead letter
    finished       acknowledged, archived, or without a record: everything else below `next`

A lock has a number, and an acknowledgement names it. So a late or repeated acknowledgement changes nothing.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from spark_log.errors import InvalidRecordStateError

AVAILABLE, REJECTED, EXHAUSTED = 0, -1, -2
"""Values of `Range.lock` below the first lock number: Available, and Archiving after a REJECT or after too many
deliveries.
"""

Numbers = np.ndarray[Any, np.dtype[np.int64]]


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
    """The lease clock's time at which the lock ends. With an Archiving range, the time since which it waits."""
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

    def count(self, *, acquired: bool = False, available: bool = False, archiving: bool = False) -> int:
        """Return the number of records in these states."""
        return sum(
            r.end - r.first
            for r in self.ranges
            if (acquired if r.lock > 0 else available if r.lock == AVAILABLE else archiving)
        )

    @property
    def unfinished(self) -> int:
        """The number of records in ranges. share.partition.max.record.locks limits it."""
        return sum(r.end - r.first for r in self.ranges)

    @property
    def wake_ms(self) -> int | None:
        """The lease clock's time at which the first lock ends."""
        return min((r.until_ms for r in self.ranges if r.lock > 0), default=None)


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
    return Change(_with_ranges(after, kept), expired=expired)


def truncate(window: Window, offset: int) -> Window:
    """Drop what the group knows of records at and above `offset`: an unclean election removed them. The caller deletes
    the delayed records there.
    """
    kept = [r._replace(end=min(r.end, offset)) for r in window.ranges if r.first < offset]
    start, following = min(window.start, offset), min(window.next, offset)
    return _with_ranges(replace(window, start=start, next=following), kept)


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
    return Change(_with_ranges(after, ranges), tuple(delayed), became_available)


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
    return _with_ranges(replace(window, last_lock=lock), [*ranges, *reversed(remaining)]), moved


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
    return Change(_with_ranges(window, ranges), became_available=available, ended=ended)


def end_archiving(window: Window, ranges: Iterable[tuple[int, int]]) -> Change:
    """Finish Archiving records, of which dead letters were written. Raises InvalidRecordStateError, without a change,
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
    return Change(_with_ranges(window, kept))


def forget_archiving(window: Window) -> Change:
    """Finish all Archiving records without dead letters: the group has no dead letter topic any more."""
    return Change(_with_ranges(window, [r for r in window.ranges if r.lock >= AVAILABLE]))


@dataclass(frozen=True)
class Stretch:
    """Offsets first <= offset < end that were read. `offsets` has the records among them, sorted."""

    first: int
    end: int
    offsets: Numbers
    sizes: Numbers
    """The running total of the records' bytes, with the record itself."""
    deliver_at_ms: Numbers | None = None
    """The delivery time of each record, 0 for at once. None if no record has one."""
    append_ends: Numbers | None = None
    """The sorted ends of the appends among the offsets, or None where they are not known (a sealed segment)."""


@dataclass(frozen=True)
class Request:
    """The member and the limits of one poll."""

    member: str
    records_max: int = 500
    bytes_max: int = 50 << 20
    whole_batches: bool = True
    """share.acquire.mode=batch_optimized: a poll may get more new records, up to the end of the last one's append."""
    has_some: bool = False
    """Whether the poll has acquired records of another partition. Without any, one record may exceed `bytes_max`."""


@dataclass(frozen=True)
class Acquisition:
    """The result of `acquire`."""

    window: Window
    acquired: tuple[Range, ...] = ()
    delayed: tuple[Delayed, ...] = ()
    """Records to add to table share_delayed: their delivery time has not come."""
    came_due: tuple[int, ...] = ()
    """Offsets to delete from table share_delayed: they were acquired, or have no record."""
    bytes: int = 0


def acquire(
    window: Window, readable: Sequence[Stretch], due: Sequence[Delayed], request: Request, limits: Limits, now: Time
) -> Acquisition:
    """Acquire records for a member with a new lock: delayed records that are due, then Available and new records by
    offset. Only records of `readable`, which are sorted stretches of the log, are acquired. A range that was delivered
    often is delivered alone, and in small parts: one bad record among many is found by halving (`parts`).
    """
    return _Acquisition(window, readable, request, limits, now).run(due)


def parts(batch: int, count: int, limits: Limits) -> int | None:
    """Return how many records of a range with this delivery count are delivered at once, or None without a limit.

    Kafka 4.4 begins at half of share.delivery.count.limit, and halves the number of the first delivery (`batch`) each
    time. The last delivery has one record.
    """
    threshold = max(2, (limits.delivery_count + 1) // 2)
    if limits.delivery_count <= 2 or count < threshold:
        return None
    if count >= limits.delivery_count - 1:
        return 1
    return max(1, batch >> (count - threshold + 1))


class _Acquisition:
    """The steps of `acquire`, with what is left of its limits."""

    def __init__(
        self, window: Window, readable: Sequence[Stretch], request: Request, limits: Limits, now: Time
    ) -> None:
        self.window, self.readable, self.request, self.limits, self.now = window, readable, request, limits, now
        self.lock = window.last_lock + 1
        self.until_ms = now.lease_ms + limits.lock_ms
        self.records, self.bytes = 0, 0
        self.room = limits.record_locks - window.unfinished
        self.taken: list[Range] = []
        self.delayed: list[Delayed] = []
        self.came_due: list[int] = []
        self.full = False

    def run(self, due: Sequence[Delayed]) -> Acquisition:
        self._take_due(due)
        kept, following = self._take_available()
        if not self.full and self.window.delayed - len(self.came_due) < self.limits.delayed:
            following = self._take_new()
        first_batches = [r if r.batch else r._replace(batch=self.records) for r in self.taken]
        last_lock = self.lock if self.taken else self.window.last_lock
        counted = self.window.delayed - len(self.came_due) + len(self.delayed)
        after = replace(self.window, next=following, last_lock=last_lock, delayed=counted)
        after = _with_ranges(after, sorted([*kept, *first_batches]))
        return Acquisition(after, _merged(sorted(first_batches)), tuple(self.delayed), tuple(self.came_due), self.bytes)

    def _take_due(self, due: Sequence[Delayed]) -> None:
        """Acquire delayed records. Offsets without a record are finished."""
        for offset, _, count in sorted(due):
            stretch = self._stretch(offset)
            if stretch is None:
                continue
            at = int(np.searchsorted(stretch.offsets, offset))
            if at == len(stretch.offsets) or stretch.offsets[at] != offset:
                self.came_due.append(offset)
                continue
            alone = parts(1, count, self.limits) is not None
            if self.room <= 0 or self.full or (alone and self.records) or self._is_over(stretch, at):
                break
            self._add(stretch, at, at + 1, count, 1 if count else 0)
            self.room -= 1
            self.came_due.append(offset)
            self.full |= alone

    def _take_available(self) -> tuple[list[Range], int]:
        """Acquire Available records, and return the ranges that stay as they are."""
        kept: list[Range] = []
        for r in self.window.ranges:
            if r.lock != AVAILABLE or self.full:
                kept.append(r)
                continue
            most = parts(r.batch, r.deliveries, self.limits)
            if most is not None and self.records:
                self.full = True
                kept.append(r)
                continue
            position = r.first
            stretch = self._stretch(position)
            while stretch is not None and position < r.end and not self.full:
                end = min(r.end, stretch.end)
                low, high = (int(i) for i in np.searchsorted(stretch.offsets, (position, end)))
                upto = self._fitting(stretch, low, high, most)
                self._add(stretch, low, upto, r.deliveries, r.batch)
                position = end if upto == high else int(stretch.offsets[upto])
                self.full |= upto < high or (most is not None and upto > low)
                stretch = self._stretch(position)
            if position < r.end:
                kept.append(r._replace(first=position))
        return kept, self.window.next

    def _take_new(self) -> int:
        """Acquire new records, and return the new `next`."""
        position = self.window.next
        while not self.full and (stretch := self._stretch(position)) is not None:
            low, end = int(np.searchsorted(stretch.offsets, position)), len(stretch.offsets)
            if stretch.deliver_at_ms is None:
                upto = min(self._with_append(stretch, self._fitting(stretch, low, end, None), low), low + self.room)
                upto = max(low, upto)
                self.room -= upto - low
                self._add(stretch, low, upto, 0, 0)
            else:
                upto = self._take_timed(stretch, low)
            self.full |= upto < end
            position = stretch.end if upto == end else int(stretch.offsets[upto])
        return position

    def _with_append(self, stretch: Stretch, upto: int, low: int) -> int:
        """Return the end of the append of the record before position `upto`, if whole appends are delivered."""
        if not self.request.whole_batches or stretch.append_ends is None or upto <= low:
            return upto
        at = int(np.searchsorted(stretch.append_ends, stretch.offsets[upto - 1], side="right"))
        end = stretch.append_ends[at] if at < len(stretch.append_ends) else stretch.end
        return max(upto, int(np.searchsorted(stretch.offsets, end)))

    def _take_timed(self, stretch: Stretch, low: int) -> int:
        """Acquire the records, from position `low` on, whose delivery time has come, and delay the others. Return the
        position of the first record that the limits do not allow.
        """
        assert stretch.deliver_at_ms is not None
        later = stretch.deliver_at_ms[low:] > self.now.wall_ms
        now = np.flatnonzero(~later) + low
        sizes = np.diff(stretch.sizes, prepend=0)[now]
        most = int(np.searchsorted(np.cumsum(sizes), self.request.bytes_max - self.bytes, side="right"))
        most = min(most, self.request.records_max - self.records)
        if most <= 0 and self._needs_one:
            most = 1
        most = max(0, min(most, len(now), self.room))
        upto = int(now[most]) if most < len(now) else len(stretch.offsets)
        waiting = np.flatnonzero(later) + low
        free = max(0, self.limits.delayed - self.window.delayed + len(self.came_due) - len(self.delayed))
        if free < len(waiting):
            upto = min(upto, int(waiting[free]))
        waiting = waiting[waiting < upto]
        pairs = zip(stretch.offsets[waiting].tolist(), stretch.deliver_at_ms[waiting].tolist(), strict=True)
        self.delayed += (Delayed(offset, due_ms, 0) for offset, due_ms in pairs)
        taken = now[now < upto]
        self.room -= len(taken)
        if len(taken):
            for first, end in _consecutive(taken):
                self._add(stretch, first, end, 0, 0)
        return upto

    def _fitting(self, stretch: Stretch, low: int, high: int, most: int | None) -> int:
        """Return the end of the records, from position `low` to below `high`, that the limits allow."""
        before = int(stretch.sizes[low - 1]) if low else 0
        left = self.request.bytes_max - self.bytes + before
        upto = int(np.searchsorted(stretch.sizes[:high], left, side="right"))
        upto = min(upto, low + self.request.records_max - self.records)
        if upto <= low and self._needs_one:
            upto = low + 1
        if most is not None:
            upto = min(upto, low + most)
        return max(low, min(upto, high))

    @property
    def _needs_one(self) -> bool:
        return not self.records and not self.request.has_some

    def _is_over(self, stretch: Stretch, at: int) -> bool:
        """Return whether the record at this position exceeds the limits of the poll. The first record never does."""
        return self._fitting(stretch, at, at + 1, None) == at

    def _add(self, stretch: Stretch, low: int, high: int, count: int, batch: int) -> None:
        """Acquire the records at positions low <= i < high of the stretch."""
        if low >= high:
            return
        self.records += high - low
        self.bytes += int(stretch.sizes[high - 1]) - (int(stretch.sizes[low - 1]) if low else 0)
        for first, end in _consecutive(stretch.offsets[low:high]):
            self.taken.append(Range(first, end, self.lock, self.until_ms, batch, count + 1, self.request.member))

    def _stretch(self, offset: int) -> Stretch | None:
        """Return the stretch that has the offset."""
        at = bisect_right(self.readable, offset, key=lambda stretch: stretch.first) - 1
        return self.readable[at] if at >= 0 and offset < self.readable[at].end else None


def _consecutive(numbers: Numbers) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers in a sorted array, half-open. The array is not empty."""
    if int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1:
        return [(int(numbers[0]), int(numbers[-1]) + 1)]
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    firsts = numbers[np.concatenate(([0], breaks + 1))].tolist()
    lasts = numbers[np.concatenate((breaks, [len(numbers) - 1]))].tolist()
    return [(first, last + 1) for first, last in zip(firsts, lasts, strict=True)]


def _with_ranges(window: Window, ranges: Iterable[Range]) -> Window:
    """Return the window with these sorted ranges. `start` moves up to the first one, or to `next`."""
    merged = _merged(ranges)
    first = next((r.first for r in merged if r.first >= window.start), window.next)
    # A range below `start` has records that were delayed. It does not move `start` back.
    covering = any(r.first < window.start < r.end for r in merged)
    return replace(window, ranges=merged, start=window.start if covering else max(window.start, first))


def _merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return sorted ranges, with equal neighbours as one."""
    merged: list[Range] = []
    for r in ranges:
        if merged and merged[-1].end == r.first and merged[-1][2:] == r[2:]:
            merged[-1] = merged[-1]._replace(end=r.end)
        else:
            merged.append(r)
    return tuple(merged)
