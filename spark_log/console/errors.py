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
    """404, 403, 503 for what may work later, 400 for other errors of spark-log; None for a bug."""
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
    """The message of an error without secrets."""
    return redact(str(error.detail if isinstance(error, HTTPException) else error))
