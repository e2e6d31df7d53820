"""Manages share groups with the methods of Java's Admin, as kafka-python has none, and results in kafka-python's style.

Changes are recorded in `__audit`; `who` and `source` are for the audit.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import kafka.errors
from kafka.errors import NoError

from spark_log.clients.admin.audit import local_user, recorded
from spark_log.clients.admin.groups import by_topic, deletions, reset_target
from spark_log.clients.admin.outcomes import outcome_of
from spark_log.clients.kafka_errors import kafka_errors
from spark_log.cluster.cluster import Cluster
from spark_log.errors import GroupIdNotFoundError, SparkLogError
from spark_log.facts.share_groups import describe_share_group
from spark_log.groups.group_operations import OffsetReset, ResetTo
from spark_log.groups.share import administration
from spark_log.ids import TopicPartition

_SOURCE = "admin"


class SharePartitionOffset(NamedTuple):
    """The state of a share group in a partition: Java's SharePartitionOffsetInfo."""

    start_offset: int
    """The first unfinished offset, or -1 if the group does not read the partition."""
    leader_epoch: int | None
    lag: int | None
    """The number of unfinished records, or None if the group does not read the partition."""


def reset_offsets(
    cluster: Cluster, who: str, source: str, group_id: str, targets: Mapping[TopicPartition, ResetTo]
) -> dict[TopicPartition, OffsetReset]:
    """Reset offsets as `administration.reset_share_offsets` does, and record the reset."""
    parameters = {str(partition): repr(to) for partition, to in targets.items()}
    with recorded(cluster, who, "AlterShareGroupOffsets", f"group {group_id}", parameters, source):
        return administration.reset_share_offsets(cluster, group_id, targets)


def delete_group(cluster: Cluster, who: str, source: str, group_id: str) -> None:
    """Delete a share group as `administration.delete_share_group` does, and record the deletion."""
    with recorded(cluster, who, "DeleteGroups", f"group {group_id}", {}, source):
        administration.delete_share_group(cluster.store, group_id)


class ShareGroupCalls:
    """The methods of Admin for share groups."""

    _cluster: Cluster

    @kafka_errors()
    def describe_share_groups(self, group_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return state, epoch, and members with their partitions, by group. A group that does not exist, or is of
        another type, has state Dead and an error.
        """
        return {group_id: self._described(group_id) for group_id in group_ids}

    def _described(self, group_id: str) -> dict[str, Any]:
        try:
            group = describe_share_group(self._cluster.store, group_id).group
        except GroupIdNotFoundError as error:
            empty = {"group_epoch": 0, "assignment_epoch": 0, "assignor_name": "", "members": []}
            return {"group_id": group_id, "group_state": "Dead", **empty, "error": str(error)}
        return {
            "group_id": group_id,
            "group_state": group.state,
            "group_epoch": group.generation,
            "assignment_epoch": group.target_generation,
            "assignor_name": group.assignor,
            "members": [
                {
                    "member_id": member.member_id,
                    "rack_id": member.rack,
                    "member_epoch": member.generation,
                    "client_id": member.client_id,
                    "client_host": member.host,
                    "subscribed_topic_names": sorted(member.topics),
                    "assignment": by_topic(member.assignment),
                }
                for member in group.members
            ],
            "error": None,
        }

    @kafka_errors()
    def list_share_group_offsets(self, group_specs: Any) -> dict[str, dict[TopicPartition, SharePartitionOffset]]:
        """Return start offset, leader epoch and lag of a group, of a list of groups, or of {group: partitions, or None
        for all}. A requested partition that the group does not read has start offset -1. Raises GroupIdNotFoundError.
        """
        if isinstance(group_specs, str):
            group_specs = [group_specs]
        if not isinstance(group_specs, Mapping):
            group_specs = dict.fromkeys(group_specs)
        result = {}
        for group_id, partitions in group_specs.items():
            found = {
                each.place: SharePartitionOffset(each.start, each.leader_epoch, each.lag)
                for each in describe_share_group(self._cluster.store, group_id).partitions
            }
            chosen = found if partitions is None else [TopicPartition(*partition) for partition in partitions]
            result[group_id] = {tp: found.get(tp, SharePartitionOffset(-1, None, None)) for tp in chosen}
        return result

    @kafka_errors()
    def alter_share_group_offsets(self, group_id: str, offsets: Mapping[Any, Any]) -> dict[Any, type[Exception]]:
        """Make a share group without members begin at an offset, OffsetSpec or OffsetTimestamp of each TopicPartition,
        clamped to the readable offsets. Return each partition's error class, or NoError. A group that does not exist is
        created.
        """
        given = {TopicPartition(*partition): spec for partition, spec in offsets.items()}

        def alter() -> dict[TopicPartition, SparkLogError | None]:
            targets = {tp: reset_target(self._cluster, tp, spec) for tp, spec in given.items()}
            parameters = {str(partition): repr(to) for partition, to in targets.items()}
            with recorded(
                self._cluster, local_user(), "AlterShareGroupOffsets", f"group {group_id}", parameters, _SOURCE
            ):
                return administration.reset_each_share_offset(self._cluster, group_id, targets)

        errors, error = outcome_of(alter)
        if error is not None:
            return dict.fromkeys(offsets, type(error))
        return {partition: _class_of((errors or {})[TopicPartition(*partition)]) for partition in offsets}

    @kafka_errors()
    def delete_share_group_offsets(self, group_id: str, topics: Collection[str]) -> dict[str, type[Exception]]:
        """Delete the state of a share group without members for these topics. Return each topic's error class, or
        NoError.
        """

        def delete() -> dict[str, SparkLogError | None]:
            parameters = {"topics": list(topics)}
            with recorded(
                self._cluster, local_user(), "DeleteShareGroupOffsets", f"group {group_id}", parameters, _SOURCE
            ):
                return administration.delete_share_offsets(self._cluster.store, group_id, topics)

        errors, error = outcome_of(delete)
        if error is not None:
            return dict.fromkeys(topics, type(error))
        return {topic: _class_of((errors or {})[topic]) for topic in topics}

    @kafka_errors()
    def delete_share_groups(self, group_ids: Iterable[str]) -> dict[str, str]:
        """Delete share groups without members; return 'OK' or the name of the error for each. Their configs stay."""
        return deletions(group_ids, partial(delete_group, self._cluster, local_user(), _SOURCE))


def _class_of(error: SparkLogError | None) -> type[Exception]:
    """Return kafka-python's class of an error, or NoError."""
    return NoError if error is None else getattr(kafka.errors, type(error).__name__)  # type: ignore[no-any-return]
