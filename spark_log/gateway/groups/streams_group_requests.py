"""Refuses members of streams groups (KIP-1071), with a message that names the way out.

The API is announced, as by a broker without the feature streams.version, because a Java client that does not find it
replaces the error by a message of its own that does not say what to change. Both INVALID_REQUEST and
UNSUPPORTED_VERSION make Kafka Streams stop, but only with the first does it show the gateway's message.
"""

from spark_log.cluster.security.acl_rules import Operation
from spark_log.gateway.access.rights import on_group
from spark_log.gateway.api import Api, Client
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.protocol.schemas import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services

_INVALID_REQUEST = 42
REFUSAL = (
    "This cluster does not have streams groups (group.protocol=streams). Set group.protocol=classic in the properties"
    " of the Kafka Streams application, which is the default."
)


async def streams_group_heartbeat(_services: Services, request: Message, _client: Client) -> Message:
    return StreamsGroupHeartbeatResponse(
        error_code=_INVALID_REQUEST, error_message=REFUSAL, member_id=request.member_id, member_epoch=0,
        throttle_time_ms=0, heartbeat_interval_ms=0, acceptable_recovery_lag_legacy=0, task_offset_interval_ms=0,
        endpoint_information_epoch=0,
    )  # fmt: skip


APIS = (
    Api(StreamsGroupHeartbeatRequest, streams_group_heartbeat, advertised=(0, 1), lane=Lane.GROUP,
        rights=(on_group(Operation.READ),)),
)  # fmt: skip
