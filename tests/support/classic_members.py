"""Members of a group that speak the classic protocol, request by request: workers of Kafka Connect, and consumers.

In a group of `WorkerMember`s the test assigns as the leader. A `ClassicMember` assigns ranges as the leader. A
partition that another member owns is left out until that one has joined without it, as cooperative assignors do; a
member that has given partitions up for that joins again.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription
from kafka.protocol.metadata import MetadataRequest

from spark_log.gateway.protocol.wire import Message
from spark_log.groups.consumer_messages import decode_assignment, decode_subscription, encode_assignment
from spark_log.ids import TopicPartition, numbers_by_topic
from tests.support.gateway_wire import WireConnection

_MEMBER_ID_REQUIRED = 79
JOIN = 9
"""Version."""


class WorkerMember:
    """`send_join` and `send_sync` do not wait for the answer, `joined` and `synced` do. Others send one request and
    return its error code.
    """

    join_version, sync_version, beat_version = JOIN, 5, 4

    def __init__(
        self, wire: WireConnection, group_id: str = "g", *, kind: str = "connect", protocol: str = "sessioned",
        instance_id: str | None = None, session_timeout_ms: int = 30_000, rebalance_timeout_ms: int = 30_000,
    ) -> None:  # fmt: skip
        self.wire, self.group_id, self.instance_id = wire, group_id, instance_id
        self.member_id, self.generation, self.metadata = "", -1, b"metadata"
        self.others: list[str] = []
        """As leader: the member ids."""
        self._kind, self._protocol = kind, protocol
        self._session_timeout_ms, self._rebalance_timeout_ms = session_timeout_ms, rebalance_timeout_ms

    def join_request(self) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=self._kind,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=self._protocol, metadata=self.metadata)],
        )

    def reserve(self) -> int:
        """Ask for a member id, if it has none. The group then waits until the member joins with it."""
        if self.member_id or self.instance_id is not None:
            return 0
        answer = self.wire.exchange(self.join_request(), self.join_version)
        self.member_id = answer.member_id
        return 0 if answer.error_code == _MEMBER_ID_REQUIRED else int(answer.error_code)

    def send_join(self) -> None:
        assert self.reserve() == 0
        self.wire.send(self.join_request(), self.join_version)

    def joined(self) -> Message:
        answer = self.wire.receive(self.join_request(), self.join_version)
        if answer.error_code == 0:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.others = [each.member_id for each in answer.members]
        return answer

    def join(self) -> int:
        self.send_join()
        return int(self.joined().error_code)

    def sync_request(self, assignments: Mapping[str, bytes]) -> SyncGroupRequest:
        kind = SyncGroupRequest.SyncGroupRequestAssignment
        given = [kind(member_id=key, assignment=value) for key, value in assignments.items()]
        return SyncGroupRequest(**self._me(), protocol_type=self._kind, protocol_name=self._protocol, assignments=given)

    def send_sync(self, assignments: Mapping[str, bytes] | None = None) -> None:
        self.wire.send(self.sync_request(assignments or {}), self.sync_version)

    def synced(self) -> bytes | int:
        """The assignment, or the error code."""
        answer = self.wire.receive(self.sync_request({}), self.sync_version)
        return int(answer.error_code) or bytes(answer.assignment)

    def assign(self, text: str) -> bytes | int:
        """As leader: `text` and the place of each member in their list."""
        self.send_sync({key: f"{text}{number}".encode() for number, key in enumerate(self.others)})
        return self.synced()

    def beat(self, wire: WireConnection | None = None) -> int:
        return int((wire or self.wire).exchange(self.heartbeat(), self.beat_version).error_code)

    def heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(**self._me())

    def send_beat(self) -> None:
        self.wire.send(self.heartbeat(), self.beat_version)

    def receive_beat(self) -> int:
        return int(self.wire.receive(self.heartbeat(), self.beat_version).error_code)

    def leave(self) -> int:
        kind = LeaveGroupRequest.MemberIdentity
        me = kind(member_id=self.member_id, group_instance_id=self.instance_id, reason="")
        answer = self.wire.exchange(LeaveGroupRequest(group_id=self.group_id, members=[me]), 5)
        return int(answer.error_code or answer.members[0].error_code)

    def _me(self) -> dict[str, Any]:
        return {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }


def settle_workers(*members: WorkerMember) -> list[bytes | int]:
    """All dynamic members join one generation, and sync; the assignments."""
    for member in members:
        member.reserve()
    for member in members:
        member.send_join()
    for member in members:
        assert member.joined().error_code == 0
    return assign_to_workers(*members)


def assign_to_workers(*members: WorkerMember) -> list[bytes | int]:
    """All members of a generation sync; the assignments, each "a" with the member's place."""
    [leader] = [member for member in members if member.others]
    for member in members:
        if member is not leader:
            member.send_sync()
    assigned = leader.assign("a")
    return [assigned if member is leader else member.synced() for member in members]


_REBALANCE_IN_PROGRESS = 27


class ClassicMember(WorkerMember):
    """A member whose metadata are its subscription and its partitions."""

    join_version, sync_version, beat_version = 5, 3, 3

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
        super().__init__(
            wire, group_id, kind="consumer", protocol=assignor, instance_id=instance_id,
            session_timeout_ms=session_timeout_ms, rebalance_timeout_ms=rebalance_timeout_ms,
        )  # fmt: skip
        self.owned: dict[str, list[int]] = {}
        self.members: dict[str, bytes] = {}
        """As leader: the metadata of all members."""
        self.gave_up = False
        """It has partitions no more, which others get when it joins again."""
        self._topics = topics

    def join_request(self) -> JoinGroupRequest:
        kind = ConsumerProtocolSubscription.TopicPartition
        owned = [kind(topic=topic, partitions=numbers) for topic, numbers in self.owned.items()]
        self.metadata = ConsumerProtocolSubscription(
            version=1, topics=list(self._topics), user_data=b"", owned_partitions=owned
        ).encode()
        return super().join_request()

    def joined(self) -> int:
        joined = super().joined()
        self.member_id, self.generation = joined.member_id, joined.generation_id  # after an error without an id
        self.gave_up = False
        self.members = {each.member_id: bytes(each.metadata) for each in joined.members}
        return int(joined.error_code)

    def join(self) -> int:
        """In a classic group with other members, it waits until they have joined again."""
        if code := self.reserve():
            return code
        self.send_join()
        return self.joined()

    def send_sync(self, assignments: Mapping[str, bytes] | None = None) -> None:
        super().send_sync(self._assignments() if assignments is None else assignments)

    def synced(self) -> int:
        synced = super().synced()
        if isinstance(synced, int):
            return synced
        if synced:
            assigned = decode_assignment(synced)
            assert assigned is not None
            before = {TopicPartition(topic, number) for topic, numbers in self.owned.items() for number in numbers}
            self.gave_up = bool(before - assigned)
            self.owned = numbers_by_topic(assigned)
        return 0

    def sync(self) -> int:
        self.send_sync()
        return self.synced()

    def beat(self, wire: WireConnection | None = None) -> int:
        """REBALANCE_IN_PROGRESS also if it has given partitions up."""
        code = super().beat(wire)
        return _REBALANCE_IN_PROGRESS if code == 0 and self.gave_up else code

    def leave(self) -> int:
        request = LeaveGroupRequest(group_id=self.group_id, member_id=self.member_id)
        return int(self.wire.exchange(request, 2).error_code)

    def settle(self) -> None:
        """As `settle`, after it has joined if it has not."""
        if not self.member_id:
            assert (self.join(), self.sync()) == (0, 0)
        settle(self)

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
