"""A member of a share group that sends its requests to a gateway byte by byte."""

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from spark_log.cluster.topics import Topic
from spark_log.gateway.limits.memory_budget import MemoryBudget
from spark_log.gateway.protocol.schemas import (
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupHeartbeatRequest,
)
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.shares.share_sessions import Session
from tests.support.gateway_wire import WireConnection
from tests.support.waiting import LIMIT_S

VERSION = 2
Batch = tuple[int, int, Sequence[int]]
"""First offset, last offset, types."""


class WireShareMember:
    """Reads partition 0 of a topic. `epoch` is that of the next request of its share session."""

    def __init__(self, connection: WireConnection, topic: Topic, group: str = "workers", member: str = "m1") -> None:
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

    def fetch_request(self, acks: Sequence[Batch] = (), max_wait_ms: int = 0, **changes: Any) -> Message:
        topic = ShareFetchRequest.FetchTopic
        part = topic.FetchPartition
        fields: dict[str, Any] = {
            "group_id": self.group, "member_id": self.member, "share_session_epoch": self.epoch,
            "max_wait_ms": max_wait_ms, "min_bytes": 1, "max_bytes": 1_000_000, "max_records": 500, "batch_size": 500,
            "share_acquire_mode": 0, "is_renew_ack": False, "forgotten_topics_data": [],
            "topics": [
                topic(
                    topic_id=UUID(self.topic.uuid),
                    partitions=[part(partition_index=0, acknowledgement_batches=_batches(part, acks))],
                )
            ],
        }  # fmt: skip
        return ShareFetchRequest(**{**fields, **changes})

    def acknowledge_request(self, acks: Sequence[Batch], **changes: Any) -> Message:
        topic = ShareAcknowledgeRequest.AcknowledgeTopic
        part = topic.AcknowledgePartition
        fields: dict[str, Any] = {
            "group_id": self.group, "member_id": self.member, "share_session_epoch": self.epoch, "is_renew_ack": False,
            "topics": [
                topic(
                    topic_id=UUID(self.topic.uuid),
                    partitions=[part(partition_index=0, acknowledgement_batches=_batches(part, acks))],
                )
            ],
        }  # fmt: skip
        return ShareAcknowledgeRequest(**{**fields, **changes})

    def send(self, request: Message) -> Message:
        """Return the answer, and count the session's epoch on."""
        answer = self.connection.exchange(request, VERSION)
        if answer.error_code == 0:
            self.epoch += 1
        return answer

    def acquire(self) -> list[tuple[int, int, int]]:
        """Fetch until records come: first and last offset and delivery count of each range."""
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            answer = self.send(self.fetch_request(max_wait_ms=500))
            assert answer.error_code == 0, answer
            if found := acquired(answer):
                return found
        raise AssertionError("no records came")

    def acknowledge(self, *acks: Batch) -> int:
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


def _batches(part: Any, acks: Sequence[Batch]) -> list[Message]:
    return [
        part.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))
        for first, last, types in acks
    ]
