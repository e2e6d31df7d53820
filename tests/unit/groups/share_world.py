"""The log of a share group's partition, a dictionary that has the state of each offset, and what must hold of both."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from spark_log.groups.share import rules
from spark_log.groups.share.acquisition_rules import Stretch
from spark_log.groups.share.rules import (
    AVAILABLE,
    Acknowledgement,
    Limits,
    Range,
    Time,
    Window,
)

LOCK_MS = 50


@dataclass(frozen=True)
class State:
    """The entry of an offset below `next` in the dictionary: a range's columns, or a delayed record."""

    kind: str
    """acquired, available, archiving, delayed or finished"""
    count: int = 0
    lock: int = 0
    until_ms: int = 0
    member: str = ""
    batch: int = 0
    due_ms: int = 0


FINISHED = State("finished")


def kind_of(r: Range) -> State:
    kind = "acquired" if r.lock > 0 else "available" if r.lock == AVAILABLE else "archiving"
    return State(kind, r.deliveries, r.lock, r.until_ms, r.member, r.batch)


class ShareWorld(RuleBasedStateMachine):
    """`log` has the size and the delivery time of each record; offsets that are missing in it are gaps."""

    @initialize(
        limit=st.integers(2, 8),
        locks=st.integers(3, 12),
        dead_letters=st.booleans(),
        backoff=st.sampled_from([0, 0, 7]),
    )
    def begin(self, limit, locks, dead_letters, backoff):
        self.limits = Limits(limit, locks, LOCK_MS, 3, backoff, 3 * backoff, dead_letters)
        self.highest_limit = limit
        self.highest_locks = locks
        self.window = Window(0, 0)
        self.log: dict[int, tuple[int, int]] = {}
        self.log_start = self.log_end = self.clock = 0
        self.appends: list[int] = []
        self.state: dict[int, State] = {}
        self.next = self.start = 0
        self.locks_given: set[int] = set()
        self.old: list[Acknowledgement] = []
        self.reset_to_finished = False

    @property
    def now(self):
        return Time(self.clock, 1_000 + self.clock)

    # the world

    @rule(records=st.lists(st.sampled_from(["record", "record", "record", "gap", "later"]), min_size=1, max_size=7),
          wait=st.integers(1, 80))  # fmt: skip
    def append(self, records, wait):
        for record in records:
            if record != "gap":
                self.log[self.log_end] = (1 + self.log_end % 3, self.now.wall_ms + wait if record == "later" else 0)
            self.log_end += 1
        self.appends.append(self.log_end)

    @rule(ms=st.sampled_from([1, 10, 30, LOCK_MS, LOCK_MS + 10]))
    def time_passes(self, ms):
        self.clock += ms

    @rule(limit=st.integers(2, 8), locks=st.integers(3, 12))
    def limits_change(self, limit, locks):
        self.limits = replace(self.limits, delivery_count=limit, record_locks=locks)
        self.highest_limit = max(self.highest_limit, limit)
        self.highest_locks = max(self.highest_locks, locks)

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def compaction(self, data):
        del self.log[data.draw(st.sampled_from(sorted(self.log)))]

    @rule(kind=st.sampled_from(["retention", "election", "reset"]), records=st.integers(0, 4), data=st.data())
    def records_leave(self, kind, records, data):
        """These are one step, so that most histories have many others between two of them."""
        if kind == "retention":
            self.retention(records)
        elif kind == "election":
            self.unclean_election(records)
        elif data.draw(st.integers(0, 3)) == 0:
            self.reset(data.draw(st.integers(self.log_start, self.log_end)))

    def retention(self, records):
        self.log_start = min(self.log_start + records, self.log_end)
        change = rules.clip(self.window, self.log_start)
        gone = {o: s for o, s in self.state.items() if o < self.log_start}
        self.window = replace(
            change.window, delayed=self.window.delayed - sum(s.kind == "delayed" for s in gone.values())
        )
        in_ranges = sum(s.kind not in ("finished", "delayed") for s in gone.values())
        assert change.expired == in_ranges
        for offset in range(self.log_start):
            self.state[offset] = FINISHED
            self.log.pop(offset, None)
        self.next = max(self.next, self.log_start)

    def unclean_election(self, records):
        end = max(self.log_start, self.log_end - records)
        self.log_end = end
        self.appends = [e for e in self.appends if e <= end]
        self.log = {o: r for o, r in self.log.items() if o < end}
        delayed = sum(s.kind == "delayed" for o, s in self.state.items() if o >= end)
        self.window = replace(rules.truncate(self.window, end), delayed=self.window.delayed - delayed)
        self.state = {o: s for o, s in self.state.items() if o < end}
        self.next = min(self.next, end)
        self.start = min(self.start, end)

    def reset(self, offset):
        self.window = rules.reset(self.window, offset)
        self.state = dict.fromkeys(range(offset), FINISHED)
        self.next = self.start = offset

    def stretches(self, read):
        """Return what a process has read: stretches of consecutive offsets."""
        found, run = [], []
        for offset in [*read, None]:
            if run and offset != run[-1] + 1:
                offsets = np.array([o for o in run if o in self.log], dtype=np.int64)
                sizes = np.cumsum(np.array([self.log[o][0] for o in offsets.tolist()], dtype=np.int64))
                times = np.array([self.log[o][1] for o in offsets.tolist()], dtype=np.int64)
                ends = np.array([e for e in self.appends if run[0] < e <= run[-1] + 1], dtype=np.int64)
                found.append(Stretch(run[0], run[-1] + 1, offsets, sizes, times if times.any() else None, ends))
                run = []
            if offset is not None:
                run.append(offset)
        return found

    def has_times(self, read):
        """Return whether a record's stretch has records with a delivery time: then appends are not kept whole."""
        stretches = [s for s in self.stretches(sorted(read)) if s.deliver_at_ms is not None]
        return lambda offset: any(s.first <= offset < s.end for s in stretches)

    def same_append(self, offset, other):
        return sum(e <= offset for e in self.appends) == sum(e <= other for e in self.appends)

    # Invariants

    @invariant()
    def check(self):
        self.the_window_says_the_same()
        self.start_is_the_first_unfinished_record()
        self.start_passes_no_record_that_is_not_delayed()

    def the_window_says_the_same(self):
        ranges = self.window.ranges
        assert list(ranges) == sorted(ranges)
        assert all(a.end <= b.first for a, b in pairwise(ranges)), "an offset is in two ranges"
        assert all(r.first < r.end <= self.window.next for r in ranges)
        in_ranges = {o: kind_of(r) for r in ranges for o in range(r.first, r.end)}
        known = {o: s for o, s in self.state.items() if s.kind in ("acquired", "available", "archiving")}
        assert in_ranges == known
        assert self.window.next == self.next
        assert self.window.delayed == sum(s.kind == "delayed" for s in self.state.values())

    def start_passes_no_record_that_is_not_delayed(self):
        assert self.window.start >= self.start, "start fell"
        assert self.window.start <= self.window.next
        unfinished = [o for o, s in self.state.items() if s.kind in ("acquired", "available", "archiving")]
        late = [o for o in unfinished if o < self.window.start]
        assert all(self.state[o].count and o in self.was_delayed for o in late)
        self.start = self.window.start
        self.was_delayed |= {o for o, s in self.state.items() if s.kind == "delayed"}

    was_delayed: set[int] = set()  # noqa: RUF012  # offsets are never used again in a history, except after an election

    def start_is_the_first_unfinished_record(self):
        expected = next((o for o in range(self.start, self.next) if self.state.get(o, FINISHED).kind not in
                         ("finished", "delayed")), self.next)  # fmt: skip
        assert self.window.start == expected
