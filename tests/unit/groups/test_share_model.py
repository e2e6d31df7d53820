"""A share group's partition beside a dictionary that has the state of each offset.

The dictionary applies each rule record by record, in the plainest way. After each step of a random history, the window
must say the same of every offset.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from spark_log.errors import InvalidRecordStateError
from spark_log.groups.share import acquisition_rules, rules
from spark_log.groups.share.acquisition_rules import Request, Stretch
from spark_log.groups.share.rules import (
    AVAILABLE,
    EXHAUSTED,
    REJECTED,
    Acknowledgement,
    AcknowledgeType,
    Delayed,
    Limits,
    Range,
    Time,
    Window,
)

LOCK_MS = 50
members = st.sampled_from(["a", "b", "c"])


@dataclass(frozen=True)
class State:
    """What the dictionary has of an offset below `next`: a range's columns, or a delayed record."""

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


class SharePartition(RuleBasedStateMachine):
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

    # the members

    @rule(member=members, records=st.integers(1, 5), byte_limit=st.sampled_from([3, 100]), whole=st.booleans(),
          read_to=st.integers(0, 20), hole=st.integers(0, 25))  # fmt: skip
    def acquire(self, member, records, byte_limit, whole, read_to, hole):
        self.end_locks()
        request = Request(member, records, byte_limit, whole)
        read = [o for o in range(self.log_start, min(self.log_end, self.next + read_to)) if o != hole]
        due = [Delayed(o, s.due_ms, s.count) for o, s in self.state.items()
               if s.kind == "delayed" and s.due_ms <= self.now.wall_ms]  # fmt: skip
        before = self.window
        result = acquisition_rules.acquire(before, self.stretches(read), due, request, self.limits, self.now)
        self.window = result.window
        taken = self.expect_acquisition(set(read), due, request)
        got = {o: r for r in result.acquired for o in range(r.first, r.end)}
        assert sorted(got) == sorted(taken)
        if got:
            [lock] = {r.lock for r in result.acquired}
            assert lock not in self.locks_given, "a lock number was given twice"
            self.locks_given.add(lock)
            assert all(r.member == member for r in result.acquired)
        assert result.bytes == sum(self.log[o][0] for o in got)
        for offset, count in taken.items():
            assert got[offset].deliveries == count
            assert count <= self.highest_limit
        for o, r in got.items():
            was = self.state.get(o, State("new"))
            fresh = was.batch or (1 if was.count else len(taken))
            self.state[o] = State("acquired", r.deliveries, r.lock, self.now.lease_ms + LOCK_MS, member, fresh)
        in_flight = self.window.unfinished
        assert in_flight <= max(self.limits.record_locks, before.unfinished)
        came_due, entries = set(result.came_due), {d.offset: d for d in result.delayed}
        assert entries.keys() == self.newly_delayed
        for offset, entry in entries.items():
            assert entry == Delayed(offset, self.log[offset][1], 0)
            self.state[offset] = State("delayed", 0, due_ms=entry.due_ms)
        assert came_due == {d.offset for d in due if d.offset in taken or d.offset in self.without_record}
        for offset in self.without_record:
            self.state[offset] = FINISHED

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

    def expect_acquisition(self, read, due, request):
        """Return the records that a poll gets, with their new delivery counts, record by record."""
        limits, wall_ms = self.limits, self.now.wall_ms
        taken: dict[int, int] = {}
        self.without_record: set[int] = set()
        self.newly_delayed: set[int] = set()
        used = 0
        unfinished = sum(s.kind in ("acquired", "available", "archiving") for s in self.state.values())
        delayed = sum(s.kind == "delayed" for s in self.state.values())

        def fits(offset):
            size = self.log[offset][0]
            return not taken or (len(taken) < request.records_max and used + size <= request.bytes_max)

        def part(batch, count):
            begin = max(2, -(-limits.delivery_count // 2))
            if limits.delivery_count <= 2 or count < begin:
                return None
            return (
                1
                if count == limits.delivery_count - 1 or count >= limits.delivery_count
                else max(1, batch // 2 ** (count - begin + 1))
            )

        alone = False
        for entry in sorted(due):
            if entry.offset not in read:
                continue
            if entry.offset not in self.log:  # it is finished, also behind a record that is delivered alone
                self.without_record.add(entry.offset)
                delayed -= 1
                continue
            suspect = part(1, entry.deliveries) is not None
            if alone or unfinished >= limits.record_locks or (suspect and taken) or not fits(entry.offset):
                break
            taken[entry.offset] = entry.deliveries + 1
            used += self.log[entry.offset][0]
            unfinished += 1
            delayed -= 1
            alone = suspect
        if alone:
            return taken
        alone_range, alone_left = None, 0
        for r in self.window_before_ranges:
            if r.lock != AVAILABLE:
                continue
            most = part(r.batch, r.deliveries)
            if most is not None and taken:
                return taken
            for offset in range(r.first, r.end):
                if offset not in read:
                    break
                if offset not in self.log:
                    self.without_record.add(offset)
                    continue
                if not fits(offset) or (most is not None and alone_range is r and alone_left == 0):
                    return taken
                if most is not None and alone_range is None:
                    alone_range, alone_left = r, most
                taken[offset] = r.deliveries + 1
                used += self.log[offset][0]
                alone_left -= 1
            if alone_range is not None:
                return taken
        offset = self.next
        timed = self.has_times(read)
        if delayed >= limits.delayed:
            return taken
        while offset in read:
            if offset not in self.log:
                self.state[offset] = FINISHED
            elif self.log[offset][1] > wall_ms:
                if delayed >= limits.delayed:
                    break
                self.newly_delayed.add(offset)
                delayed += 1
            else:
                whole = request.whole_batches and not timed(offset) and taken and self.same_append(offset, max(taken))
                fresh = bool(taken) and max(taken) >= self.next
                if unfinished >= limits.record_locks or not (fits(offset) or (whole and fresh)):
                    break
                taken[offset] = 1
                used += self.log[offset][0]
                unfinished += 1
            offset += 1
        self.next = offset
        return taken

    def has_times(self, read):
        """Return whether a record's stretch has records with a delivery time: then appends are not kept whole."""
        stretches = [s for s in self.stretches(sorted(read)) if s.deliver_at_ms is not None]
        return lambda offset: any(s.first <= offset < s.end for s in stretches)

    def same_append(self, offset, other):
        return sum(e <= offset for e in self.appends) == sum(e <= other for e in self.appends)

    def end_locks(self):
        change = rules.lapse(self.window, self.limits, self.now)
        ended = [o for o, s in self.state.items() if s.kind == "acquired" and s.until_ms <= self.now.lease_ms]
        assert change.ended == len(ended)
        self.window = change.window
        released = [self.released(o) for o in ended]
        assert change.became_available == any(s.kind == "available" for s in released)
        self.window_before_ranges = self.window.ranges
        self.check()

    def released(self, offset):
        s = self.state[offset]
        if s.count < self.limits.delivery_count:
            self.state[offset] = replace(s, kind="available", lock=AVAILABLE, until_ms=0, member="")
        else:
            self.archived(offset, EXHAUSTED)
        return self.state[offset]

    def archived(self, offset, cause):
        s = self.state[offset]
        archiving = replace(s, kind="archiving", lock=cause, until_ms=self.now.lease_ms, member="")
        self.state[offset] = archiving if self.limits.dead_letters else FINISHED

    @rule(data=st.data(), kind=st.sampled_from(AcknowledgeType), delay=st.sampled_from([0, 0, 20]))
    def acknowledge(self, data, kind, delay):
        """Acknowledge what a member has, a part of it, or what it had once."""
        mine = [(o, s) for o, s in sorted(self.state.items()) if s.kind == "acquired"]
        if mine and data.draw(st.integers(0, 4)):
            first, s = data.draw(st.sampled_from(mine))
            end = first + 1
            while self.state.get(end, FINISHED).lock == s.lock and data.draw(st.integers(0, 3)):
                end += 1
            strange = data.draw(st.sampled_from(["", "", "", "", "longer", "lock", "member"]))
            ack = Acknowledgement(
                first, end + (strange == "longer"), s.lock + (strange == "lock"),
                "stranger" if strange == "member" else s.member, kind, delay,
            )  # fmt: skip
        elif self.old:
            ack = data.draw(st.sampled_from(self.old))._replace(type=kind)
        else:
            return
        self.old = [*self.old[-5:], ack]
        offsets = range(max(ack.first, self.log_start), ack.end)
        found = [self.state.get(o, State("new")) for o in offsets]
        allowed = all(
            s.kind == "acquired" and (s.lock, s.member) == (ack.lock, ack.member) and s.until_ms > self.now.lease_ms
            for s in found
        )
        try:
            change = rules.acknowledge(self.window, [ack], self.log_start, self.limits, self.now)
        except InvalidRecordStateError:
            assert not allowed
            return
        assert allowed
        self.window = change.window
        later = {}
        for o in offsets:
            s = self.state[o]
            match kind:
                case AcknowledgeType.ACCEPT | AcknowledgeType.GAP:
                    self.state[o] = FINISHED
                case AcknowledgeType.RENEW:
                    self.state[o] = replace(s, until_ms=self.now.lease_ms + LOCK_MS)
                case AcknowledgeType.REJECT:
                    self.archived(o, REJECTED)
                case AcknowledgeType.RELEASE:
                    backoff = min(self.limits.backoff_ms * 2 ** (s.count - 1), self.limits.backoff_max_ms)
                    wait = max(ack.delay_ms, backoff)
                    if wait and s.count < self.limits.delivery_count:
                        later[o] = Delayed(o, self.now.wall_ms + wait, s.count)
                        self.state[o] = State("delayed", s.count, due_ms=later[o].due_ms)
                    else:
                        self.released(o)
        assert {d.offset: d for d in change.delayed} == later

    @rule(data=st.data(), until=st.integers(1, 200))
    def move(self, data, until):
        """A producer's transaction takes records over, or tries to."""
        mine = [(o, s) for o, s in sorted(self.state.items()) if s.kind == "acquired"]
        if not mine:
            return
        first, s = data.draw(st.sampled_from(mine))
        end = first + 1
        while self.state.get(end, FINISHED).lock == s.lock and data.draw(st.integers(0, 3)):
            end += 1
        stranger = data.draw(st.integers(0, 4)) == 0
        ack = Acknowledgement(first, end, s.lock, "stranger" if stranger else s.member, AcknowledgeType.ACCEPT)
        until_ms = self.now.lease_ms + until
        live = all(self.state[o].until_ms > self.now.lease_ms for o in range(first, end))
        try:
            self.window, [moved] = rules.move(self.window, [ack], self.log_start, "transaction", until_ms, self.now)
        except InvalidRecordStateError:
            assert stranger or not live
            return
        assert live
        assert not stranger
        assert moved.lock not in self.locks_given, "a lock number was given twice"
        self.locks_given.add(moved.lock)
        assert moved == ack._replace(lock=moved.lock, member="transaction")
        self.old = [*self.old[-5:], ack, moved]
        for o in range(first, end):
            self.state[o] = replace(self.state[o], lock=moved.lock, until_ms=until_ms, member="transaction")

    @rule(member=members)
    def close(self, member):
        self.window = rules.release(self.window, member, None, self.limits, self.now).window
        for o, s in list(self.state.items()):
            if s.kind == "acquired" and s.member == member:
                self.released(o)

    @rule(member=members, records=st.integers(2, 5), times=st.integers(1, 5))
    def fail(self, member, records, times):
        """A member dies of what it gets, several times."""
        for _ in range(times):
            self.acquire(member, records, 100, True, 20, 25)
            self.check()
            self.close(member)
            self.check()

    @rule()
    def write_dead_letters(self):
        archiving = [(o, o + 1) for o, s in sorted(self.state.items()) if s.kind == "archiving"]
        self.window = rules.end_archiving(self.window, archiving[:3]).window
        for o, _ in archiving[:3]:
            self.state[o] = FINISHED

    # what must hold

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


QUICK = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_window_is_the_dictionary():
    run_state_machine_as_test(SharePartition, settings=QUICK)


@pytest.mark.long
def test_the_window_is_the_dictionary_in_long_histories():
    run_state_machine_as_test(
        SharePartition, settings=settings(max_examples=5_000, stateful_step_count=80, deadline=None)
    )


def test_a_delayed_record_that_was_erased_is_finished_behind_one_that_is_delivered_alone():
    read = Stretch(0, 3, np.array([0, 1]), np.array([1, 2]))
    due = [Delayed(1, 0, 2), Delayed(2, 0, 0)]
    window = Window(0, 3, delayed=2)
    result = acquisition_rules.acquire(window, [read], due, Request("m"), Limits(delivery_count=3), Time(0, 0))
    assert [(r.first, r.end) for r in result.acquired] == [(1, 2)]
    assert result.came_due == (1, 2) and result.window.delayed == 0


# Mutations of the rules, each of which the model detects.


def a_late_acknowledgement_is_accepted(patch):
    patch(rules, "_is_live", lambda r, ack, now: r.lock == ack.lock and r.member == ack.member and r.lock > 0)


def any_lock_is_the_right_one(patch):
    patch(rules, "_is_live", lambda r, ack, now: r.lock > 0 and r.member == ack.member and r.until_ms > now.lease_ms)


def any_member_may_acknowledge(patch):
    patch(rules, "_is_live", lambda r, ack, now: r.lock == ack.lock and r.lock > 0 and r.until_ms > now.lease_ms)


def a_release_lowers_the_count(patch):
    released = rules._released

    def lower(r, limits, now):
        kept = released(r, limits, now)
        return kept if kept is None else kept._replace(deliveries=r.deliveries - 1)

    patch(rules, "_released", lower)


def the_limit_of_deliveries_is_ignored(patch):
    patch(rules, "_released", lambda r, limits, now: r._replace(lock=AVAILABLE, until_ms=0, member=""))


def a_rejected_record_is_available(patch):
    patch(rules, "_archived", lambda r, cause, limits, now: r._replace(lock=AVAILABLE, until_ms=0, member=""))


def locks_never_end(patch):
    patch(rules, "lapse", lambda window, limits, now: rules.Change(window))


def bad_records_are_not_delivered_alone(patch):
    patch(acquisition_rules, "parts", lambda batch, count, limits: None)


def different_neighbours_are_merged(patch):
    def merged(ranges):
        found = []
        for r in ranges:
            if found and found[-1].end == r.first and found[-1].lock == r.lock:
                found[-1] = found[-1]._replace(end=r.end)
            else:
                found.append(r)
        return tuple(found)

    patch(rules, "merged_ranges", merged)


def start_passes_ranges(patch):
    with_ranges = rules.Window.with_ranges
    patch(rules.Window, "with_ranges", lambda window, ranges: replace(with_ranges(window, ranges), start=window.next))


def start_falls_to_a_due_record(patch):
    def with_ranges(window, ranges):
        merged = rules.merged_ranges(ranges)
        return replace(window, ranges=merged, start=merged[0].first if merged else window.next)

    patch(rules.Window, "with_ranges", with_ranges)


def the_limit_of_locks_is_ignored(patch):
    acquire = acquisition_rules.acquire
    patch(acquisition_rules, "acquire", lambda window, readable, due, request, limits, now: acquire(
        window, readable, due, request, replace(limits, record_locks=1_000), now))  # fmt: skip


def the_limit_of_delayed_records_is_ignored(patch):
    acquire = acquisition_rules.acquire
    patch(acquisition_rules, "acquire", lambda window, readable, due, request, limits, now: acquire(
        window, readable, due, request, replace(limits, delayed=1_000), now))  # fmt: skip


def a_lock_number_is_used_again(patch):
    acquire = acquisition_rules.acquire

    def same_lock(window, *others):
        result = acquire(window, *others)
        return replace(result, window=replace(result.window, last_lock=window.last_lock))

    patch(acquisition_rules, "acquire", same_lock)


def an_election_keeps_ranges(patch):
    patch(rules, "truncate", lambda window, offset: window)


def delayed_records_are_acquired_at_once(patch):
    def take(self, stretch, low):
        self._add(stretch, low, len(stretch.offsets), 0, 0)
        return len(stretch.offsets)

    patch(acquisition_rules._Acquisition, "_take_timed", take)


@pytest.mark.parametrize(
    "mutation",
    [
        a_late_acknowledgement_is_accepted,
        any_lock_is_the_right_one,
        any_member_may_acknowledge,
        a_release_lowers_the_count,
        the_limit_of_deliveries_is_ignored,
        a_rejected_record_is_available,
        locks_never_end,
        bad_records_are_not_delivered_alone,
        different_neighbours_are_merged,
        start_passes_ranges,
        start_falls_to_a_due_record,
        the_limit_of_locks_is_ignored,
        the_limit_of_delayed_records_is_ignored,
        a_lock_number_is_used_again,
        an_election_keeps_ranges,
        delayed_records_are_acquired_at_once,
    ],
)
def test_the_model_detects(mutation, monkeypatch):
    mutation(monkeypatch.setattr)
    quiet = settings(max_examples=10_000, stateful_step_count=40, deadline=None, database=None, derandomize=True,
                     report_multiple_bugs=False, phases=[Phase.generate])  # fmt: skip
    with pytest.raises((AssertionError, ValueError, KeyError)):
        run_state_machine_as_test(SharePartition, settings=quiet)


# Kafka's numbers, for records that are delivered often.


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [
        (10, [500, 500, 500, 500, 500, 250, 125, 62, 31, 1]),
        (5, [500, 500, 500, 250, 1]),
        (2, [500, 500]),
    ],
)
def test_deliveries_are_halved(limit, sizes):
    limits = Limits(delivery_count=limit)
    assert [acquisition_rules.parts(500, count, limits) or 500 for count in range(limit)] == sizes
