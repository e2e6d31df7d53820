"""Handles Fetch: returns record batches from the requested offsets on, as soon as there are enough bytes."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kafka.protocol.consumer import FetchRequest, FetchResponse

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import is_legal
from spark_log.cluster.security.acl_rules import Operation
from spark_log.cluster.topics import Topic
from spark_log.errors import (
    MetadataStoreUnavailableError,
    OffsetOutOfRangeError,
    SparkLogError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from spark_log.gateway.access.rights import each_topic
from spark_log.gateway.api import Api, Client
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.limits.request_context import request_context
from spark_log.gateway.protocol.error_codes import NONE, UNKNOWN_SERVER_ERROR, error_code
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.records.record_streams import BATCH_BYTES, Version
from spark_log.gateway.services import Services
from spark_log.ids import TopicPartition
from spark_log.log.segments.plan import PartitionSnapshot, find_positions

_UNKNOWN_TOPIC_ID = 100
_FENCED_LEADER_EPOCH = 74
_KAFKA_STORAGE_ERROR = 56
_KNOWN_TO_CLIENTS = frozenset({-1, 1, 2, 3, 6, 9, 29, _KAFKA_STORAGE_ERROR, 78, 100, 103})
"""The codes of reads after which a client goes on or tells its program what is wrong. After others, of which there is
no end of causes, Java's consumer raises IllegalStateException and loses what it has read of other partitions.
"""
_WAIT_S_MAX = 300.0
_HAS_TOPIC_IDS = 13
"""The first version of Fetch that names topics by their ids."""
_NO_ID = uuid.UUID(int=0)


class _Asked(NamedTuple):
    """A partition of a fetch. `topic` is the name, or None if the topic id is unknown."""

    topic: str | None
    topic_id: uuid.UUID
    partition: int
    offset: int
    bytes_max: int
    leader_epoch: int = -1
    """The epoch that the client knows of, or -1."""


@dataclass
class _Answer:
    """The parts of a partition's response. `version` is that of its records, or None if there is nothing to read."""

    error: int = NONE
    high_watermark: int = -1
    log_start_offset: int = -1
    topic: Topic | None = None
    version: Version | None = None
    records: bytes = b""


async def fetch(services: Services, request: Message, _client: Client) -> Message:
    """Wait up to max_wait_ms for min_bytes. Sessions are not kept: each response is a full one (session id 0)."""
    deadline_s = clock.monotonic_s() + min(request.max_wait_ms / 1000, _WAIT_S_MAX)
    memory = request_context.get().memory
    assert memory is not None
    decoded: Sequence[_Asked] | None = None
    needed = 0
    # the last answers, if they had fewer than min_bytes: records are read again once a position or version is another
    too_few: Sequence[_Answer] | None = None
    while True:
        seen, asked, answers, named = await services.call(_positions, services, request, decoded)
        decoded = asked if named else None
        left_s = deadline_s - clock.monotonic_s()
        if answers == too_few and left_s > 0:  # the change was of other partitions
            await services.changes.wait(seen, left_s)
            continue
        await memory.response.more(max(needed, _bytes_to_read(asked, answers, request.max_bytes)))
        left = request.max_bytes
        for places in _places_by_topic(asked, answers):
            left = await services.call(_read, services, places, left)
        size = sum(len(one.records) for one in answers)
        if not memory.response.more_at_once(size - memory.response.bytes):  # a batch is read whole, however large
            needed = size
            del answers
            memory.response.set(0)
            continue
        memory.response.set(size)
        left_s = deadline_s - clock.monotonic_s()
        enough = size >= max(1, min(request.min_bytes, request.max_bytes))
        if not asked or enough or left_s <= 0 or any(one.error for one in answers):
            return await services.compute(_response, asked, answers)
        is_whole = all(one.records for one in answers if one.version is not None)
        too_few = [replace(one, records=b"") for one in answers] if is_whole else None
        del answers
        memory.response.set(0)
        needed = 0
        await services.changes.wait(seen, left_s)


