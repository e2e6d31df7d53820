"""Manages consumer groups, with kafka-python's arguments and results."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import kafka.errors
from kafka.admin import GroupState, GroupType, OffsetSpec, OffsetTimestamp
from kafka.errors import GroupIdNotFoundError, NoError, UnknownMemberIdError, UnknownTopicOrPartitionError
from kafka.structs import OffsetAndMetadata

from spark_log.clients.admin.outcomes import outcome_of
from spark_log.clients.admin.topics import list_partition_offsets
from spark_log.clients.kafka_errors import kafka_errors
from spark_log.cluster.cluster import Cluster
from spark_log.errors import NonEmptyGroupError
from spark_log.facts import groups as group_inspection
from spark_log.groups import group_operations
from spark_log.groups.committed_offsets import commit_offsets, committed
from spark_log.groups.consumer.rules import Partitions
from spark_log.groups.group_names import check_group_id
from spark_log.ids import TopicPartition, numbers_by_topic


def by_topic(partitions: Partitions) -> list[dict[str, Any]]:
    """Return the partitions as kafka-python shows an assignment."""
    return [{"topic": topic, "partitions": numbers} for topic, numbers in numbers_by_topic(partitions).items()]


def reset_target(cluster: Cluster, partition: TopicPartition, spec: Any) -> group_operations.ResetTo:
    """Return the reset that an OffsetSpec, an OffsetTimestamp or an offset names. Raises TypeError for others."""
    if isinstance(spec, OffsetTimestamp):
        return group_operations.AtTime(int(spec))
    if spec is OffsetSpec.EARLIEST:
        return group_operations.Earliest()
    if spec is OffsetSpec.LATEST:
        return group_operations.Latest()
    if spec is OffsetSpec.MAX_TIMESTAMP:
        found = list_partition_offsets(cluster, {partition: spec})[partition].offset
        return group_operations.Latest() if found < 0 else group_operations.Exactly(found)
    if isinstance(spec, OffsetSpec | bool) or not isinstance(spec, int):
        raise TypeError(
            f"Unsupported reset target for {partition}: {spec!r} (expected OffsetSpec, OffsetTimestamp, or int offset)"
        )
    return group_operations.Latest() if spec < 0 else group_operations.Exactly(spec)


def deletions(group_ids: Iterable[str], delete: Callable[[str], None]) -> dict[str, str]:
    """Delete groups, and return 'OK' or the name of the error for each."""
    errors = {group_id: outcome_of(delete, group_id)[1] for group_id in group_ids}
    return {group_id: "OK" if error is None else type(error).__name__ for group_id, error in errors.items()}


class GroupCalls:
    """The methods of Admin for groups."""

    _cluster: Cluster

    @kafka_errors()
    def list_groups(
        self,
        broker_ids: Any = None,
        states_filter: Iterable[Any] | None = None,
        types_filter: Iterable[Any] | None = None,
    ) -> list[dict[str, str]]:
        """Return group_id, protocol_type, group_state and group_type of each group."""
        states = {GroupState.value_for(state) for state in states_filter or ()}
        types = {GroupType.value_for(kind) for kind in types_filter or ()}
        return [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.type,
            }
            for group in group_inspection.list_groups(self._cluster.store)
            if (not states or group.state in states) and (not types or group.type in types)
        ]

    @kafka_errors()
    def describe_groups(
        self, group_ids: Iterable[str], group_coordinator_id: Any = None, include_authorized_operations: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Return state, assignor, and members with their partitions, by group. An unknown group has state Dead."""
        return {
            group.group_id: {
                "group_id": group.group_id,
                "group_state": group.state,
                "protocol_type": group.protocol_type,
                "protocol_data": group.assignor,
                "generation_id": group.generation,
                "group_type": group.type,
                "assignment_epoch": group.target_generation,
                "members": [
                    {
                        "member_id": member.member_id,
                        "group_instance_id": member.instance_id,
                        "client_id": member.client_id,
                        "client_host": member.host,
                        "member_epoch": member.generation,
                        "member_protocol": member.protocol,
                        "member_metadata": {"topics": sorted(member.topics)},
                        "member_assignment": {"assigned_partitions": by_topic(member.assignment)},
                        "reconciliation": {"assigned_partitions": by_topic(member.target)},
                    }
                    for member in group.members
                ],
                "error": str(GroupIdNotFoundError(f"Group {group.group_id} not found."))
                if group.state == "Dead"
                else None,
            }
            for group in group_inspection.describe_groups(self._cluster.store, list(group_ids))
        }

    @kafka_errors()
    def list_group_offsets(self, group_specs: Any) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """Return committed offsets of a group, of a list of groups, or of {group: partitions, or None for all}."""
        if isinstance(group_specs, str):
            group_specs = [group_specs]
        if not isinstance(group_specs, Mapping):
            group_specs = dict.fromkeys(group_specs)
        if not group_specs:
            raise ValueError("Empty group_specs!")
        result = {}
        for group_id, partitions in group_specs.items():
            wanted = None if partitions is None else [TopicPartition(*partition) for partition in partitions]
            found = committed(self._cluster.store, group_id, wanted)
            unset = {tp: OffsetAndMetadata(-1, "", -1) for tp in wanted or () if tp not in found}
            result[group_id] = {**found, **unset}
        return result

    @kafka_errors()
    def alter_group_offsets(
        self, group_id: str, offsets: Mapping[Any, OffsetAndMetadata], group_coordinator_id: Any = None
    ) -> dict[Any, type[Exception]]:
        """Commit offsets of a group without live members; return each partition's error class, or NoError."""
        given = {TopicPartition(*partition): offset for partition, offset in offsets.items()}
        unknown, error = outcome_of(lambda: commit_offsets(self._cluster.store, check_group_id(group_id), given))
        if error is not None:
            return dict.fromkeys(offsets, type(error))
        return {tp: UnknownTopicOrPartitionError if tp in (unknown or ()) else NoError for tp in offsets}

    @kafka_errors()
    def reset_group_offsets(
        self, group_id: str, offset_specs: Mapping[Any, Any], group_coordinator_id: Any = None
    ) -> dict[Any, dict[str, Any]]:
        """Commit an OffsetSpec, OffsetTimestamp or offset for each TopicPartition, clamped to the readable offsets.

        In a group with live members, nothing is written and each partition has UnknownMemberIdError. Raises
        UnknownTopicOrPartitionError, and writes nothing, if a topic is deleted meanwhile.
        """
        named = {TopicPartition(*partition): spec for partition, spec in offset_specs.items()}
        targets = {tp: reset_target(self._cluster, tp, spec) for tp, spec in named.items()}
        error = NoError
        try:
            new = group_operations.reset_offsets(self._cluster, group_id, targets)
        except NonEmptyGroupError:
            error = UnknownMemberIdError
            new = group_operations.reset_offsets(self._cluster, group_id, targets, preview=True)
        return {tp: {"error": error, "offset": new[tp].new} for tp in offset_specs}

    @kafka_errors()
    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[Any], group_coordinator_id: Any = None
    ) -> dict[Any, type[Exception]]:
        """Delete committed offsets of a group; return each partition's error class, or NoError."""
        partitions = list(partitions)
        found = group_operations.delete_offsets_of_each(
            self._cluster.store, group_id, [TopicPartition(*partition) for partition in partitions]
        )
        outcomes = {partition: found[TopicPartition(*partition)] for partition in partitions}
        return {
            partition: NoError if error is None else getattr(kafka.errors, type(error).__name__)
            for partition, error in outcomes.items()
        }

    @kafka_errors()
    def delete_groups(self, group_ids: Iterable[str], group_coordinator_id: Any = None) -> dict[str, str]:
        """Delete groups; return 'OK' or the name of the error for each."""
        return deletions(group_ids, partial(group_operations.delete_group, self._cluster.store))

    @kafka_errors()
    def remove_group_members(
        self, group_id: str, members: Iterable[Any], group_coordinator_id: Any = None
    ) -> dict[str, type[Exception]]:
        """Remove each MemberToRemove; return {member id or instance id: NoError}. If one is not a member, none is
        removed and the error is raised.
        """
        removed = list(members)
        group_operations.remove_from_group(
            self._cluster.store,
            group_id,
            [member.member_id for member in removed if member.member_id],
            [member.group_instance_id for member in removed if member.group_instance_id and not member.member_id],
        )
        return {member.member_id or member.group_instance_id: NoError for member in removed}
