"""The replication protocol, run: the pure rules against a world where everything that can happen happens at any time.

One partition, four brokers with a log dir each (broker 1 has log dir 10, and so on). What takes time outside a
transaction takes two steps here: a writer writes files and appends them later; a follower copies and commits later;
maintenance writes and swaps later; a controller may think that its term lasts. The I/O around the rules is as in the
product (`controller`, `inspection`, `catch_up`, `seal`). The invariants have the design's numbers.
"""

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from spark_log.errors import (
    InvalidReplicationAssignmentError,
    NotLeaderForPartitionError,
    OutOfOrderSequenceNumberError,
    UnknownProducerIdError,
)
from spark_log.log.append import rules
from spark_log.log.append.rules import (
    Batch,
    Rejected,
)
from spark_log.log.append.sequence_rules import (
    ProducerSequence,
    ProducerState,
)
from spark_log.log.partitions import replication_rules
from spark_log.log.partitions.replication_rules import CopiedRange, PartitionState, Replica
from spark_log.replication.controller import reassignment_rules
from tests.unit.log.partitions.replication_invariants import Invariants
from tests.unit.log.partitions.replication_world import Row, World

BROKERS = st.sampled_from([1, 2, 3, 4])
ANY = st.integers(0, 5)
SELDOM = st.sampled_from([False, False, False, True])
IN_FLIGHT_MAX = 3


def log_dir_of(broker: int) -> int:
    return 10 * broker


@dataclass(frozen=True)
class Sent:
    """A batch on its way; a writer that has no answer does not know whether it was appended."""

    batch: Batch
    acks: rules.Acks
    records: tuple[int, ...]


@dataclass(frozen=True)
class Rewrite:
    """A file that is to replace a run of rows: in which log dirs it was put, and under which partition epoch."""

    name: str
    run: tuple[Row, ...]
    log_dirs: frozenset[int]
    partition_epoch: int


