"""Runs polls of share groups: acknowledge, end locks, acquire.

Any process serves any member, in one transaction per poll. All functions block. Several polls may share a transaction:
they run one after the other on the same rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from spark_log.cluster.lease import Fence, unfenced
from spark_log.config import GroupConfig
from spark_log.errors import InvalidRecordStateError, SparkLogError, UnknownTopicOrPartitionError
from spark_log.errors.first_failure import FirstFailure
from spark_log.failpoints import failpoint
from spark_log.groups.share import rows, rules
from spark_log.groups.share.acquisition_rules import Request, Stretch, acquire, parts
from spark_log.groups.share.offers import Offer, offer_of, outdated
from spark_log.groups.share.rules import Acknowledgement, Change, Delayed, Limits, Range, Time
from spark_log.log.partitions.lineage import diverging_offset
from spark_log.log.partitions.partition_rows import Key
from spark_log.log.partitions.truncations import read_truncations
from spark_log.metadata.prepared import Answer, one_message, sent_with_commit
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock


@dataclass(frozen=True)
class Readable:
    """The records of a partition that a process has read, and the version of the log then (`LogFacts.version`)."""

    version: tuple[int, int]
    stretches: Sequence[Stretch]
    records: Sequence[pa.RecordBatch] = ()
    """The records of each stretch, with the columns of `read_schema`."""

    def records_of(self, ranges: Sequence[Range]) -> list[tuple[Range, pa.RecordBatch]]:
        """Return the records of acquired ranges, in order. A range may be in several parts."""
        parts = []
        for r in ranges:
            for stretch, records in zip(self.stretches, self.records, strict=True):
                first, end = max(r.first, stretch.first), min(r.end, stretch.end)
                if first < end:
                    low, high = (int(i) for i in np.searchsorted(stretch.offsets, (first, end)))
                    parts.append((r._replace(first=first, end=end), records.slice(low, high - low)))
        return parts


@dataclass(frozen=True)
class Poll:
    """One poll of a member. Acknowledgements and the end of locks come before the acquisition."""

    group_id: str
    member_id: str
    acknowledgements: Mapping[Key, Sequence[Acknowledgement]] = field(default_factory=dict)
    """All acknowledgements of a partition are applied, or none of them."""
    release: Mapping[Key, frozenset[int]] = field(default_factory=dict)
    """Locks to end, because the member closes."""
    readable: Mapping[Key, Readable] = field(default_factory=dict)
    """The partitions to acquire from, in the order of preference."""
    request: Request | None = None

    @property
    def keys(self) -> set[Key]:
        return {*self.acknowledgements, *self.release, *self.readable}


@dataclass
class Outcome:
    """The result of a poll."""

    errors: dict[Key, SparkLogError | None] = field(default_factory=dict)
    """For each partition with acknowledgements: None, InvalidRecordStateError or UnknownTopicOrPartitionError."""
    acquired: dict[Key, tuple[Range, ...]] = field(default_factory=dict)
    stale: set[Key] = field(default_factory=set)
    """Partitions that must be read again, because an election or a rewrite came between."""
    lock_ms: int = 0
    """The duration of the locks."""
    archived: set[Key] = field(default_factory=set)
    """Partitions in which this transaction archived records, which wait for their dead letters."""
    offers: dict[Key, Offer] = field(default_factory=dict)
    """The offers of the partitions of the poll after the transaction, without the times and offsets of delayed
    records.
    """


def run_polls(store: Store, polls: Sequence[Poll], fence: Fence = unfenced) -> list[Outcome]:
    """Run polls of any groups and members in one transaction, one after the other, and return their outcomes.

    With acknowledgements the commit is forced to disk. An acquisition alone is not: a power cut can lose only locks,
    and their records are then delivered again. Raises the errors of `fence`.
    """
    durable = any(poll.acknowledgements for poll in polls)

    def body(connection: sa.Connection) -> _Transaction:
        transaction = _Transaction(store, connection, polls)
        transaction.read()
        for poll in polls:
            transaction.run(poll)
        transaction.write()
        return transaction

    done = store.transact(body, fence=fence, durable=durable)
    if done.became_available:
        store.changes.announce()
    failpoint("share.acknowledged" if durable else "share.acquired")
    return done.outcomes


_IDLE_MAX = 100
"""The number of partitions that one transaction of `end_idle_locks` handles."""


def end_idle_locks(store: Store, fence: Fence = unfenced) -> int:
    """Do for groups that no member polls what each poll does first: end locks by time, and drop records that retention
    has removed. Returns the number of partitions. Raises the errors of `fence`, and the first error of a partition at
    the end.
    """
    places = store.read(lambda connection: outdated(connection, store.clock(connection)))
    polls = [Poll(group_id, "", release={key: frozenset()}) for group_id, key in places]
    with FirstFailure() as failure:
        for first in range(0, len(polls), _IDLE_MAX):
            part = polls[first : first + _IDLE_MAX]
            try:
                run_polls(store, part, fence)
            except SparkLogError:
                raise
            except Exception:  # the row of a partition is damaged
                for poll in part:
                    with failure.attempt():
                        run_polls(store, [poll], fence)
    return len(places)


@dataclass
class _Work:
    """A partition in the transaction: its row as it changes, and changes of delayed records."""

    row: rows.ShareRow
    stored: rows.ShareRow
    log: rows.LogFacts
    due: list[Delayed]
    first_delayed: int | None
    """The first offset of a delayed record, as stored."""
    delayed: list[Delayed] = field(default_factory=list)
    came_due: list[int] = field(default_factory=list)
    truncated: bool = False
    """Whether an election has removed records, so that the group goes on below the offsets that were read."""

    @property
    def archived(self) -> bool:
        return self.row.window.archiving > self.stored.window.archiving


class _Transaction:
    def __init__(self, store: Store, connection: sa.Connection, polls: Sequence[Poll]) -> None:
        self.store, self.connection, self.polls = store, connection, polls
        self.outcomes: list[Outcome] = []
        self.became_available = False
        self._work: dict[tuple[str, Key], _Work] = {}
        self._configs: dict[str, GroupConfig] = {}
        self._now: StoreClock

    def read(self) -> None:
        """Lock the rows of all polls, and read what the rules need, in one message."""
        places = sorted({(poll.group_id, key) for poll in self.polls for key in poll.keys})
        acquiring = {(poll.group_id, key) for poll in self.polls for key in poll.readable}
        asked: dict[tuple[str, Key], tuple[Answer, Answer, Answer, Answer | None]] = {}
        about_ms = self.store.now().wall_ms
        with one_message(self.connection):
            clock = self.store.ask_clock(self.connection)
            configs = {
                group_id: rows.ask_configs(self.connection, group_id) for group_id in {p.group_id for p in self.polls}
            }
            for group_id, key in places:
                asked[group_id, key] = (
                    rows.ask_row(self.connection, group_id, key, lock=True),
                    rows.ask_log(self.connection, key),
                    rows.ask_first_delayed(self.connection, group_id, key),
                    rows.ask_due(self.connection, group_id, key, about_ms) if (group_id, key) in acquiring else None,
                )
        self._now = clock()
        settings = self.store.settings
        self._configs = {group_id: rows.configs_of(answer, settings) for group_id, answer in configs.items()}
        for (group_id, key), (row_answer, log_answer, first_answer, due_answer) in asked.items():
            row, log = rows.row_of(row_answer, group_id, key, self._now), rows.log_of(log_answer)
            first_delayed = rows.first_delayed_of(first_answer)
            due = [] if due_answer is None else rows.due_of(due_answer)
            if row is not None and log is not None:
                self._work[group_id, key] = work = _Work(row, row, log, due, first_delayed)
                self._follow_log(work, self._limits(group_id))

    def _limits(self, group_id: str) -> Limits:
        return rows.limits_of(self._configs[group_id])

    @property
    def _time(self) -> Time:
        return Time(self._now.lease_ms, self._now.wall_ms)

    def _follow_log(self, work: _Work, limits: Limits) -> None:
        """Apply elections that truncated the log, and retention. Then end locks by time."""
        row, log = work.row, work.log
        if log.leader_epoch != row.leader_epoch:
            cuts = read_truncations(self.connection, [row.key]).get(row.key, [])
            end = diverging_offset(row.window.next, row.leader_epoch, cuts)
            if end is not None:
                work.truncated = True
                row = replace(row, window=rules.truncate(row.window, end))
                dropped = rows.drop_delays(self.connection, row.group_id, row.key, above=end)
                row = rows.with_delays_dropped(row, dropped, expired=False)
                work.due = [entry for entry in work.due if entry.offset < end]
            row = replace(row, leader_epoch=log.leader_epoch)
        clipped = rules.clip(row.window, log.log_start_offset)
        row = replace(row, window=clipped.window, expired=row.expired + clipped.expired)
        # The start may be above delayed records: the window does not show that they are gone.
        if work.first_delayed is not None and work.first_delayed < log.log_start_offset:
            dropped = rows.drop_delays(self.connection, row.group_id, row.key, below=log.log_start_offset)
            row = rows.with_delays_dropped(row, dropped, expired=True)
            work.due = [entry for entry in work.due if entry.offset >= log.log_start_offset]
        if not limits.dead_letters and row.window.archiving:
            row = replace(row, window=rules.forget_archiving(row.window).window)
        work.row = row
        ended = rules.lapse(row.window, limits, self._time)
        self._apply(work, ended)

    def _apply(self, work: _Work, change: Change) -> None:
        work.row = replace(work.row, window=change.window, lock_timeouts=work.row.lock_timeouts + change.ended)
        work.delayed += change.delayed
        self.became_available |= change.became_available

    def run(self, poll: Poll) -> None:
        """Run a poll on the locked rows."""
        outcome = Outcome(lock_ms=self._limits(poll.group_id).lock_ms)
        self.outcomes.append(outcome)
        limits = self._limits(poll.group_id)
        for key, acknowledgements in poll.acknowledgements.items():
            outcome.errors[key] = self._acknowledge(poll, key, acknowledgements, limits)
        for key, locks in poll.release.items():
            if (work := self._work.get((poll.group_id, key))) is not None:
                self._apply(work, rules.release(work.row.window, poll.member_id, locks, limits, self._time))
        if poll.request is not None:
            self._acquire(poll, poll.request, limits, outcome)

    def _acknowledge(
        self, poll: Poll, key: Key, acknowledgements: Sequence[Acknowledgement], limits: Limits
    ) -> SparkLogError | None:
        work = self._work.get((poll.group_id, key))
        if work is None:
            return UnknownTopicOrPartitionError(f"group {poll.group_id!r} reads no such partition, or it was deleted")
        try:
            change = rules.acknowledge(work.row.window, acknowledgements, work.log.log_start_offset, limits, self._time)
        except InvalidRecordStateError as error:
            return error
        self._apply(work, change)
        return None

    def _acquire(self, poll: Poll, request: Request, limits: Limits, outcome: Outcome) -> None:
        left = request
        for key, readable in poll.readable.items():
            work = self._work.get((poll.group_id, key))
            if work is None or work.truncated or work.log.version != readable.version:
                outcome.stale.add(key)
                continue
            gained = acquire(work.row.window, readable.stretches, work.due, left, limits, self._time)
            work.row = replace(work.row, window=gained.window)
            work.delayed += gained.delayed
            work.came_due += gained.came_due
            work.due = [entry for entry in work.due if entry.offset not in set(gained.came_due)]
            if gained.acquired:
                outcome.acquired[key] = gained.acquired
                records = sum(r.length for r in gained.acquired)
                left = replace(
                    left, records_max=left.records_max - records, bytes_max=left.bytes_max - gained.bytes, has_some=True
                )
                alone = any(parts(r.batch, r.deliveries - 1, limits) for r in gained.acquired)
                if alone or left.records_max <= 0 or left.bytes_max <= 0:
                    break

    def write(self) -> None:
        changed = [work for work in self._work.values() if work.row != work.stored or work.delayed or work.came_due]
        for work in changed:
            room = self._limits(work.row.group_id).record_locks
            self.became_available |= work.stored.window.unfinished >= room > work.row.window.unfinished
        for poll, outcome in zip(self.polls, self.outcomes, strict=True):
            outcome.archived = {work.row.key for work in changed if work.archived and work.row.key in poll.keys}
            mine = {key: self._work[poll.group_id, key] for key in poll.readable if (poll.group_id, key) in self._work}
            outcome.offers = {key: offer_of(work.row, work.log, self._now) for key, work in mine.items()}
        with sent_with_commit(self.connection):
            rows.save(self.connection, [work.row for work in changed], self._now)
            for work in changed:
                rows.end_delays(self.connection, work.row.group_id, work.row.key, work.came_due)
                rows.delay(self.connection, work.row.group_id, work.row.key, work.delayed)
