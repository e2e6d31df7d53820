"""Topics and partitions of the members of an opaque group, where they can be decoded: those of type consumer."""

from spark_log.groups.opaque.rules import OpaqueGroup, OpaqueMember
from spark_log.groups.rules import NO_PARTITIONS, Partitions
from spark_log.ids import TopicPartition

_DECODE_ERRORS = (ValueError, IndexError, TypeError, KeyError, OverflowError, UnicodeError)
_DECODED_TYPE = "consumer"


def topics_of(group: OpaqueGroup, member: OpaqueMember) -> frozenset[str]:
    """The topics of a consumer's subscription; empty for other types, and for what cannot be decoded."""
    if group.protocol_type != _DECODED_TYPE or not member.protocols:
        return frozenset()
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

    try:
        said = ConsumerProtocolSubscription.decode(member.metadata(group.protocol) or member.protocols[0][1])
        return frozenset(said.topics)
    except _DECODE_ERRORS:
        return frozenset()


def partitions_of(group: OpaqueGroup, member: OpaqueMember) -> Partitions:
    """The partitions of a consumer's assignment; none for other types, and for what cannot be decoded."""
    if group.protocol_type != _DECODED_TYPE or not member.assignment:
        return NO_PARTITIONS
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

    try:
        given = ConsumerProtocolAssignment.decode(member.assignment)
        return frozenset(
            TopicPartition(each.topic, number) for each in given.assigned_partitions for number in each.partitions
        )
    except _DECODE_ERRORS:
        return NO_PARTITIONS