class ReplicatedPartition(Invariants):
    """The steps. Attributes hold the partition, what lies outside it, what is on its way, and what was promised."""

    @initialize(
        unclean=st.booleans(),
        min_isr=st.integers(1, 2),
        first=st.lists(st.tuples(st.integers(1, 2), st.sampled_from([1, "all"]), st.booleans()), max_size=4),
    )
    def create(self, unclean, min_isr, first):
        replicas = tuple(Replica(broker, 0, True, log_dir_of(broker)) for broker in (1, 2, 3))
        self.state = PartitionState(1, 0, 0, 0, 0, 0, 0, replicas, min_isr, unclean_election=unclean)
        self.world = World([10, 20, 30, 40])
        self.alive = {10, 20, 30, 40}
        self.lost = set()  # log dirs that have lost files and have not been looked at since
        self.term = 0
        self.seen_before = set(self.alive)  # what the controller of the term before believed
        self.reassignment = None
        self.sent, self.copies, self.rewrites = [], [], []
        self.last_record = 0
        self.producer = ProducerState(0)
        self.appended = []  # by the idempotent producer, in its epoch: (first sequence, records)
        self.acknowledged = {}  # with acks=all: offset -> record
        self.isr_lost = False  # its last member has lost files that it needs
        self.gone = set()  # files that some log dir has lost
        self.seen = {}  # by readers: offset -> record
        self.floor = (0, 0, 0)  # high watermark, leader epoch, partition epoch: they only grow
        self.leaders = {}  # by leader epoch
        for count, acks, inline in first:
            self.writer_writes(count, acks, inline, idempotent=True, failing=None, at_once=True)

    def log_dirs(self, brokers):
        return {replica.log_dir_id for replica in self.state.replicas if replica.broker_id in brokers}

    # Writers ---------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.state.leader is not None and len(self.sent) < IN_FLIGHT_MAX)
    @rule(
        count=st.integers(1, 2),
        acks=st.sampled_from([0, 1, "all", "all", "all"]),
        inline=SELDOM,
        idempotent=st.booleans(),
        failing=st.sampled_from([None, None, None, 1, 2, 3]),
        at_once=st.booleans(),
    )
    def writer_writes(self, count, acks, inline, idempotent, failing, at_once):
        records = tuple(range(self.last_record, self.last_record + count))
        self.last_record += count
        sequence = None
        if idempotent and not any(sent.batch.sequence for sent in self.sent):  # it has one batch in flight
            first = self.appended[-1][0] + len(self.appended[-1][1]) if self.appended else 0
            sequence = ProducerSequence(1, self.producer.epoch, first)
        self.write(records, acks, inline, sequence, failing)
        if at_once and not inline:
            self.writer_appends(-1)

    @precondition(lambda self: self.appended and self.state.leader is not None)
    @rule(acks=st.sampled_from([1, "all"]), inline=st.booleans())
    def producer_retries(self, acks, inline):
        """The last batch: without an answer the next one is not sent."""
        first, records = self.appended[-1]
        self.write(records, acks, inline, ProducerSequence(1, self.producer.epoch, first))

    def write(self, records, acks, inline, sequence, failing=None):
        """Blobs are on their way for no time; files go to where the metadata says now and are appended later."""
        brokers = {self.state.leader} | (self.state.isr if acks == "all" else set())
        written_to = frozenset() if inline else frozenset(brokers - {None, failing})
        name = self.world.write(records, self.log_dirs(written_to))
        epoch = None if inline else self.state.leader_epoch
        batch = Batch(1, 0, name, inline, len(records), 1, 0, 0, 0, "none", "", written_to, sequence, epoch)
        self.sent.append(Sent(batch, acks, records))
        if inline:
            self.append(self.sent.pop())

    @precondition(lambda self: self.sent)
    @rule(which=ANY)
    def writer_appends(self, which):
        self.append(self.sent.pop(which % len(self.sent)))

    def append(self, sent):
        before, batch = self.state, sent.batch
        outcome, after = rules.decide(before, batch, sent.acks, self.producer if batch.sequence else None)
        if isinstance(outcome, Rejected):
            assert after is before
            if isinstance(outcome.error, OutOfOrderSequenceNumberError | UnknownProducerIdError):
                self.producer = replace(self.producer, epoch=self.producer.epoch + 1)
                self.appended = []
            return
        base, end = outcome.base_offset, outcome.end_offset
        assert batch.leader_epoch in (None, before.leader_epoch), "5: a lower leader epoch changes nothing"
        if outcome.duplicate:
            assert after is before
            here = self.world.records(base, end)
            assert here == list(sent.records)[len(sent.records) - len(here) :], "8: it was appended there"
        else:
            assert (base, end) == (before.log_end_offset, before.log_end_offset + len(sent.records)), "1: dense"
            self.world.rows.append(Row(base, end, batch.name, batch.inline))
            if batch.sequence:
                self.producer = rules.remember(self.producer, batch, outcome)
                self.appended.append((batch.sequence.first, sent.records))
            self.state = after
        if sent.acks == "all":
            assert end <= self.state.high_watermark
            assert outcome.duplicate or len(self.state.isr) >= self.state.min_insync_replicas
            self.acknowledged.update(zip(range(base, end), sent.records, strict=True))

    # Followers -------------------------------------------------------------------------------------------------------

    def behind(self):
        """Replicas that have something to do: to copy, or to join the ISR."""
        end = self.state.log_end_offset
        return [r for r in self.state.replicas if not r.in_sync or r.log_end_offset < end]

    @precondition(lambda self: self.behind() and len(self.copies) < IN_FLIGHT_MAX)
    @rule(which=ANY, most=st.sampled_from([1, 2, 100]), at_once=st.booleans())
    def follower_copies(self, which, most, at_once):
        behind = self.behind()
        replica = behind[which % len(behind)]
        names, end = [], replica.log_end_offset
        for row in self.world.files_from(end)[:most]:
            sources = [r.log_dir_id for r in self.state.replicas if r.log_end_offset >= row.end]
            if not self.world.copy(row, sources, replica.log_dir_id):
                break
            names.append(row.name)
            end = row.end
        epoch, start = self.state.leader_epoch, replica.log_end_offset
        self.copies.append(CopiedRange(replica.broker_id, epoch, start, end, tuple(names), replica.log_dir_id))
        if at_once:
            self.follower_commits(-1)

    @precondition(lambda self: self.copies)
    @rule(which=ANY)
    def follower_commits(self, which):
        progress = self.copies.pop(which % len(self.copies))
        before = self.state
        following = self.world.files_from(progress.end)
        names_now = [row.name for row in self.world.files_from(progress.start) if row not in following]
        end = following[0].base if following else before.log_end_offset  # over blobs, and what was deleted
        alive = progress.log_dir_id in self.alive
        try:
            self.state = replication_rules.advance_follower(before, progress, names_now, end, alive=alive)
        except NotLeaderForPartitionError:
            return
        assert progress.leader_epoch == before.leader_epoch, "5: a lower leader epoch changes nothing"
        joined = self.state.isr - before.isr
        assert joined <= {progress.broker_id} if alive else not joined

    # Maintenance ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.rows and len(self.rewrites) < IN_FLIGHT_MAX)
    @rule(first=ANY, count=st.integers(1, 3), also=st.sets(BROKERS, max_size=1), at_once=st.booleans())
    def maintenance_writes(self, first, count, also, at_once):
        """Sealing, merging, compaction: any run of rows, also one above the high watermark."""
        first %= len(self.world.rows)
        run = tuple(self.world.rows[first : first + count])
        log_dirs = self.log_dirs(self.state.isr | also)
        records = tuple(record for row in run for record in self.world.content[row.name])
        name = self.world.write(records, log_dirs)
        self.rewrites.append(Rewrite(name, run, frozenset(log_dirs), self.state.partition_epoch))
        if at_once:
            self.maintenance_swaps(-1)

    @precondition(lambda self: self.rewrites)
    @rule(which=ANY)
    def maintenance_swaps(self, which):
        done = self.rewrites.pop(which % len(self.rewrites))
        start, end = done.run[0].base, done.run[-1].end
        if tuple(self.world.between(start, end)) != done.run:  # another process has rewritten it, or it is gone
            return
        after = replication_rules.rewrite(self.state, start, end, done.log_dirs, done.partition_epoch)
        if after is not None:
            assert end <= self.state.high_watermark, "an election may truncate above it"
            assert len(self.state.isr) >= min(self.state.min_insync_replicas, len(self.state.replicas))
            self.state = after
            self.world.swap(done.run, done.name)

    @precondition(lambda self: self.state.log_start_offset < self.state.high_watermark)
    @rule(count=st.integers(1, 3))
    def records_are_deleted(self, count):
        log_start = min(self.state.log_start_offset + count, self.state.high_watermark)
        self.state = self.state._replace(log_start_offset=log_start)
        self.world.delete_below(log_start)

    # Log dirs --------------------------------------------------------------------------------------------------------

    @rule(brokers=st.sets(BROKERS, min_size=1, max_size=3), noticed=st.booleans())
    def brokers_die(self, brokers, noticed):
        self.alive -= {log_dir_of(broker) for broker in brokers}
        if noticed:
            self.elect(self.alive, unclean=False)

    @precondition(lambda self: len(self.alive) < 4)
    @rule(brokers=st.sets(BROKERS, min_size=1))
    def brokers_return(self, brokers):
        """Their leases are fresh again; their log dirs were never seen to fail, so they are not inspected."""
        self.alive |= {log_dir_of(broker) for broker in brokers}

    @rule(broker=BROKERS, which=st.sampled_from([None, 0, 1, 2]), noticed=st.booleans())
    def log_dir_loses_files(self, broker, which, noticed):
        names = self.world.files[log_dir_of(broker)]
        if names:
            gone = set(names) if which is None else {sorted(names)[which % len(names)]}
            names -= gone
            self.gone |= gone
            self.lost.add(log_dir_of(broker))
            if noticed:
                self.controller_inspects_a_log_dir(broker)

    @rule(broker=BROKERS)
    def controller_inspects_a_log_dir(self, broker):
        """Inspection marks a log dir online: its replica ends at the first missing file, is fenced, then alive."""
        log_dir, state = log_dir_of(broker), self.state
        if state.replica(broker) is not None:
            here = self.world.files[log_dir]
            missing = [row.base for row in self.world.rows if not row.inline and row.name not in here]
            lowered = replication_rules.lose_files(state, broker, min(missing, default=state.log_end_offset))
            self.state = replication_rules.fence_writers(lowered)
            self.isr_lost |= bool(state.isr) and not self.state.isr
        self.lost.discard(log_dir)
        self.alive.add(log_dir)

    # The controller --------------------------------------------------------------------------------------------------

    @rule()
    def controller_changes(self):
        self.term += 1
        self.seen_before = set(self.alive)

    def may_act(self, term):
        """The guard, first in every transaction of a controller."""
        return term == self.term

    def act(self, late, decide):
        """A controller decides; a late one of the term before, by what it believed then."""
        before = self.state
        if self.may_act(self.term - late):
            decide(self.seen_before if late else self.alive)
        assert not late or self.state is before, "5: a stale controller changes nothing"

    @rule(late=SELDOM, unclean=SELDOM)
    def controller_elects(self, late, unclean):
        self.act(late, lambda alive: self.elect(alive, unclean))

    def elect(self, alive, unclean):
        before = self.state
        after, truncation = replication_rules.fail_over(before, alive, unclean=unclean)
        ready = {replica.broker_id for replica in before.replicas if replica.in_sync and replica.log_dir_id in alive}
        if ready:
            assert after.leader in ready, "who is in sync and alive can lead"
        else:
            assert after.leader is None or unclean or before.unclean_election
        self.state = after
        if truncation is not None:
            clean = after.leader in before.isr
            assert not clean or truncation.start_offset >= before.high_watermark
            self.truncate(truncation.start_offset, clean)

    def truncate(self, start: int, clean: bool):
        self.world.truncate(start)
        self.forget_batches(start)
        if not clean:
            self.acknowledged = {offset: r for offset, r in self.acknowledged.items() if offset < start}
            self.seen = {offset: r for offset, r in self.seen.items() if offset < start}
            self.floor = (min(self.floor[0], start), *self.floor[1:])

    def forget_batches(self, start: int):
        kept = tuple(batch for batch in self.producer.batches if batch.end_offset <= start)
        self.producer = replace(self.producer, batches=kept)

    @precondition(lambda self: self.state.leader not in (None, self.state.replicas[0].broker_id))
    @rule(late=SELDOM)
    def controller_elects_the_preferred_leader(self, late):
        def elect(alive):
            self.state = replication_rules.elect_preferred(self.state, alive)

        self.act(late, elect)

    @precondition(lambda self: any(replica.in_sync for replica in self.behind()))
    @rule(late=SELDOM, brokers=st.sets(BROKERS, min_size=1))
    def controller_takes_laggards_out(self, late, brokers):
        def take_out(_alive):
            self.state = replication_rules.shrink_isr(self.state, brokers)

        self.act(late, take_out)

    # Reassignment ----------------------------------------------------------------------------------------------------

    @rule(order=st.permutations([1, 2, 3, 4]), count=st.integers(1, 3), cleaned=st.booleans(), at_once=st.booleans())
    def reassignment_begins(self, order, count, cleaned, at_once):
        log_dirs = {broker: log_dir_of(broker) for broker in order}
        after, self.reassignment = reassignment_rules.begin(self.state, order[:count], log_dirs, self.reassignment)
        self.assign(after, cleaned)
        if at_once:
            self.controller_finishes_the_reassignment(late=False, cleaned=cleaned)

    @precondition(lambda self: self.reassignment)
    @rule(late=SELDOM, cleaned=st.booleans())
    def controller_finishes_the_reassignment(self, late, cleaned):
        def switch(alive):
            after = reassignment_rules.finish(self.state, self.reassignment, alive)
            if after is not None:
                self.assign(after, cleaned)
                self.reassignment = None

        self.act(late, switch)

    @precondition(lambda self: self.reassignment)
    @rule(cleaned=st.booleans())
    def reassignment_is_cancelled(self, cleaned):
        try:
            after = reassignment_rules.cancel(self.state, self.reassignment, self.alive)
        except InvalidReplicationAssignmentError:
            return
        self.assign(after, cleaned)
        self.reassignment = None

    def assign(self, after, cleaned):
        """The files of removed replicas are deleted now if `cleaned`, otherwise later."""
        for broker in {r.broker_id for r in self.state.replicas} - {r.broker_id for r in after.replicas}:
            self.lost.discard(log_dir_of(broker))
            if cleaned:
                self.world.files[log_dir_of(broker)].clear()
        self.state = after


ReplicatedPartition.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestReplicatedPartition = ReplicatedPartition.TestCase
