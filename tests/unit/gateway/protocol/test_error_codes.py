import inspect

import pytest
from kafka import errors as kafka

from spark_log import errors
from spark_log.errors import SparkLogError, UnknownTopicOrPartitionError
from spark_log.gateway.protocol import error_codes
from spark_log.gateway.protocol.error_codes import (
    _INSTEAD,
    _UNKNOWN_TO_KAFKA_PYTHON,
    INTERNAL,
    NONE,
    SERVER_FAULTS,
    UNKNOWN_SERVER_ERROR,
    client_message,
    coordinator_code,
    error_code,
    outcome_of,
)
from spark_log.gateway.records import produce_requests
from spark_log.gateway.records.fetch_positions import fetch_code

ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, SparkLogError)]


def code_of(kind):
    return error_code(kind.__new__(kind))  # some have arguments


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_chosen_code(kind):
    same_name = getattr(getattr(kafka, kind.__name__, None), "errno", None) is not None
    sources = [kind.__name__ in chosen for chosen in (_INSTEAD, _UNKNOWN_TO_KAFKA_PYTHON, SERVER_FAULTS)]
    assert sum(sources) == 1 or (same_name and not any(sources))
    code = code_of(kind)
    assert (code == UNKNOWN_SERVER_ERROR) == (kind.__name__ in SERVER_FAULTS)
    assert code != NONE


def test_errors_that_clients_repeat_after_are_retriable_for_them():
    codes = {kind.errno: kind for _, kind in inspect.getmembers(kafka, inspect.isclass) if hasattr(kind, "errno")}
    retriable = [kind for kind in ERRORS if kind.retriable and kind.__name__ not in SERVER_FAULTS]
    assert [kind.__name__ for kind in retriable if not codes[code_of(kind)].retriable] == []


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_a_consumer_of_kafka_knows_every_code_of_a_fetch(kind):
    """Java's FetchCollector raises IllegalStateException for others, and loses the records of other partitions."""
    code = fetch_code(kind.__new__(kind))
    assert code in {NONE, UNKNOWN_SERVER_ERROR, 1, 2, 3, 6, 9, 29, 56, 74, 75, 78, 100, 103}
    assert (kind.retriable and kind.__name__ not in SERVER_FAULTS) <= (code in {NONE, 3, 6, 9, 56}), (
        "it goes on after a failure that passes"
    )


@pytest.mark.parametrize(
    "kind", [errors.DiskFullError, errors.StorageUnavailableError, errors.MetadataStoreUnavailableError]
)
def test_members_of_groups_look_for_the_coordinator_while_its_storage_fails(kind):
    assert coordinator_code(kind.__new__(kind)) == 15


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.MetadataStoreUnavailableError, 7),  # librdkafka takes the records as perhaps stored
        (errors.DiskFullError, 19),
        (errors.LogDirMismatchError, 56),  # Java's producer gives up after 57
        (errors.ProducerFencedError, 47),
    ],
)
def test_codes_of_a_produce(kind, code):
    assert produce_requests._code(kind.__new__(kind)) == code


def test_message_of_an_outcome_is_bounded_and_without_passwords():
    def fail():
        raise UnknownTopicOrPartitionError("postgresql://user:secret@host/" + "x" * 40_000)

    outcome = outcome_of(fail)
    assert (outcome.code, len(outcome.message)) == (3, 1000)
    assert "secret" not in outcome.message


