"""Errors of producers, transactions and Spark's writes."""

from spark_log.errors.base import FatalError, RetriableError


class ProducerFencedError(FatalError):
    """Another producer with the same transactional_id has started, so this one may not write any more.

    Remedy: close this producer. Run only one per transactional_id.
    """


class OutOfOrderSequenceNumberError(FatalError):
    """The producer's sequence numbers have a gap: a batch before this one was not appended.

    Remedy: close the producer, find out which records failed, and send them with a new producer.
    """


class UnknownProducerIdError(FatalError):
    """The producer was silent for longer than producer.id.expiration.ms, so duplicates of its batches can no longer be
    detected.

    Remedy: create a new producer, or raise the cluster setting.
    """


class WriteIdExpiredError(FatalError):
    """The lease of the writer's right to create files ended before the append, so its files may be deleted already.
    Nothing was appended.

    Remedy: repeat the whole write. For long Spark jobs raise spark.write.id.lease.ms.
    """


class CheckpointMismatchError(FatalError):
    """A Spark sink writes another batch with the number of its last one, or an older batch after a newer one: the
    checkpoint was copied or rolled back. Where the sink cannot read Spark's offset log (its location is given by
    spark.sql.streaming.checkpointLocation), a repeated batch with other rows counts as another one.

    Remedy: start the query with a new checkpoint location, given by the option checkpointLocation.
    """


class InvalidTxnStateError(FatalError):
    """The call does not fit the state of the transaction: it has ended, no transaction is open, or another one is.

    Remedy: call begin_transaction, send, and commit_transaction or abort_transaction in this order.
    """


class TransactionAbortableError(FatalError):
    """The transaction cannot be committed: a send failed, its time-out has passed, an operator aborted it, or a topic
    was deleted (KIP-1050).

    Remedy: call abort_transaction and do the work again in a new transaction.
    """


class InvalidTransactionTimeoutError(FatalError):
    """The producer's transaction_timeout_ms is above the cluster's transaction.max.timeout.ms.

    Remedy: lower it, or raise the cluster setting.
    """


class InvalidProducerIdMappingError(FatalError):
    """The producer id is not that of the transactional_id, which may have expired (transactional.id.expiration.ms), or
    another user owns the producer id.

    Remedy: close the producer and create another one.
    """


class TransactionalIdNotFoundError(FatalError):
    """There is no producer with this transactional_id.

    Remedy: check the id with `spark-log transaction list`.
    """


class TransactionCommitPendingError(RetriableError):
    """A transaction is committed, and a data store has not appended its records yet, because the store does not answer
    or a partition has no leader. The decision is durable, and the transaction cannot be aborted any more.

    Remedy: repeat the call, which waits for the store. A coordinator completes the transaction too. The next
    transaction of the same transactional_id begins after that.
    """


class CrossStoreTransactionError(FatalError):
    """A transaction, or a request that is atomic, would write to topics of several metadata stores.

    Remedy: keep the topics of one transaction in one store (`spark-log topic describe` shows the store of each). If
    readers may see a transaction in one store before they see it in another, allow it for producers with `spark-log
    cluster config --set transaction.cross.store=allow`.
    """
