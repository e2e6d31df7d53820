"""Offsets by time."""

from typing import TYPE_CHECKING

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from spark_log.admin.topics import list_partition_offsets
from spark_log.errors import SparkLogError
from spark_log.gateway.api import Api, Client
from spark_log.gateway.error_codes import NONE, error_code
from spark_log.gateway.wire import Message
from spark_log.ids import TopicPartition

if TYPE_CHECKING:
    from spark_log.gateway.gateway import Gateway

_EARLIEST, _EARLIEST_LOCAL = -2, -4
"""All records are local: both are the log start offset."""
_UNSUPPORTED_VERSION = 35


async def list_offsets(gateway: "Gateway", request: Message, _client: Client) -> Message:
    """The first offset at or after a time, or the earliest, the latest, that of the largest timestamp."""
    return await gateway.call(_list_offsets, gateway, request)


def _list_offsets(gateway: "Gateway", request: Message) -> Message:
    kind = ListOffsetsResponse.ListOffsetsTopicResponse
    topics = [
        kind(name=topic.name, partitions=[_partition(gateway, topic.name, each) for each in topic.partitions])
        for topic in request.topics
    ]
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


def _partition(gateway: "Gateway", name: str, wanted: Message) -> Message:
    kind = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
    tp = TopicPartition(name, wanted.partition_index)
    spec = _EARLIEST if wanted.timestamp == _EARLIEST_LOCAL else wanted.timestamp
    try:
        found = list_partition_offsets(gateway.cluster, {tp: spec})[tp]
    except ValueError:
        code, offset, timestamp_ms = _UNSUPPORTED_VERSION, -1, -1
    except SparkLogError as error:
        code, offset, timestamp_ms = error_code(error), -1, -1
    else:
        code, offset, timestamp_ms = NONE, found.offset, found.timestamp
    return kind(partition_index=tp.partition, error_code=code, timestamp=timestamp_ms, offset=offset, leader_epoch=-1)


APIS = (Api(ListOffsetsRequest, list_offsets, advertised=(1, 8)),)
