"""Produce, and the ids of idempotent producers."""

from typing import TYPE_CHECKING

from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse
from kafka.protocol.producer.transaction import InitProducerIdRequest, InitProducerIdResponse

from spark_log.append.producer_rows import register_producer
from spark_log.append.rules import Acks
from spark_log.errors import MetadataStoreUnavailableError, SparkLogError
from spark_log.gateway.api import Api, Client
from spark_log.gateway.appender import Outcome, SentBatch
from spark_log.gateway.error_codes import NONE, error_code
from spark_log.gateway.wire import Message

if TYPE_CHECKING:
    from spark_log.gateway.gateway import Gateway

_NOT_ENOUGH_REPLICAS = 19
_INVALID_REQUIRED_ACKS = 21
_INVALID_PRODUCER_EPOCH = 47
_PRODUCER_FENCED = 90
_TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
_ACKS: dict[int, Acks] = {0: 0, 1: 1, -1: "all"}
_TIMEOUT_MS = 30_000


async def produce(gateway: "Gateway", request: Message, _client: Client) -> Message | None:
    """Append the batches of all partitions; each has its own outcome. No response for acks=0, as in Kafka."""
    places = [(topic, partition) for topic in request.topic_data for partition in topic.partition_data]
    acks = _ACKS.get(request.acks)
    if acks is None:
        outcomes, refused = [Outcome()] * len(places), _INVALID_REQUIRED_ACKS
    elif request.transactional_id is not None:
        outcomes, refused = [Outcome()] * len(places), _TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    else:
        refused = NONE
        batches = [SentBatch(topic.name, one.index, one.records or b"") for topic, one in places]
        outcomes = await gateway.appender.submit(batches, acks)
        if acks == 0:
            return None
    found: dict[str, list[Message]] = {topic.name: [] for topic in request.topic_data}
    for (topic, partition), outcome in zip(places, outcomes, strict=True):
        found[topic.name].append(_partition_response(partition.index, outcome, refused))
    topics = [
        ProduceResponse.TopicProduceResponse(name=name, partition_responses=partitions)
        for name, partitions in found.items()
    ]
    return ProduceResponse(responses=topics, throttle_time_ms=0)


def _partition_response(index: int, outcome: Outcome, refused: int) -> Message:
    kind = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
    code = refused or (NONE if outcome.error is None else _code(outcome.error))
    return kind(
        index=index,
        error_code=code,
        base_offset=outcome.base_offset,
        log_append_time_ms=outcome.append_time_ms,
        log_start_offset=-1,
        record_errors=[
            kind.BatchIndexAndErrorMessage(batch_index=row, batch_index_error_message=message)
            for row, message in sorted(outcome.bad_records.items())
        ],
        error_message=None if outcome.error is None else str(outcome.error),
    )


def _code(error: Exception) -> int:
    """As error_code, with what a producer expects of Produce in particular."""
    if isinstance(error, MetadataStoreUnavailableError):
        return _NOT_ENOUGH_REPLICAS
    code = error_code(error)
    return _INVALID_PRODUCER_EPOCH if code == _PRODUCER_FENCED else code


async def init_producer_id(gateway: "Gateway", request: Message, _client: Client) -> Message:
    """A new producer id. Transactional ids are refused: transactions over the wire are not built yet."""
    if request.transactional_id is not None:
        return _producer_id(_TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    try:
        producer_id = await gateway.call(register_producer, gateway.cluster.store, _TIMEOUT_MS)
    except SparkLogError as error:
        return _producer_id(error_code(error))
    return _producer_id(NONE, producer_id)


def _producer_id(code: int, producer_id: int = -1) -> Message:
    epoch = 0 if producer_id >= 0 else -1
    return InitProducerIdResponse(throttle_time_ms=0, error_code=code, producer_id=producer_id, producer_epoch=epoch)


APIS = (
    # librdkafka stops compressing without saying so if versions below 3 are not advertised
    Api(ProduceRequest, produce, advertised=(0, 11), served_from=3, pipelined=True),
    Api(InitProducerIdRequest, init_producer_id, advertised=(0, 4)),
)
