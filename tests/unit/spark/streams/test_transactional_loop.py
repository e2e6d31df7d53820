"""The errors after which the loop retries a transaction."""

import subprocess
import sys

import pytest
from kafka import errors as theirs

from spark_log import errors as ours
from spark_log.clients.kafka_errors import kafka_error
from spark_log.spark.streams.record_retries import is_worth_a_retry


def failed_because_of(cause: Exception) -> Exception:
    error = kafka_error(ours.TransactionAbortableError("the transaction has failed, abort it"))
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ours.CommitFailedError("the partitions have gone to others"), True),
        (ours.TransactionAbortableError("its time-out has passed"), True),
        (ours.MetadataStoreUnavailableError("away"), True),
        (ours.NotEnoughReplicasError("one of two"), True),
        (theirs.KafkaTimeoutError("no room in the buffer"), True),
        (failed_because_of(ours.TransactionAbortableError("its time-out has passed")), True),
        (failed_because_of(ours.StorageUnavailableError("disk full")), True),
        (failed_because_of(ours.InvalidRecordError("no key")), False),
        (failed_because_of(OSError("a bug")), False),
        (ours.ProducerFencedError("epoch 1 is fenced by 2"), False),
        (ours.InvalidProducerIdMappingError("expired"), False),
        (ours.FencedInstanceIdError("another member has this instance id"), False),
        (ours.MessageSizeTooLargeError("too large"), False),
        (theirs.IllegalStateError("closed"), False),
        (ValueError("of the function"), False),
        (KeyboardInterrupt(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_that_are_retried(error: BaseException, expected: bool) -> None:
    assert is_worth_a_retry(error) is expected
    if isinstance(error, ours.SparkLogError):
        assert is_worth_a_retry(kafka_error(error)) is expected or error.__cause__ is not None


def test_importing_the_loop_does_not_import_pyspark() -> None:
    program = "import sys; from spark_log.spark.streams import TransactionalLoop; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
