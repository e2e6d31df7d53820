"""Maps the errors of spark-log to Kafka's error codes and to the texts that clients get."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar, TypeVarTuple

from kafka import errors as kafka

from spark_log import clock
from spark_log.clients.kafka_errors import kafka_error_class
from spark_log.errors import SparkLogError, StorageUnavailableError, redact

logger = logging.getLogger(__name__)

T = TypeVar("T")
A = TypeVarTuple("A")

NONE = 0
UNKNOWN_SERVER_ERROR = -1
_COORDINATOR_NOT_AVAILABLE = 15

_MESSAGE_LENGTH_MAX = 1000
_LOGGED_LENGTH_MAX = 20_000
"""Longer error messages are cut off: they may quote a request, and old versions have strings of up to 32,767 bytes."""

_INSTEAD: dict[str, type[kafka.KafkaError]] = {
    # the store or its disk is unavailable, or this process must not use it any more: clients try again
    "MetadataStoreUnavailableError": kafka.CoordinatorNotAvailableError,
    "UnsupportedVersionError": kafka.CoordinatorNotAvailableError,
    "StoreSilentError": kafka.LeaderNotAvailableError,
    "TopicMovedError": kafka.NotLeaderForPartitionError,
    "StorageUnavailableError": kafka.NotEnoughReplicasError,
    "DiskFullError": kafka.NotEnoughReplicasError,
    "SourceUnavailableError": kafka.NotEnoughReplicasError,
    "SchemaRegistryUnavailableError": kafka.RequestTimedOutError,
    "KafkaTimeoutError": kafka.RequestTimedOutError,
    "WriteIdExpiredError": kafka.NotEnoughReplicasError,
    "DataLossError": kafka.OffsetOutOfRangeError,
    "IllegalArgumentError": kafka.InvalidRequestError,
    "InvalidOptionError": kafka.InvalidRequestError,
    "WrongDatabaseError": kafka.InvalidConfigurationError,
    "InvalidSchemaError": kafka.InvalidConfigurationError,
    "IncompatibleSchemaError": kafka.InvalidConfigurationError,
    "SchemaRegistryError": kafka.InvalidConfigurationError,
    "SchemaNotFoundError": kafka.InvalidConfigurationError,
    "LogTruncationError": kafka.OffsetOutOfRangeError,
    "CommitFailedError": kafka.UnknownMemberIdError,
    "TransactionCommitPendingError": kafka.ConcurrentTransactionsError,
    "LogDirMismatchError": kafka.KafkaStorageError,
    "AssignorFailedError": kafka.InconsistentGroupProtocolError,
}

_UNKNOWN_TO_KAFKA_PYTHON = {
    "InvalidRegularExpressionError": 128,
    "InvalidRecordStateError": 121,
    # TRANSACTION_ABORTABLE: unlike after INVALID_TXN_STATE, a client aborts the transaction and keeps its producer
    "CrossStoreTransactionError": 120,
}

INTERNAL: dict[str, str] = {
    "MetadataStoreUnavailableError": "the metadata store does not answer",
    "StoreSilentError": "the metadata store of the topic does not answer",
    "WrongDatabaseError": "the database of a metadata store is missing, or that of another store",
    "StorageUnavailableError": "the storage is not available",
    "DiskFullError": "the storage has no room",
    "SourceUnavailableError": "the storage is not available",
    "SchemaRegistryUnavailableError": "the schema registry does not answer",
    "TopicMovedError": "the topic is being moved to another metadata store",
    "NotLeaderForPartitionError": "the partition has no leader, or elected another one",
    "NotEnoughReplicasError": "the replicas in sync are fewer than min.insync.replicas, or lack records",
    "NotEnoughReplicasAfterAppendError": "the records were appended, but not all replicas in sync have them",
    "CorruptRecordError": "the record batch, or stored data, is damaged",
    "DataLossError": "records are missing",
    "LogDirMismatchError": "a log dir is not available",
    "AssignorFailedError": "the assignor failed",
    "KafkaTimeoutError": "the server did not finish in time",
    "CoordinatorNotAvailableError": "the server cannot answer this request now",
    "NotCoordinatorError": "another server has taken over",
    "NotControllerError": "another server has taken over",
    "UnsupportedVersionError": "this server is replaced by one of a newer version",
}
"""Texts for clients, by names of errors whose own texts may name paths, servers or SQL. The own texts are logged."""
_ANY_OTHER = "the server has failed"
_LOGGED_EVERY_S, _LOGGED_MAX = 1.0, 10
_logged_s: dict[tuple[str, str], float] = {}
"""The time at which each error of the last second was logged, by its name and its text."""
_logged_lock = threading.Lock()

SERVER_FAULTS = frozenset({
    "SparkLogError", "RetriableError", "FatalError", "ClusterNotFoundError", "ClusterAlreadyExistsError",
    "UnsupportedStoreError", "MetadataStoreError", "MetadataConflictError", "StoreChangedError", "UnsafePathError",
    "ClassicSessionRequiredError",
    "DeltaNotInstalledError", "StoreNotFoundError",
    # a broker gives this code when it cannot store a group as one record
    "GroupAssignmentTooLargeError",
    # a gateway never raises these: they belong to clients of the library
    "NoOffsetForPartitionError", "IllegalStateError", "CheckpointMismatchError", "WakeupError", "DeadLetterTopicError",
})  # fmt: skip
"""The errors without a code of their own: a client gets UNKNOWN_SERVER_ERROR, and can only report it."""


@lru_cache(maxsize=256)
def _code(kind: type[SparkLogError]) -> int:
    code = _UNKNOWN_TO_KAFKA_PYTHON.get(kind.__name__)
    if code is not None:
        return code
    instead = _INSTEAD.get(kind.__name__)
    if instead is not None:
        return int(instead.errno)
    errno = getattr(kafka_error_class(kind), "errno", None)  # type: ignore[arg-type]
    return UNKNOWN_SERVER_ERROR if errno is None else int(errno)


def error_code(error: BaseException) -> int:
    """Return the code of this error in a response."""
    return _code(type(error)) if isinstance(error, SparkLogError) else UNKNOWN_SERVER_ERROR  # type: ignore[arg-type]


def coordinator_code(error: BaseException) -> int:
    """Return the code of an error for members of groups. Java's consumer stops after a code that it does not know from
    a coordinator, so an error of the storage, such as a disk that is full for a while, gets a code that it knows.
    """
    return _COORDINATOR_NOT_AVAILABLE if isinstance(error, StorageUnavailableError) else error_code(error)


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The error code and message of one object of a request, and the result if there is no error."""

    code: int = NONE
    message: str | None = None
    result: T | None = None


