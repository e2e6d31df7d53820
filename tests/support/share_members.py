"""Members of share groups: in this process without a client, and at a gateway, byte by byte."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import sqlalchemy as sa
from kafka.consumer.fetcher import ConsumerRecord

from spark_log import ShareConsumer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.topics import Topic
from spark_log.gateway.limits.memory_budget import MemoryBudget
from spark_log.gateway.protocol.schemas import (
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupHeartbeatRequest,
)
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.shares.share_sessions import Session
from spark_log.groups.share import rows
from spark_log.groups.share.acquisition_rules import Request
from spark_log.groups.share.looks import look
from spark_log.groups.share.members import ShareAnswer, ShareHeartbeat, leave_share_group, share_heartbeat
from spark_log.groups.share.offers import Offer, ask_offers, offers_of
from spark_log.groups.share.polling import Result, SharePolls
from spark_log.groups.share.reading import ShareReads
from spark_log.groups.share.rules import Acknowledgement, AcknowledgeType, Range
from spark_log.groups.share.service import Outcome, Poll, run_polls
from spark_log.log.partitions.partition_rows import Key
from tests.support.gateway_wire import WireConnection
from tests.support.waiting import LIMIT_S, wait_until


def set_lock_ms(cluster: Cluster, lock_ms: int) -> None:
    """Set the time that locks of records last, and the least that a group may set."""
    names = ("group.share.min.record.lock.duration.ms", "group.share.record.lock.duration.ms")
    alter_settings(cluster, dict.fromkeys(names, str(lock_ms)))


class ShareMember:
    """A member of a share group. It joins when it is made."""

    def __init__(
        self,
        cluster: Cluster,
        topics: Sequence[str] = ("t",),
        group: str = "workers",
        member: str = "m1",
        polls: SharePolls | None = None,
    ) -> None:
        self.cluster, self.group, self.member = cluster, group, member
        self._topics = frozenset(topics)
        self._polls = polls or SharePolls(cluster, ShareReads(cluster))
        self.join()

    def join(self) -> None:
        """Send a heartbeat that joins: the assignment is the present one."""
        heartbeat = ShareHeartbeat(self.group, self.member, 0, self._topics, None, "client", "host")
        self.answer: ShareAnswer = share_heartbeat(self.cluster, heartbeat)
        self.assigned: dict[Key, str] = {
            (fact.topic_id, number): name
            for name, fact in (self.answer.assignment or {}).items()
            for number in range(fact.partition_count)
        }

    def poll(self, records_max: int = 500, timeout_s: float = 0.0) -> dict[Key, list[Range]]:
        """Acquire records, and return their ranges by partition."""
        self.last = self.result(records_max, timeout_s)
        return {taken.key: [part for part, _ in taken.parts] for taken in self.last.taken}

    def result(self, records_max: int = 500, timeout_s: float = 0.0) -> Result:
        """Acquire records."""
        request = Request(self.member, records_max, whole_batches=False)
        return self._polls.poll(self.group, request, self.assigned, timeout_s=timeout_s)

    def values(self) -> dict[tuple[int, int], str]:
        """Return the values of the records of the last poll, by partition and offset."""
        return {
            (taken.key[1], row["offset"]): row["value"].decode()
            for taken in self.last.taken
            for _, records in taken.parts
            for row in records.to_pylist()
        }

    def acknowledge(self, acquired: dict[Key, list[Range]], kind: AcknowledgeType, delay_ms: int = 0) -> Result:
        acks = {
            key: [Acknowledgement(r.first, r.end, r.lock, self.member, kind, delay_ms) for r in ranges]
            for key, ranges in acquired.items()
        }
        return self._polls.acknowledge(self.group, self.member, acks)

    def leave(self) -> None:
        leave_share_group(self.cluster.store, self.group, self.member)


def finish(consumer: ShareConsumer, kind: AcknowledgeType, count: int = 1) -> None:
    """Acknowledge the next records with this type."""
    done = 0
    while done < count:
        polled = consumer.poll(60_000)
        assert polled
        for records in polled.values():
            for record in records:
                consumer.acknowledge(record, kind)
                done += 1
        consumer.commit_sync()


@contextmanager
def overtaken_member(cluster: Cluster, meanwhile: Callable[[], object]) -> Iterator[ShareMember]:
    """A member. In the block `meanwhile` must run once, between its first read of records and the transaction that
    acquires them.
    """
    left = [meanwhile]

    def run(poll: Poll) -> Outcome:
        if poll.readable and left:
            left.pop()()
        return run_polls(cluster.store, [poll])[0]

    yield ShareMember(cluster, polls=SharePolls(cluster, ShareReads(cluster), run))
    assert not left


def offsets_of(acquired: dict[Key, list[Range]]) -> list[int]:
    """The offsets of all acquired records."""
    return [offset for ranges in acquired.values() for r in ranges for offset in range(r.first, r.end)]


def only_offer(cluster: Cluster) -> Offer:
    """Return the state of the only partition that group "workers" has read."""
    [offer] = look(cluster.store, "workers").offers.values()
    return offer


def move_lock_ends(cluster: Cluster, by_ms: int) -> None:
    """Let the locks of group "workers" end so much earlier, as if this time had passed for them."""

    def move(connection: sa.Connection) -> None:
        now = cluster.store.clock(connection)
        for key in offers_of(ask_offers(connection, "workers")):
            row = rows.row_of(rows.ask_row(connection, "workers", key, lock=True), "workers", key, now)
            assert row is not None
            ranges = tuple(r._replace(until_ms=r.until_ms - by_ms) if r.lock > 0 else r for r in row.window.ranges)
            rows.save(connection, [replace(row, window=replace(row.window, ranges=ranges))], now)

    cluster.store.transact(move, announce=True)


SHARE_VERSION = 2
AcknowledgementBatch = tuple[int, int, Sequence[int]]
"""First offset, last offset, types."""


class WireShareMember:
    """Reads partition 0 of a topic in a group. `epoch` is that of the next request of its share session."""

    def __init__(self, connection: WireConnection, topic: Topic, member: str = "m1", group: str = "workers") -> None:
        self.connection, self.topic, self.group, self.member = connection, topic, group, member
        self.epoch = 0

    def join(self, topics: Sequence[str] = ()) -> None:
        """Join with a subscription to the topic, or to others too."""
        request = ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member, member_epoch=0, rack_id=None,
            subscribed_topic_names=list(topics or [self.topic.name]),
        )  # fmt: skip
        answer = self.connection.exchange(request, 1)
        assert answer.error_code == 0, answer

    def fetch_request(
        self, acks: Sequence[AcknowledgementBatch] = (), max_wait_ms: int = 0, partitions: Sequence[int] = (0,),
        topic_id: UUID | None = None, **changes: Any,
    ) -> Message:  # fmt: skip
        """The acknowledgements are of the first partition."""
        fields: dict[str, Any] = {
            "group_id": self.group, "member_id": self.member, "share_session_epoch": self.epoch,
            "max_wait_ms": max_wait_ms, "min_bytes": 1, "max_bytes": 1_000_000, "max_records": 500, "batch_size": 500,
            "share_acquire_mode": 0, "is_renew_ack": False, "forgotten_topics_data": [],
            "topics": self._topics(ShareFetchRequest.FetchTopic, "FetchPartition", partitions, acks, topic_id),
        }  # fmt: skip
        return ShareFetchRequest(**{**fields, **changes})

    def acknowledge_request(
        self, acks: Sequence[AcknowledgementBatch], partition: int = 0, topic_id: UUID | None = None, **changes: Any
    ) -> Message:
        kind = ShareAcknowledgeRequest.AcknowledgeTopic
        fields: dict[str, Any] = {
            "group_id": self.group, "member_id": self.member, "share_session_epoch": self.epoch, "is_renew_ack": False,
            "topics": self._topics(kind, "AcknowledgePartition", [partition] if acks else [], acks, topic_id),
        }  # fmt: skip
        return ShareAcknowledgeRequest(**{**fields, **changes})

    def _topics(
        self, kind: Any, part_name: str, partitions: Sequence[int], acks: Sequence[AcknowledgementBatch],
        topic_id: UUID | None,
    ) -> list[Message]:  # fmt: skip
        part = getattr(kind, part_name)
        parts = [
            part(
                partition_index=number, acknowledgement_batches=_batches(part, acks if number == partitions[0] else ())
            )
            for number in partitions
        ]
        return [kind(topic_id=topic_id or UUID(self.topic.uuid), partitions=parts)] if parts else []

    def send(self, request: Message) -> Message:
        """Return the answer, and count the session's epoch on."""
        answer = self.connection.exchange(request, SHARE_VERSION)
        if answer.error_code == 0:
            self.epoch += 1
        return answer

    def acquire(self) -> list[tuple[int, int, int]]:
        """Fetch until records come: first and last offset and delivery count of each range."""

        def fetch() -> list[tuple[int, int, int]]:
            answer = self.send(self.fetch_request(max_wait_ms=500))
            assert answer.error_code == 0, answer
            return acquired(answer)

        return wait_until(fetch, "records")

    def acknowledge(self, *acks: AcknowledgementBatch) -> int:
        """Return the error code of the request, or of the partition."""
        answer = self.send(self.acknowledge_request(acks))
        errors = [int(part.error_code) for topic in answer.responses for part in topic.partitions]
        return int(answer.error_code) or sum(errors)


