"""A member of a group that speaks the classic protocol, request by request."""

from collections.abc import Mapping, Sequence

from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from tests.support.gateway_wire import WireConnection

_MEMBER_ID_REQUIRED = 79
_BEAT_VERSION = 3


class ClassicMember:
    """Each method sends one request, over the given connection, and returns its error code."""

    def __init__(
        self,
        wire: WireConnection,
        group_id: str,
        topics: Sequence[str],
        *,
        assignor: str = "cooperative-sticky",
        session_timeout_ms: int = 30_000,
        rebalance_timeout_ms: int = 10_000,
        instance_id: str | None = None,
    ) -> None:
        self.wire, self.group_id, self.instance_id = wire, group_id, instance_id
        self.member_id, self.generation = "", -1
        self.owned: dict[str, list[int]] = {}
        self._topics, self._assignor, self._session_timeout_ms = topics, assignor, session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms

    def join(self) -> int:
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=self._assignor, metadata=_subscription(self))],
        )
        joined = self.wire.exchange(request, 5)
        self.member_id, self.generation = joined.member_id, joined.generation_id
        return self.join() if joined.error_code == _MEMBER_ID_REQUIRED else int(joined.error_code)

    def sync(self) -> int:
        synced = self.wire.exchange(SyncGroupRequest(**self._me(), assignments=[]), 3)
        if synced.assignment:  # a broker gives the leader back what it has sent, which is nothing
            assignment = ConsumerProtocolAssignment.decode(bytes(synced.assignment))
            self.owned = {each.topic: list(each.partitions) for each in assignment.assigned_partitions}
        return int(synced.error_code)

    def beat(self, wire: WireConnection | None = None) -> int:
        return int((wire or self.wire).exchange(self.heartbeat(), _BEAT_VERSION).error_code)

    def heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(**self._me())

    def send_beat(self) -> None:
        self.wire.send(self.heartbeat(), _BEAT_VERSION)

    def receive_beat(self) -> int:
        return int(self.wire.receive(self.heartbeat(), _BEAT_VERSION).error_code)

    def leave(self) -> int:
        request = LeaveGroupRequest(group_id=self.group_id, member_id=self.member_id)
        return int(self.wire.exchange(request, 2).error_code)

    def settle(self) -> None:
        """Join again until heartbeats say that nothing changes."""
        while self.beat() != 0:
            assert self.join() == 0
            self.sync()

    def _me(self) -> Mapping[str, object]:
        return {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }


def _subscription(member: ClassicMember) -> bytes:
    kind = ConsumerProtocolSubscription.TopicPartition
    owned = [kind(topic=topic, partitions=numbers) for topic, numbers in member.owned.items()]
    found = ConsumerProtocolSubscription(
        version=1,
        topics=list(member._topics),
        user_data=b"",
        owned_partitions=owned,
    )
    return found.encode()  # type: ignore[no-any-return]


def settle(*members: ClassicMember) -> None:
    """Until the heartbeats of all members say that nothing changes."""
    while any(member.beat() for member in members):
        for member in members:
            member.settle()
