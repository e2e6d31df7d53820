"""A member of a group that speaks the consumer protocol (KIP-848), request by request."""

import uuid
from collections.abc import Mapping
from typing import Any

from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from spark_log.gateway.protocol.schemas import ConsumerGroupHeartbeatRequest
from spark_log.gateway.protocol.wire import Message
from tests.support.gateway_wire import WireConnection

LEAVE, LEAVE_AND_RETURN = -1, -2
"""Member epochs."""


class ConsumerMember:
    """Each method sends one request over `wire`. `topic_ids` names the topics of the test."""

    def __init__(
        self,
        wire: WireConnection,
        group_id: str,
        topic_ids: Mapping[str, uuid.UUID],
        *,
        instance_id: str | None = None,
        version: int = 1,
        **subscription: Any,
    ) -> None:
        """`subscription`: fields of the request, such as subscribed_topic_names."""
        self.wire, self.group_id, self.instance_id, self.version = wire, group_id, instance_id, version
        self.member_id, self.epoch = str(uuid.uuid4()), 0
        self.subscription = {"rebalance_timeout_ms": 60_000, **subscription}
        self.owned: dict[str, list[int]] = {}
        """What it was told that it has, and has not given up."""
        self.told: dict[str, list[int]] = {}
        """The last assignment."""
        self._ids = dict(topic_ids)
        self._names = {topic_id: name for name, topic_id in topic_ids.items()}

    def join(self, **fields: Any) -> Message:
        """Join, or join again, owning nothing."""
        self.epoch, self.owned, self.told = 0, {}, {}
        return self.beat(owned=True, **{**self.subscription, "instance_id": self.instance_id, **fields})

    def beat(self, *, owned: bool = False, accept: bool = True, **fields: Any) -> Message:
        """A heartbeat. `owned`: it reports what it has. `accept`: it takes the answer over, and gives up at once what
        it no longer has.
        """
        answer = self.wire.exchange(self.request(owned=owned, **fields), self.version)
        if accept:
            self.accept(answer)
        return answer

    def request(self, *, owned: bool = False, **fields: Any) -> ConsumerGroupHeartbeatRequest:
        kind = ConsumerGroupHeartbeatRequest.TopicPartitions
        have = [kind(topic_id=self._ids[topic], partitions=numbers) for topic, numbers in sorted(self.owned.items())]
        given = {
            "group_id": self.group_id, "member_id": self.member_id, "member_epoch": self.epoch, "instance_id": None,
            "rack_id": None, "rebalance_timeout_ms": -1, "subscribed_topic_names": None,
            "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": have if owned else None,
        }  # fmt: skip
        return ConsumerGroupHeartbeatRequest(**{**given, **fields})

    def accept(self, answer: Message) -> None:
        if answer.error_code:
            return
        self.member_id, self.epoch = answer.member_id, answer.member_epoch
        if answer.assignment is not None:
            parts = answer.assignment.topic_partitions
            self.told = {self._names[each.topic_id]: sorted(each.partitions) for each in parts}
            self.owned = self.told

    def full(self, **fields: Any) -> Message:
        """A heartbeat that says everything, as after an error."""
        return self.beat(owned=True, **{**self.subscription, **fields})

    def learn(self, topic_ids: Mapping[str, uuid.UUID]) -> None:
        """Topics that were created since."""
        self._ids |= topic_ids
        self._names |= {topic_id: name for name, topic_id in topic_ids.items()}

    def leave(self, epoch: int = LEAVE) -> Message:
        return self.beat(accept=False, member_epoch=epoch, instance_id=self.instance_id)

    def commit(self, topic: str, number: int, offset: int, epoch: int | None = None) -> int:
        kind = OffsetCommitRequest.OffsetCommitRequestTopic
        part = kind.OffsetCommitRequestPartition(
            partition_index=number, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=self.epoch if epoch is None else epoch,
            member_id=self.member_id,
            group_instance_id=None,
            topics=[kind(name=topic, partitions=[part])],
        )
        return int(self.wire.exchange(request, 9).topics[0].partitions[0].error_code)

    def fetch(self, topic: str, number: int, epoch: int | None = None) -> tuple[int, int | None]:
        """Error code of the group, and the committed offset."""
        group = OffsetFetchRequest.OffsetFetchRequestGroup
        topics = [group.OffsetFetchRequestTopics(name=topic, partition_indexes=[number])]
        wanted = group(
            group_id=self.group_id, member_id=self.member_id, member_epoch=self.epoch if epoch is None else epoch,
            topics=topics,
        )  # fmt: skip
        [found] = self.wire.exchange(OffsetFetchRequest(groups=[wanted], require_stable=False), 9).groups
        if found.error_code:
            return int(found.error_code), None
        return 0, int(found.topics[0].partitions[0].committed_offset)
