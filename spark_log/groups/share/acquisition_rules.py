"""Defines how a member of a share group acquires records of a partition, within the limits of one poll."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spark_log.groups.share.rules import AVAILABLE, Delayed, Limits, Range, Time, Window, merged_ranges

Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Stretch:
    """A range of offsets that was read: first <= offset < end. `offsets` has the sorted offsets of its records."""

    first: int
    end: int
    offsets: Numbers
    sizes: Numbers
    """The running total of the records' bytes, up to and including each record."""
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
    """Runs the steps of `acquire`, and keeps what remains of its limits."""

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
        after = after.with_ranges(sorted([*kept, *first_batches]))
        return Acquisition(
            after, merged_ranges(sorted(first_batches)), tuple(self.delayed), tuple(self.came_due), self.bytes
        )

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
        """Return `upto`, moved to the end of the append of the record before it if whole appends are delivered."""
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
        """Return the end position of the records at low <= position < high that the limits allow."""
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