def outcome_of(
    action: Callable[[*A], T], *arguments: *A, code_of: Callable[[BaseException], int] = error_code
) -> Outcome[T]:
    """Call `action`, and return its result or SparkLogError. Other errors are raised, which closes the connection."""
    try:
        return Outcome(result=action(*arguments))
    except SparkLogError as error:
        return failed(error, code_of)


def failed(error: SparkLogError, code_of: Callable[[BaseException], int] = error_code) -> Outcome[T]:
    """Return an outcome with the code of the error, and the text for the client."""
    return Outcome(code_of(error), client_message(error))


def client_message(error: BaseException) -> str:
    """Return the text of an error for the client, without secrets. For an error of the server it is one general
    sentence; the error's own text is logged, at most once a second.
    """
    name = type(error).__name__
    if isinstance(error, SparkLogError) and name not in INTERNAL and name not in SERVER_FAULTS:
        return redact(str(error)[: 2 * _MESSAGE_LENGTH_MAX])[:_MESSAGE_LENGTH_MAX]
    log_failed(error)
    return INTERNAL.get(name, _ANY_OTHER)


def log_failed(error: BaseException) -> None:
    """Log the error of a request, at most once a second, and at most ten of the same name in a second: their texts may
    quote what clients send.
    """
    name = type(error).__name__
    logged = name, str(error)[:_LOGGED_LENGTH_MAX]
    now_s = clock.monotonic_s()
    with _logged_lock:
        for old in [each for each, logged_s in _logged_s.items() if now_s - logged_s >= _LOGGED_EVERY_S]:
            del _logged_s[old]
        if logged in _logged_s or sum(each == name for each, _ in _logged_s) >= _LOGGED_MAX:
            return
        _logged_s[logged] = now_s
    logger.warning("a request has failed: %s: %s", name, redact(logged[1]))
