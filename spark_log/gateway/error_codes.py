"""Kafka's error codes for the errors of spark-log."""

from functools import lru_cache

from kafka import errors as kafka

from spark_log.errors import SparkLogError
from spark_log.kafka_errors import kafka_error_class

NONE = 0
UNKNOWN_SERVER_ERROR = -1

_INSTEAD: dict[str, type[kafka.KafkaError]] = {
    # the store or its disk is away: clients try again
    "MetadataStoreUnavailableError": kafka.CoordinatorNotAvailableError,
    "StorageUnavailableError": kafka.NotEnoughReplicasError,
    "KafkaTimeoutError": kafka.RequestTimedOutError,
    "WriteIdExpiredError": kafka.NotEnoughReplicasError,
    "DataLossError": kafka.OffsetOutOfRangeError,
    "IllegalArgumentError": kafka.InvalidRequestError,
    "InvalidOptionError": kafka.InvalidRequestError,
}


@lru_cache(maxsize=256)
def _code(kind: type[SparkLogError]) -> int:
    instead = _INSTEAD.get(kind.__name__)
    if instead is not None:
        return int(instead.errno)
    errno = getattr(kafka_error_class(kind), "errno", None)  # type: ignore[arg-type]
    return UNKNOWN_SERVER_ERROR if errno is None else int(errno)


def error_code(error: BaseException) -> int:
    """The code that a response carries for this error."""
    return _code(type(error)) if isinstance(error, SparkLogError) else UNKNOWN_SERVER_ERROR  # type: ignore[arg-type]
