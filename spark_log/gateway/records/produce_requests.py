"""Handles Produce: appends the batches of clients."""

from collections.abc import Mapping, Sequence
from functools import partial

from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from spark_log.cluster.security.acl_rules import Operation
from spark_log.errors import MetadataStoreUnavailableError, TransactionAbortableError, UnknownProducerIdError
from spark_log.gateway.access.rights import each_topic, on_transaction
from spark_log.gateway.api import Api, Client
from spark_log.gateway.limits.bulkheads import Lane, request_context
from spark_log.gateway.protocol.error_codes import NONE, client_message, error_code
from spark_log.gateway.protocol.request_limits import RECORDS
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.records.append_queue import BATCHES_OF_REQUEST_MAX
from spark_log.gateway.records.batch_checks import (
    BAD_RECORDS_MAX,
    Checked,
    Outcome,
    SentBatch,
    are_light,
    decoded_bytes_max,
)
from spark_log.gateway.services import Services
from spark_log.log.append.rules import Acks
from spark_log.log.records.kafka_batch.decode import DecodingLimits

_REQUEST_TIMED_OUT = 7
"""Tells librdkafka that the records may have been stored. Other codes after which it tries again do not."""
_INVALID_REQUIRED_ACKS = 21
_INVALID_PRODUCER_EPOCH = 47
_PRODUCER_FENCED = 90
_NO_OFFSET, _NO_OFFSET_OF_LIBRDKAFKA = -1, -1001
"""The base offset of records whose transaction is open. librdkafka would count up from -1; its invalid offset is -1001.
"""
_FEW_PARTITIONS = 100
"""A response with more partitions is made in a thread, and so is one with errors, whose texts are searched for secrets.
"""
_ACKS: dict[int, Acks] = {0: 0, 1: 1, -1: "all"}


async def produce(services: Services, request: Message, client: Client) -> Message | None:
    """Append the batches of all partitions, each with its own outcome. Return None for acks=0.

    An error with acks=0 closes the connection, as in Kafka, because a client without responses notices nothing else.
    """
    acks = _ACKS.get(request.acks)
    if acks is None:
        count, refused = sum(len(topic.partition_data) for topic in request.topic_data), _INVALID_REQUIRED_ACKS
        outcomes: Sequence[Outcome] = [Outcome()] * count
    else:
        refused = NONE
        async with client.order:
            batches = await services.compute(_batches, request, client.checked_principal)
            checked = await _checked(services, batches, client)
            appended = [
                services.appender.submit(
                    client.key, client.fencing_tokens.connection_id,
                    checked[first : first + BATCHES_OF_REQUEST_MAX], acks, request.transactional_id,
                )
                for first in range(0, len(checked), BATCHES_OF_REQUEST_MAX)
            ]  # fmt: skip
        outcomes = [outcome for part in appended for outcome in await part]
        if acks == 0:
            for outcome in outcomes:
                if outcome.error is not None:
                    raise ConnectionAbortedError(f"a produce request without acknowledgement failed: {outcome.error}")
            return None
    unknown = _NO_OFFSET_OF_LIBRDKAFKA if "rdkafka" in client.software else _NO_OFFSET
    if len(outcomes) > _FEW_PARTITIONS or any(outcome.error is not None for outcome in outcomes):
        return await services.bulkheads.run(
            Lane.CODEC, client.key, partial(_response, request, outcomes, refused, unknown)
        )
    return _response(request, outcomes, refused, unknown)


def _batches(request: Message, principal: str | None) -> list[SentBatch]:
    transactional = request.transactional_id is not None
    return [
        SentBatch(topic.name, one.index, one.records or b"", transactional, principal)
        for topic in request.topic_data
        for one in topic.partition_data
    ]


def _response(request: Message, outcomes: Sequence[Outcome], refused: int, unknown: int) -> Message:
    remaining = iter(outcomes)
    answers: dict[str, list[Message]] = {}
    reasons_left = BAD_RECORDS_MAX
    for topic in request.topic_data:
        partitions = answers.setdefault(topic.name, [])
        for partition in topic.partition_data:
            outcome = next(remaining)
            reasons = outcome.bad_records(reasons_left) if reasons_left else {}
            reasons_left -= len(reasons)
            partitions.append(_partition_response(partition.index, outcome, reasons, refused, unknown))
    topics = [
        ProduceResponse.TopicProduceResponse(name=name, partition_responses=partitions)
        for name, partitions in answers.items()
    ]
    return ProduceResponse(responses=topics, throttle_time_ms=0)


async def _checked(services: Services, batches: Sequence[SentBatch], client: Client) -> Sequence[SentBatch | Checked]:
    """Check the batches if that may take long. Otherwise the appender checks those of many requests together."""
    if are_light(batches):
        return batches
    settings, memory = services.settings, request_context.get().memory
    assert memory is not None
    limits = DecodingLimits(settings.decompressed_bytes_max, settings.records_max)
    of_elements = memory.records.bytes
    await memory.records.more(decoded_bytes_max(batches, limits))
    check = partial(services.appender.check, batches, limits)
    checked = await services.bulkheads.run(Lane.CODEC, client.key, check, memory=memory)
    memory.records.set(of_elements + sum(each.bytes for each in checked))
    return checked


def _partition_response(
    index: int, outcome: Outcome, reasons: Mapping[int, str], refused: int, unknown: int
) -> Message:
    kind = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
    code = refused or (NONE if outcome.error is None else _code(outcome.error))
    return kind(
        index=index,
        error_code=code,
        base_offset=unknown if outcome.base_offset < 0 else outcome.base_offset,
        log_append_time_ms=outcome.append_time_ms,
        # With -1 after this error (the topic was created again), Java's producer would repeat the batch for ever.
        log_start_offset=0 if isinstance(outcome.error, UnknownProducerIdError) else -1,
        record_errors=[
            kind.BatchIndexAndErrorMessage(batch_index=row, batch_index_error_message=message)
            for row, message in sorted(reasons.items())
        ],
        error_message=None if outcome.error is None else client_message(outcome.error),
    )


def _code(error: Exception) -> int:
    """Return the code of an error, like `error_code`, but with the codes that producers expect from Produce."""
    if isinstance(error, MetadataStoreUnavailableError):
        return _REQUEST_TIMED_OUT
    code = error_code(error)
    fenced = code == _PRODUCER_FENCED or isinstance(error, TransactionAbortableError)
    return _INVALID_PRODUCER_EPOCH if fenced else code


APIS = (
    Api(ProduceRequest, produce, advertised=(0, 11), served_from=3, pipelined=True, limits=RECORDS, lane=Lane.CODEC,
        rights=(on_transaction(), each_topic(Operation.WRITE, "responses", "topic_data"))),
)  # fmt: skip
