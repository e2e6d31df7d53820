"""A share group's partition beside a dictionary that has the state of each offset.

The dictionary applies each rule record by record, in the plainest way. After each step of a random history, the window
must say the same of every offset.
"""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import (
    rule,
)

from spark_log.errors import InvalidRecordStateError
from spark_log.groups.share import acquisition_rules, rules
from spark_log.groups.share.acquisition_rules import Request
from spark_log.groups.share.rules import (
    AVAILABLE,
    EXHAUSTED,
    REJECTED,
    Acknowledgement,
    AcknowledgeType,
    Delayed,
)
from tests.unit.groups.share_world import FINISHED, LOCK_MS, ShareWorld, State

members = st.sampled_from(["a", "b", "c"])


class SharePartition(ShareWorld):
    """The members of the share group, beside the dictionary."""

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
