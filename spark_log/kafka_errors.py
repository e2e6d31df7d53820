"""Raises our errors as kafka-python's, for programs that catch those.

Only clients import this module, because importing kafka takes 0.3 s.

An error that a client raises belongs to both trees: `except kafka.errors.NotEnoughReplicasError` and
`except spark_log.errors.NotEnoughReplicasError` both catch it. Errors with equal names correspond; an error that Kafka
does not have is raised as the nearest one of kafka-python.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from kafka import errors as theirs

from spark_log.errors import SparkLogError

_NEAREST = {
    "MetadataStoreUnavailableError": theirs.KafkaConnectionError,
    "StorageUnavailableError": theirs.KafkaStorageError,
    "ClusterNotFoundError": theirs.KafkaConfigurationError,
    "UnsupportedStoreError": theirs.KafkaConfigurationError,
    "InvalidOptionError": theirs.KafkaConfigurationError,
    "DataLossError": theirs.OffsetOutOfRangeError,
    "LogDirMismatchError": theirs.LogDirNotFoundError,
}


def kafka_error(error: SparkLogError) -> Exception:
    """The same error as an instance of both classes, spark-log's and kafka-python's."""
    return _both(type(error))(*error.args)  # type: ignore[arg-type]  # classes are hashable


@contextmanager
def kafka_errors() -> Iterator[None]:
    """Inside it, errors of our tree are raised as kafka-python's. Also a decorator.

    As a decorator of a generator function it does not cover the generator's body, which runs after the call.
    """
    try:
        yield
    except SparkLogError as error:
        if isinstance(error, theirs.KafkaError):
            raise
        raise kafka_error(error) from error


@functools.cache
def _both(ours: type[SparkLogError]) -> type[SparkLogError]:
    if issubclass(ours, theirs.KafkaError):
        return ours
    named = getattr(theirs, ours.__name__, _NEAREST.get(ours.__name__, theirs.KafkaError))
    return type(ours.__name__, (ours, named), {"__module__": ours.__module__, "__doc__": ours.__doc__})
