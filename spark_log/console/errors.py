"""Errors as HTTP status codes. Pure."""

from starlette.exceptions import HTTPException

from spark_log.console.routes import Forbidden, NotFound
from spark_log.errors import (
    GroupIdNotFoundError,
    MetadataStoreUnavailableError,
    RetriableError,
    SparkLogError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
    redact,
)

_NOT_FOUND = (NotFound, UnknownTopicOrPartitionError, GroupIdNotFoundError, TransactionalIdNotFoundError)


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of an error, or None for a bug.

    The status is 404 for an unknown object, 403 for a change that is not allowed, 503 for an error after which a retry
    may succeed, that of an HTTPException, and 400 for every other error of spark-log.
    """
    if isinstance(error, _NOT_FOUND):
        return 404
    if isinstance(error, Forbidden):
        return 403
    if isinstance(error, MetadataStoreUnavailableError | RetriableError):
        return 503
    if isinstance(error, HTTPException):
        return error.status_code
    return 400 if isinstance(error, SparkLogError) else None


def error_text(error: Exception) -> str:
    """Return the message of an error without secrets."""
    return redact(str(error.detail if isinstance(error, HTTPException) else error))