def _asked_of(request: Message, names: Mapping[uuid.UUID, str]) -> list[_Asked]:
    """Return each partition once. As in a broker, the last mention counts. `names` are those of topic ids."""
    by_id = request.version >= _HAS_TOPIC_IDS
    asked: dict[tuple[object, int], _Asked] = {}
    for topic in request.topics or ():
        topic_id = topic.topic_id or _NO_ID
        name = names.get(topic_id) if by_id else topic.topic
        for each in topic.partitions:
            asked[topic_id if by_id else name, each.partition] = _Asked(
                name, topic_id, each.partition, each.fetch_offset, each.partition_max_bytes, each.current_leader_epoch
            )
    return list(asked.values())


def _names(services: Services, request: Message) -> dict[uuid.UUID, str]:
    if request.version < _HAS_TOPIC_IDS:
        return {}
    return services.topics.names({topic.topic_id for topic in request.topics or () if topic.topic_id is not None})


def _positions(
    services: Services, request: Message, asked: Sequence[_Asked] | None
) -> tuple[int, Sequence[_Asked], list[_Answer], bool]:
    """Return the number of the store's last change, the partitions of the request, which are `asked` if known, an
    answer without records for each, and whether the names of their topic ids were looked up.

    While the store does not answer, the answers have no error, and their client asks again.
    """
    seen = services.changes.current()
    try:
        asked = _asked_of(request, _names(services, request)) if asked is None else asked
        return seen, asked, _answers(services, asked), True
    except MetadataStoreUnavailableError:
        named = asked is not None
        asked = _asked_of(request, {}) if asked is None else asked
        return seen, asked, [_Answer() for _ in asked], named


def _answers(services: Services, asked: Sequence[_Asked]) -> list[_Answer]:
    legal = {TopicPartition(each.topic, each.partition) for each in asked if each.topic and is_legal(each.topic)}
    topics = services.topics.find({tp.topic for tp in legal})
    here = services.stores.of_partitions(legal, positions_of, topics=topics)
    if unsure := {each.topic for each in asked if each.topic in topics and _may_be_elsewhere(each, here)}:
        for name in unsure:
            services.topics.forget(name)
        now = services.topics.find(unsure)
        moved = {name for name, topic in now.items() if topic.store_id != topics[name].store_id}
        topics |= now
        here |= services.stores.of_partitions([tp for tp in legal if tp.topic in moved], positions_of, topics=topics)
    return [_position(services, partition, topics, here) for partition in asked]


def _may_be_elsewhere(asked: _Asked, here: Mapping[TopicPartition, PartitionSnapshot | SparkLogError]) -> bool:
    """Whether another store may have the partition: the one that the cache names has no such partition, or a frozen one
    that has not been as far as the client.
    """
    position = here.get(TopicPartition(str(asked.topic), asked.partition))
    if position is None or isinstance(position, SparkLogError):
        return position is None
    return position.frozen and asked.offset > position.positions.high_watermark


def positions_of(view: Cluster, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionSnapshot]:
    return view.store.read(lambda connection: find_positions(connection, partitions))


def _position(
    services: Services,
    asked: _Asked,
    topics: Mapping[str, Topic],
    here: Mapping[TopicPartition, PartitionSnapshot | SparkLogError],
) -> _Answer:
    if asked.topic is None:
        return _Answer(_UNKNOWN_TOPIC_ID)
    position, topic = here.get(TopicPartition(asked.topic, asked.partition)), topics.get(asked.topic)
    if isinstance(position, SparkLogError):
        return _Answer(fetch_code(position))
    by_id = asked.topic_id != _NO_ID
    if position is None or topic is None or topic.topic_id != position.topic_id:
        services.topics.forget(asked.topic)
        deleted = topic is None or asked.partition < topic.partition_count
        return _Answer(_UNKNOWN_TOPIC_ID if by_id and deleted else error_code(UnknownTopicOrPartitionError()))
    if by_id and topic.uuid != asked.topic_id.hex:  # it was deleted and created again
        return _Answer(_UNKNOWN_TOPIC_ID)
    start, end = position.positions
    answer = _Answer(NONE, end, start, topic)
    if 0 <= asked.leader_epoch < position.leader_epoch:
        # The log may have been truncated: the client asks OffsetForLeaderEpoch whether its offset still means the same.
        # A larger epoch is of another log (a topic that was created again, a store that was restored), never a newer
        # one: the positions are those of the primary. With UNKNOWN_LEADER_EPOCH clients would wait for ever.
        answer.error = _FENCED_LEADER_EPOCH
        return answer
    if not start <= asked.offset <= end:
        answer.error = error_code(OffsetOutOfRangeError())
    elif asked.offset < end:
        answer.version = position.version
    return answer


