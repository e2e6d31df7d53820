"""Our errors as kafka-python's, for programs that catch those. Imported by the clients only: kafka takes 0.3 s.

What a client raises belongs to both trees: `except kafka.errors.NotEnoughReplicasError` and
`except spark_log.errors.NotEnoughReplicasError` both catch it. Equal names meet; the few errors of ours that Kafka has
no name for stand in for the nearest.
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
    """`error` as an instance of kafka-python's class of that name too, with the same text."""
    return _both(type(error))(*error.args)  # type: ignore[arg-type]  # classes are hashable


@contextmanager
def kafka_errors() -> Iterator[None]:
    """Whatever of our tree is raised inside leaves as kafka-python's. Also a decorator.

    Not raised by a generator's body, which runs outside of the call that made it.
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
