"""Handles ShareFetch and ShareAcknowledge (KIP-932, KIP-1206, KIP-1222). Every gateway serves every partition."""

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from spark_log import clock
from spark_log.cluster.security.acl_rules import Operation
from spark_log.errors import SparkLogError, UnknownTopicOrPartitionError
from spark_log.gateway.access.rights import TOPIC_REFUSED, on_group
from spark_log.gateway.api import Api, Client
from spark_log.gateway.limits.bulkheads import Lane, request_context
from spark_log.gateway.protocol.error_codes import NONE, client_message, error_code
from spark_log.gateway.protocol.schemas import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.records.fetch_positions import NO_ID
from spark_log.gateway.records.record_streams import encoded
from spark_log.gateway.services import Services
from spark_log.gateway.shares.share_places import Asked, find_missing_places, find_places, refused_places
from spark_log.gateway.shares.share_sessions import (
    FINAL,
    INITIAL,
    INVALID_REQUEST,
    INVALID_SESSION_EPOCH,
    SESSION_LIMIT_REACHED,
    Checked,
    Place,
    Session,
    SessionError,
    check_acknowledgements,
    check_ids,
    deadline_s,
    note_acknowledged,
)
from spark_log.groups.share.acquisition_rules import Request
from spark_log.groups.share.polling import Result, Steps, Taken
from spark_log.groups.share.rules import Acknowledgement, Range
from spark_log.log.partitions.partition_rows import Key
from spark_log.log.records.schema import TimestampType

_RENEWS_SINCE = 2
_RECORD_LIMIT = 1
_MODES = (0, 1)
_AT_ONCE_BYTES = 65_536
"""Up to this size, records are encoded before the request has memory for them."""


@dataclass
class _Answer:
    """The parts of a partition's response."""

    place: tuple[uuid.UUID, int]
    error: int = NONE
    message: str | None = None
    acknowledged: int = NONE
    acknowledge_message: str | None = None
    records: bytes = b""
    acquired: list[Range] = field(default_factory=list)


def _has_acknowledgements(request: Message) -> bool:
    return any(part.acknowledgement_batches for topic in request.topics for part in topic.partitions)


async def share_fetch(services: Services, request: Message, client: Client) -> Message:
    """Acknowledge records, then acquire new ones. Wait for these up to max_wait_ms."""
    until_s = deadline_s(request.max_wait_ms)
    renews = request.version >= _RENEWS_SINCE and request.is_renew_ack
    mode = request.share_acquire_mode if request.version >= _RENEWS_SINCE else 0
    shares, epoch = services.shares, request.share_session_epoch
    try:
        check_ids(request.group_id, request.member_id)
        limits = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)
        if renews and any(limits):
            raise SessionError(INVALID_REQUEST)
        if epoch == INITIAL and _has_acknowledgements(request):
            raise SessionError(INVALID_REQUEST)
        if epoch == INITIAL:
            session = shares.open(request.group_id, request.member_id, client.fencing_tokens.connection_id, client.key)
        else:
            session = shares.find(request.group_id, request.member_id, epoch)
        if mode not in _MODES:
            raise SessionError(INVALID_REQUEST)
    except SessionError as error:
        return _fetch_response(error.code, 0, ())
    asked = await find_places(services, session, client, request.topics)
    checked = await services.compute(check_acknowledgements, session, asked.batches, renews=renews, code_of=error_code)
    places: Mapping[Key, Place] = {}
    new: frozenset[Key] = frozenset()
    if epoch != FINAL:
        forgotten = {
            (topic.topic_id or NO_ID, number) for topic in request.forgotten_topics_data for number in topic.partitions
        }
        await find_missing_places(services, session, client, asked, forgotten)
        new = frozenset(asked.places.keys() - session.places.keys())
        if not session.takes_memory(len(new)):
            shares.end(session)
            return _fetch_response(SESSION_LIMIT_REACHED, 0, ())
    answers = {place: _Answer(place, code) for place, code in asked.errors.items()}
    if epoch == FINAL:
        polled = _PollResult(await _acknowledge(services, session, checked, closes=True))
        shares.close(session)
    else:
        session.add_places(asked.places)
        session.remove_places(forgotten)
        refused = refused_places(session, client)
        answers |= {place: _Answer(place, TOPIC_REFUSED) for place in refused.values()}
        acquires = not renews and request.max_records > 0
        until_s = until_s if acquires and not refused else 0.0
        places = dict(session.places)  # another connection of the member may change them meanwhile
        try:
            polled = await _poll(services, session, request, checked, mode, until_s, acquires, refused)
        except SparkLogError as error:  # nothing was acquired
            return _fetch_response(error_code(error), 0, ())
    result = polled.result
    memory = request_context.get().memory
    if memory is not None:
        await memory.response.more(_bytes_of(polled))
    records = polled.records if polled.records is not None else await services.call(_all_encoded, result.taken)
    await services.compute(_note_acknowledgements, services, session, asked, checked, result, answers)
    for key in result.unread & places.keys():
        topic_place = places[key].topic_id, key[1]
        answers.setdefault(topic_place, _Answer(topic_place)).error = error_code(UnknownTopicOrPartitionError())
    for taken in result.taken:
        place = places[taken.key]
        answer = answers.setdefault((place.topic_id, taken.key[1]), _Answer((place.topic_id, taken.key[1])))
        answer.acquired, answer.records = _joined([r for r, _ in taken.parts]), records[taken.key]
    for key in new & places.keys():
        topic_place = places[key].topic_id, key[1]
        answers.setdefault(topic_place, _Answer(topic_place))
    lock_ms = result.lock_ms or _lock_ms(services)
    return await services.compute(_fetch_response, NONE, lock_ms, list(answers.values()))


