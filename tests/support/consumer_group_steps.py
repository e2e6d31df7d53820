"""The consumer protocol step by step, to compare servers: each request, and what a server answers."""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from spark_log.gateway.protocol.wire import Message
from tests.support.consumer_member import LEAVE, LEAVE_AND_RETURN, ConsumerMember
from tests.support.gateway_wire import WireConnection

TOPICS = {"t": 4, "u": 2}
"""Partitions of the topics that the steps use."""
MEMBERS_MAX = 2
"""group.consumer.max.size that the steps assume."""

_COORDINATOR_ERRORS = (14, 15, 16)
_WAIT_S = 60.0


def topic_ids(wire: WireConnection, *names: str) -> dict[str, uuid.UUID]:
    """Waits until the server knows the topics."""
    kind = MetadataRequest.MetadataRequestTopic
    deadline = time.monotonic() + _WAIT_S
    while True:
        request = MetadataRequest(
            topics=[kind(name=name, topic_id=uuid.UUID(int=0)) for name in names], allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )  # fmt: skip
        found = {each.name: each.topic_id for each in wire.exchange(request, 12).topics if each.error_code == 0}
        if len(found) == len(names):
            return found
        assert time.monotonic() < deadline
        time.sleep(0.1)


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
            _until_coordinated(member("warm-up"))
            return [f"{step}: {seen}" for step, seen in _steps(member)]
        finally:
            for each in members:
                each.wire.__exit__(None, None, None)


def _until_coordinated(member: ConsumerMember) -> None:
    deadline = time.monotonic() + _WAIT_S
    while member.join().error_code in _COORDINATOR_ERRORS:
        assert time.monotonic() < deadline
        time.sleep(0.2)


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
