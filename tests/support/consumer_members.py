"""Members of consumer groups at a gateway: request by request, and consumers of librdkafka.

A `ConsumerMember` speaks the consumer protocol (KIP-848). `observations` goes through the protocol step by step, to
compare servers: each request, and what a server answers. A `RollingReader` is a consumer of librdkafka in a thread; one
after the other in the same place is a rolling restart.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import confluent_kafka as rdkafka
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from spark_log.gateway.protocol.schemas import ConsumerGroupHeartbeatRequest
from spark_log.gateway.protocol.wire import Message
from tests.support.gateway_wire import WireConnection, commit_request
from tests.support.waiting import Worker, wait_until

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
        """The partitions that the last answers assigned to it, without those that it has given up."""
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
        member_epoch = self.epoch if epoch is None else epoch
        request = commit_request(
            self.group_id, topic, offset, partition=number,
            generation_id_or_member_epoch=member_epoch, member_id=self.member_id,
        )  # fmt: skip
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


TOPICS = {"t": 4, "u": 2}
"""Partitions of the topics that the steps use."""
MEMBERS_MAX = 2
"""group.consumer.max.size that the steps assume."""

_COORDINATOR_ERRORS = (14, 15, 16)


def topic_ids(wire: WireConnection, *names: str) -> dict[str, uuid.UUID]:
    """Waits until the server knows the topics."""
    kind = MetadataRequest.MetadataRequestTopic

    def known() -> dict[str, uuid.UUID]:
        request = MetadataRequest(
            topics=[kind(name=name, topic_id=uuid.UUID(int=0)) for name in names], allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )  # fmt: skip
        found = {each.name: each.topic_id for each in wire.exchange(request, 12).topics if each.error_code == 0}
        return found if len(found) == len(names) else {}

    return wait_until(known, "the server knows the topics", pause_s=0.1)


def observations(port: int) -> list[str]:
    """One line for each step."""
    with WireConnection(port) as wire:
        wire.exchange(FindCoordinatorRequest(key_type=0, coordinator_keys=["warm-up"]), 4)
        ids = topic_ids(wire, *TOPICS)
        members: list[ConsumerMember] = []

        def member(group_id: str = "g", **others: Any) -> ConsumerMember:
            connection = WireConnection(port)
            subscription = {"subscribed_topic_names": ["t"], **others}
            members.append(ConsumerMember(connection, group_id, ids, **subscription))
            return members[-1]

        try:
            first = member("warm-up")
            wait_until(lambda: first.join().error_code not in _COORDINATOR_ERRORS, "a coordinator", pause_s=0.2)
            return [f"{step}: {seen}" for step, seen in _steps(member)]
        finally:
            for each in members:
                each.wire.__exit__(None, None, None)


def _seen(member: ConsumerMember, answer: Message) -> str:
    if answer.error_code:
        return f"error {answer.error_code}"
    told = "unchanged" if answer.assignment is None else _sizes(member)
    return f"epoch {answer.member_epoch}, {told}"


def _sizes(member: ConsumerMember) -> str:
    return ", ".join(f"{len(numbers)} of {topic}" for topic, numbers in sorted(member.told.items())) or "none"


def _steps(member: Callable[..., ConsumerMember]) -> Iterator[tuple[str, object]]:
    a, b = member(), member()

    yield "joins", _seen(a, a.join())
    yield "joins again", _seen(a, a.join())
    yield "says everything", _seen(a, a.full())
    yield "says nothing", _seen(a, a.beat())
    yield "second joins", _seen(b, b.join())
    yield "first must revoke", _seen(a, a.beat(accept=False))
    yield "first says nothing", _seen(a, a.beat(accept=False))
    yield "second waits", _seen(b, b.beat())
    yield "first says that it has all", _seen(a, a.full())
    yield "first has revoked", _seen(a, a.beat(owned=True))
    yield "second gets its part", _seen(b, b.beat())
    yield "second reports", _seen(b, b.beat(owned=True))
    epoch = a.epoch
    yield "last epoch, answer lost", _seen(a, a.beat(accept=False, member_epoch=epoch - 1, owned=True))
    yield "last epoch, reports nothing", _seen(a, a.beat(accept=False, member_epoch=epoch - 1))
    yield "greater epoch", _seen(a, a.beat(accept=False, member_epoch=epoch + 1, owned=True))
    mine = a.owned["t"][0]
    yield "commits", [a.commit("t", mine, 5), *(a.commit("t", mine, 5, epoch=n) for n in (epoch - 1, epoch + 1, -1))]
    yield "fetches", [a.fetch("t", mine), *(a.fetch("t", mine, epoch=n) for n in (epoch - 1, epoch + 1, -1))]
    other = member()
    yield "not a member commits and fetches", (other.commit("t", 0, 5, epoch=1), other.fetch("t", 0, epoch=1))
    yield "group is full", _seen(other, other.join())
    yield "not a member leaves", _seen(other, other.leave())
    nowhere = member("nowhere")
    yield "unknown group", (_seen(nowhere, nowhere.beat(member_epoch=1)), _seen(nowhere, nowhere.leave()))
    yield "first subscribes another topic", _seen(a, a.beat(subscribed_topic_names=["u"]))
    yield "and has revoked", _seen(a, a.beat(owned=True))
    yield "second gets all", _seen(b, b.beat())
    yield "first subscribes nothing", _seen(a, a.beat(subscribed_topic_names=[]))
    yield "and has revoked", _seen(a, a.beat(owned=True))
    yield "invalid expression", _seen(a, a.beat(subscribed_topic_regex="[t"))
    yield "assignor", _seen(a, a.beat(server_assignor="range"))
    yield "unknown assignor", _seen(a, a.beat(server_assignor="sticky"))
    yield "leaves", _seen(a, a.leave())
    yield "leaves again", _seen(a, a.leave())
    yield "second stays", _seen(b, b.beat())
    yield "second leaves", _seen(b, b.leave())
    yield from _invalid(member)
    yield from _static(member)


def _invalid(member: Callable[..., ConsumerMember]) -> Iterator[tuple[str, object]]:
    cases: dict[str, dict[str, Any]] = {
        "no rebalance timeout": {"rebalance_timeout_ms": -1},
        "no subscription": {"subscribed_topic_names": None},
        "owned left out": {"topic_partitions": None},
        "no member id": {"member_id": ""},
        "no group id": {"group_id": ""},
        "empty instance id": {"instance_id": ""},
        "empty rack": {"rack_id": ""},
        "epoch -3": {"member_epoch": -3},
        "epoch -2 without instance id": {"member_epoch": LEAVE_AND_RETURN},
        "unknown assignor": {"server_assignor": "sticky"},
    }
    for name, fields in cases.items():
        each = member("invalid")
        yield f"joins with {name}", _seen(each, each.join(**fields))
    empty = member("empty", subscribed_topic_names=None, subscribed_topic_regex="")
    yield "joins with an empty expression", _seen(empty, empty.join())
    old = member("old", version=0)
    old.member_id = ""
    yield "version 0 without member id", (_seen(old, old.join()), bool(old.member_id))


def _static(member: Callable[..., ConsumerMember]) -> Iterator[tuple[str, object]]:
    first, second = (member("static", instance_id="i") for _ in range(2))
    yield "static member joins", _seen(first, first.join())
    yield "another with its instance id", _seen(second, second.join())
    yield "leaves for a while", _seen(first, first.leave(LEAVE_AND_RETURN))
    yield "heartbeat after that", _seen(first, first.beat(accept=False))
    yield "another with its instance id now", _seen(second, second.join())
    yield "heartbeat of the other", _seen(second, second.beat())
    yield "heartbeat of the first", _seen(first, first.beat(accept=False))
    yield "heartbeat of the first with instance id", _seen(first, first.beat(accept=False, instance_id="i"))
    yield "first leaves", _seen(first, first.leave(LEAVE_AND_RETURN))
    yield "other leaves for a while", _seen(second, second.leave(LEAVE_AND_RETURN))
    yield "and returns", _seen(second, second.join())
    yield "leaves for good", _seen(second, second.leave(LEAVE))
    yield "joins again", _seen(second, second.join())


_POLL_S = 0.05


class Ownership:
    """Which reader has which partition at this moment, as their callbacks tell."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: dict[tuple[str, int], str] = {}
        self.twice: list[tuple[tuple[str, int], str, str]] = []
        """Partitions that a second reader got, with both."""
        self.lost = 0

    def take(self, name: str, partitions: Sequence[Any]) -> None:
        with self._lock:
            for each in partitions:
                partition = (each.topic, each.partition)
                other = self._owner.get(partition)
                if other is not None:
                    self.twice.append((partition, other, name))
                self._owner[partition] = name

    def drop(self, name: str, partitions: Sequence[Any]) -> None:
        with self._lock:
            for each in partitions:
                if self._owner.get((each.topic, each.partition)) == name:
                    del self._owner[each.topic, each.partition]

    def count(self, name: str) -> int:
        with self._lock:
            return list(self._owner.values()).count(name)

    def drop_lost(self, name: str, partitions: Sequence[Any]) -> None:
        self.lost += len(partitions)
        self.drop(name, partitions)


