"""Keeps the share sessions (KIP-932) of the members that fetch from a gateway.

A session has the partitions of its member and the records that it acquired, with the numbers of their locks. An
acknowledgement on the wire has offsets only: it gets its lock here. A gateway that was suspended therefore acts under
old lock numbers, which the store refuses.
"""

import asyncio
import bisect
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.config.values import can_be_stored
from spark_log.errors import InvalidRecordStateError, SparkLogError, UnknownTopicOrPartitionError, redact
from spark_log.gateway.change_watch import ChangeWatch
from spark_log.gateway.limits.bulkheads import Bulkheads, Lane
from spark_log.gateway.limits.memory_budget import Hold, MemoryBudget
from spark_log.gateway.protocol.error_codes import NONE
from spark_log.gateway.shares.group_watches import GroupWatches
from spark_log.gateway.shares.polls_together import PollsTogether
from spark_log.groups.share.dead_letters import DeadLetters
from spark_log.groups.share.polling import SharePolls, Taken
from spark_log.groups.share.reading import ShareReads
from spark_log.groups.share.rules import Acknowledgement, AcknowledgeType, Range
from spark_log.groups.share.start_lookups import StartLookups
from spark_log.log.log import Log
from spark_log.log.partitions.partition_rows import Key

logger = logging.getLogger(__name__)

INITIAL, FINAL = 0, -1
"""Session epochs that open and close a session."""
INVALID_REQUEST, SESSION_NOT_FOUND, INVALID_SESSION_EPOCH, SESSION_LIMIT_REACHED = 42, 122, 123, 133
CHARACTERS_MAX = 249
"""The largest length of the ids of a group and of a member."""
_EPOCH_MAX = 2**31 - 1
_PLACE_BYTES = 400
"""The memory that a session needs for a partition, also for a missing one."""
_HELD_MAX = 20_000
"""The number of ranges of a partition that a session remembers. Older ones have no lock any more."""


class SessionError(Exception):
    """A request that does not fit its session; `code` is Kafka's error code."""

    def __init__(self, code: int) -> None:
        super().__init__(str(code))
        self.code = code


def check_ids(group_id: str | None, member_id: str | None) -> None:
    """Refuse invalid ids, because a gateway keeps the ids as long as their session. Raises SessionError."""
    for each in (group_id, member_id):
        if not each or len(each) > CHARACTERS_MAX or not can_be_stored(each):
            raise SessionError(INVALID_REQUEST)


class Place(NamedTuple):
    """A partition of a session."""

    key: Key
    topic: str
    topic_id: Any
    """Kafka's topic id."""


class Held(NamedTuple):
    """Acquired records with `first` <= offset < `end`, and the number of their lock."""

    first: int
    end: int
    lock: int


@dataclass
class HeldRecords:
    """The acquired records of a partition: sorted ranges, which do not overlap."""

    ranges: list[Held] = field(default_factory=list)
    end: int = 0
    """The end of all records that were acquired so far."""

    def add(self, acquired: Iterable[Range]) -> None:
        for r in acquired:
            self.remove(r.first, r.end)
            bisect.insort(self.ranges, Held(r.first, r.end, r.lock))
            self.end = max(self.end, r.end)
        if len(self.ranges) > _HELD_MAX:
            self.ranges = sorted(sorted(self.ranges, key=lambda held: held.lock)[-_HELD_MAX:])

    def remove(self, first: int, end: int, lock: int | None = None) -> None:
        """Remove records with `first` <= offset < `end`, or only those of them that have this lock."""
        at = max(0, bisect.bisect_right(self.ranges, (first,)) - 1)
        kept: list[Held] = []
        stop = at
        while stop < len(self.ranges) and self.ranges[stop].first < end:
            held = self.ranges[stop]
            if lock in (None, held.lock):
                parts = held._replace(end=min(held.end, first)), held._replace(first=max(held.first, end))
                kept += [part for part in parts if part.first < part.end]
            else:
                kept.append(held)
            stop += 1
        self.ranges[at:stop] = kept

    def locks_of(self, first: int, end: int) -> list[Held]:
        """Return the parts of the ranges that cover these offsets. Raises InvalidRecordStateError for a gap."""
        at = max(0, bisect.bisect_right(self.ranges, (first, _EPOCH_MAX << 32)) - 1)
        parts: list[Held] = []
        position = first
        while position < end:
            if at >= len(self.ranges) or not self.ranges[at].first <= position < self.ranges[at].end:
                raise InvalidRecordStateError("The offset cannot be acknowledged. The offset is not acquired.")
            stop = min(end, self.ranges[at].end)
            parts.append(Held(position, stop, self.ranges[at].lock))
            position, at = stop, at + 1
        return parts


