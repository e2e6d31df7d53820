"""Encodes and decodes Kafka's ConsumerProtocol: the messages of consumers in a group whose leader assigns."""

import struct
from typing import NamedTuple

from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_log.groups.classic.group import ClassicGroup, ClassicMember
from spark_log.groups.consumer.rules import Partitions
from spark_log.ids import TopicPartition, numbers_by_topic

PROTOCOL_TYPE = "consumer"
_ERRORS = (struct.error, ValueError, IndexError, TypeError, KeyError, OverflowError, UnicodeError)


class SubscriptionMessage(NamedTuple):
    """A member's subscription. A member with a cooperative assignor keeps its `owned` partitions while it joins."""

    topics: frozenset[str]
    owned: Partitions


def decode_subscription(data: bytes) -> SubscriptionMessage | None:
    """Decode a subscription, or return None for bytes that are not one."""
    try:
        message = ConsumerProtocolSubscription.decode(data)
        if None in message.topics:
            return None
        return SubscriptionMessage(frozenset(message.topics), _partitions(message.owned_partitions or ()))
    except _ERRORS:
        return None


def subscription_of(group: ClassicGroup, member: ClassicMember) -> SubscriptionMessage | None:
    """Return the subscription of a member of a classic group. Return None if the group is not one of consumers, or the
    member's metadata cannot be decoded.
    """
    if group.protocol_type != PROTOCOL_TYPE or not member.protocols:
        return None
    return decode_subscription(member.metadata(group.protocol) or member.protocols[0][1])


def decode_assignment(data: bytes) -> Partitions | None:
    """Decode an assignment, or return None for bytes that are not one."""
    try:
        return _partitions(ConsumerProtocolAssignment.decode(data).assigned_partitions)
    except _ERRORS:
        return None


def encode_assignment(partitions: Partitions) -> bytes:
    kind = ConsumerProtocolAssignment.TopicPartition
    assigned = [kind(topic=topic, partitions=numbers) for topic, numbers in numbers_by_topic(partitions).items()]
    message = ConsumerProtocolAssignment(version=0, assigned_partitions=assigned, user_data=b"")
    return message.encode()  # type: ignore[no-any-return]


def _partitions(topics: object) -> Partitions:
    return frozenset(TopicPartition(each.topic, number) for each in topics for number in each.partitions)  # type: ignore[attr-defined]
