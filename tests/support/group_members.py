"""Group members that read no records, heartbeats until their assignment is stable, and commits of offsets.

As a program it is a member of a group that prints its actions:

    python -m tests.support.group_members CLUSTER GROUP SESSION_MS

Lines: `took P T` and `dropped P T` (partition, monotonic seconds of the host) around the time that it holds a
partition; `committed P OFFSET` after a commit of one more than the last one; `refused ERROR`. On `pause` it prints
`paused` and waits for `go`; then it first commits the partitions that it held. At the end of its input it leaves the
group.
"""

import os
import select
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import sqlalchemy as sa
from kafka import ConsumerRebalanceListener, OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPartition

from spark_log import Consumer
from spark_log.cluster.cluster import Cluster
from spark_log.errors import IllegalGenerationError, UnknownMemberIdError
from spark_log.groups.assignors import AssignorSpec, is_custom, resolve_assignors
from spark_log.groups.committed_offsets import committed
from spark_log.groups.consumer.rules import Assignment
from spark_log.groups.custom_assignor_membership import ClassicMembership
from spark_log.groups.membership import ConsumerMembership, MemberSettings, Membership
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from spark_log.metadata.store import Store
from tests.support.waiting import LIMIT_S

LONG_MS = 600_000
"""A session that does not end during a test."""


class Reader:
    """A member with its held partitions; it applies each assignment at once."""

    def __init__(
        self,
        cluster: Cluster,
        topics: Sequence[str] = ("t",),
        group: str = "g",
        instance: str | None = None,
        session_ms: int = LONG_MS,
        assignors: Sequence[AssignorSpec] = ("range",),
    ) -> None:
        self.topics = list(topics)
        settings = MemberSettings("reader", "here", instance, session_ms, rebalance_timeout_ms=LONG_MS)
        found = resolve_assignors(assignors)
        self.member: Membership
        if any(map(is_custom, found.values())):
            self.member = ClassicMembership(cluster, group, settings, found)
        else:
            self.member = ConsumerMembership(cluster, group, settings, list(found))
        self.held: frozenset[TopicPartition] = frozenset()
        self.answer: Assignment | None = None

    def beat(self) -> Assignment:
        self.answer = self.member.heartbeat(self.topics, self.held)
        self.held = self.answer.partitions
        return self.answer

    @property
    def numbers(self) -> list[int]:
        return sorted(partition for _, partition in self.held)


def settle(*readers: Reader) -> Sequence[Reader]:
    """Heartbeat until every member has its whole target; no partition is ever held twice."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        generations = set()
        for reader in readers:
            generations.add(reader.beat().generation)
            held = [p for other in readers for p in other.held]
            assert len(held) == len(set(held)), "two hold the same partition"
        if all(reader.answer is not None and reader.answer.complete for reader in readers) and len(generations) == 1:
            return readers
        assert time.monotonic() < deadline, [(reader.member.member_id, reader.answer) for reader in readers]


def commit(address: str, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    """Commit offsets with a consumer that assigns these partitions to itself."""
    with Consumer(cluster=address, group_id=group, enable_auto_commit=False) as consumer:
        consumer.assign(list(offsets))
        consumer.commit(dict(offsets))


def session_until_ms(store: Store, member_id: str) -> int:
    """The end of a member's session, by the store's clock."""
    ends = [sa.select(table.c.until_ms).where(table.c.member_id == member_id) for table in _MEMBERS]
    [until_ms] = store.read(lambda connection: connection.scalars(sa.union_all(*ends)).all())
    return int(until_ms)


def move_session_end(store: Store, member_id: str, until_ms: int) -> None:
    """Let a member's session end at a time by the store's clock; 0 has passed. Members that wait notice it."""
    for table in _MEMBERS:
        moved = table.update().where(table.c.member_id == member_id).values(until_ms=until_ms)
        store.transact(partial(_execute, statement=moved), announce=True)


def _execute(connection: sa.Connection, statement: sa.Executable) -> None:
    connection.execute(statement)


_MEMBERS = (t.group_member, t.classic_member)


_PACE_S = 0.01
"""Pause between heartbeats, so that several such processes and their test fit on a small machine."""


def say(*words: object) -> None:
    print(*words, flush=True)


def main(address: str, group: str, session_ms: int) -> None:
    cluster = Cluster.open(address)
    reader = Reader(cluster, group=group, session_ms=session_ms)
    held: frozenset[TopicPartition] = frozenset()
    waiting = b""

    def drop(partitions: Iterable[TopicPartition]) -> None:
        for partition in sorted(partitions):
            say("dropped", partition.partition, time.monotonic())

    def commit() -> None:
        known = committed(cluster.store, group, held)
        next_ = {p: known[p].offset + 1 if p in known else 1 for p in sorted(held)}
        try:
            reader.member.commit({p: OffsetAndMetadata(offset, "", -1) for p, offset in next_.items()})
        except (UnknownMemberIdError, IllegalGenerationError) as error:
            say("refused", type(error).__name__)
        else:
            for p, offset in next_.items():
                say("committed", p.partition, offset)

    while True:
        try:
            answer = reader.beat()
        except UnknownMemberIdError:
            drop(held)
            held = reader.held = frozenset()
            say("lost")
            continue
        drop(held - answer.partitions)
        for partition in sorted(answer.partitions - held):
            say("took", partition.partition, time.monotonic())
        held = answer.partitions
        if held:
            commit()
        if select.select([0], [], [], _PACE_S)[0]:
            waiting = os.read(0, 100)
            if not waiting:
                break
            assert waiting == b"pause\n"
            say("paused")
            assert os.read(0, 100) == b"go\n"
            commit()
    drop(held)
    reader.member.leave()
    cluster.close()


def poll_values(consumer: Consumer, count: int) -> dict[int, list[str]]:
    """The next `count` values, by partition number."""
    seen: dict[int, list[str]] = {}
    deadline = time.monotonic() + LIMIT_S
    while sum(map(len, seen.values())) < count:
        assert time.monotonic() < deadline, seen
        for partition, records in consumer.poll(1_000).items():
            seen.setdefault(partition.partition, []).extend(record.value.decode() for record in records)
    return seen


def settle_consumers(
    *consumers: Consumer, until: Callable[[], object] = lambda: True, share: Sequence[int] | None = None
) -> list[list[str]]:
    """Poll all consumers in turn until each has `share` partitions; returns the values that each got."""
    seen: list[list[str]] = [[] for _ in consumers]
    deadline = time.monotonic() + LIMIT_S
    while True:
        for consumer, values in zip(consumers, seen, strict=True):
            for records in consumer.poll(20).values():
                values += [record.value.decode() for record in records]
        shares = sorted(len(consumer.assignment()) for consumer in consumers)
        if (share is None or shares == sorted(share)) and until():
            return seen
        assert time.monotonic() < deadline, shares


class Told(ConsumerRebalanceListener):  # type: ignore[misc]
    """Records its calls; `on_revoked` runs inside the callback."""

    def __init__(self, on_revoked: Callable[[Collection[KafkaPartition]], object] = lambda partitions: None) -> None:
        self.events: list[tuple[str, set[KafkaPartition]]] = []
        self.on_revoked = on_revoked

    def on_partitions_revoked(self, revoked: Collection[KafkaPartition]) -> None:
        self.events.append(("revoked", set(revoked)))
        self.on_revoked(revoked)

    def on_partitions_assigned(self, assigned: Collection[KafkaPartition]) -> None:
        self.events.append(("assigned", set(assigned)))

    def on_partitions_lost(self, lost: Collection[KafkaPartition]) -> None:
        self.events.append(("lost", set(lost)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