@dataclass
class Session:
    group_id: str
    member_id: str
    connection_id: str
    memory: Hold
    """The memory of its partitions."""
    epoch: int = 1
    """The epoch of the next request."""
    places: dict[Key, Place] = field(default_factory=dict)
    held: dict[Key, HeldRecords] = field(default_factory=dict)
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while `held` or `ended` changes: records are added by the thread that has acquired them."""
    numbers: dict[tuple[Any, int], Key] = field(default_factory=dict)
    """The keys of the partitions by Kafka's topic id and partition number."""
    missing: set[tuple[Any, int]] = field(default_factory=set)
    """The partitions, by topic id and number, that did not exist, or that the client could not read."""

    def add_places(self, places: Mapping[Key, Place]) -> None:
        self.places |= places
        self.numbers |= {(place.topic_id, key[1]): key for key, place in places.items()}

    def takes_memory(self, new_places: int) -> bool:
        """Hold memory for the partitions of the session and new ones. Return False if there is not enough."""
        size = (len(self.places) + len(self.missing) + new_places) * _PLACE_BYTES
        if size <= self.memory.bytes:
            self.memory.set(size)
        return self.ended or self.memory.more_at_once(size - self.memory.bytes)

    def remove_places(self, forgotten: Iterable[tuple[Any, int]]) -> None:
        """Forget partitions, given by topic id and number."""
        for each in forgotten:
            self.missing.discard(each)
            if (key := self.numbers.pop(each, None)) is not None:
                self.places.pop(key, None)

    def take(self, taken: Iterable[Taken]) -> bool:
        """Note acquired records. Return False if the session has ended: then no client gets them."""
        with self.lock:
            if not self.ended:
                for each in taken:
                    self.held.setdefault(each.key, HeldRecords()).add(r for r, _ in each.parts)
            return not self.ended

    def continue_from(self, before: "Session") -> None:
        """Take over the records of a session, and end it: records that its fetches acquire later are released."""
        self.lock = before.lock
        with self.lock:
            before.ended = True
            self.held = before.held
        before.memory.close()

    def end(self) -> dict[Key, frozenset[int]]:
        """End the session, and return the locks of all its records."""
        with self.lock:
            self.ended = True
            return self.locks

    def advance(self) -> None:
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1

    @property
    def locks(self) -> dict[Key, frozenset[int]]:
        return {key: frozenset(held.lock for held in records.ranges) for key, records in self.held.items()}


