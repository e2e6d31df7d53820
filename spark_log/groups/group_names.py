"""Checks the names of groups and members, and session timeouts."""

import uuid

from spark_log.cluster.names import is_legal
from spark_log.config import ClusterSettings
from spark_log.config.values import can_be_stored
from spark_log.errors import InvalidConfigurationError, InvalidGroupIdError, InvalidSessionTimeoutError

MEMBER_ID_PREFIX_MAX = 200
"""The maximum number of characters of the client id in a member id. The store accepts member ids of 249 characters."""
GROUP_ID_LENGTH_MAX = 249
"""The limit of the store; Kafka's own limit is 32,767 bytes."""


def new_member_id(client_id: str) -> str:
    """Return a new member id: up to MEMBER_ID_PREFIX_MAX characters of the client id, and a UUID. Characters that
    cannot be stored become "?".
    """
    prefix = client_id[:MEMBER_ID_PREFIX_MAX].replace("\0", "?").encode(errors="replace").decode()
    return f"{prefix}-{uuid.uuid4()}"


def check_group_id(group_id: object) -> str:
    """Return `group_id` if it is valid. Otherwise raise InvalidGroupIdError, which names the value."""
    if not isinstance(group_id, str) or not group_id:
        raise InvalidGroupIdError(f"group_id: {group_id!r} is not a text of one character or more")
    if len(group_id) > GROUP_ID_LENGTH_MAX:
        raise InvalidGroupIdError(
            f"group_id: {group_id[:50]!r}… has {len(group_id)} characters, more than {GROUP_ID_LENGTH_MAX}"
        )
    if not can_be_stored(group_id):
        raise InvalidGroupIdError(f"group_id: {group_id!r} has characters that cannot be stored")
    return group_id


def check_instance_id(instance_id: object) -> None:
    """Raise InvalidConfigurationError unless it is None or follows the rules of topic names, as in Kafka."""
    if instance_id is not None and not is_legal(instance_id):
        raise InvalidConfigurationError(
            f"group_instance_id: {instance_id!r} is not 1 to 249 ASCII letters, digits, '.', '_' and '-'"
        )


def check_session_timeout(timeout_ms: object, limits: ClusterSettings) -> None:
    """Raise InvalidSessionTimeoutError unless the timeout is a whole number from group.min.session.timeout.ms to
    group.max.session.timeout.ms.
    """
    least, most = limits.group_min_session_timeout_ms, limits.group_max_session_timeout_ms
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int) or not least <= timeout_ms <= most:
        raise InvalidSessionTimeoutError(
            f"session_timeout_ms: {timeout_ms!r} is not a whole number from {least} to {most}"
        )