class RollingReader:
    """A consumer in a thread. `stop` closes it: it commits what it has read, and leaves.

    A message below the position of a partition that the reader has had without a break is not counted a second time.
    After an incremental rebalance librdkafka 2.x can fetch again from an old offset, without asking for the committed
    one (its issue 4686): the server hands over no partition, so that nothing is said about it. A message that two
    readers see, or that one sees again after a new assignment, does count.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], topics: Sequence[str], ownership: Ownership) -> None:
        self.name, self.seen = name, []  # type: tuple[str, list[bytes]]
        self._settings, self._topics, self._ownership = settings, topics, ownership
        self._positions: dict[tuple[str, int], int] = {}
        self._worker = Worker(self._run, name)

    def stop(self) -> None:
        self._worker.finish()

    def _take(self, partitions: Sequence[Any]) -> None:
        for each in partitions:
            self._positions.pop((each.topic, each.partition), None)
        self._ownership.take(self.name, partitions)

    def _is_new(self, message: Any) -> bool:
        """Whether the message is not below the position, which moves behind it."""
        partition = (message.topic(), message.partition())
        if message.offset() < self._positions.get(partition, 0):
            return False
        self._positions[partition] = message.offset() + 1
        return True

    def _run(self, stop: threading.Event) -> None:
        own = self._ownership
        consumer = rdkafka.Consumer(dict(self._settings))
        consumer.subscribe(
            list(self._topics),
            on_assign=lambda _, got: self._take(got),
            on_revoke=lambda _, gone: own.drop(self.name, gone),
            on_lost=lambda _, gone: own.drop_lost(self.name, gone),
        )
        while not stop.is_set():
            for message in consumer.consume(200, _POLL_S):
                value = message.value()
                if message.error() is None and value is not None and self._is_new(message):
                    self.seen.append(value)
        consumer.close()
