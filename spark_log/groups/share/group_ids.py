"""Reserves the ids of share groups for share groups. The caller's transaction holds the lock of the group's row."""

import sqlalchemy as sa

from spark_log.errors import GroupIdNotFoundError, InconsistentGroupProtocolError
from spark_log.groups.consumer import rows as group_rows
from spark_log.groups.share import rows


def belongs_to_share_group(connection: sa.Connection, group_id: str, group: group_rows.GroupRow | None) -> bool:
    """Return whether the id is that of a share group with members or with state of partitions. The id of a share group
    that has neither may become that of a consumer group.
    """
    if group is None or group.type != group_rows.SHARE:
        return False
    return rows.has_rows(connection, group_id) or group_rows.count_members(connection, group_id) > 0


def refuse_share_group(connection: sa.Connection, group_id: str, group: group_rows.GroupRow | None) -> None:
    """Raise GroupIdNotFoundError if the id belongs to a share group: it has no committed offsets, and no members of the
    consumer protocol.
    """
    if belongs_to_share_group(connection, group_id, group):
        raise GroupIdNotFoundError(f"Group {group_id} is not a consumer group.")


def refuse_classic_member(connection: sa.Connection, group_id: str, group: group_rows.GroupRow) -> None:
    """Raise InconsistentGroupProtocolError if the id belongs to a share group."""
    if belongs_to_share_group(connection, group_id, group):
        raise InconsistentGroupProtocolError(f"Group {group_id} is a share group.")


def make_consumer_group(connection: sa.Connection, group_id: str, group: group_rows.GroupRow | None) -> None:
    """Refuse a share group as `refuse_share_group` does. Turn one without members and state into a consumer group."""
    refuse_share_group(connection, group_id, group)
    if group is not None and group.type == group_rows.SHARE:
        group_rows.save_group(connection, group_id, group.group, type=group_rows.CONSUMER, topics="{}")
