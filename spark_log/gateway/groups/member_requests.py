"""What the requests of the members of a group have in common."""

from kafka.protocol.consumer import JoinGroupResponse

from spark_log.gateway.api import Client
from spark_log.gateway.protocol.wire import Message
from spark_log.groups.identity import Identity

MEMBER_ID_REQUIRED = 79
"""KIP-394: the client joins again with the id in the answer."""
MEMBER_ID_REQUIRED_SINCE = 4
"""Version of JoinGroup."""
BEATS_PER_SESSION = 3
"""Of a member whose request waits: its gateway keeps the session alive."""


def identity(request: Message, client: Client, session_timeout_ms: int = 0) -> Identity:
    """The member that a request names."""
    instance_id = getattr(request, "group_instance_id", None)
    return Identity(request.group_id, request.member_id, instance_id, client.client_id, client.host, session_timeout_ms)


def rebalance_timeout_ms(request: Message) -> int:
    """Of a JoinGroup; its version 0 has only the session timeout."""
    return max(0, int(request.rebalance_timeout_ms if request.version >= 1 else request.session_timeout_ms))


def join_refused(member_id: str, code: int) -> Message:
    return JoinGroupResponse(
        throttle_time_ms=0, error_code=code, generation_id=-1, protocol_type=None, protocol_name="", leader="",
        member_id=member_id, members=[],
    )  # fmt: skip
