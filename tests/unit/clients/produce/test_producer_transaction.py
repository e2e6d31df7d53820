"""The calls that are possible in each state of a transactional producer, and the states after errors."""

import kafka.errors
import pytest
from kafka.structs import ConsumerGroupMetadata

import spark_log.errors
from spark_log.clients.kafka_errors import kafka_error
from spark_log.clients.produce.producer_settings import ProducerSettings
from spark_log.clients.produce.producer_transaction import ProducerTransaction
from spark_log.clients.produce.transaction_states import CALLS, State, after_error, may_commit_again
from spark_log.errors import (
    CommitFailedError,
    InvalidProducerIdMappingError,
    MetadataStoreUnavailableError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    ProducerFencedError,
    SparkLogError,
    StorageUnavailableError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from spark_log.groups.transacted_offsets import Committer, committer

FAILED = kafka_error(SparkLogError("a record was not sent"))
FENCED = kafka_error(ProducerFencedError("fenced"))

TABLE = {
    # state: (possible calls, state after a failed send)
    State.UNINITIALIZED: ({"init_transactions"}, State.UNINITIALIZED),
    State.READY: ({"init_transactions", "begin_transaction"}, State.READY),
    State.IN_TRANSACTION: (CALLS.keys() - {"init_transactions", "begin_transaction"}, State.ABORTABLE_ERROR),
    State.COMMITTING: ({"register", "commit_transaction", "abort_transaction"}, State.ABORTABLE_ERROR),
    State.IN_DOUBT: ({"commit_transaction", "abort_transaction"}, State.ABORTABLE_ERROR),
    State.ABORTABLE_ERROR: ({"abort_transaction"}, State.ABORTABLE_ERROR),
    State.FATAL_ERROR: (set(), State.FATAL_ERROR),
}


@pytest.mark.parametrize("state", State)
def test_possible_calls_in_each_state(state):
    possible, failed = TABLE[state]
    assert {call for call, states in CALLS.items() if state in states} == possible
    assert after_error(state, FAILED) is failed
    for error in (ProducerFencedError("f"), InvalidProducerIdMappingError("i")):
        assert after_error(state, error) is after_error(state, kafka_error(error)) is State.FATAL_ERROR

    transaction = ProducerTransaction(None, ProducerSettings(transactional_id="id"))
    assert transaction.is_open is False
    transaction._state = state
    transaction.fail(FAILED)  # before the calls: like a send that fails in the background
    assert transaction._state is failed
    transaction._state = state
    transaction._error = FENCED if state is State.FATAL_ERROR else FAILED
    for call in CALLS:
        if call in possible:
            transaction.check(call)
        elif state is State.FATAL_ERROR:
            with pytest.raises(kafka.errors.ProducerFencedError):
                transaction.check(call)
        elif state is State.ABORTABLE_ERROR:
            with pytest.raises(kafka.errors.TransactionAbortableError, match="a record was not sent") as raised:
                transaction.check(call)
            assert isinstance(raised.value, TransactionAbortableError)
        else:
            with pytest.raises(kafka.errors.IllegalStateError, match=f"{call}: .* {state.value}: \\w+") as raised:
                transaction.check(call)
            assert isinstance(raised.value, spark_log.errors.IllegalStateError)
    assert transaction.is_open == ("abort_transaction" in possible)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (MetadataStoreUnavailableError, True),
        (NotEnoughReplicasError, True),
        (NotLeaderForPartitionError, True),
        (StorageUnavailableError, True),
        (UnknownTopicOrPartitionError, False),
        (TransactionAbortableError, False),
        (ProducerFencedError, False),
        (CommitFailedError, False),
    ],
)
def test_errors_after_which_commit_may_be_called_again(error, again):
    assert may_commit_again(error("e")) is again
    assert may_commit_again(kafka_error(error("e"))) is again


def test_committer_of_group_metadata():
    assert committer("g") == Committer("g")
    assert committer(ConsumerGroupMetadata("g", 3, "m", None)) == Committer("g", "m", 3)
    assert committer(ConsumerGroupMetadata("g", 3, "m", "i")) == Committer("g", "m", 3, "i")
    assert committer(ConsumerGroupMetadata("g", -1, "", None)) == Committer("g")
    for bad, error in (
        (5, TypeError),
        (None, TypeError),
        ((), TypeError),
        (iter(["g", 3, "m", None]), TypeError),  # a Consumer is an iterator too: committer() would consume its records
        (ConsumerGroupMetadata(None, -1, "", None), ValueError),
        (ConsumerGroupMetadata("g", 3, "", None), ValueError),
    ):
        with pytest.raises(error, match="group_metadata"):
            committer(bad)
    with pytest.raises(spark_log.errors.InvalidGroupIdError):
        committer("")