TOLD = {
    "UnknownTopicOrPartitionError", "InvalidConfigurationError", "InvalidOptionError", "InvalidTopicError",
    "InvalidPartitionsError", "InvalidReplicationFactorError", "TopicAlreadyExistsError", "PolicyViolationError",
    "InvalidRecordError", "MessageSizeTooLargeError", "InvalidTimestampError", "InvalidSchemaError",
    "IncompatibleSchemaError", "SchemaRegistryError", "SchemaNotFoundError", "OffsetOutOfRangeError",
    "LogTruncationError", "CommitFailedError", "InvalidTxnStateError", "TransactionAbortableError",
    "InvalidTransactionTimeoutError", "InvalidProducerIdMappingError", "TransactionalIdNotFoundError",
    "ProducerFencedError", "OutOfOrderSequenceNumberError", "UnknownProducerIdError", "WriteIdExpiredError",
    "DuplicateBrokerRegistrationError", "BrokerIdNotRegisteredError",
    "CrossStoreTransactionError", "TransactionCommitPendingError", "InvalidReplicationAssignmentError",
    "NoReassignmentInProgressError", "ElectionNotNeededError", "PreferredLeaderNotAvailableError",
    "EligibleLeadersNotAvailableError", "UnknownMemberIdError", "IllegalGenerationError", "FencedInstanceIdError",
    "InconsistentGroupProtocolError", "RebalanceInProgressError", "InvalidGroupIdError", "InvalidSessionTimeoutError",
    "FencedMemberEpochError", "StaleMemberEpochError", "UnreleasedInstanceIdError", "UnsupportedAssignorError",
    "GroupMaxSizeReachedError", "InvalidRegularExpressionError", "NonEmptyGroupError", "GroupIdNotFoundError",
    "GroupSubscribedToTopicError", "OffsetMetadataTooLargeError", "IllegalArgumentError", "ResourceNotFoundError",
    "DuplicateResourceError", "UnacceptableCredentialError", "UnsupportedSaslMechanismError", "SecurityDisabledError",
    "InvalidRecordStateError",
}  # fmt: skip
"""Errors about the request of a client: it is told their text."""


@pytest.fixture(autouse=True)
def _nothing_is_logged_before(monkeypatch):
    monkeypatch.setattr(error_codes, "_logged_s", {})


DETAILS = ("/srv/log/secret.parquet", "SELECT topic.name", "db.internal:5432", "10.1.2.3")


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_a_client_is_told_what_is_wrong_with_its_request_and_nothing_of_the_server(kind, caplog):
    error = kind.__new__(kind)
    error.args = (" ".join(DETAILS),)
    if kind is errors.LogTruncationError:
        error.partition_offsets = error.divergent_offsets = error.args[0]
    assert (kind.__name__ in TOLD) != (kind.__name__ in INTERNAL or kind.__name__ in SERVER_FAULTS)
    text = client_message(error)
    assert text and [each for each in DETAILS if each in text] == ([*DETAILS] if kind.__name__ in TOLD else [])
    if kind.__name__ not in TOLD:
        assert all(each in caplog.text for each in DETAILS), "the log has the whole"


def test_the_log_has_few_of_the_errors_that_a_client_can_cause_in_a_second(caplog, monkeypatch):
    now_s = 100.0
    monkeypatch.setattr(error_codes.clock, "monotonic_s", lambda: now_s)
    for number in range(1_000):
        client_message(errors.CorruptRecordError(f"a record batch says that it has {number} bytes"))
    assert len(caplog.records) == 10
    client_message(errors.DiskFullError("no room"))
    assert "no room" in caplog.text, "an error of the server is seen among them"
    now_s += 1
    client_message(errors.CorruptRecordError("a record batch says that it has 0 bytes"))
    assert len(caplog.records) == 12


@pytest.mark.parametrize("error", [OSError(2, "No such file", "/srv/log"), RuntimeError("/srv/log")])
def test_errors_that_are_none_of_spark_logs_are_not_told(error, caplog):
    assert client_message(error) == "the server has failed"
    assert "/srv/log" in caplog.text


@pytest.mark.parametrize("kind", [errors.UnknownTopicOrPartitionError, RuntimeError])
def test_only_the_beginning_of_a_long_text_of_a_client_is_searched_for_secrets(kind, monkeypatch):
    """32 KB of the worst text take 30 ms."""
    searched = []
    monkeypatch.setattr(error_codes, "redact", lambda text: searched.append(len(text)) or text)
    assert len(client_message(kind("key=" * 10_000))) <= 1_000
    assert max(searched) <= 20_000
