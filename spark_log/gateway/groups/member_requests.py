"""Contains the functions and numbers that handlers of members' requests share."""

from kafka.protocol.consumer import JoinGroupResponse

from spark_log.gateway.api import Client
from spark_log.gateway.protocol.wire import Message
from spark_log.groups.identity import Identity

MEMBER_ID_REQUIRED = 79
"""The error after which the client joins again with the member id in the answer (KIP-394)."""
MEMBER_ID_REQUIRED_SINCE = 4
"""The first version of JoinGroup with the error MEMBER_ID_REQUIRED."""
BEATS_PER_SESSION = 3
"""How often in a session timeout a gateway renews the session of a member whose request waits."""


def identity(request: Message, client: Client, session_timeout_ms: int = 0) -> Identity:
    """Return the identity of the member that a request names."""
    instance_id = getattr(request, "group_instance_id", None)
    return Identity(request.group_id, request.member_id, instance_id, client.client_id, client.host, session_timeout_ms)


def rebalance_timeout_ms(request: Message) -> int:
    """Return the rebalance timeout of a JoinGroup. For version 0 it is the session timeout."""
    return max(0, int(request.rebalance_timeout_ms if request.version >= 1 else request.session_timeout_ms))


def join_refused(member_id: str, code: int) -> Message:
    return JoinGroupResponse(
        throttle_time_ms=0, error_code=code, generation_id=-1, protocol_type=None, protocol_name="", leader="",
        member_id=member_id, members=[],
    )  # fmt: skip
