"""Invariants of the model of replication, checked between any two steps; the numbers are the design's."""

import itertools

from hypothesis.stateful import RuleBasedStateMachine, invariant


class Invariants(RuleBasedStateMachine):
    """Base of a machine that has the partition's `state`, the `world`, and the records acknowledged, seen and lost."""

    @invariant()
    def offsets_are_dense_and_each_record_has_one(self):
        rows, state = self.world.rows, self.state
        assert all(row.end == following.base for row, following in itertools.pairwise(rows))
        assert not rows or rows[-1].end == state.log_end_offset
        assert rows or state.log_start_offset == state.log_end_offset
        records = self.world.records(0, state.log_end_offset)
        assert len(set(records)) == len(records), "1, 8: appended once"

    @invariant()
    def ends_watermark_and_epochs(self):
        state = self.state
        assert 0 <= state.log_start_offset <= state.high_watermark, "2"
        assert all(r.log_end_offset >= state.high_watermark for r in state.replicas if r.in_sync), "2"
        assert all(r.log_end_offset <= state.log_end_offset for r in state.replicas)
        now = (state.high_watermark, state.leader_epoch, state.partition_epoch)
        assert all(before <= value for before, value in zip(self.floor, now, strict=True)), "2, 5: they only grow"
        self.floor = now
        assert self.leaders.setdefault(state.leader_epoch, state.leader) == state.leader, "5: one leader an epoch"
        leader = state.replica(state.leader) if state.leader is not None else None
        assert state.isr or self.isr_lost, "4: only files that are lost empty the ISR"
        self.isr_lost &= not state.isr
        if state.leader is not None:
            assert leader is not None and leader.in_sync
            assert leader.log_end_offset == state.log_end_offset

    @invariant()
    def records_that_were_read_stay(self):
        start, watermark = self.state.log_start_offset, self.state.high_watermark
        readable = self.world.records(start, watermark)
        assert len(readable) == watermark - start
        for offset, record in enumerate(readable, start):
            assert self.seen.setdefault(offset, record) == record, "3"

    @invariant()
    def acknowledged_records_are_there(self):
        start = self.state.log_start_offset
        in_sync = self.log_dirs(self.state.isr)
        kept = {offset: record for offset, record in self.acknowledged.items() if offset >= start}
        for offset, record in kept.items():
            assert self.world.records(offset, offset + 1) == [record], "4: at its offset"
            (row,) = self.world.between(offset, offset + 1)
            holders = {log_dir for log_dir, names in self.world.files.items() if row.name in names}
            if not row.inline and not holders & in_sync:
                assert in_sync <= self.lost, "4: readable from a member of the ISR, unless all of them lost files"
                assert holders or row.name in self.gone

    @invariant()
    def segments_are_whole_below_every_end(self):
        for replica in self.state.replicas:
            end = replica.log_end_offset
            assert not any(row.base < end < row.end for row in self.world.rows), "an end is a segment boundary"
            if replica.log_dir_id in self.lost:
                continue
            for row in self.world.rows:
                assert row.inline or row.end > end or row.name in self.world.files[replica.log_dir_id], "10"

    @invariant()
    def remembered_batches_exist(self):
        records = dict(self.appended)
        for batch in self.producer.batches:
            assert batch.end_offset <= self.state.log_end_offset, "8: dedupe rows name offsets that exist"
            here = self.world.records(batch.base_offset, batch.end_offset)
            if batch.producer_epoch == self.producer.epoch:
                whole = list(records[batch.first_sequence])
                assert here == whole[len(whole) - len(here) :], "8: and these are its records"
