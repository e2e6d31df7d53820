"""Defines messages of Kafka's protocol that kafka-python does not have. Their schemas are in `resources`."""

from kafka.protocol.api_message import ApiMessage

from spark_log.gateway.protocol.schemas import resources


class ApiVersionsRequest(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """Version 5 is KIP-1242. Its responses are those of version 4, which kafka-python has."""


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-848."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-848."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-848; version 1 is KIP-1099."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-848; version 1 is KIP-1099."""


class ShareGroupHeartbeatRequest(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-932."""


class ShareGroupHeartbeatResponse(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-932."""


class ShareGroupDescribeRequest(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-932."""


class ShareGroupDescribeResponse(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-932."""


class ShareFetchRequest(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-932; version 2 is KIP-1206 and KIP-1222."""


class ShareFetchResponse(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-932; version 2 is KIP-1206 and KIP-1222."""


class ShareAcknowledgeRequest(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-932; version 2 is KIP-1222."""


class ShareAcknowledgeResponse(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-932; version 2 is KIP-1222."""


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-932; version 1 is KIP-1226."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-932; version 1 is KIP-1226."""


class AlterShareGroupOffsetsRequest(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-932."""


class AlterShareGroupOffsetsResponse(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-932."""


class DeleteShareGroupOffsetsRequest(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-932."""


class DeleteShareGroupOffsetsResponse(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-932."""


class StreamsGroupHeartbeatRequest(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-1071."""


class StreamsGroupHeartbeatResponse(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-1071."""