def _places_by_topic(asked: Sequence[_Asked], answers: Sequence[_Answer]) -> Iterable[Sequence[tuple[_Asked, _Answer]]]:
    """Return the partitions with records for the client, by topic. Each topic is read in its own call of a thread."""
    places: dict[int, list[tuple[_Asked, _Answer]]] = {}
    for one, answer in zip(asked, answers, strict=True):
        if answer.topic is not None and answer.version is not None:
            places.setdefault(answer.topic.topic_id, []).append((one, answer))
    return places.values()


def _bytes_to_read(asked: Sequence[_Asked], answers: Sequence[_Answer], bytes_max: int) -> int:
    """Estimate how many bytes the records of the response have at most. The first batch is read whole even if
    `bytes_max` is less: it may have max.message.bytes.
    """
    limits, first = 0, 0
    for each, one in zip(asked, answers, strict=True):
        if one.version is not None and one.topic is not None:
            limits += max(BATCH_BYTES, each.bytes_max)
            first = max(first, one.topic.config.max_message_bytes)
    return max(first, min(bytes_max, limits)) if bytes_max > 0 else 0


def _read(services: Services, places: Sequence[tuple[_Asked, _Answer]], left: int) -> int:
    """Read up to `left` bytes of records of partitions, in the request's order. Return the bytes that are left."""
    for asked, answer in places:
        if answer.version is None or answer.topic is None or left <= 0:
            continue
        try:
            batches = services.streams.read(
                answer.topic, asked.partition, answer.version, asked.offset, answer.high_watermark,
                min(left, asked.bytes_max),
            )  # fmt: skip
            answer.records = b"".join(batches)
        except SparkLogError as error:
            answer.error = fetch_code(error)
        left -= len(answer.records)
    return left


def fetch_code(error: SparkLogError) -> int:
    """Return the code of an error of a read. NONE: the client gets no records, and asks again."""
    if isinstance(error, MetadataStoreUnavailableError | UnsupportedVersionError):
        return NONE
    code = error_code(error)
    if code in _KNOWN_TO_CLIENTS:
        return code
    return _KAFKA_STORAGE_ERROR if error.retriable else UNKNOWN_SERVER_ERROR


def _response(asked: Sequence[_Asked], answers: Sequence[_Answer]) -> Message:
    kind = FetchResponse.FetchableTopicResponse
    topics: dict[tuple[str | None, uuid.UUID], list[Message]] = {}
    for each, one in zip(asked, answers, strict=True):
        topics.setdefault((each.topic, each.topic_id), []).append(
            kind.PartitionData(
                partition_index=each.partition,
                error_code=one.error,
                high_watermark=one.high_watermark,
                last_stable_offset=one.high_watermark,
                log_start_offset=one.log_start_offset,
                aborted_transactions=[],
                preferred_read_replica=-1,
                records=one.records,
            )
        )
    responses = [
        kind(topic=name or "", topic_id=topic_id, partitions=partitions)
        for (name, topic_id), partitions in topics.items()
    ]
    return FetchResponse(throttle_time_ms=0, error_code=NONE, session_id=0, responses=responses)


APIS = (
    Api(FetchRequest, fetch, advertised=(4, 16), lane=Lane.FETCH,
        rights=(each_topic(Operation.READ, "responses", name="topic"),)),
)  # fmt: skip
