"""Provides kafka-python's errors. Those that version 3 renamed also have their names of version 2."""

from kafka.errors import *  # noqa: F403
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    KafkaConnectionError,
    NotCoordinatorError,
)

GroupCoordinatorNotAvailableError = CoordinatorNotAvailableError
GroupLoadInProgressError = CoordinatorLoadInProgressError
KafkaUnavailableError = KafkaConnectionError
NoBrokersAvailable = KafkaConnectionError
NotCoordinatorForGroupError = NotCoordinatorError
