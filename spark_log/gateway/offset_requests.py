"""Offsets by time."""

from typing import TYPE_CHECKING

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from spark_log.admin.topics import list_partition_offsets
from spark_log.cluster.names import is_legal
from spark_log.errors import SparkLogError, UnknownTopicOrPartitionError
from spark_log.gateway.api import Api, Client
from spark_log.gateway.bulkheads import Lane
from spark_log.gateway.error_codes import NONE, error_code, outcome_of
from spark_log.gateway.wire import Message
from spark_log.ids import TopicPartition
from spark_log.segments.plan import find_positions

if TYPE_CHECKING:
    from spark_log.gateway.gateway import Gateway

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL = -1, -2, -3, -4
"""All records are local: the earliest and the earliest local offset are the log start offset."""
_UNKNOWN_TOPIC_OR_PARTITION = error_code(UnknownTopicOrPartitionError())
_UNSUPPORTED_VERSION = 35


async def list_offsets(gateway: "Gateway", request: Message, _client: Client) -> Message:
    """The first offset at or after a time, or the earliest, the latest, that of the largest timestamp."""
    return await gateway.call(_list_offsets, gateway, request)


def _list_offsets(gateway: "Gateway", request: Message) -> Message:
    """Log start offsets and high watermarks are those of one moment, read at once; each time is looked up alone."""
    asked = {TopicPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions}
    legal = [tp for tp in asked if is_legal(tp.topic)]
    positions = outcome_of(lambda: gateway.cluster.store.read(lambda connection: find_positions(connection, legal)))

    def offset_of(tp: TopicPartition, timestamp: int) -> tuple[int, int, int]:
        """Error code, offset and timestamp."""
        limits = None if positions.result is None else positions.result.get(tp)
        if limits is None:
            return positions.code or _UNKNOWN_TOPIC_OR_PARTITION, -1, -1
        if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
            return NONE, limits.positions.log_start_offset, -1
        if timestamp == _LATEST:
            return NONE, limits.positions.high_watermark, -1
        if timestamp < 0 and timestamp != _MAX_TIMESTAMP:
            return _UNSUPPORTED_VERSION, -1, -1
        try:
            record = list_partition_offsets(gateway.cluster, {tp: timestamp})[tp]
        except SparkLogError as error:
            return error_code(error), -1, -1
        return NONE, record.offset, record.timestamp

    kind = ListOffsetsResponse.ListOffsetsTopicResponse
    topics = []
    for topic in request.topics:
        partitions = []
        for each in topic.partitions:
            code, offset, timestamp_ms = offset_of(TopicPartition(topic.name, each.partition_index), each.timestamp)
            partitions.append(
                kind.ListOffsetsPartitionResponse(
                    partition_index=each.partition_index, error_code=code, timestamp=timestamp_ms, offset=offset,
                    leader_epoch=-1,
                )
            )  # fmt: skip
        topics.append(kind(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


APIS = (Api(ListOffsetsRequest, list_offsets, advertised=(1, 8), lane=Lane.FETCH),)
