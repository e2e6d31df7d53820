"""The polls of members in one process: choose partitions, read them, and acquire in one transaction."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.errors import SparkLogError, UnknownTopicOrPartitionError
from spark_log.groups.share import rows
from spark_log.groups.share.reading import ShareReads, near
from spark_log.groups.share.rules import AVAILABLE, Acknowledgement, Delayed, Range, Request
from spark_log.groups.share.service import (
    Look,
    Outcome,
    Poll,
    Readable,
    has_work,
    look,
    next_change_ms,
    run_polls,
)
from spark_log.log.partitions.partition_rows import Key
from spark_log.metadata.store import Store

_PARTITIONS_MAX = 16
"""The largest number of partitions that one poll acquires from."""
_DUE_MAX = 500
_WAIT_S_MAX = 5.0


@dataclass(frozen=True)
class Taken:
    """Acquired records of a partition: their ranges, each with its records as in `read_schema`."""

    key: Key
    parts: Sequence[tuple[Range, pa.RecordBatch]]


@dataclass(frozen=True)
class Result:
    """The result of a poll. `errors` has each partition with acknowledgements: None, or why none was applied."""

    errors: Mapping[Key, SparkLogError | None] = field(default_factory=dict)
    taken: Sequence[Taken] = ()
    lock_ms: int = 0
    archiving: frozenset[Key] = frozenset()


Run = Callable[[Poll], Outcome]


class SharePolls:
    """Polls for members of share groups. Safe to share between threads."""

    def __init__(self, cluster: Cluster, reads: ShareReads, run: Run | None = None) -> None:
        """`run` runs a poll; by default in a transaction of its own."""
        self._store: Store = cluster.store
        self._reads = reads
        self._run = run or (lambda poll: run_polls(cluster.store, [poll])[0])
        self._turns: dict[str, int] = {}
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
        waiting = dict(acknowledgements or {})
        while True:
            changes = self._store.changes.current()
            seen = look(self._store, group_id)
            readable = self._readable(group_id, seen, request, assigned)
            if readable or waiting:
                poll = Poll(group_id, request.member, waiting, {}, readable, request)
                outcome = self._run(poll)
                errors |= outcome.errors
                waiting = {}
                for key in outcome.stale:
                    self._reads.forget(key)
                if outcome.acquired:
                    return _result(poll, outcome, errors)
                if readable:
                    if outcome.stale:
                        continue
                    seen = look(self._store, group_id)
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0 or stopped() or (errors and not timeout_s):
                return Result(errors, lock_ms=seen.config.share_record_lock_duration_ms)
            wake_ms = next_change_ms(seen)
            wait_s = min(left_s, _WAIT_S_MAX, *([] if wake_ms is None else [wake_ms / 1000 + 0.001]))
            self._store.changes.wait(changes, max(0.0005, wait_s))

    def acknowledge(
        self,
        group_id: str,
        member_id: str,
        acknowledgements: Mapping[Key, Sequence[Acknowledgement]],
        release: Mapping[Key, frozenset[int]] | None = None,
    ) -> Result:
        """Acknowledge, and with `release` end locks of the member, which closes."""
        if not acknowledgements and not release:
            return Result()
        outcome = self._run(Poll(group_id, member_id, acknowledgements, release or {}))
        return Result(outcome.errors, (), outcome.lock_ms, frozenset(outcome.archiving))

    def _readable(
        self, group_id: str, seen: Look, request: Request, assigned: Mapping[Key, str]
    ) -> dict[Key, Readable]:
        """Read partitions that have records for the member, beginning at its turn, until they offer enough."""
        limits = rows.limits_of(seen.config)
        keys = sorted(key for key in assigned if key in seen.offers)
        if not keys:
            return {}
        with self._lock:
            turn = self._turns.get(request.member, hash(request.member))
            self._turns[request.member] = turn + 1
        begin = turn % len(keys)
        found: dict[Key, Readable] = {}
        records = 0
        for key in [*keys[begin:], *keys[:begin]]:
            offer = seen.offers[key]
            if not has_work(offer, seen.now, limits):
                continue
            try:
                found[key] = self._read(group_id, key, assigned[key], offer, seen, limits.record_locks, request)
            except UnknownTopicOrPartitionError:
                continue  # the next heartbeat brings an assignment without it
            records += (
                offer.available + len(seen.due.get(key, ())) + max(0, offer.log.high_watermark - offer.next_offset)
            )
            if records >= request.records_max or len(found) == _PARTITIONS_MAX:
                break
        return found

    def _read(
        self, group_id: str, key: Key, name: str, offer: rows.Offer, seen: Look, locks: int, request: Request
    ) -> Readable:
        needs: list[tuple[int, int]] = []
        ended = offer.wake_ms is not None and seen.now.expired(offer.wake_ms, offer.clock_epoch)
        if offer.available or ended:
            needs += self._available(group_id, key, request)
        due: Sequence[Delayed] = seen.due.get(key, ())
        needs += [(entry.offset, entry.offset + 1) for entry in due[:_DUE_MAX]]
        log_start, high_watermark = offer.log.log_start_offset, offer.log.high_watermark
        needs = [(max(first, log_start), min(end, high_watermark)) for first, end in near(needs)]
        needs = [(first, end) for first, end in needs if first < end]
        if offer.unfinished < locks and offer.next_offset < high_watermark:
            needs.append((max(offer.next_offset, log_start), high_watermark))
        elif needs:
            needs.append((needs[-1][1], needs[-1][1]))  # nothing more is read
        return self._reads.readable(key, name, offer.log.version, needs, offer.start_offset)

    def _available(self, group_id: str, key: Key, request: Request) -> list[tuple[int, int]]:
        """Return Available ranges, and those whose locks ended, as many as one poll takes."""

        def read(connection: object) -> rows.ShareRow | None:
            now = self._store.clock(connection)  # type: ignore[arg-type]
            return rows.row_of(rows.ask_row(connection, group_id, key, lock=False), group_id, key, now)  # type: ignore[arg-type]

        row = self._store.read(read)
        now = self._store.now()
        found, records = [], 0
        for r in () if row is None else row.window.ranges:
            if r.lock == AVAILABLE or (r.lock > 0 and r.until_ms <= now.lease_ms):
                found.append((r.first, min(r.end, r.first + request.records_max)))
                records += r.length
                if records >= request.records_max:
                    break
        return found


def _result(poll: Poll, outcome: Outcome, errors: Mapping[Key, SparkLogError | None]) -> Result:
    taken = [Taken(key, poll.readable[key].records_of(ranges)) for key, ranges in outcome.acquired.items()]
    return Result(errors, taken, outcome.lock_ms, frozenset(outcome.archiving))
