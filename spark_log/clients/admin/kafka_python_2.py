"""Names of kafka-python 2 that version 3 has changed: methods of its admin client, and fields of their results."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from kafka import errors
from kafka.structs import OffsetAndMetadata

from spark_log.ids import TopicPartition

T = TypeVar("T")


class MemberMetadata(NamedTuple):
    """The topics that a member is subscribed to."""

    version: int
    topics: list[str]
    user_data: bytes


class MemberAssignment(NamedTuple):
    """The partitions of a member: `assignment` is [(topic, [partition])]."""

    version: int
    assignment: list[tuple[str, list[int]]]
    user_data: bytes

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic, numbers in self.assignment for number in numbers]


class MemberInformation(NamedTuple):
    """kafka.structs.MemberInformation of kafka-python 2."""

    member_id: str
    client_id: str
    client_host: str
    member_metadata: MemberMetadata
    member_assignment: MemberAssignment


class GroupInformation(NamedTuple):
    """kafka.structs.GroupInformation of kafka-python 2."""

    error_code: int
    group: str
    state: str
    protocol_type: str
    protocol: str
    members: list[MemberInformation]
    authorized_operations: list[str]


def _list_consumer_groups(admin: Any, broker_ids: Any = None) -> list[tuple[str, str]]:
    return [(group["group_id"], group["protocol_type"]) for group in admin.list_groups(broker_ids)]


def _describe_consumer_groups(
    admin: Any, group_ids: Iterable[str], group_coordinator_id: Any = None, include_authorized_operations: bool = False
) -> list[GroupInformation]:
    return [_group_information(group) for group in admin.describe_groups(group_ids).values()]


def _group_information(group: Mapping[str, Any]) -> GroupInformation:
    members = [
        MemberInformation(
            member["member_id"],
            member["client_id"],
            member["client_host"],
            MemberMetadata(0, member["member_metadata"]["topics"], b""),
            MemberAssignment(
                0,
                [(each["topic"], each["partitions"]) for each in member["member_assignment"]["assigned_partitions"]],
                b"",
            ),
        )
        for member in group["members"]
    ]
    protocol = group["protocol_data"]
    return GroupInformation(0, group["group_id"], group["group_state"], group["protocol_type"], protocol, members, [])


def _list_consumer_group_offsets(
    admin: Any, group_id: str, group_coordinator_id: Any = None, partitions: Iterable[Any] | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    return admin.list_group_offsets({group_id: partitions})[group_id]  # type: ignore[no-any-return]


def _delete_consumer_groups(
    admin: Any, group_ids: Iterable[str], group_coordinator_id: Any = None
) -> list[tuple[str, type[Exception]]]:
    outcomes = admin.delete_groups(group_ids)
    return [(name, errors.NoError if text == "OK" else getattr(errors, text)) for name, text in outcomes.items()]


def _perform_leader_election(
    admin: Any, election_type: Any, topic_partitions: Any = None, timeout_ms: int | None = None, **options: Any
) -> Any:
    return admin.elect_leaders(election_type, topic_partitions, timeout_ms, **options)


METHODS: Mapping[str, Callable[..., Any]] = {
    "delete_consumer_groups": _delete_consumer_groups,
    "describe_consumer_groups": _describe_consumer_groups,
    "list_consumer_group_offsets": _list_consumer_group_offsets,
    "list_consumer_groups": _list_consumer_groups,
    "perform_leader_election": _perform_leader_election,
}
"""Methods of version 2, with its results, on an Admin."""

_KEYS = {
    "isr": "isr_nodes",
    "leader": "leader_id",
    "node_id": "broker_id",
    "partition": "partition_index",
    "replicas": "replica_nodes",
    "topic": "name",
}
"""Key of a result in version 2 -> key in version 3."""

_ATTRIBUTES: Mapping[str, Callable[[Any], Any]] = {
    "topic_error_codes": lambda result: [(one["name"], one["error_code"]) for one in _entries(result)],
    "topic_errors": lambda result: [(one["name"], one["error_code"], one["error_message"]) for one in _entries(result)],
}
"""Attribute of a result in version 2 -> its replacement."""


def _entries(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    return result["topics"] if "topics" in result else result["results"]  # type: ignore[no-any-return]


class Result(dict[str, Any]):
    """A result of version 3 that also accepts the names of version 2."""

    def __missing__(self, key: Any) -> Any:
        if _KEYS.get(key) in self:
            return self[_KEYS[key]]
        raise KeyError(f"{key!r}: results are those of kafka-python 3, here a dict of {', '.join(map(str, self))}")

    def __getattr__(self, name: str) -> Any:
        if name in _ATTRIBUTES and not {"topics", "results"}.isdisjoint(self):
            return _ATTRIBUTES[name](self)
        raise AttributeError(f"{name}: results are those of kafka-python 3, here a dict of {', '.join(map(str, self))}")


def result(value: T) -> T:
    """`value` with each of its dicts as a Result."""
    made: Any = value
    if isinstance(value, dict):
        made = Result((key, result(each)) for key, each in value.items())
    elif isinstance(value, list):
        made = [result(each) for each in value]
    return made  # type: ignore[no-any-return]