def session_of(group: str, member: str) -> Session:
    """A share session of a gateway."""
    return Session(group, member, "connection", MemoryBudget(0).hold(lambda: None, "client"))


def acquired(answer: Message) -> list[tuple[int, int, int]]:
    return [
        (each.first_offset, each.last_offset, each.delivery_count)
        for topic in answer.responses
        for part in topic.partitions
        for each in part.acquired_records
    ]


def _batches(part: Any, acks: Sequence[AcknowledgementBatch]) -> list[Message]:
    return [
        part.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))
        for first, last, types in acks
    ]


class ShareClient(WireShareMember):
    """Requests of one member, as text-free facts. Each names the epoch of its session."""

    def __init__(self, connection: WireConnection, topic_id: UUID, group: str = "g", member: str = "m") -> None:
        super().__init__(connection, cast(Any, SimpleNamespace(name="jobs", uuid=topic_id.hex)), member, group)
        self.topic_id = topic_id

    def heartbeat(self, epoch: int, topics: Sequence[str] | None = None, **fields: Any) -> Any:
        request = ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member, member_epoch=epoch, rack_id=None,
            subscribed_topic_names=topics, **fields,
        )  # fmt: skip
        return self.connection.exchange(request, 1)

    def fetch(
        self, epoch: int, partitions: Sequence[int] = (0,), acks: Sequence[AcknowledgementBatch] = (), *,
        records: int = 500, mode: int = 0, renews: bool = False, wait_ms: int = 0, topic_id: UUID | None = None,
        forget: Sequence[int] = (),
    ) -> Any:  # fmt: skip
        limits = {"max_records": records}
        if renews:
            limits = dict.fromkeys(("min_bytes", "max_bytes", "max_records", "batch_size"), 0)
        forgotten = ShareFetchRequest.ForgottenTopic(topic_id=self.topic_id, partitions=list(forget))
        request = self.fetch_request(
            acks, wait_ms, partitions, topic_id, share_session_epoch=epoch, share_acquire_mode=mode,
            is_renew_ack=renews, forgotten_topics_data=[forgotten] if forget else [], **limits,
        )  # fmt: skip
        return self.connection.exchange(request, SHARE_VERSION)

    def acquired(self, epoch: int, *arguments: Any, **keywords: Any) -> Any:
        """The acquired ranges of the first partition: (first, last, deliveries)."""
        answer = self.fetch(epoch, *arguments, **keywords)
        assert answer.error_code == 0
        return acquired(answer)

    def acknowledge(  # type: ignore[override]
        self, epoch: int, *acks: AcknowledgementBatch, partition: int = 0, renews: bool = False,
        topic_id: UUID | None = None,
    ) -> tuple[int, list[int]]:  # fmt: skip
        """The error of the request, and those of its partitions."""
        request = self.acknowledge_request(acks, partition, topic_id, share_session_epoch=epoch, is_renew_ack=renews)
        answer = self.connection.exchange(request, SHARE_VERSION)
        return answer.error_code, [each.error_code for topic in answer.responses for each in topic.partitions]


def take(consumer: ShareConsumer, count: int) -> list[ConsumerRecord]:
    """Poll until `count` records came."""
    found: list[ConsumerRecord] = []
    while len(found) < count:
        polled = consumer.poll(int(1000 * LIMIT_S))
        assert polled, f"only {len(found)} of {count} records came"
        found += [record for records in polled.values() for record in records]
    return found
