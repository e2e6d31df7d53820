"""A consumer of a group that speaks the classic protocol, request by request.

As leader it assigns ranges. A partition that another member owns is left out until that one has joined without it, as
cooperative assignors do; a member that has given partitions up for that joins again.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from kafka.protocol.consumer import JoinGroupRequest, LeaveGroupRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription
from kafka.protocol.metadata import MetadataRequest

from spark_log.groups.consumer_messages import decode_assignment, decode_subscription, encode_assignment
from spark_log.ids import TopicPartition, numbers_by_topic
from tests.support.gateway_wire import WireConnection
from tests.support.worker_member import WorkerMember

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
