"""Handles ListOffsets: finds offsets by time."""

from collections import Counter
from collections.abc import Mapping
from functools import partial

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from spark_log.clients.admin.topics import list_partition_offsets
from spark_log.cluster.names import is_legal
from spark_log.cluster.security.acl_rules import Operation
from spark_log.errors import SparkLogError, UnknownTopicOrPartitionError
from spark_log.gateway.access.rights import each_topic
from spark_log.gateway.api import Api, Client
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.protocol.error_codes import NONE, error_code, outcome_of
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.records.fetch_positions import positions_of
from spark_log.gateway.services import Services
from spark_log.gateway.topic_stores import CHANGE_S
from spark_log.ids import TopicPartition

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL = -1, -2, -3, -4
"""All records are local, so the earliest offset and the earliest local offset are the log start offset."""
_OF_TIERED_STORAGE = {-5: 9, -6: 11}
"""The first version of ListOffsets with each of these times: -5 means the latest offset in remote storage, -6 the
earliest that is not there yet (KIP-1023). As on a broker without remote storage, there is no such offset."""
_UNKNOWN_TOPIC_OR_PARTITION = error_code(UnknownTopicOrPartitionError())
_UNSUPPORTED_VERSION, _INVALID_REQUEST = 35, 42
_LOOKED_UP_TOGETHER = 50


_Outcome = tuple[int, int, int, int]
"""Error code, offset, timestamp, and the leader epoch of the offset (-1: not known)."""


async def list_offsets(services: Services, request: Message, _client: Client) -> Message:
    """Return the first offset at or after a time, the earliest, the latest, or the offset of the largest timestamp.

    Log start offsets and high watermarks are read together, as of one moment. Times are looked up in files, for some
    partitions at a time. As in a broker, a partition that is named twice is refused.
    """
    times, twice = await services.compute(_asked, request)
    outcomes: dict[TopicPartition, _Outcome] = await services.call(_from_positions, services, times, request.version)
    timed = [tp for tp in times if tp not in outcomes]
    for begin in range(0, len(timed), _LOOKED_UP_TOGETHER):
        together = timed[begin : begin + _LOOKED_UP_TOGETHER]
        outcomes |= await services.call(_from_records, services, {tp: times[tp] for tp in together})
    outcomes |= dict.fromkeys(twice, (_INVALID_REQUEST, -1, -1, -1))
    return await services.compute(_response, request, outcomes)


def _asked(request: Message) -> tuple[dict[TopicPartition, int], set[TopicPartition]]:
    """Return the requested time of each partition, and the partitions that are named twice."""
    places = [
        (TopicPartition(topic.name, each.partition_index), each.timestamp)
        for topic in request.topics
        for each in topic.partitions
    ]
    return dict(places), {tp for tp, mentions in Counter(tp for tp, _ in places).items() if mentions > 1}


def _response(request: Message, outcomes: Mapping[TopicPartition, _Outcome]) -> Message:
    kind = ListOffsetsResponse.ListOffsetsTopicResponse
    topics = []
    for topic in request.topics:
        partitions = []
        for each in topic.partitions:
            code, offset, timestamp_ms, leader_epoch = outcomes[TopicPartition(topic.name, each.partition_index)]
            partitions.append(
                kind.ListOffsetsPartitionResponse(
                    partition_index=each.partition_index, error_code=code, timestamp=timestamp_ms, offset=offset,
                    leader_epoch=leader_epoch,
                )
            )  # fmt: skip
        topics.append(kind(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


def _from_positions(
    services: Services, times: Mapping[TopicPartition, int], version: int
) -> dict[TopicPartition, _Outcome]:
    """Return the outcomes of the partitions for which no record has to be read."""
    legal = [tp for tp in times if is_legal(tp.topic)]
    positions = services.stores.of_partitions(legal, positions_of, CHANGE_S)
    outcomes: dict[TopicPartition, _Outcome] = {}
    for tp, timestamp in times.items():
        limits = positions.get(tp)
        if limits is None:
            outcomes[tp] = _UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1
        elif isinstance(limits, SparkLogError):
            outcomes[tp] = error_code(limits), -1, -1, -1
        elif timestamp in (_EARLIEST, _EARLIEST_LOCAL):
            outcomes[tp] = NONE, limits.positions.log_start_offset, -1, -1
        elif timestamp == _LATEST:
            # a client at the end of the log reads no record with the epoch, by which it would notice truncations later
            outcomes[tp] = NONE, limits.positions.high_watermark, -1, limits.leader_epoch
        elif version >= _OF_TIERED_STORAGE.get(timestamp, version + 1):
            outcomes[tp] = NONE, -1, -1, -1
        elif timestamp < 0 and timestamp != _MAX_TIMESTAMP:
            outcomes[tp] = _UNSUPPORTED_VERSION, -1, -1, -1
    return outcomes


def _from_records(services: Services, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, _Outcome]:
    outcomes: dict[TopicPartition, _Outcome] = {}
    for tp, timestamp in times.items():
        at = partial(list_partition_offsets, specs={tp: timestamp})
        record = outcome_of(services.stores.call, services.stores.of(tp.topic), at, CHANGE_S)
        offset, timestamp_ms = (-1, -1) if record.result is None else record.result[tp][:2]
        outcomes[tp] = record.code, offset, timestamp_ms, -1
    return outcomes


APIS = (
    Api(ListOffsetsRequest, list_offsets, advertised=(1, 11), lane=Lane.FETCH,
        rights=(each_topic(Operation.DESCRIBE),)),
)  # fmt: skip