class Shares:
    """The share sessions of a gateway process, and the polls of their members. Sessions belong to the event loop."""

    def __init__(
        self, cluster: Cluster, log: Log, changes: ChangeWatch, bulkheads: Bulkheads, memory: MemoryBudget
    ) -> None:
        """`log` writes dead letters. `memory` is the budget of the sessions."""
        self.polls = SharePolls(cluster, ShareReads(cluster), dead_letters=DeadLetters(lambda: log))
        self.together = PollsTogether(cluster.store, bulkheads.run_own)
        self.watches = GroupWatches(self.polls, changes, partial(bulkheads.run, Lane.FETCH))
        self.start_lookups = StartLookups(cluster)
        self._memory = memory
        self._store, self._run_own = cluster.store, bulkheads.run_own
        self._sessions: dict[tuple[str, str], Session] = {}
        self._ending: set[Any] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, group_id: str, member_id: str, connection_id: str, client: str) -> Session:
        """Open a session of a client (`Client.key`). It takes over the acquired records of the member's last session.

        If this process has group.share.max.share.sessions, the client with the most loses its oldest one, but only if
        it has more than this client will have: else SessionError is raised. So no client keeps others out.
        """
        before = self._sessions.get((group_id, member_id))
        if before is None and len(self._sessions) >= self._store.settings.group_share_max_share_sessions:
            self._end_one_of_another(client)
        session = Session(group_id, member_id, connection_id, self._memory.hold(lambda: None, client))
        if before is not None:
            session.continue_from(before)
        self._sessions[group_id, member_id] = session
        return session

    def _end_one_of_another(self, client: str) -> None:
        counts = Counter(each.memory.client for each in self._sessions.values())
        largest = max(counts, key=lambda name: counts[name], default=client)
        if counts[largest] <= counts[client] + 1:
            raise SessionError(SESSION_LIMIT_REACHED)
        self.end(next(each for each in self._sessions.values() if each.memory.client == largest))

    def find(self, group_id: str, member_id: str, epoch: int) -> Session:
        """Return the session of a request with this epoch. Raises SessionError."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise SessionError(SESSION_NOT_FOUND)
        if epoch == FINAL:
            return session
        if epoch != session.epoch:
            raise SessionError(INVALID_SESSION_EPOCH)
        session.advance()
        return session

    def close(self, session: Session) -> None:
        session.memory.close()
        if self._sessions.get((session.group_id, session.member_id)) is session:
            del self._sessions[session.group_id, session.member_id]

    def connection_ended(self, connection_id: str) -> None:
        """Release the records of the sessions that this connection opened. Call it in the event loop."""
        for session in [each for each in self._sessions.values() if each.connection_id == connection_id]:
            self.end(session)

    def end(self, session: Session) -> None:
        """Close a session, and release its records in the background."""
        self.close(session)
        locks = session.end()
        if locks:
            task = asyncio.ensure_future(self._release(session, locks))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _release(self, session: Session, locks: Mapping[Key, frozenset[int]]) -> None:
        try:
            steps = self.polls.acknowledgement(session.group_id, session.member_id, {}, locks)
            await self.together.run(steps, self._run_own)
        except SparkLogError as error:
            logger.warning("locks of a share session end by time: %s", redact(str(error)))


@dataclass(frozen=True)
class Checked:
    """The acknowledgements of a partition in a request: with their locks, or an error."""

    acknowledgements: Sequence[Acknowledgement] = ()
    code: int = NONE
    message: str | None = None


def check_acknowledgements(
    session: Session, batches: Mapping[Key, Sequence[Any]], *, renews: bool, code_of: Callable[[SparkLogError], int]
) -> dict[Key, Checked]:
    """Return the acknowledgements of each partition with their locks. All of a partition are refused together."""
    checked = {}
    for key, parts in batches.items():
        try:
            with session.lock:
                checked[key] = Checked(_with_locks(session, key, parts, renews))
        except SessionError as error:
            checked[key] = Checked((), error.code, str(error.__cause__) if error.__cause__ else None)
        except SparkLogError as error:
            checked[key] = Checked((), code_of(error), str(error))
    return checked


def _with_locks(session: Session, key: Key, parts: Sequence[Any], renews: bool) -> list[Acknowledgement]:
    if key not in session.places and key not in session.held:
        raise UnknownTopicOrPartitionError("This server does not host this topic-partition.")
    held = session.held.get(key) or HeldRecords()
    acknowledgements: list[Acknowledgement] = []
    position = 0
    for part in parts:
        first, last, types = part.first_offset, part.last_offset, part.acknowledge_types
        one_each = len(types) > 1
        valid = 0 <= position <= first <= last and types and (not one_each or len(types) == last - first + 1)
        if not valid or any(not 0 <= kind <= 4 for kind in types) or (not renews and AcknowledgeType.RENEW in types):
            raise SessionError(INVALID_REQUEST)
        position = last + 1
        if held.end and last >= held.end:
            which = "first" if first >= held.end else "last"
            raise SessionError(INVALID_REQUEST) from ValueError(
                f"Batch record not found. The {which} offset in request is past acquired records."
            )
        begin = first
        runs = (
            [(kind, len(list(group))) for kind, group in groupby(types)] if one_each else [(types[0], position - first)]
        )
        for kind, count in runs:
            acknowledgements += (
                Acknowledgement(*one, session.member_id, AcknowledgeType(kind))
                for one in held.locks_of(begin, begin + count)
            )
            begin += count
    return acknowledgements


def note_acknowledged(session: Session, key: Key, acknowledgements: Sequence[Acknowledgement]) -> None:
    """Forget records that are acknowledged, but not those of renewed locks, nor those that the same poll has released
    and acquired again: they have a new lock.
    """
    held = session.held.get(key)
    if held is not None:
        with session.lock:
            for ack in acknowledgements:
                if ack.type != AcknowledgeType.RENEW:
                    held.remove(ack.first, ack.end, ack.lock)


def deadline_s(max_wait_ms: int) -> float:
    return clock.monotonic_s() + min(max_wait_ms / 1000, 300.0)