@dataclass(frozen=True)
class _PollResult:
    """The result of a poll, with the encoded records of each partition. None means that the records are many: they are
    encoded when the request has the memory for them.
    """

    result: Result
    records: Mapping[Key, bytes] | None = field(default_factory=dict)


def _bytes_of(polled: _PollResult) -> int:
    if polled.records is not None:
        return sum(map(len, polled.records.values()))
    return sum(records.nbytes for taken in polled.result.taken for _, records in taken.parts)


def _lock_ms(services: Services) -> int:
    return services.cluster.store.settings.group_share_record_lock_duration_ms


async def _poll(
    services: Services, session: Session, request: Message, checked: Mapping[Key, Checked], mode: int, until_s: float,
    acquires: bool, refused: Collection[Key],
) -> _PollResult:  # fmt: skip
    records_max = request.max_records if acquires else 0
    poll_request = Request(session.member_id, records_max, max(1, request.max_bytes), mode != _RECORD_LIMIT)
    assigned = {key: place.topic for key, place in session.places.items() if key not in refused}
    acknowledgements = {key: each.acknowledgements for key, each in checked.items() if each.acknowledgements}
    failed = any(each.code for each in checked.values())
    errors: dict[Key, SparkLogError | None] = {}
    while True:
        steps = _attempt(services, session, poll_request, assigned, acknowledgements)
        seen, polled = await services.shares.together.run(steps, services.call, request_context.get().cpu)
        result = polled.result
        await _write_letters(services, session, result)
        errors |= result.errors
        left_s = until_s - clock.monotonic_s()
        if result.taken or left_s <= 0 or errors or failed or result.unread or not assigned or session.ended:
            return replace(polled, result=replace(result, errors=errors))
        acknowledgements = {}
        client = request_context.get().client
        await services.shares.watches.wait(client, session.group_id, assigned, seen, result.wait_ms, left_s)
        if clock.monotonic_s() >= until_s or session.ended:  # the client asks again at once
            return polled


def _attempt(
    services: Services, session: Session, poll_request: Request, assigned: Mapping[Key, str],
    acknowledgements: Mapping[Key, Sequence[Acknowledgement]],
) -> Steps[tuple[int, _PollResult]]:  # fmt: skip
    """Acknowledge and acquire records. Return the number of the store's last change before that, and the result."""
    polls, seen = services.shares.polls, services.changes.current()
    result = yield from polls.steps(session.group_id, poll_request, assigned, acknowledgements)
    if result.taken and not session.take(result.taken):
        locks = {taken.key: frozenset(r.lock for r, _ in taken.parts) for taken in result.taken}
        yield from polls.acknowledgement(session.group_id, session.member_id, {}, locks)
        result = replace(result, taken=())
    polled = _PollResult(result, None)
    return seen, polled if _bytes_of(polled) > _AT_ONCE_BYTES else _PollResult(result, _all_encoded(result.taken))


async def _acknowledge(
    services: Services, session: Session, checked: Mapping[Key, Checked], *, closes: bool
) -> Result:  # fmt: skip
    """Acknowledge records, and release all others if the session closes."""
    acknowledgements = {key: each.acknowledgements for key, each in checked.items() if each.acknowledgements}
    release = session.end() if closes else None
    steps = services.shares.polls.acknowledgement(session.group_id, session.member_id, acknowledgements, release)
    result = await services.shares.together.run(steps, services.call, request_context.get().cpu)
    await _write_letters(services, session, result)
    return result


async def _write_letters(services: Services, session: Session, result: Result) -> None:
    if result.archived:
        await services.call(services.shares.polls.write_letters, session.group_id, result.archived)


def _note_acknowledgements(
    services: Services, session: Session, asked: Asked, checked: Mapping[Key, Checked], result: Result,
    answers: dict[tuple[uuid.UUID, int], _Answer],
) -> None:  # fmt: skip
    """Put the outcome of each partition's acknowledgements into its answer."""
    for key, check in checked.items():
        place = asked.places[key].topic_id, key[1]
        answer = answers.setdefault(place, _Answer(place))
        answer.acknowledged, answer.acknowledge_message = check.code, check.message
        error = result.errors.get(key)
        if error is not None:
            answer.acknowledged, answer.acknowledge_message = error_code(error), client_message(error)
        elif not check.code:
            note_acknowledged(session, key, check.acknowledgements)
            for ack in check.acknowledgements:
                services.counters.acknowledgements[ack.type.name.lower()] += ack.end - ack.first


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """Merge adjacent ranges with the same delivery count."""
    joined: list[Range] = []
    for r in ranges:
        if joined and joined[-1].end == r.first and joined[-1].deliveries == r.deliveries:
            joined[-1] = joined[-1]._replace(end=r.end)
        else:
            joined.append(r)
    return joined


