"""Describes producers and manages transactions, with kafka-python's arguments and results.

Every transaction is in the metadata store and has no broker as its coordinator: the coordinator id is -1.
"""

import re
from collections.abc import Collection, Iterable
from typing import Any

from kafka.admin import (
    PartitionProducerState,
    ProducerState,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from kafka.structs import TopicPartition as KafkaTopicPartition

from spark_log.clients.kafka_errors import kafka_errors
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import partitions_by_store
from spark_log.errors import IllegalArgumentError, InvalidTxnStateError, ProducerFencedError
from spark_log.facts import transactions as inspection
from spark_log.ids import TopicPartition
from spark_log.transactions.rules import ONGOING
from spark_log.transactions.transaction_parts import abort

_NO_BROKER = -1
"""Kafka's id for a broker that does not exist."""


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


class TransactionCalls:
    """The methods of Admin for transactions and producers."""

    _cluster: Cluster

    @kafka_errors()
    def list_transactions(
        self,
        broker_ids: Any = None,
        producer_id_filters: Iterable[int] | None = None,
        state_filters: Iterable[Any] | None = None,
        duration_filter_ms: int | None = None,
        transactional_id_pattern: str | None = None,
    ) -> dict[int, list[Any]]:
        """Return {-1: [TransactionListing of each transactional id]}: -1, as no broker coordinates transactions."""
        wanted_ids = set(producer_id_filters or ())
        wanted_states = {TransactionState.build_from(state).value for state in state_filters or ()}
        try:
            name = None if transactional_id_pattern is None else re.compile(transactional_id_pattern)
        except re.error as error:
            raise IllegalArgumentError(
                f"transactional_id_pattern: {transactional_id_pattern!r} is not a regular expression: {error}"
            ) from None
        listings = [
            TransactionListing(each.transactional_id, each.producer_id, TransactionState(each.state))
            for each in inspection.list_transactions(self._cluster, wanted_states)
            if (not wanted_ids or each.producer_id in wanted_ids)
            and (duration_filter_ms is None or (each.open_ms is not None and each.open_ms > duration_filter_ms))
            and (name is None or name.fullmatch(each.transactional_id))
        ]
        return {_NO_BROKER: listings}

    @kafka_errors()
    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, Any]:
        """Return {transactional id: TransactionDescription}. Raises TransactionalIdNotFoundError for an unknown id."""
        described = inspection.describe_transactions(self._cluster, list(transactional_ids))
        return {
            description.transaction.transactional_id: TransactionDescription(
                coordinator_id=_NO_BROKER,
                state=TransactionState(description.transaction.state),
                producer_id=description.transaction.producer_id,
                producer_epoch=description.transaction.producer_epoch,
                transaction_timeout_ms=description.transaction.timeout_ms,
                transaction_start_time_ms=-1
                if description.transaction.began_ms is None
                else description.transaction.began_ms,
                topic_partitions=set(_partitions(description)),
            )
            for description in described
        }

    @kafka_errors()
    def find_hanging_transactions(
        self, broker_ids: Any = None, max_transaction_timeout_ms: int = 900_000
    ) -> list[dict[str, Any]]:
        """Return the transactions that are open for longer than their own time-out, or longer than the given time plus
        five minutes.

        They do not delay readers. A coordinator, or `spark-log maintenance transactions`, aborts a transaction
        after its time-out.
        """
        return [
            {
                "transactional_id": hanging.transaction.transactional_id,
                "producer_id": hanging.transaction.producer_id,
                "producer_epoch": hanging.transaction.producer_epoch,
                "state": hanging.transaction.state.value,
                "age_ms": hanging.transaction.open_ms,
                "coordinator_id": _NO_BROKER,
                "topic_partitions": _partitions(hanging),
            }
            for hanging in inspection.find_hanging(self._cluster, max_transaction_timeout_ms)
        ]

    @kafka_errors()
    def abort_transaction(self, spec: Any) -> None:
        """Abort the transaction of kafka-python's AbortTransactionSpec: the whole transaction, in all its partitions.

        The producer is not fenced: its next call raises TransactionAbortableError, and after an abort it can continue.
        Raises ProducerFencedError if the epoch is not current, InvalidTxnStateError if none is open in the partition.
        """
        partition = TopicPartition(*spec.topic_partition)
        _producers(self._cluster, [partition])  # raises if the partition does not exist
        producer = inspection.describe_producer(self._cluster, spec.producer_id)
        transaction = producer.transaction
        if spec.producer_epoch != transaction.producer_epoch:
            raise ProducerFencedError(
                f"producer {spec.producer_id}: its epoch is {transaction.producer_epoch}, not {spec.producer_epoch}"
            )
        if transaction.state is not ONGOING or partition not in _partitions(producer):
            raise InvalidTxnStateError(f"producer {spec.producer_id} has no open transaction in {partition}")
        abort(self._cluster, transaction.ref)

    @kafka_errors()
    def describe_producers(self, partitions: Iterable[Any], broker_id: int | None = None) -> dict[Any, Any]:
        """Return {TopicPartition: PartitionProducerState} of idempotent producers and of those with an open
        transaction.

        The start offset of an open transaction is the log end offset: its records would begin there on a commit now.
        UnknownTopicOrPartitionError names a partition that does not exist.
        """
        requested = [TopicPartition(*partition) for partition in partitions]
        return {
            KafkaTopicPartition(*tp): PartitionProducerState(
                [
                    ProducerState(
                        producer_id=producer.producer_id,
                        producer_epoch=producer.producer_epoch,
                        last_sequence=-1 if producer.last_sequence is None else producer.last_sequence,
                        last_timestamp=producer.last_ms,
                        coordinator_epoch=-1,
                        current_transaction_start_offset=(
                            -1 if producer.transaction_start_offset is None else producer.transaction_start_offset
                        ),
                    )
                    for producer in producers
                ]
            )
            for tp, producers in _producers(self._cluster, requested).items()
        }
