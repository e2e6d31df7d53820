"""Defines and checks heartbeats of the consumer protocol (KIP-848), and defines their answers. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from spark_log.config.values import can_be_stored
from spark_log.errors import IllegalArgumentError, InvalidRegularExpressionError, UnsupportedAssignorError
from spark_log.groups.assignors import UNIFORM
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.rules import JOINING, LEAVING_FOR_A_WHILE, NO_PARTITIONS, Partitions
from spark_log.groups.consumer.topic_patterns import check_pattern
from spark_log.groups.identity import Identity

SERVER_ASSIGNORS = (UNIFORM, "range")
_CHARACTERS_MAX, _REGEX_CHARACTERS_MAX = 249, 4_096


@dataclass(frozen=True)
class ConsumerHeartbeat:
    """A heartbeat as it was received. A field is None if the client left it out, because it has not changed."""

    me: Identity
    connection_id: str
    epoch: int | None
    """None means the epoch of the stored member, for protocols without an epoch in the heartbeat."""
    rack: str | None = None
    rebalance_timeout_ms: int | None = None
    names: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    may_describe: Callable[[str], bool] = lambda _: True
    """Returns whether the client may see a topic that its regular expression matches."""
    assignors: tuple[str, ...] = ()
    """Assignor names in order of preference, of members that list more than one."""
    replaces: bool = False
    """Whether it may replace a live member that has the same instance id, as in the classic protocol (KIP-345)."""
    protocol: str = rows.CONSUMER
    protocols: tuple[tuple[str, bytes], ...] = ()
    """The protocols of a classic member, as in `MemberRow.protocols`."""

    @property
    def full(self) -> bool:
        """Whether the answer must contain the assignment (KIP-848): the member joins or sends no epoch, or its
        heartbeat has the rebalance timeout, the subscription and the owned partitions.
        """
        subscribed = self.names is not None or self.regex is not None
        return self.epoch in (JOINING, None) or (
            self.rebalance_timeout_ms is not None and subscribed and self.owned is not None
        )


@dataclass(frozen=True)
class ConsumerAnswer:
    """The answer to a heartbeat. `partitions` is the assignment; None if it has not changed. With `complete`, the
    member has exactly its target. With `repeat`, it sends another heartbeat: the target is being computed, or it must
    report again what it owns.
    """

    member_id: str
    epoch: int
    partitions: Partitions | None = None
    assignor: str = ""
    complete: bool = False
    repeat: bool = False


def check_heartbeat(heartbeat: ConsumerHeartbeat) -> None:
    """Refuse a heartbeat whose fields a broker would refuse. Raises IllegalArgumentError (INVALID_REQUEST),
    UnsupportedAssignorError, or InvalidRegularExpressionError.
    """
    if not heartbeat.me.member_id:
        raise IllegalArgumentError("MemberId can't be empty.")
    if not heartbeat.me.group_id:
        raise IllegalArgumentError("GroupId can't be empty.")
    if heartbeat.me.instance_id == "":
        raise IllegalArgumentError("InstanceId can't be empty.")
    if heartbeat.rack == "":
        raise IllegalArgumentError("RackId can't be empty.")
    if heartbeat.epoch == JOINING:
        if heartbeat.rebalance_timeout_ms is None:
            raise IllegalArgumentError("RebalanceTimeoutMs must be provided in first request.")
        if heartbeat.owned != NO_PARTITIONS:
            raise IllegalArgumentError("TopicPartitions must be empty when (re-)joining.")
        if heartbeat.names is None and heartbeat.regex is None:
            raise IllegalArgumentError(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
    elif heartbeat.epoch == LEAVING_FOR_A_WHILE and heartbeat.me.instance_id is None:
        raise IllegalArgumentError("InstanceId can't be null.")
    elif heartbeat.epoch is not None and heartbeat.epoch < LEAVING_FOR_A_WHILE:
        raise IllegalArgumentError("MemberEpoch is invalid.")
    if heartbeat.assignor is not None and heartbeat.assignor not in SERVER_ASSIGNORS:
        raise UnsupportedAssignorError(
            f"ServerAssignor {heartbeat.assignor} is not supported. Supported assignors: {', '.join(SERVER_ASSIGNORS)}."
        )
    for name, text in (("MemberId", heartbeat.me.member_id), ("RackId", heartbeat.rack)):
        if text is not None and (len(text) > _CHARACTERS_MAX or not can_be_stored(text)):
            raise IllegalArgumentError(f"{name} is longer than {_CHARACTERS_MAX} characters, or cannot be stored.")
    if heartbeat.regex:
        if len(heartbeat.regex) > _REGEX_CHARACTERS_MAX or not can_be_stored(heartbeat.regex):
            raise InvalidRegularExpressionError(
                f"SubscribedTopicRegex is longer than {_REGEX_CHARACTERS_MAX} characters, or cannot be stored."
            )
        check_pattern(heartbeat.regex)
