"""Handles requests that begin and end transactions, and that add offsets. Produce requests add the records."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

from spark_log.cluster.security.acl_rules import Operation
from spark_log.cluster.topics import Topic
from spark_log.config.values import can_be_stored
from spark_log.errors import (
    CrossStoreTransactionError,
    IllegalArgumentError,
    PolicyViolationError,
    ProducerFencedError,
    SparkLogError,
    TransactionAbortableError,
    TransactionCommitPendingError,
)
from spark_log.gateway.access.rights import CLUSTER, Resource, Whole, each_topic, on_group, on_transaction
from spark_log.gateway.api import Api, Client
from spark_log.gateway.groups.committed_offset_requests import commit_outcomes, commits_of, with_unknown
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.protocol.error_codes import NONE, error_code, log_failed
from spark_log.gateway.protocol.request_limits import TINY
from spark_log.gateway.protocol.stored_names import with_storable_names
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services
from spark_log.gateway.transactions import pending_records as transactions
from spark_log.gateway.transactions.fencing_tokens import TIMEOUT_MS, TokenTakenError
from spark_log.groups.group_names import check_group_id
from spark_log.groups.pending_offsets import add_offsets
from spark_log.groups.transacted_offsets import Committer
from spark_log.ids import StoreId, TopicPartition
from spark_log.log.append.producer_rows import register_producer
from spark_log.transactions import transaction_parts, transaction_store, wire_transactions
from spark_log.transactions.fencing_rules import FencingToken, Role
from spark_log.transactions.rules import ProducerRef
from spark_log.transactions.wire_transactions import WireProducer

_UNKNOWN_TOPIC_OR_PARTITION = 3
_OPERATION_NOT_ATTEMPTED = 55
_COORDINATOR_LOAD_IN_PROGRESS = 14
_COORDINATOR_NOT_AVAILABLE = 15
_INVALID_PRODUCER_EPOCH = 47
_TRANSACTION_ABORTABLE = 120
_KNOWS_FENCED = {InitProducerIdRequest: 4, AddPartitionsToTxnRequest: 2, AddOffsetsToTxnRequest: 2, EndTxnRequest: 2}
"""The first version that may answer PRODUCER_FENCED. Lower ones, and other requests, answer INVALID_PRODUCER_EPOCH."""
_RETRIES_LOAD_IN_PROGRESS = 3
"""The first version of TxnOffsetCommit that clients retry after COORDINATOR_LOAD_IN_PROGRESS. KafkaJS uses a lower one,
and retries only after UNKNOWN_TOPIC_OR_PARTITION."""
_ID_LENGTH_MAX = 249


def _code(error: Exception, request: Message) -> int:
    if isinstance(error, TokenTakenError):
        if isinstance(request, TxnOffsetCommitRequest) and request.version < _RETRIES_LOAD_IN_PROGRESS:
            return _UNKNOWN_TOPIC_OR_PARTITION
        return _COORDINATOR_LOAD_IN_PROGRESS
    if isinstance(error, TransactionAbortableError):  # KIP-890: a broker tells these clients that they are fenced
        error = ProducerFencedError(str(error))
    if isinstance(error, PolicyViolationError) and isinstance(request, TxnOffsetCommitRequest):
        return _TRANSACTION_ABORTABLE  # Java's producer ends after POLICY_VIOLATION
    if isinstance(error, ProducerFencedError) and request.version < _KNOWS_FENCED.get(type(request), 1_000):
        return _INVALID_PRODUCER_EPOCH
    return error_code(error)


async def init_producer_id(services: Services, request: Message, client: Client) -> Message:
    """Return a new producer id, or the producer id and the next epoch of a transactional id."""
    try:
        producer_id, epoch = await services.call(_init, services, request, client)
    except SparkLogError as error:
        code = _code(error, request)
        if request.transactional_id is None and code == _COORDINATOR_NOT_AVAILABLE:
            code = _COORDINATOR_LOAD_IN_PROGRESS  # else Java's producer looks for the coordinator of a null id
        return InitProducerIdResponse(throttle_time_ms=0, error_code=code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(throttle_time_ms=0, error_code=NONE, producer_id=producer_id, producer_epoch=epoch)


def _init(services: Services, request: Message, client: Client) -> tuple[int, int]:
    name = request.transactional_id
    if name is None:
        return register_producer(services.cluster.store, TIMEOUT_MS, client.checked_principal), 0
    if not 0 < len(name) <= _ID_LENGTH_MAX or not can_be_stored(name):
        raise IllegalArgumentError(f"transactional id {name[:50]!r}: expected 1 to {_ID_LENGTH_MAX} characters")
    producer = None
    if request.version >= 3 and request.producer_id >= 0:
        producer = ProducerRef(request.producer_id, request.producer_epoch)
    init = partial(
        transaction_store.init_producer, services.cluster, name, request.transaction_timeout_ms, producer=producer,
        timeout_ms=TIMEOUT_MS,
    )  # fmt: skip
    try:
        ref, token, aborted = init()
    except TransactionCommitPendingError:
        in_each = services.stores.change_each
        transaction_parts.complete_last(services.log, name, timeout_ms=TIMEOUT_MS, in_each=in_each)
        ref, token, aborted = init()
    transaction_parts.abort_parts(services.cluster, ref.producer_id, aborted, in_each=services.stores.change_each)
    client.fencing_tokens.keep(name, ref.producer_id, token)
    return ref.producer_id, ref.epoch


async def add_partitions_to_txn(services: Services, request: Message, client: Client) -> Message:
    """Begin the transaction, with parts in the data stores of the topics. Its partitions become known from its records.

    A second store is refused with TRANSACTION_ABORTABLE, unless transaction.cross.store allows it. librdkafka then ends
    the transaction, even if no partition was added. Therefore the transaction is begun for librdkafka.
    """
    topics = request.v3_and_below_topics
    topics_by_name = await services.call(services.topics.find, [topic.name for topic in topics])
    missing = await services.compute(_missing, topics, topics_by_name)
    code = NONE
    if not missing:
        producer = WireProducer(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
        )
        code = await _begin(services, client, producer, request, {topic.store_id for topic in topics_by_name.values()})
        if code == _TRANSACTION_ABORTABLE and "rdkafka" in client.software:
            await _begin(services, client, producer, request)
    return await services.compute(_added, topics, missing, code)


def _missing(topics: Sequence[Message], topics_by_name: Mapping[str, Topic]) -> set[tuple[str, int]]:
    """Return the partitions that do not exist."""
    return {
        (topic.name, number)
        for topic in topics
        for number in topic.partitions
        if topic.name not in topics_by_name or not 0 <= number < topics_by_name[topic.name].partition_count
    }


def _added(topics: Sequence[Message], missing: Collection[tuple[str, int]], code: int) -> Message:
    def code_of(place: tuple[str, int]) -> int:
        if not missing:
            return code
        return _UNKNOWN_TOPIC_OR_PARTITION if place in missing else _OPERATION_NOT_ATTEMPTED

    kind = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    return AddPartitionsToTxnResponse(
        throttle_time_ms=0,
        results_by_topic_v3_and_below=[
            kind(
                name=topic.name,
                results_by_partition=[
                    kind.AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=code_of((topic.name, number))
                    )
                    for number in topic.partitions
                ],
            )
            for topic in topics
        ],
    )


async def add_offsets_to_txn(services: Services, request: Message, client: Client) -> Message:
    """Begin the transaction. Its groups become known from its offsets, not from this request."""
    producer = WireProducer(request.transactional_id, request.producer_id, request.producer_epoch)
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=await _begin(services, client, producer, request))


async def _begin(
    services: Services, client: Client, producer: WireProducer, request: Message, stores: Collection[StoreId] = ()
) -> int:
    def begin(token: FencingToken) -> None:
        wire_transactions.begin(services.cluster.store, producer, token, stores, timeout_ms=TIMEOUT_MS)

    try:
        await client.fencing_tokens.call(services, producer, Role.COORDINATOR, begin)
    except (SparkLogError, TokenTakenError) as error:
        if isinstance(error, CrossStoreTransactionError):
            log_failed(error)
        return _code(error, request)
    return NONE


async def txn_offset_commit(services: Services, request: Message, client: Client) -> Message:
    """Store offsets of a group that EndTxn will commit."""
    kind = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    codes: Mapping[TopicPartition, int] = {}
    producer = WireProducer(request.transactional_id, request.producer_id, request.producer_epoch)
    add = partial(_add_offsets, services, request, producer)
    try:
        codes = await client.fencing_tokens.call(services, producer, Role.OFFSETS, add)
        code = NONE
    except (SparkLogError, TokenTakenError) as error:
        if isinstance(error, PolicyViolationError):
            log_failed(error)
        code = _code(error, request)
    partition = kind.TxnOffsetCommitResponsePartition
    topics = await services.compute(commit_outcomes, request, kind, partition, code, codes)
    return TxnOffsetCommitResponse(throttle_time_ms=0, topics=topics)


def _add_offsets(
    services: Services, request: Message, producer: WireProducer, token: FencingToken
) -> Mapping[TopicPartition, int]:
    """Add the offsets to the transaction. Return the error codes of partitions whose offsets are not added."""
    store = services.cluster.store
    check_group_id(request.group_id)
    member_id = request.member_id or ""
    who = Committer(
        request.group_id,
        member_id,
        request.generation_id if member_id else -1,
        request.group_instance_id,
        unfenced=not member_id,
    )
    commits, codes = commits_of(request, store.settings)
    return with_unknown(codes, add_offsets(store, producer, token, who, commits, timeout_ms=TIMEOUT_MS))


async def end_txn(services: Services, request: Message, client: Client) -> Message:
    """Commit or abort the transaction. After a retriable error it is still open, and the client calls again."""
    producer = WireProducer(request.transactional_id, request.producer_id, request.producer_epoch)
    code = NONE

    def end(token: FencingToken) -> None:
        if request.committed:
            transactions.commit(services.log, services.stores, producer, token, timeout_ms=TIMEOUT_MS)
        else:
            transactions.abort(services.cluster, services.stores, producer, token, timeout_ms=TIMEOUT_MS)

    try:
        await client.fencing_tokens.call(services, producer, Role.COORDINATOR, end)
    except (SparkLogError, TokenTakenError) as error:
        retriable = isinstance(error, SparkLogError) and error.retriable
        code = _COORDINATOR_NOT_AVAILABLE if retriable else _code(error, request)
    return EndTxnResponse(throttle_time_ms=0, error_code=code)


def _cluster_if_not_transactional(request: Message) -> Resource | None:
    return CLUSTER if request.transactional_id is None else None


APIS = (
    Api(
        InitProducerIdRequest,
        init_producer_id,
        advertised=(0, 4),
        rights=(on_transaction(), Whole(Operation.IDEMPOTENT_WRITE, _cluster_if_not_transactional, or_any_topic=True)),
        limits=TINY,
        lane=Lane.TRANSACTION,
    ),
    Api(
        AddPartitionsToTxnRequest,
        add_partitions_to_txn,
        advertised=(0, 3),
        rights=(
            on_transaction("v3_and_below_transactional_id"),
            each_topic(Operation.WRITE, "results_by_topic_v3_and_below", "v3_and_below_topics", together=True),
        ),
        lane=Lane.TRANSACTION,
    ),
    Api(
        AddOffsetsToTxnRequest,
        add_offsets_to_txn,
        advertised=(0, 3),
        rights=(on_transaction(), on_group(Operation.READ)),
        limits=TINY,
        lane=Lane.TRANSACTION,
    ),
    Api(
        TxnOffsetCommitRequest,
        with_storable_names(TxnOffsetCommitRequest, txn_offset_commit),
        advertised=(0, 3),
        rights=(on_transaction(), on_group(Operation.READ), each_topic(Operation.READ)),
        lane=Lane.TRANSACTION,
    ),
    Api(EndTxnRequest, end_txn, advertised=(0, 3), rights=(on_transaction(),), limits=TINY, lane=Lane.TRANSACTION),
)
