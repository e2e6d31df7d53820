"""Maps database errors to spark-log's error classes, by PostgreSQL's SQLSTATE or SQLite's error name."""

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
    WrongDatabaseError,
    redact,
)

READ_ONLY = "25006"
"""SQLSTATE of a write in a read-only transaction: the server is in a failover, or its operator made it read-only."""
LOCK_NOT_AVAILABLE = "55P03"
"""SQLSTATE of a statement that waited for a lock for longer than lock_timeout."""

_UNAVAILABLE = (
    "08",  # connection exceptions
    READ_ONLY,
    "25P03",  # idle in the transaction for too long, because this process was stopped
    "25P04",  # transaction timeout
    "40",  # serialisation failure, deadlock
    "53",  # out of memory, too many connections
    "55",  # object in use, lock not available
    "57",  # statement timeout, shutdown, crash, starting up
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
)
_STORAGE = ("53100", "58", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN")
"""A full disk, or an I/O error."""
_FULL = ("53100", "SQLITE_FULL")
_CONFLICT = ("23", "42P07", "42710", "SQLITE_CONSTRAINT")
"""A violated integrity constraint; or a table or an object that exists, because two clients create it at once."""

_NO_DATABASE = r'FATAL: +database ".*" does not exist'
_WRONG_ADDRESS = (
    rf'{_NO_DATABASE}|FATAL: +(password authentication failed|role ".*" does not exist|no pg_hba.conf entry)'
    r"|no password supplied"
)
"""Messages of refused connections, which have no SQLSTATE. The patterns are English: connections that are refused in
another language are retried.
"""
_EACH_HOST = re.compile(
    r"^- host: '(?P<host>[^']*)', port: '?(?P<port>[^',]*)'?(?:, hostaddr: '[^']*')?: ", re.MULTILINE
)
"""Begin of the error of each host in psycopg's message, if the address has several hosts."""
_PREFIX = re.compile(r"connection failed: |connection to server .* failed: ")
_QUESTION = re.compile(r" Is the server running .*\?$")
_STANDBYS = re.compile(r"session is read-only|server is in hot standby mode")
_NO_PRIMARY = "no host is the primary"


def translate(
    error: sa.exc.DBAPIError | sa.exc.TimeoutError, address: object, *, connected_before: bool = False
) -> SparkLogError:
    """Return spark-log's error for an error of the database or of its connection pool.

    A wrong address is an InvalidConfigurationError (WrongDatabaseError if the database is missing) under two
    conditions. Every host says so: a standby that is behind does not know the database yet. And this process has never
    connected to the store: otherwise the address was right, and it waits until the server accepts it again.
    """
    if isinstance(error, sa.exc.TimeoutError):  # too many threads hold connections
        return MetadataStoreUnavailableError(redact(f"metadata store at {address}: {error}"))
    state = state_of(error)
    cause = str(error.orig) if state else describe_connection_failure(str(error.orig))
    if state == LOCK_NOT_AVAILABLE and "commit_token" in cause:
        cause = "a commit waits, perhaps for a synchronous standby, and so does the question whether it was committed"
    message = redact(f"metadata store at {address}: {cause}")
    if state.startswith(_STORAGE):
        kind = DiskFullError if state in _FULL else StorageUnavailableError
        if state == "SQLITE_CANTOPEN":
            return kind(f"{message}; readers too must be able to write its folder, and it must have room")
        return kind(f"{message}; nothing was appended, and writing works again when there is room")
    if error.connection_invalidated or state.startswith(_UNAVAILABLE):
        return MetadataStoreUnavailableError(message)
    if state.startswith(_CONFLICT):
        return MetadataConflictError(message)
    if not state and not connected_before and _says_each_host(_NO_DATABASE, str(error.orig)):
        return WrongDatabaseError(message.strip())
    if not state and not connected_before and _says_each_host(_WRONG_ADDRESS, str(error.orig)):
        hint = " (it comes from the URL, PGPASSWORD, PGPASSWORD_FILE or ~/.pgpass)" if "password" in message else ""
        return InvalidConfigurationError(f"{message.strip()}{hint}")
    if not state and isinstance(error, sa.exc.OperationalError):  # no server was reached
        return MetadataStoreUnavailableError(message)
    return MetadataStoreError(message)


def describe_connection_failure(text: str) -> str:
    """Return psycopg's message of a failed connection in one line. Of several hosts it names each once, those with the
    same reason together.
    """
    found = _by_host(text)
    if not found:
        line = _QUESTION.sub("", " ".join(text.split()))
        return f"{_NO_PRIMARY}: {line}" if _STANDBYS.search(line) else line
    hosts: dict[str, list[str]] = {}
    for each, said in found:
        reason = _QUESTION.sub("", _PREFIX.sub("", " ".join(said.split())))
        place = f"{each['host']}:{each['port']}" if each["port"] else each["host"]
        places = hosts.setdefault(f"a standby ({reason})" if _STANDBYS.search(reason) else reason, [])
        if place not in places:
            places.append(place)
    reasons = "; ".join(f"{', '.join(places)}: {reason}" for reason, places in hosts.items())
    return f"{_NO_PRIMARY}: {reasons}" if _STANDBYS.search(reasons) else f"no host accepts the connection: {reasons}"


def _says_each_host(pattern: str, message: str) -> bool:
    errors = [said for _, said in _by_host(message)] or [message]
    return all(re.search(pattern, each) for each in errors)


def _by_host(text: str) -> list[tuple[re.Match[str], str]]:
    """Return the host and the error of each host in psycopg's message; nothing for an address with one host."""
    found = list(_EACH_HOST.finditer(text))
    ends = [each.start() for each in found[1:]] + [len(text)]
    return [(each, text[each.end() : end]) for each, end in zip(found, ends, strict=False)]


def state_of(error: sa.exc.DBAPIError) -> str:
    """Return the error's SQLSTATE or SQLite's error name, or "" if it has none."""
    return getattr(error.orig, "sqlstate", None) or getattr(error.orig, "sqlite_errorname", None) or ""


def is_refusal(error: Exception) -> bool:
    """Return whether PostgreSQL answered with ERROR, so that the transaction is not committed.

    FATAL is no such answer: it may follow a completed commit.
    """
    diagnosis = getattr(getattr(error, "orig", None), "diag", None)
    return getattr(diagnosis, "severity_nonlocalized", None) == "ERROR"
