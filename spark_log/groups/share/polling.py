"""Runs the polls of members in one process: chooses partitions, reads them, and acquires in one transaction."""

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.errors import MetadataStoreUnavailableError, SparkLogError, UnknownTopicOrPartitionError, redact
from spark_log.groups.share import rows
from spark_log.groups.share.acquisition_rules import Request
from spark_log.groups.share.dead_letters import DeadLetters
from spark_log.groups.share.looks import Look, Looks, Seen, has_work, next_change_ms
from spark_log.groups.share.offers import Offer
from spark_log.groups.share.reading import ShareReads, near
from spark_log.groups.share.rules import AVAILABLE, Acknowledgement, Delayed, Range
from spark_log.groups.share.service import Outcome, Poll, Readable, run_polls
from spark_log.log.partitions.partition_rows import Key
from spark_log.metadata.store import Store

logger = logging.getLogger(__name__)

_PARTITIONS_MAX = 16
"""The largest number of partitions that one poll acquires from."""
_AVAILABLE_MAX = 1_000
"""The number of Available records that are read at once, even if a poll takes fewer."""
_WAIT_S_MAX = 5.0
_TURNS_MAX = 10_000
"""The number of members whose turn is remembered: those that polled last."""
_WARN_S = 60.0


@dataclass(frozen=True)
class Taken:
    """Acquired records of a partition: their ranges, each with its records as in `read_schema`."""

    key: Key
    parts: Sequence[tuple[Range, pa.RecordBatch]]
    leader_epoch: int = 0


@dataclass(frozen=True)
class Result:
    """The result of a poll. `errors` has each partition with acknowledgements: None, or why none was applied."""

    errors: Mapping[Key, SparkLogError | None] = field(default_factory=dict)
    taken: Sequence[Taken] = ()
    lock_ms: int = 0
    wait_ms: int | None = None
    """In how many milliseconds the first lock ends, or a delayed record is due. None if there is neither."""
    began_s: float = 0.0
    """When the transaction began, by this process's monotonic clock: the locks last from then on, or longer."""
    unread: frozenset[Key] = frozenset()
    """Assigned partitions that the group does not read: no heartbeat has made their rows, or they were deleted."""
    archived: frozenset[Key] = frozenset()
    """Partitions in which the poll archived records, which wait for their dead letters."""


Run = Callable[[Poll], Outcome]
T = TypeVar("T")
Steps = Generator[Poll | None, Outcome | None, T]
"""A generator of the steps of a poll. It yields a Poll that must run in a transaction, and gets its outcome or its
error. It yields None before it blocks for another reason: it reads the store or log files. In between it only computes.
"""


