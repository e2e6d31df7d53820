"""Handles Fetch: returns record batches from the requested offsets on, as soon as there are enough bytes."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kafka.protocol.consumer import FetchRequest, FetchResponse

from spark_log import clock
from spark_log.cluster.security.acl_rules import Operation
from spark_log.errors import MetadataStoreUnavailableError, SparkLogError
from spark_log.gateway.access.rights import each_topic
from spark_log.gateway.api import Api, Client
from spark_log.gateway.limits.bulkheads import Lane, request_context
from spark_log.gateway.protocol.error_codes import NONE
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.records.fetch_positions import (
    NO_ID,
    Answer,
    Asked,
    FoundAnswers,
    WaitingFetch,
    fetch_code,
    find_answers,
)
from spark_log.gateway.records.record_streams import BATCH_BYTES
from spark_log.gateway.services import Services

_WAIT_S_MAX = 300.0
_HAS_TOPIC_IDS = 13
"""The first version of Fetch that names topics by their ids."""


async def fetch(services: Services, request: Message, _client: Client) -> Message:
    """Wait up to max_wait_ms for min_bytes. Sessions are not kept: each response is a full one (session id 0)."""
    deadline_s = clock.monotonic_s() + min(request.max_wait_ms / 1000, _WAIT_S_MAX)
    memory = request_context.get().memory
    assert memory is not None
    decoded: Sequence[Asked] | None = None
    needed = 0
    # the last answers, if they had fewer than min_bytes: records are read again after a position or version has changed
    too_few: Sequence[Answer] | None = None
    news: FoundAnswers | None = None
    while True:
        if news is None or decoded is None:
            seen, asked, answers, named = await services.call(_positions, services, request, decoded)
            decoded = asked if named else None
        else:
            seen, answers = news
            news = None
        left_s = deadline_s - clock.monotonic_s()
        if answers == too_few and left_s > 0:  # the change was of other partitions
            news = await services.fetch_watches.wait(_waiting(decoded, answers, too_few), seen, left_s)
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
        waiting = _waiting(decoded, answers, too_few)
        del answers
        memory.response.set(0)
        needed = 0
        news = await services.fetch_watches.wait(waiting, seen, left_s)


def _waiting(
    asked: Sequence[Asked] | None, answers: Sequence[Answer], too_few: Sequence[Answer] | None
) -> WaitingFetch:
    """Return the fetch as one that waits. While the names of its topic ids are not known, any change wakes it."""
    stores = frozenset(one.topic.store_id for one in answers if one.topic is not None)
    return WaitingFetch(asked or (), stores, too_few)


def _asked_of(request: Message, names: Mapping[uuid.UUID, str]) -> list[Asked]:
    """Return each partition once. As in a broker, the last mention counts. `names` are those of topic ids."""
    by_id = request.version >= _HAS_TOPIC_IDS
    asked: dict[tuple[object, int], Asked] = {}
    for topic in request.topics or ():
        topic_id = topic.topic_id or NO_ID
        name = names.get(topic_id) if by_id else topic.topic
        for each in topic.partitions:
            asked[topic_id if by_id else name, each.partition] = Asked(
                name, topic_id, each.partition, each.fetch_offset, each.partition_max_bytes, each.current_leader_epoch
            )
    return list(asked.values())


def _names(services: Services, request: Message) -> dict[uuid.UUID, str]:
    if request.version < _HAS_TOPIC_IDS:
        return {}
    return services.topics.names({topic.topic_id for topic in request.topics or () if topic.topic_id is not None})


def _positions(
    services: Services, request: Message, asked: Sequence[Asked] | None
) -> tuple[int, Sequence[Asked], list[Answer], bool]:
    """Return the number of the store's last change, the partitions of the request (`asked` unless it is None), an
    answer without records for each, and whether the names of their topic ids are known.

    While the store does not answer, the answers have no error, and the client asks again.
    """
    seen = services.changes.current()
    try:
        asked = _asked_of(request, _names(services, request)) if asked is None else asked
        return seen, asked, find_answers(services.topics, services.stores, asked), True
    except MetadataStoreUnavailableError:
        named = asked is not None
        asked = _asked_of(request, {}) if asked is None else asked
        return seen, asked, [Answer() for _ in asked], named


def _places_by_topic(asked: Sequence[Asked], answers: Sequence[Answer]) -> Iterable[Sequence[tuple[Asked, Answer]]]:
    """Return the partitions with records for the client, by topic. A thread reads one topic in each call."""
    places: dict[int, list[tuple[Asked, Answer]]] = {}
    for one, answer in zip(asked, answers, strict=True):
        if answer.topic is not None and answer.version is not None:
            places.setdefault(answer.topic.topic_id, []).append((one, answer))
    return places.values()


def _bytes_to_read(asked: Sequence[Asked], answers: Sequence[Answer], bytes_max: int) -> int:
    """Estimate how many bytes the records of the response have at most. The first batch, which may have
    max.message.bytes, is read whole even if `bytes_max` is less.
    """
    limits, first = 0, 0
    for each, one in zip(asked, answers, strict=True):
        if one.version is not None and one.topic is not None:
            limits += max(BATCH_BYTES, each.bytes_max)
            first = max(first, one.topic.config.max_message_bytes)
    return max(first, min(bytes_max, limits)) if bytes_max > 0 else 0


def _read(services: Services, places: Sequence[tuple[Asked, Answer]], left: int) -> int:
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


def _response(asked: Sequence[Asked], answers: Sequence[Answer]) -> Message:
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
