"""Limits the size of a classic group. The functions are pure. They take the group before and after a request."""

from collections.abc import Collection

from spark_log.errors import GroupAssignmentTooLargeError, GroupMaxSizeReachedError
from spark_log.groups.classic.group import ClassicGroup, ClassicMember, Joining

BYTES_MAX = 4 * 1024 * 1024
"""The maximum size of the names, metadata and assignments of all members of a group together. A member's request may
read and write all of them, and the answer to the leader has all metadata. A broker keeps the same data in one record,
of at most 1 MiB by default."""
DECODED_BYTES_MAX = 256 * 1024
"""The same limit for a group of consumers whose metadata is decoded in a transaction that others may wait for."""
MEMBERS_MAX = 1_000
"""The maximum number of members of a group, including PENDING ones. The cost of a rebalance is quadratic in it."""


def check_join(group: ClassicGroup, request: Joining, after: ClassicGroup) -> None:
    """Raise GroupMaxSizeReachedError if `after`, the group after the join, has too many members or bytes, and more than
    `group`.
    """
    new = after.members.keys() - group.members.keys()
    if new and len(after.members) > max(MEMBERS_MAX, len(group.members)):
        raise GroupMaxSizeReachedError(f"group {group.group_id!r} has {MEMBERS_MAX} members")
    size = _size(after.members.values())
    if request.id_required:  # the member now joins again with this metadata, and a rebalance waits for it
        size += _bytes_of(request)
    if size > BYTES_MAX and size > _size(group.members.values()):
        raise GroupMaxSizeReachedError(
            f"group {group.group_id!r}: with {_bytes_of(request)} bytes of metadata of another member, names, metadata"
            f" and assignments would have more than {BYTES_MAX} bytes"
        )


def check_request(request: Joining) -> None:
    """Raise GroupMaxSizeReachedError if this metadata is too large for any group, so that no group is read."""
    if _bytes_of(request) > BYTES_MAX:
        raise GroupMaxSizeReachedError(f"the metadata of a member has more than {BYTES_MAX} bytes")


def check_metadata(group_id: str, size: int) -> None:
    """Raise GroupMaxSizeReachedError if `size`, the metadata of a group's translated members, is above BYTES_MAX."""
    if size > BYTES_MAX:
        raise GroupMaxSizeReachedError(f"group {group_id!r}: the metadata of its classic members has {size} bytes")


def may_be_decoded(group: ClassicGroup) -> bool:
    """Return whether the metadata and assignments of the members are small enough to decode in a transaction."""
    return _size(group.members.values()) <= DECODED_BYTES_MAX


def check_assignment(group: ClassicGroup, after: ClassicGroup) -> None:
    """Raise GroupAssignmentTooLargeError if `after`, the group with the leader's assignment, has too many bytes, and
    more than `group`.
    """
    size = _size(after.members.values())
    if size > BYTES_MAX and size > _size(group.members.values()):
        raise GroupAssignmentTooLargeError(
            f"group {group.group_id!r}: with the assignment of its leader, names, metadata and assignments would have"
            f" {size} bytes, more than {BYTES_MAX}"
        )


def _bytes_of(request: Joining) -> int:
    return sum(len(name) + len(metadata) for name, metadata in request.protocols)


def _size(members: Collection[ClassicMember]) -> int:
    return sum(
        sum(len(name) + len(metadata) for name, metadata in each.protocols)
        + len(each.assignment) + len(each.member_id) + len(each.instance_id or "") + len(each.client_id)
        for each in members
    )  # fmt: skip
