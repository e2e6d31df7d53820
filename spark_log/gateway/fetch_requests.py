"""Fetch: record batches from the asked offsets on, as soon as there are enough of them."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa
from kafka.protocol.consumer import FetchRequest, FetchResponse

from spark_log import clock
from spark_log.cluster.names import is_legal
from spark_log.cluster.topics import topics_of_uuids
from spark_log.errors import (
    MetadataStoreUnavailableError,
    OffsetOutOfRangeError,
    SparkLogError,
    UnknownTopicOrPartitionError,
)
from spark_log.gateway.api import Api, Client
from spark_log.gateway.error_codes import NONE, error_code
from spark_log.gateway.wire import Message
from spark_log.ids import TopicPartition
from spark_log.segments import plan as planner

if TYPE_CHECKING:
    from spark_log.gateway.gateway import Gateway

_UNKNOWN_TOPIC_ID = 100
_WAIT_S_MAX = 300.0
_NO_ID = uuid.UUID(int=0)


@dataclass(frozen=True)
class _Wanted:
    """A partition of a fetch. `topic`: its name, None if its topic id is unknown."""

    topic: str | None
    topic_id: uuid.UUID
    partition: int
    offset: int
    bytes_max: int


@dataclass
class _Found:
    """The parts of a partition's response."""

    error: int = NONE
    high_watermark: int = -1
    log_start_offset: int = -1
    records: Sequence[bytes] = ()

    @property
    def size(self) -> int:
        return sum(map(len, self.records))


async def fetch(gateway: "Gateway", request: Message, _client: Client) -> Message:
    """Waits up to max_wait_ms for min_bytes. Sessions are not kept: each response is a full one (session id 0)."""
    deadline_s = clock.monotonic_s() + min(request.max_wait_ms / 1000, _WAIT_S_MAX)
    wanted = await gateway.call(_wanted_of, gateway, request)
    while True:
        seen = await gateway.call(gateway.changes.current)
        found = await gateway.call(_read, gateway, wanted, request.max_bytes)
        left_s = deadline_s - clock.monotonic_s()
        enough = sum(each.size for each in found) >= max(1, request.min_bytes)
        if not wanted or enough or left_s <= 0 or any(each.error for each in found):
            return _response(request, wanted, found)
        await gateway.changes.wait(seen, left_s)


def _wanted_of(gateway: "Gateway", request: Message) -> list[_Wanted]:
    by_id: dict[uuid.UUID, str] = {}
    if request.version >= 13 and request.topics:
        hexes = [topic.topic_id.hex for topic in request.topics if topic.topic_id is not None]
        found = gateway.cluster.store.read(lambda connection: topics_of_uuids(connection, hexes))
        by_id = {uuid.UUID(hex=each): topic.name for each, topic in found.items()}
    return [
        _Wanted(
            by_id.get(topic.topic_id) if request.version >= 13 else topic.topic,
            topic.topic_id or _NO_ID,
            each.partition,
            each.fetch_offset,
            each.partition_max_bytes,
        )
        for topic in request.topics or ()
        for each in topic.partitions
    ]


def _read(gateway: "Gateway", wanted: Sequence[_Wanted], bytes_max: int) -> list[_Found]:
    """The records of each partition, in the request's order, as far as `bytes_max` reaches."""
    legal = {TopicPartition(each.topic, each.partition) for each in wanted if each.topic and is_legal(each.topic)}
    try:
        topics = gateway.topics.find({tp.topic for tp in legal})
        here = gateway.cluster.store.read(lambda connection: _positions(connection, legal))
    except MetadataStoreUnavailableError:
        return [_Found() for _ in wanted]  # an empty answer, after which a client asks again
    found: list[_Found] = []
    left = bytes_max
    for each in wanted:
        if each.topic is None:
            found.append(_Found(_UNKNOWN_TOPIC_ID))
            continue
        position = here.get(TopicPartition(each.topic, each.partition))
        topic = topics.get(each.topic)
        if position is None or topic is None or topic.topic_id != position.topic_id:
            gateway.topics.forget(each.topic)
            found.append(_Found(error_code(UnknownTopicOrPartitionError())))
            continue
        start, end = position.positions
        one = _Found(NONE, end, start)
        found.append(one)
        if not start <= each.offset <= end:
            one.error = error_code(OffsetOutOfRangeError())
        elif each.offset < end and left > 0:
            try:
                one.records = gateway.streams.read(
                    topic, each.partition, position.version, each.offset, end, min(left, each.bytes_max)
                )
            except SparkLogError as error:
                one.error = error_code(error)
            left -= one.size
    return found


def _positions(connection: sa.Connection, partitions: set[TopicPartition]) -> dict[TopicPartition, planner.Found]:
    return planner.find_positions(connection, partitions) if partitions else {}


def _response(request: Message, wanted: Sequence[_Wanted], found: Sequence[_Found]) -> Message:
    kind = FetchResponse.FetchableTopicResponse
    topics: dict[tuple[str | None, uuid.UUID], list[Message]] = {}
    for each, one in zip(wanted, found, strict=True):
        topics.setdefault((each.topic, each.topic_id), []).append(
            kind.PartitionData(
                partition_index=each.partition,
                error_code=one.error,
                high_watermark=one.high_watermark,
                last_stable_offset=one.high_watermark,
                log_start_offset=one.log_start_offset,
                aborted_transactions=[],
                preferred_read_replica=-1,
                records=b"".join(one.records),
            )
        )
    responses = [
        kind(topic=name or "", topic_id=topic_id, partitions=partitions)
        for (name, topic_id), partitions in topics.items()
    ]
    return FetchResponse(throttle_time_ms=0, error_code=NONE, session_id=0, responses=responses)


APIS = (Api(FetchRequest, fetch, advertised=(4, 16)),)
