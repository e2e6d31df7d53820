"""Raises spark-log's errors as kafka-python's, for programs that catch those.

kafka is imported when the first error is raised, because importing it takes 0.2 s.

An error that a client raises belongs to both class trees: `except kafka.errors.NotEnoughReplicasError` and
`except spark_log.errors.NotEnoughReplicasError` both catch it. Errors with equal names correspond; an error that Kafka
does not have is raised as the nearest one of kafka-python.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from spark_log.errors import SparkLogError

_NEAREST = {
    "MetadataStoreUnavailableError": "KafkaConnectionError",
    "StorageUnavailableError": "KafkaStorageError",
    "DiskFullError": "KafkaStorageError",
    "ClusterNotFoundError": "KafkaConfigurationError",
    "UnsupportedStoreError": "KafkaConfigurationError",
    "WrongDatabaseError": "InvalidConfigurationError",
    "InvalidOptionError": "KafkaConfigurationError",
    "DataLossError": "OffsetOutOfRangeError",
    "LogDirMismatchError": "LogDirNotFoundError",
}


def kafka_error(error: SparkLogError) -> Exception:
    """Return the same error as an instance of both spark-log's and kafka-python's class."""
    return kafka_error_class(type(error))(*error.args)  # type: ignore[arg-type]  # classes are hashable


@contextmanager
def kafka_errors() -> Iterator[None]:
    """Convert spark-log's errors that leave the block with `kafka_error`. It is a context manager and a decorator.

    As a decorator of a generator function it does not cover the generator's body, which runs after the call.
    """
    try:
        yield
    except SparkLogError as error:
        if kafka_error_class(type(error)) is type(error):  # type: ignore[arg-type]
            raise
        raise kafka_error(error) from error


@functools.cache
def kafka_error_class(ours: type[SparkLogError]) -> type[SparkLogError]:
    """Return a subclass of `ours` and of kafka-python's error with the same name, or of the nearest one."""
    from kafka import errors as theirs

    if issubclass(ours, theirs.KafkaError):
        return ours
    nearest = _NEAREST.get(ours.__name__, "KafkaError")
    named = getattr(theirs, ours.__name__, getattr(theirs, nearest))
    return type(ours.__name__, (ours, named), {"__module__": ours.__module__, "__doc__": ours.__doc__})