def _all_encoded(taken: Iterable[Taken]) -> dict[Key, bytes]:
    return {each.key: _encoded(each) for each in taken}


def _encoded(taken: Taken) -> bytes:
    """Return batches of exactly the acquired records."""
    data: list[bytes] = []
    together: list[pa.RecordBatch] = []

    def flush() -> None:
        if together:
            records = pa.concat_batches(together)
            first, kind = records.column("offset")[0].as_py(), TimestampType(records.column("timestampType")[0].as_py())
            data.extend(batch.data for batch in encoded(records, first, taken.leader_epoch, kind))
            together.clear()

    for _, records in taken.parts:
        if together and together[-1].column("timestampType")[0] != records.column("timestampType")[0]:
            flush()
        together.append(records)
    flush()
    return b"".join(data)


def _fetch_response(code: int, lock_ms: int, answers: Sequence[_Answer]) -> Message:
    topic = ShareFetchResponse.ShareFetchableTopicResponse
    part = topic.PartitionData

    def partition(answer: _Answer) -> Message:
        acquired = [
            part.AcquiredRecords(first_offset=r.first, last_offset=r.end - 1, delivery_count=r.deliveries)
            for r in answer.acquired
        ]
        return part(
            partition_index=answer.place[1], error_code=answer.error, error_message=answer.message,
            acknowledge_error_code=answer.acknowledged, acknowledge_error_message=answer.acknowledge_message,
            current_leader=part.LeaderIdAndEpoch(leader_id=0, leader_epoch=0), records=answer.records,
            acquired_records=acquired,
        )  # fmt: skip

    return _response(ShareFetchResponse, topic, code, lock_ms, {each.place: partition(each) for each in answers})


def _response(
    kind: type[Message], topic: type[Message], code: int, lock_ms: int,
    partitions: Mapping[tuple[uuid.UUID, int], Message],
) -> Message:  # fmt: skip
    """Return a response with these partitions, by topic."""
    topics: dict[uuid.UUID, list[Message]] = {}
    for (topic_id, _), partition in partitions.items():
        topics.setdefault(topic_id, []).append(partition)
    return kind(
        throttle_time_ms=0, error_code=code, error_message=None, acquisition_lock_timeout_ms=lock_ms,
        responses=[topic(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()],
        node_endpoints=[],
    )  # fmt: skip


async def share_acknowledge(services: Services, request: Message, client: Client) -> Message:
    """Acknowledge records of a session. With the final epoch it ends, and its other records are released."""
    renews = request.version >= _RENEWS_SINCE and request.is_renew_ack
    epoch = request.share_session_epoch
    try:
        check_ids(request.group_id, request.member_id)
        if epoch == INITIAL:
            raise SessionError(INVALID_SESSION_EPOCH)
        session = services.shares.find(request.group_id, request.member_id, epoch)
    except SessionError as error:
        return _acknowledge_response(error.code, 0, ())
    asked = await find_places(services, session, client, request.topics)
    checked = await services.compute(check_acknowledgements, session, asked.batches, renews=renews, code_of=error_code)
    answers = {place: _Answer(place, acknowledged=code) for place, code in asked.errors.items()}
    result = await _acknowledge(services, session, checked, closes=epoch == FINAL)
    if epoch == FINAL:
        services.shares.close(session)
    await services.compute(_note_acknowledgements, services, session, asked, checked, result, answers)
    lock_ms = result.lock_ms or _lock_ms(services)
    return await services.compute(_acknowledge_response, NONE, lock_ms, list(answers.values()))


def _acknowledge_response(code: int, lock_ms: int, answers: Sequence[_Answer]) -> Message:
    topic = ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse
    part = topic.PartitionData
    partitions = {
        each.place: part(
            partition_index=each.place[1], error_code=each.acknowledged, error_message=each.acknowledge_message,
            current_leader=part.LeaderIdAndEpoch(leader_id=0, leader_epoch=0),
        )
        for each in answers
    }  # fmt: skip
    return _response(ShareAcknowledgeResponse, topic, code, lock_ms, partitions)


APIS = (
    Api(ShareFetchRequest, share_fetch, advertised=(1, 2), lane=Lane.FETCH, rights=(on_group(Operation.READ),)),
    Api(ShareAcknowledgeRequest, share_acknowledge, advertised=(1, 2), lane=Lane.FETCH,  # it may write dead letters
        rights=(on_group(Operation.READ),)),
)  # fmt: skip
