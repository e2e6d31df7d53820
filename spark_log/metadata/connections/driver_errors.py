"""Maps database errors to errors of our tree, by PostgreSQL's SQLSTATE or SQLite's error name."""

import re

import sqlalchemy as sa

from spark_log.errors import (
    DiskFullError,
    InvalidConfigurationError,
    MetadataConflictError,
    MetadataStoreError,
    MetadataStoreUnavailableError,
    SparkLogError,
    StorageUnavailableError,
    redact,
)

READ_ONLY = "25006"
"""Read-only transaction: a server during a failover, or one that its operator made read-only."""
LOCK_NOT_AVAILABLE = "55P03"
"""The lock was held for longer than lock_timeout."""

_UNAVAILABLE = (
    "08",  # connection exceptions
    READ_ONLY,
    "25P03",  # idle in the transaction for too long: this process was stopped
    "25P04",  # transaction timeout
    "40",  # serialisation failure, deadlock
    "53",  # out of memory, too many connections
    "55",  # object in use, lock not available
    "57",  # statement timeout, shutdown, crash, starting up
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
)
_STORAGE = ("53100", "58", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN")
"""Disk full, I/O error."""
_FULL = ("53100", "SQLITE_FULL")
_CONFLICT = ("23", "42P07", "42710", "SQLITE_CONSTRAINT")
"""Integrity constraint violation; duplicate table or object, when two clients create it at once."""

_WRONG_ADDRESS = re.compile(
    r'FATAL: +(password authentication failed|(database|role) ".*" does not exist|no pg_hba.conf entry)'
    r"|no password supplied"
)
"""Refused connections, which have no SQLSTATE. Retrying them is pointless; messages in other languages are retried."""


def translate(error: sa.exc.DBAPIError | sa.exc.TimeoutError, address: object) -> SparkLogError:
    """The error of our tree for an error of the database or of its connection pool."""
    if isinstance(error, sa.exc.TimeoutError):  # too many threads hold connections
        return MetadataStoreUnavailableError(redact(f"metadata store at {address}: {error}"))
    message = redact(f"metadata store at {address}: {error.orig}")
    state = state_of(error)
    if state.startswith(_STORAGE):
        kind = DiskFullError if state in _FULL else StorageUnavailableError
        return kind(f"{message}; nothing was appended, and writing works again when there is room")
    if error.connection_invalidated or state.startswith(_UNAVAILABLE):
        return MetadataStoreUnavailableError(message)
    if state.startswith(_CONFLICT):
        return MetadataConflictError(message)
    if not state and _WRONG_ADDRESS.search(message):
        hint = " (it comes from the URL, PGPASSWORD or ~/.pgpass)" if "password" in message else ""
        return InvalidConfigurationError(f"{message.strip()}{hint}")
    if not state and isinstance(error, sa.exc.OperationalError):  # no server was reached
        return MetadataStoreUnavailableError(message)
    return MetadataStoreError(message)


def state_of(error: sa.exc.DBAPIError) -> str:
    """SQLSTATE, SQLite's error name, or "" where the error has none."""
    return getattr(error.orig, "sqlstate", None) or getattr(error.orig, "sqlite_errorname", None) or ""


def is_refusal(error: Exception) -> bool:
    """Whether PostgreSQL answered that it does not commit. FATAL says nothing: it may follow a completed commit."""
    diagnosis = getattr(getattr(error, "orig", None), "diag", None)
    return getattr(diagnosis, "severity_nonlocalized", None) == "ERROR"
