"""Handles the requests that describe producers and transactions."""

from functools import partial

from kafka.protocol.admin import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

from spark_log.cluster.security.acl_rules import Operation, ResourceType
from spark_log.facts import transactions as inspection
from spark_log.gateway.access.rights import Shown, each_named, each_topic
from spark_log.gateway.api import Api, Client
from spark_log.gateway.protocol.error_codes import outcome_of
from spark_log.gateway.protocol.request_limits import TINY, TRANSACTIONS
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import ELEMENT_BYTES, Needed, Services
from spark_log.groups.consumer.topic_patterns import compile_pattern
from spark_log.ids import TopicPartition, numbers_by_topic
from spark_log.transactions.rules import TransactionState

_NONE = -1
"""Stands for a missing sequence, coordinator, or open transaction."""


async def describe_producers(services: Services, request: Message, _client: Client) -> Message:
    topics: dict[str, list[int]] = {}
    for topic in request.topics:
        topics.setdefault(topic.name, []).extend(topic.partition_indexes)
    answers = []
    for name, numbers in topics.items():
        places = [TopicPartition(name, number) for number in numbers]
        partitions = await services.in_portions(partial(_producers, services), places)
        answers.append(DescribeProducersResponse.TopicResponse(name=name, partitions=partitions))
    return DescribeProducersResponse(throttle_time_ms=0, topics=answers)


def _producers(services: Services, tp: TopicPartition) -> Message:
    kind = DescribeProducersResponse.TopicResponse.PartitionResponse
    stores = services.stores
    outcome = outcome_of(
        lambda: stores.call(stores.of(tp.topic), lambda cluster: inspection.describe_producers(cluster.store, [tp])[tp])
    )
    producers = [
        kind.ProducerState(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            last_sequence=_NONE if producer.last_sequence is None else producer.last_sequence,
            last_timestamp=producer.last_ms,
            coordinator_epoch=_NONE,
            current_txn_start_offset=_NONE
            if producer.transaction_start_offset is None
            else producer.transaction_start_offset,
        )
        for producer in outcome.result or ()
    ]
    return kind(
        partition_index=tp.partition,
        error_code=outcome.code,
        error_message=outcome.message,
        active_producers=producers,
    )


async def describe_transactions(services: Services, request: Message, _client: Client) -> Message:
    states = await services.in_portions(partial(_transaction, services), request.transactional_ids)
    return DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=states)


def _transaction(services: Services, transactional_id: str) -> Message:
    kind = DescribeTransactionsResponse.TransactionState
    outcome = outcome_of(lambda: inspection.describe_transactions(services.cluster, [transactional_id])[0])
    if outcome.result is None:
        return kind(
            error_code=outcome.code,
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=_NONE,
            producer_id=_NONE,
            producer_epoch=_NONE,
            topics=[],
        )
    transaction = outcome.result.transaction
    topics = numbers_by_topic((pending.topic, pending.partition) for pending in outcome.result.pending)
    return kind(
        error_code=outcome.code,
        transactional_id=transactional_id,
        transaction_state=transaction.state.value,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=_NONE if transaction.began_ms is None else transaction.began_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[kind.TopicData(topic=name, partitions=numbers) for name, numbers in topics.items()],
    )


async def list_transactions(services: Services, request: Message, _client: Client) -> Message:
    """List the current or last transaction of each transactional id. Only open transactions have a duration."""
    return await services.call_in_memory(partial(_list_transactions, services, request))


def _list_transactions(services: Services, request: Message, held: int) -> Message | Needed:
    all_states = {state.value for state in TransactionState}
    states = set(request.state_filters)
    producer_ids = set(request.producer_id_filters)
    longer_than_ms = request.duration_filter if request.version >= 1 else -1
    pattern = (request.version >= 2 and request.transactional_id_pattern) or ""

    def matching() -> list[inspection.TransactionListing]:
        transactions = inspection.list_transactions(services.cluster)
        if not pattern:
            return transactions
        compiled = compile_pattern(pattern, "TransactionalIdPattern")
        return [each for each in transactions if compiled.fullmatch(each.transactional_id)]

    outcome = outcome_of(matching)
    size = sum(ELEMENT_BYTES + len(transaction.transactional_id) for transaction in outcome.result or ())
    if size > held:
        return Needed(size)
    return ListTransactionsResponse(
        throttle_time_ms=0,
        error_code=outcome.code,
        unknown_state_filters=sorted(states - all_states),
        transaction_states=[
            ListTransactionsResponse.TransactionState(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state.value,
            )
            for transaction in outcome.result or ()
            if (not states or transaction.state.value in states)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (longer_than_ms < 0 or (transaction.open_ms is not None and transaction.open_ms > longer_than_ms))
        ],
    )


APIS = (
    Api(DescribeProducersRequest, describe_producers, advertised=(0, 0), limits=TRANSACTIONS,
        rights=(each_topic(Operation.READ),)),
    Api(DescribeTransactionsRequest, describe_transactions, advertised=(0, 0), limits=TRANSACTIONS,
        rights=(
            each_named(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "transactional_ids", "transaction_states"),
            Shown(Operation.DESCRIBE, ResourceType.TOPIC, "topics", "topic", within="transaction_states"),
        )),
    Api(ListTransactionsRequest, list_transactions, advertised=(0, 2), limits=TINY,
        rights=(Shown(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "transaction_states", "transactional_id"),)),
)  # fmt: skip
