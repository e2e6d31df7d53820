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


class StreamsGroupHeartbeatRequest(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-1071."""


class StreamsGroupHeartbeatResponse(ApiMessage, load_json=resources):  # type: ignore[call-arg, misc]
    """KIP-1071."""
