"""Group members that read no records, heartbeats until their assignment is stable, and commits of offsets."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import sqlalchemy as sa
from kafka import OffsetAndMetadata

from spark_log import Consumer
from spark_log.cluster.cluster import Cluster
from spark_log.groups.assignors import AssignorSpec, is_custom, resolve_assignors
from spark_log.groups.consumer.rules import Assignment
from spark_log.groups.custom_assignor_membership import ClassicMembership
from spark_log.groups.membership import ConsumerMembership, MemberSettings, Membership
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from spark_log.metadata.store import Attempt, Store
from tests.support.waiting import LIMIT_S

T = TypeVar("T")

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


def until(condition: Callable[[], T], store: Store) -> T:
    """Wait for a condition on the contents of the store."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        seen = store.changes.current()
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline
        store.changes.wait(seen, 0.05)


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
    """Let a member's session end at a time by the store's clock; 0 has passed."""
    for table in _MEMBERS:
        moved = table.update().where(table.c.member_id == member_id).values(until_ms=until_ms)
        store.transact(partial(_execute, statement=moved))


def _execute(connection: sa.Connection, _attempt: Attempt, statement: sa.Executable) -> None:
    connection.execute(statement)


_MEMBERS = (t.group_member, t.classic_member)