def run_steps(steps: Steps[T], run: Run) -> T:
    """Take all steps in this thread, and return their result."""
    try:
        step = next(steps)
        while True:
            if step is None:
                step = next(steps)
                continue
            try:
                outcome = run(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(outcome)
    except StopIteration as end:
        result: T = end.value
        return result


class SharePolls:
    """Polls for members of share groups. Safe to share between threads."""

    def __init__(
        self, cluster: Cluster, reads: ShareReads, run: Run | None = None, dead_letters: DeadLetters | None = None
    ) -> None:
        """`run` executes the polls of `poll`, `attempt` and `acknowledge`; by default, each in a transaction. Without
        `dead_letters`, other processes write them.
        """
        self._store: Store = cluster.store
        self._reads = reads
        self._transact = run or (lambda poll: run_polls(cluster.store, [poll])[0])
        self._dead_letters = dead_letters
        self._looks = Looks(cluster.store)
        self._turns: dict[str, int] = {}
        self._warned_s: dict[Key, float] = {}
        self._lock = threading.Lock()

    def poll(
        self,
        group_id: str,
        request: Request,
        assigned: Mapping[Key, str],
        acknowledgements: Mapping[Key, Sequence[Acknowledgement]] | None = None,
        timeout_s: float = 0.0,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Result:
        """Acknowledge, then acquire records of the `assigned` partitions, whose topics' names are given. Waits up to
        `timeout_s` until there are some. Raises the errors of the store, and of reading.
        """
        deadline_s = clock.monotonic_s() + timeout_s
        errors: dict[Key, SparkLogError | None] = {}
        waiting, result = dict(acknowledgements or {}), Result()
        while True:
            changes = self._store.changes.current()
            try:
                result = self.attempt(group_id, request, assigned, waiting)
            except SparkLogError:
                if not errors:
                    raise
                return replace(result, errors=errors)
            errors |= result.errors
            waiting = {}
            left_s = deadline_s - clock.monotonic_s()
            if result.taken or left_s <= 0 or stopped():
                return replace(result, errors=errors)
            wait_s = min(left_s, _WAIT_S_MAX, *([] if result.wait_ms is None else [result.wait_ms / 1000 + 0.001]))
            self._store.changes.wait(changes, max(0.0005, wait_s))

    def attempt(
        self,
        group_id: str,
        request: Request,
        assigned: Mapping[Key, str],
        acknowledgements: Mapping[Key, Sequence[Acknowledgement]],
    ) -> Result:
        """Poll once, without waiting. `Result.wait_ms` says when the next one may find records, unless the store
        changes before. An error after the acknowledgements were applied is not raised: the next poll meets it.
        """
        return self._run(group_id, self.steps(group_id, request, assigned, acknowledgements))

    def acknowledge(
        self,
        group_id: str,
        member_id: str,
        acknowledgements: Mapping[Key, Sequence[Acknowledgement]],
        release: Mapping[Key, frozenset[int]] | None = None,
    ) -> Result:
        """Acknowledge. With `release`, also end these locks of the member, because it closes."""
        return self._run(group_id, self.acknowledgement(group_id, member_id, acknowledgements, release))

    def _run(self, group_id: str, steps: Steps[Result]) -> Result:
        result = run_steps(steps, self._transact)
        self.write_letters(group_id, result.archived)
        return result

    def write_letters(self, group_id: str, keys: Iterable[Key]) -> None:
        """Write the dead letters of partitions in which a poll has archived records."""
        if self._dead_letters is not None:
            for key in sorted(keys):
                self._dead_letters.write(group_id, key)

    def acknowledgement(
        self,
        group_id: str,
        member_id: str,
        acknowledgements: Mapping[Key, Sequence[Acknowledgement]],
        release: Mapping[Key, frozenset[int]] | None = None,
    ) -> Steps[Result]:
        """Take the steps of `acknowledge`, without writing dead letters."""
        if not acknowledgements and not release:
            return Result()
        outcome = yield Poll(group_id, member_id, acknowledgements, release or {})
        assert outcome is not None
        return Result(outcome.errors, (), outcome.lock_ms, archived=frozenset(outcome.archived))

    def steps(
        self,
        group_id: str,
        request: Request,
        assigned: Mapping[Key, str],
        acknowledgements: Mapping[Key, Sequence[Acknowledgement]],
    ) -> Steps[Result]:
        """Take the steps of `attempt`, without writing dead letters."""
        errors: dict[Key, SparkLogError | None] = {}
        waiting, archived, lock_ms = dict(acknowledgements), frozenset[Key](), 0
        before = self._looks.left_by_last_poll(group_id)
        seen: Seen | None
        try:
            while True:
                seen = before or self._looks.shared(group_id, assigned)
                if seen is None:
                    yield None
                    seen = self._look(group_id)
                readable: dict[Key, Readable] = {}
                try:
                    if request.records_max > 0:
                        readable = yield from self._readable(group_id, seen.look, request, assigned)
                except SparkLogError:
                    if not waiting:  # acknowledgements do not need the partitions' records
                        raise
                if readable or waiting:
                    poll = Poll(group_id, request.member, waiting, {}, readable, request if readable else None)
                    began_s = clock.monotonic_s()
                    outcome = yield poll
                    assert outcome is not None
                    errors |= outcome.errors
                    waiting, lock_ms, archived = {}, outcome.lock_ms, archived | outcome.archived
                    for key in outcome.stale:
                        self._reads.forget(key)
                    if outcome.acquired:
                        self._looks.note_poll(group_id, seen, outcome)
                        taken = _taken(poll, outcome)
                        return Result(errors, taken, lock_ms, began_s=began_s, archived=archived)
                    if outcome.stale and before is None:
                        continue
                if before is not None:
                    before = None
                    continue
                if readable:
                    yield None
                    seen = self._look(group_id)
                found = seen.look
                lock_ms, unread = found.config.share_record_lock_duration_ms, assigned.keys() - found.offers.keys()
                wait_ms = next_change_ms(found, assigned)
                if wait_ms is not None:
                    wait_ms = max(0, wait_ms - int(1000 * (clock.monotonic_s() - seen.looked_s)))
                return Result(errors, (), lock_ms, wait_ms, unread=frozenset(unread), archived=archived)
        except SparkLogError:
            if not errors:
                raise
            return Result(errors, (), lock_ms, archived=archived)

    def look(self, group_id: str) -> Look:
        """Read what a poll of the group may find. The next polls use it too if nothing is committed meanwhile."""
        return self._look(group_id).look

    def _look(self, group_id: str) -> Seen:
        seen = self._looks.new(group_id)
        self._write_letters_of_others(group_id, seen.look)
        return seen

    def _write_letters_of_others(self, group_id: str, seen: Look) -> None:
        """Write dead letters that the process which archived their records has not written within a second."""
        if self._dead_letters is not None and seen.config.errors_deadletterqueue_topic_name:
            for key, offer in seen.offers.items():
                if offer.archiving and self._dead_letters.is_due(group_id, key):
                    self._dead_letters.write(group_id, key)

    def _readable(
        self, group_id: str, seen: Look, request: Request, assigned: Mapping[Key, str]
    ) -> Steps[dict[Key, Readable]]:
        """Read partitions that have records for the member, until they offer enough. Only if no other partition has
        records, wait for those that other threads read, or raise the error of one that cannot be read.
        """
        limits = rows.limits_of(seen.config)
        readable: dict[Key, Readable] = {}
        failed: SparkLogError | None = None
        records = 0
        later: list[Key] = []
        keys = self._in_turn(request.member, [key for key in assigned if key in seen.offers])
        keys = [key for key in keys if has_work(seen.offers[key], seen.now, limits)]
        for position, key in enumerate([*keys, *keys]):
            if position >= len(keys) and (readable or key not in later):
                continue  # the second round is for what other threads read, if there is nothing else
            offer = seen.offers[key]
            read = partial(self._read, group_id, key, assigned[key], offer, seen, limits.record_locks, request)
            try:
                ready = read(at_once=True)
                if ready is None:
                    if position < len(keys) and self._reads.is_being_read(key):
                        later.append(key)
                        continue
                    yield None
                    ready = read(at_once=False)
                    assert ready is not None
                readable[key] = ready
            except UnknownTopicOrPartitionError:
                continue  # the next heartbeat brings an assignment without it
            except MetadataStoreUnavailableError:
                raise
            except SparkLogError as error:
                self._warn(group_id, key, error)
                failed = error
                continue
            records += (
                offer.available + len(seen.due.get(key, ())) + max(0, offer.log.high_watermark - offer.next_offset)
            )
            if records >= request.records_max or len(readable) == _PARTITIONS_MAX:
                break
        if failed is not None and not readable:
            raise failed
        return readable

    def _in_turn(self, member: str, keys: Iterable[Key]) -> list[Key]:
        """Return the sorted partitions, rotated by one more for each poll of the member."""
        ordered = sorted(keys)
        with self._lock:
            turn = self._turns.pop(member, hash(member))
            self._turns[member] = turn + 1
            if len(self._turns) > _TURNS_MAX:
                self._turns.pop(next(iter(self._turns)))
        begin = turn % len(ordered) if ordered else 0
        return [*ordered[begin:], *ordered[:begin]]

    def _warn(self, group_id: str, key: Key, error: SparkLogError) -> None:
        now_s = clock.monotonic_s()
        if now_s - self._warned_s.get(key, -_WARN_S) >= _WARN_S:
            self._warned_s[key] = now_s
            logger.warning("share group %r: partition %s cannot be read: %s", group_id, key, redact(str(error)))

    def _read(
        self, group_id: str, key: Key, name: str, offer: Offer, seen: Look, locks: int, request: Request,
        *, at_once: bool,
    ) -> Readable | None:  # fmt: skip
        """Read the records that a poll may acquire. With `at_once` it returns None if that may take long."""
        needs: list[tuple[int, int]] = []
        ended = offer.wake_ms is not None and seen.now.expired(offer.wake_ms, offer.clock_epoch)
        if offer.available or ended:
            if at_once:
                return None
            needs += self._available(group_id, key, request)
        due: Sequence[Delayed] = seen.due.get(key, ())
        needs += [(entry.offset, entry.offset + 1) for entry in due]
        log_start, high_watermark = offer.log.log_start_offset, offer.log.high_watermark
        needs = [(max(first, log_start), min(end, high_watermark)) for first, end in near(needs)]
        needs = [(first, end) for first, end in needs if first < end]
        if offer.unfinished < locks and offer.next_offset < high_watermark:
            needs.append((max(offer.next_offset, log_start), high_watermark))
        elif needs:
            needs.append((needs[-1][1], needs[-1][1]))  # nothing more is read
        if at_once:
            return self._reads.readable_at_once(key, offer.log.version, needs, offer.start_offset)
        return self._reads.readable(key, name, offer.log.version, needs, offer.start_offset)

    def _available(self, group_id: str, key: Key, request: Request) -> list[tuple[int, int]]:
        """Return ranges that are Available or whose locks ended, with enough records for one poll."""

        def read(connection: object) -> rows.ShareRow | None:
            now = self._store.clock(connection)  # type: ignore[arg-type]
            return rows.row_of(rows.ask_row(connection, group_id, key, lock=False), group_id, key, now)  # type: ignore[arg-type]

        row = self._store.read(read)
        now = self._store.now()
        available, records = [], 0
        for r in () if row is None else row.window.ranges:
            if r.lock == AVAILABLE or (r.lock > 0 and r.until_ms <= now.lease_ms):
                available.append((r.first, r.end))
                records += r.length
                if records >= max(request.records_max, _AVAILABLE_MAX):
                    break
        return available


def _taken(poll: Poll, outcome: Outcome) -> list[Taken]:
    return [
        Taken(key, poll.readable[key].records_of(ranges), poll.readable[key].version[0])
        for key, ranges in outcome.acquired.items()
    ]
