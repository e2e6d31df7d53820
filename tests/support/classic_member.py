"""A consumer of a group that speaks the classic protocol, request by request.

As leader it assigns ranges. A partition that another member owns is left out until that one has joined without it, as
cooperative assignors do; a member that has given partitions up for that joins again.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription
from kafka.protocol.metadata import MetadataRequest

from spark_log.gateway.protocol.wire import Message
from spark_log.groups.consumer_messages import decode_assignment, decode_subscription, encode_assignment
from spark_log.ids import TopicPartition
from tests.support.gateway_wire import WireConnection

_MEMBER_ID_REQUIRED, _REBALANCE_IN_PROGRESS = 79, 27
_JOIN, _SYNC, _BEAT = 5, 3, 3
"""Versions."""


class ClassicMember:
    """`send_join` and `send_sync` do not wait for the answer, `joined` and `synced` do. Others send one request and
    return its error code.
    """

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
        self.members: dict[str, bytes] = {}
        """As leader: the metadata of all members."""
        self.gave_up = False
        """It has partitions no more, which others get when it joins again."""
        self._topics, self._assignor, self._session_timeout_ms = topics, assignor, session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms

    def join_request(self) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=self._assignor, metadata=_subscription(self))],
        )

    def reserve(self) -> int:
        """Ask for a member id, if it has none. The group then waits until the member joins with it."""
        if self.member_id or self.instance_id is not None:
            return 0
        joined = self.wire.exchange(self.join_request(), _JOIN)
        self.member_id = joined.member_id
        return 0 if joined.error_code == _MEMBER_ID_REQUIRED else int(joined.error_code)

    def send_join(self) -> None:
        self.wire.send(self.join_request(), _JOIN)

    def joined(self) -> int:
        joined = self.wire.receive(self.join_request(), _JOIN)
        self.gave_up = False
        self.member_id, self.generation = joined.member_id, joined.generation_id
        self.members = {each.member_id: bytes(each.metadata) for each in joined.members}
        return int(joined.error_code)

    def join(self) -> int:
        """In a classic group with other members, it waits until they have joined again."""
        if code := self.reserve():
            return code
        self.send_join()
        return self.joined()

    def send_sync(self) -> None:
        self.wire.send(self._sync_request(), _SYNC)

    def synced(self) -> int:
        synced = self.wire.receive(SyncGroupRequest(**self._me(), assignments=[]), _SYNC)
        if synced.assignment:
            assigned = decode_assignment(bytes(synced.assignment))
            assert assigned is not None
            before = {TopicPartition(topic, number) for topic, numbers in self.owned.items() for number in numbers}
            self.gave_up = bool(before - assigned)
            self.owned = {}
            for topic, number in sorted(assigned):
                self.owned.setdefault(topic, []).append(number)
        return int(synced.error_code)

    def sync(self) -> int:
        self.send_sync()
        return self.synced()

    def beat(self, wire: WireConnection | None = None) -> int:
        """REBALANCE_IN_PROGRESS also if it has given partitions up."""
        code = int((wire or self.wire).exchange(self.heartbeat(), _BEAT).error_code)
        return _REBALANCE_IN_PROGRESS if code == 0 and self.gave_up else code

    def heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(**self._me())

    def send_beat(self) -> None:
        self.wire.send(self.heartbeat(), _BEAT)

    def receive_beat(self) -> int:
        return int(self.wire.receive(self.heartbeat(), _BEAT).error_code)

    def leave(self) -> int:
        request = LeaveGroupRequest(group_id=self.group_id, member_id=self.member_id)
        return int(self.wire.exchange(request, 2).error_code)

    def settle(self) -> None:
        """As `settle`, after it has joined if it has not."""
        if not self.member_id:
            assert (self.join(), self.sync()) == (0, 0)
        settle(self)

    def _sync_request(self) -> Message:
        kind = SyncGroupRequest.SyncGroupRequestAssignment
        assignments = [kind(member_id=key, assignment=value) for key, value in self._assignments().items()]
        return SyncGroupRequest(**self._me(), assignments=assignments)

    def _assignments(self) -> dict[str, bytes]:
        """The assignment of each member: of every topic, one range for each subscriber."""
        if not self.members:
            return {}
        topics_of, owners = {}, {}
        for member_id, metadata in self.members.items():
            message = decode_subscription(metadata)
            assert message is not None
            topics_of[member_id] = message.topics
            owners.update(dict.fromkeys(message.owned, member_id))
        given: dict[str, set[TopicPartition]] = {member_id: set() for member_id in self.members}
        for topic, count in self._partition_counts(frozenset[str]().union(*topics_of.values())).items():
            subscribers = sorted(member_id for member_id, topics in topics_of.items() if topic in topics)
            for number in range(count):
                member_id = subscribers[number * len(subscribers) // count]
                if owners.get(TopicPartition(topic, number), member_id) == member_id:
                    given[member_id].add(TopicPartition(topic, number))
        return {member_id: encode_assignment(frozenset(partitions)) for member_id, partitions in given.items()}

    def _partition_counts(self, topics: frozenset[str]) -> dict[str, int]:
        wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(topics)]
        answer = self.wire.exchange(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), 4)
        return {each.name: len(each.partitions) for each in answer.topics if not each.error_code}

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
    message = ConsumerProtocolSubscription(
        version=1,
        topics=list(member._topics),
        user_data=b"",
        owned_partitions=owned,
    )
    return message.encode()  # type: ignore[no-any-return]


def rebalance(*members: ClassicMember) -> None:
    """All of them join again, and sync."""
    for member in members:
        assert member.reserve() == 0
    for member in members:
        member.send_join()
    for member in members:
        assert member.joined() == 0
    for member in members:
        member.send_sync()
    for member in members:
        assert member.synced() in (0, _REBALANCE_IN_PROGRESS)


def settle(*members: ClassicMember) -> None:
    """Until the heartbeats of all members, which are sent at the same time, say that nothing changes."""
    stable = dict.fromkeys(members, False)

    def run(member: ClassicMember) -> None:
        while not all(stable.values()):
            code = member.beat()
            stable[member] = code == 0
            if code:
                assert code == _REBALANCE_IN_PROGRESS, code
                assert member.join() in (0, _REBALANCE_IN_PROGRESS)
                assert member.sync() in (0, _REBALANCE_IN_PROGRESS)

    with ThreadPoolExecutor(len(members)) as pool:
        list(pool.map(run, members))
