"""Describes producers and manages transactions, with kafka-python's arguments and results.

Every transaction is in the metadata store and has no broker as its coordinator: the coordinator id is -1.
"""

import re
from collections.abc import Collection, Iterable
from typing import Any

from kafka.admin import (
    AbortTransactionSpec,
    PartitionProducerState,
    ProducerState,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from kafka.structs import TopicPartition as KafkaTopicPartition

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import partitions_by_store
from spark_log.errors import IllegalArgumentError, InvalidTxnStateError, ProducerFencedError
from spark_log.facts import transactions as inspection
from spark_log.ids import TopicPartition
from spark_log.transactions.rules import ONGOING
from spark_log.transactions.transaction_store import abort

_NO_BROKER = -1
"""Kafka's id for a broker that does not exist."""


def list_transactions(
    cluster: Cluster,
    producer_ids: Iterable[int] | None,
    states: Iterable[Any] | None,
    duration_ms: int | None,
    pattern: str | None,
) -> dict[int, list[TransactionListing]]:
    """Return {-1: the current or last transaction of every transactional id}. With `duration_ms`, return only open
    transactions that began longer ago. `pattern` must match the whole id.
    """
    wanted_ids = set(producer_ids or ())
    wanted_states = {TransactionState.build_from(state).value for state in states or ()}
    try:
        name = None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise IllegalArgumentError(
            f"transactional_id_pattern: {pattern!r} is not a regular expression: {error}"
        ) from None
    listings = [
        TransactionListing(each.transactional_id, each.producer_id, TransactionState(each.state))
        for each in inspection.list_transactions(cluster, wanted_states)
        if (not wanted_ids or each.producer_id in wanted_ids)
        and (duration_ms is None or (each.open_ms is not None and each.open_ms > duration_ms))
        and (name is None or name.fullmatch(each.transactional_id))
    ]
    return {_NO_BROKER: listings}


def describe_transactions(cluster: Cluster, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
    """Describe transactions. The start is -1 if there has been none; partitions are those of an open transaction."""
    described = inspection.describe_transactions(cluster, list(transactional_ids))
    return {
        each.transaction.transactional_id: TransactionDescription(
            coordinator_id=_NO_BROKER,
            state=TransactionState(each.transaction.state),
            producer_id=each.transaction.producer_id,
            producer_epoch=each.transaction.producer_epoch,
            transaction_timeout_ms=each.transaction.timeout_ms,
            transaction_start_time_ms=-1 if each.transaction.began_ms is None else each.transaction.began_ms,
            topic_partitions=set(_partitions(each)),
        )
        for each in described
    }


def find_hanging_transactions(cluster: Cluster, max_transaction_timeout_ms: int) -> list[dict[str, Any]]:
    return [
        {
            "transactional_id": each.transaction.transactional_id,
            "producer_id": each.transaction.producer_id,
            "producer_epoch": each.transaction.producer_epoch,
            "state": each.transaction.state.value,
            "age_ms": each.transaction.open_ms,
            "coordinator_id": _NO_BROKER,
            "topic_partitions": _partitions(each),
        }
        for each in inspection.find_hanging(cluster, max_transaction_timeout_ms)
    ]


def abort_transaction(cluster: Cluster, spec: AbortTransactionSpec) -> None:
    """Abort the whole transaction, in all its partitions. Raises ProducerFencedError if the epoch is not the current
    one, or InvalidTxnStateError if the producer has no open transaction in the partition.
    """
    partition = TopicPartition(*spec.topic_partition)
    _producers(cluster, [partition])  # raises if the partition does not exist
    producer = inspection.describe_producer(cluster, spec.producer_id)
    transaction = producer.transaction
    if spec.producer_epoch != transaction.producer_epoch:
        raise ProducerFencedError(
            f"producer {spec.producer_id}: its epoch is {transaction.producer_epoch}, not {spec.producer_epoch}"
        )
    if transaction.state is not ONGOING or partition not in _partitions(producer):
        raise InvalidTxnStateError(f"producer {spec.producer_id} has no open transaction in {partition}")
    abort(cluster, transaction.ref)


def describe_producers(cluster: Cluster, partitions: Iterable[Any]) -> dict[Any, PartitionProducerState]:
    """Return the producers of each partition. As in Kafka, a missing sequence, coordinator or start offset is -1."""
    requested = [TopicPartition(*partition) for partition in partitions]
    return {
        KafkaTopicPartition(*tp): PartitionProducerState(
            [
                ProducerState(
                    producer_id=each.producer_id,
                    producer_epoch=each.producer_epoch,
                    last_sequence=-1 if each.last_sequence is None else each.last_sequence,
                    last_timestamp=each.last_ms,
                    coordinator_epoch=-1,
                    current_transaction_start_offset=(
                        -1 if each.transaction_start_offset is None else each.transaction_start_offset
                    ),
                )
                for each in producers
            ]
        )
        for tp, producers in _producers(cluster, requested).items()
    }


def _producers(
    cluster: Cluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, list[inspection.PartitionProducer]]:
    found: dict[TopicPartition, list[inspection.PartitionProducer]] = {}
    for store_id, here in partitions_by_store(cluster, partitions).items():
        found |= inspection.describe_producers(cluster.at(store_id).store, here)
    return {partition: found[partition] for partition in partitions}


def _partitions(described: inspection.TransactionDescription) -> list[KafkaTopicPartition]:
    """Return the partitions of the transaction, sorted."""
    return [KafkaTopicPartition(each.topic, each.partition) for each in described.pending]
