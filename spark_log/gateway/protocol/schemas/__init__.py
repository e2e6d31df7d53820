"""Defines messages of Kafka's protocol that kafka-python does not have. Their schemas are in `resources`."""

from typing import Any

from kafka.protocol.api_message import ApiMessage

from spark_log.gateway.protocol.schemas import resources


def _message(name: str) -> Any:
    """Return the class of the message whose schema is NAME.json."""
    return type(ApiMessage)(name, (ApiMessage,), {"__module__": __name__}, load_json=resources)


# Version 5 is KIP-1242. Its responses are those of version 4, which kafka-python has.
ApiVersionsRequest = _message("ApiVersionsRequest")

# KIP-848; version 1 of ConsumerGroupDescribe is KIP-1099.
ConsumerGroupHeartbeatRequest = _message("ConsumerGroupHeartbeatRequest")
ConsumerGroupHeartbeatResponse = _message("ConsumerGroupHeartbeatResponse")
ConsumerGroupDescribeRequest = _message("ConsumerGroupDescribeRequest")
ConsumerGroupDescribeResponse = _message("ConsumerGroupDescribeResponse")

# KIP-932; version 2 of ShareFetch is KIP-1206 and KIP-1222, version 2 of ShareAcknowledge is KIP-1222, and version 1 of
# DescribeShareGroupOffsets is KIP-1226.
ShareGroupHeartbeatRequest = _message("ShareGroupHeartbeatRequest")
ShareGroupHeartbeatResponse = _message("ShareGroupHeartbeatResponse")
ShareGroupDescribeRequest = _message("ShareGroupDescribeRequest")
ShareGroupDescribeResponse = _message("ShareGroupDescribeResponse")
ShareFetchRequest = _message("ShareFetchRequest")
ShareFetchResponse = _message("ShareFetchResponse")
ShareAcknowledgeRequest = _message("ShareAcknowledgeRequest")
ShareAcknowledgeResponse = _message("ShareAcknowledgeResponse")
DescribeShareGroupOffsetsRequest = _message("DescribeShareGroupOffsetsRequest")
DescribeShareGroupOffsetsResponse = _message("DescribeShareGroupOffsetsResponse")
AlterShareGroupOffsetsRequest = _message("AlterShareGroupOffsetsRequest")
AlterShareGroupOffsetsResponse = _message("AlterShareGroupOffsetsResponse")
DeleteShareGroupOffsetsRequest = _message("DeleteShareGroupOffsetsRequest")
DeleteShareGroupOffsetsResponse = _message("DeleteShareGroupOffsetsResponse")

# KIP-1071.
StreamsGroupHeartbeatRequest = _message("StreamsGroupHeartbeatRequest")
StreamsGroupHeartbeatResponse = _message("StreamsGroupHeartbeatResponse")
