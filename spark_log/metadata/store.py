"""Provides the metadata store: snapshots for reads, transactions for writes, the only retries of database errors."""

import contextlib
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import sqlalchemy as sa

from spark_log import clock
from spark_log.config import ClusterSettings
from spark_log.errors import MetadataStoreError, MetadataStoreUnavailableError, RetriableError, SparkLogError
from spark_log.metadata import commit_tokens
from spark_log.metadata.address import SQLITE_FILE, SQLITE_LOCK_FILE, Address
from spark_log.metadata.changes import changes_of, exclude, include
from spark_log.metadata.connections import engine as engines
from spark_log.metadata.connections.answer_watch import AnswerLimit
from spark_log.metadata.connections.driver_errors import LOCK_NOT_AVAILABLE, READ_ONLY, is_refusal, state_of, translate
from spark_log.metadata.connections.schema_fence import SchemaFence
from spark_log.metadata.connections.silent_sessions import SilentSessions
from spark_log.metadata.connections.write_ahead_log import WriteAheadLog
from spark_log.metadata.connections.writer_queue import WriterQueue, writing
from spark_log.metadata.outage import Outage
from spark_log.metadata.prepared import driver_of
from spark_log.metadata.store_clock import StoreTime
from spark_log.metadata.store_schema import read_overrides

if TYPE_CHECKING:
    from spark_log.metadata.connections.postgresql_connection import Hosts

T = TypeVar("T")

DEFAULT_TIMEOUT_MS = 120_000
"""How long a write is retried. It is the default of Kafka's delivery.timeout.ms."""

READ_TIMEOUT_MS = 10_000
"""How long a read is retried while the store is unavailable."""

SILENT_MS = 10_000
"""The session of a process that was stopped inside a transaction is ended after this time."""

LOCKING_SILENT_MS = 5_000
"""The same for a session that has locked rows, after a lock_timeout (3 s). A slow process repeats its transaction."""

SETTINGS_AGE_S_MAX = 5.0
"""Maximum age of the cluster's settings in an open client, while the store is available."""

_DATABASE_ERRORS = (sa.exc.DBAPIError, sa.exc.TimeoutError)
"""Driver errors as SQLAlchemy raises them, and the error of an exhausted connection pool."""


@dataclass(frozen=True)
class _InDoubt(Generic[T]):
    """A transaction whose COMMIT was sent to PostgreSQL but not answered, with the result of its body.

    `boot_ms` is the time at which the token was made.
    """

    token: str
    boot_ms: int
    result: T


class Store(StoreTime):
    """The metadata store of one cluster. It may be shared between threads, but not sent to other processes."""

    def __init__(self, address: Address, *, create: bool = False) -> None:
        super().__init__(sqlite=address.folder is not None)
        self.address = address
        self.timeout_ms_max = math.inf  # an upper limit of the timeouts of all calls
        self._last_try_s = math.inf
        self._answer_limit = AnswerLimit(ClusterSettings().store_answer_timeout_ms / 1000)
        self._answer_limits = [self._answer_limit]  # with those of its data stores
        self._hosts = None if self.sqlite else _hosts(self._answer_limit)
        self.fence = SchemaFence(address)
        self.engine = engines.create_engine(address, self.fence, create=create, hosts=self._hosts)
        self.changes = changes_of(address, self._hosts)
        self.settings_of: Store | None = None
        """The home store of a data store: it has the settings of the cluster."""
        self._settings: tuple[float, ClusterSettings] | None = None
        self._outage = Outage()
        self.read_timeout_ms = READ_TIMEOUT_MS
        """How long reads are repeated while the store is unavailable, unless their caller says otherwise."""
        self._answered: deque[str] = deque()
        """The commit tokens that no thread will ask about."""
        self._unanswered = engines.UnansweredCommits()
        self._silent = SilentSessions()
        if self.sqlite:
            self.clock_is_steady()
        self._queue = WriterQueue(address.folder / SQLITE_LOCK_FILE) if address.folder else None
        self._wal = WriteAheadLog(address.folder / SQLITE_FILE, engines.BUSY_TIMEOUT_MS) if address.folder else None

    def include(self, data: "Store") -> None:
        """Give a data store the settings of this home store, and let `changes` detect the changes of both."""
        data.settings_of = self
        data._answer_limit.seconds = self._answer_limit.seconds
        self._answer_limits.append(data._answer_limit)
        include(self.changes, data.changes)

    def exclude(self, data: "Store") -> None:
        """Undo `include`, after the data store was removed from the cluster."""
        self._answer_limits = [limit for limit in self._answer_limits if limit is not data._answer_limit]
        exclude(self.changes, data.changes)

    @property
    def settings(self) -> ClusterSettings:
        """The cluster's settings, at most SETTINGS_AGE_S_MAX old. Older ones are used while the store is unavailable.

        Raises SparkLogError if they cannot be read and were never read before.
        """
        if self.settings_of is not None:
            return self.settings_of.settings
        now_s, cached = clock.monotonic_s(), self._settings
        if cached is None or now_s - cached[0] >= SETTINGS_AGE_S_MAX:
            try:
                return self.keep_settings(self.read(read_overrides, timeout_ms=None if cached is None else 1_000))
            except SparkLogError:
                if cached is None:
                    raise
                self._settings = cached = (now_s, cached[1])
        return cached[1]

    def keep_settings(self, overrides: Mapping[str, str]) -> ClusterSettings:
        """Use these stored settings, which were just read, and return them parsed."""
        settings = ClusterSettings.from_stored(overrides)
        self._settings = (clock.monotonic_s(), settings)
        for limit in self._answer_limits:
            limit.seconds = settings.store_answer_timeout_ms / 1000
        return settings

    def forget_settings(self) -> None:
        """Make the next access of `settings` read them. If that fails, the previous ones still apply."""
        if self._settings is not None:
            self._settings = (-math.inf, self._settings[1])

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """Open a short transaction that reads one consistent state of all tables, and must not write."""
        try:
            with self.engine.connect() as connection:
                if not self.sqlite:
                    connection = connection.execution_options(
                        isolation_level="REPEATABLE READ", postgresql_readonly=True
                    )
                with _forgotten_if_interrupted(connection), connection.begin():
                    yield connection
        except _DATABASE_ERRORS as error:
            raise self._translate(error) from error

    def read(self, body: Callable[[sa.Connection], T], *, timeout_ms: int | None = None) -> T:
        """Return the result of `body` in a snapshot. Retry for at most `timeout_ms` (default: `read_timeout_ms`) while
        the store is unavailable.

        If the first attempt loses its connection, there is always a second one, since a server that did not answer may
        have been replaced. Raise MetadataStoreUnavailableError when the time is over.
        """
        if timeout_ms is None:
            timeout_ms = self.read_timeout_ms
        deadline = clock.monotonic_s() + min(timeout_ms, self.timeout_ms_max) / 1000
        for number in range(10_000):
            try:
                with self.snapshot() as connection:
                    return body(connection)
            except MetadataStoreUnavailableError as error:
                lost = _is_lost(error.__cause__)
                if lost:
                    self._reconnect()
                _back_off(number, min(math.inf if lost and number == 0 else deadline, self._last_try_s))
        raise AssertionError("unreachable: _back_off raises at the deadline")

    def give_up_within(self, seconds: float) -> None:
        """Repeat no call after this time, not even one that runs now: the process is about to end."""
        self._last_try_s = min(self._last_try_s, clock.monotonic_s() + seconds)

    def read_as_primary(self, body: Callable[[sa.Connection], T], *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> T:
        """Return the result of `body` in a snapshot of a server that was still the primary after it.

        Files are deleted, or removed from Delta tables, only because of the result of such a read. After a failover the
        old primary may still answer, but has no rows of the new primary's files. Therefore the transaction that reads
        also writes a commit token: its commit needs the synchronous standby, which the old primary has lost. If `body`
        returns None, the caller deletes nothing, and no token is written. On SQLite this is `read`.
        """
        if self.sqlite:
            return self.read(body, timeout_ms=timeout_ms)
        return self.transact(body, timeout_ms=timeout_ms, as_primary=True)

    @contextlib.contextmanager
    def snapshot_as_primary(self) -> Iterator[sa.Connection]:
        """Open a snapshot of a server that was still the primary after it, as for `read_as_primary`. Only for
        PostgreSQL. Its statements may take longer than store.answer.timeout.ms, and nothing is retried.

        The caller must discard what it has read if the block raises an error at its end.
        """
        try:
            with self._writing_connection(durable=True, unlimited=False) as connection:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
                with connection.begin():
                    with engines.without_answer_limit(connection):
                        yield connection
                    # with the limit again: an old primary waits for its standby for ever
                    token = commit_tokens.new_token()
                    commit_tokens.commit(connection, token, self._answered, durable=True, always=True)
        except _DATABASE_ERRORS as error:
            raise self._translate(error) from error

    def transact(
        self,
        body: Callable[[sa.Connection], T],
        *,
        fence: Callable[[sa.Connection], object] = lambda _: None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        durable: bool = True,
        announce: bool = False,
        unlimited: bool = False,
        as_primary: bool = False,
    ) -> T:
        """Run `body` in one write transaction, commit it, and return the result of `body`. `fence` is called first, and
        raises if the caller's lease has ended.

        Deadlocks, serialisation failures and lost connections are retried with backoff for `timeout_ms`, after which
        MetadataStoreUnavailableError is raised. `body` may therefore run more than once, but is committed at most once:
        if the answer to a COMMIT was lost, the server is asked for the outcome before the next attempt.

        With `durable=False` the commit is not forced to disk (flush.messages). With `announce`, threads that wait for
        `changes` are notified in all processes. With `unlimited`, a statement may take longer than
        store.answer.timeout.ms. `as_primary` is for `read_as_primary`.
        """
        deadline = clock.monotonic_s() + min(timeout_ms, self.timeout_ms_max) / 1000
        in_doubt: _InDoubt[T] | None = None
        number = 0
        while True:
            committing: _InDoubt[T] | None = None
            pid = 0
            try:
                if in_doubt is not None:
                    if self._was_committed(in_doubt):
                        if announce:
                            self.changes.announce()
                        return in_doubt.result
                    in_doubt = None
                with (
                    self.writer_turn(min(deadline, self._last_try_s)),
                    self._writing_connection(durable, unlimited) as connection,
                ):
                    if as_primary:
                        connection = connection.execution_options(isolation_level="REPEATABLE READ")
                    transaction = connection.begin()
                    try:
                        fence(connection)
                        result = body(connection)
                        if not self.sqlite:  # a SQLite commit has no connection to lose
                            pid = engines.pid_of(connection)
                            committing = _InDoubt(commit_tokens.new_token(), clock.boot_ms(), result)
                            always = as_primary and result is not None
                            commit_tokens.commit(
                                connection, committing.token, self._answered, durable=durable, always=always
                            )
                        transaction.commit()
                    except BaseException:
                        with contextlib.suppress(sa.exc.DBAPIError):
                            transaction.rollback()
                        raise
                    if self._wal is not None:
                        self._wal.truncate_if_long(driver_of(connection))
                self._outage.ended()
                if announce:
                    self.changes.announce()
                return result
            except _DATABASE_ERRORS as error:
                if not is_refusal(error):
                    in_doubt = committing or in_doubt
                if committing is not None and _is_lost(error):
                    self._unanswered.add(pid)
                translated = self._translate(error)
                if not isinstance(translated, MetadataStoreUnavailableError if in_doubt is None else RetriableError):
                    raise translated from error
                self._outage.failed(translated)
                self._mend(error)
                _back_off(number, min(deadline, self._last_try_s), translated)
                number += 1

    def _translate(self, error: sa.exc.DBAPIError | sa.exc.TimeoutError) -> SparkLogError:
        return translate(error, self.address, connected_before=self._hosts is not None and self._hosts.connected)

    def _mend(self, error: Exception) -> None:
        """Reconnect after a lost connection or a failover; end sessions of stopped processes after a lock timeout."""
        state = state_of(error) if isinstance(error, sa.exc.DBAPIError) else ""
        if _is_lost(error) or state == READ_ONLY:
            self._reconnect()
        elif state == LOCK_NOT_AVAILABLE:
            with contextlib.suppress(SparkLogError):
                self.end_silent_sessions(LOCKING_SILENT_MS)

    def end_silent_sessions(self, locking_ms: int | None = None) -> None:
        """End sessions on PostgreSQL that have been silent in a transaction for SILENT_MS, or for `locking_ms` if they
        hold locks of rows: their processes are stopped, and keep their locks otherwise.
        """
        if self.sqlite:
            return
        try:
            self._silent.end(self.engine, SILENT_MS, SILENT_MS if locking_ms is None else locking_ms)
        except _DATABASE_ERRORS as error:
            raise self._translate(error) from error

    def _reconnect(self) -> None:
        """Use new connections from now on, because they may reach a new primary."""
        if not self.sqlite:
            self.engine.dispose()
            self.changes.reconnect()

    def _was_committed(self, in_doubt: _InDoubt[T]) -> bool:
        with self.fence.lifted():  # an upgrade may have ended the session before the answer to its COMMIT
            committed = commit_tokens.was_committed(self.engine, in_doubt.token)
        if not commit_tokens.may_ask(in_doubt.boot_ms):
            raise MetadataStoreError(
                f"metadata store at {self.address}: this process was stopped for so long that it is no longer known"
                " whether its transaction was committed; it is not repeated"
            )
        return committed

    @contextlib.contextmanager
    def writer_turn(self, deadline: float) -> Iterator[None]:
        """Wait for the turn to write, which only SQLite's writers need, and keep it during the block."""
        turn = contextlib.nullcontext() if self._queue is None else self._queue.turn(deadline - clock.monotonic_s())
        with writing(), turn:
            yield

    @contextlib.contextmanager
    def _writing_connection(self, durable: bool, unlimited: bool) -> Iterator[sa.Connection]:
        self._unanswered.refuse_more(self.engine)
        with self.engine.connect() as connection, _forgotten_if_interrupted(connection):
            connection = engines.begin_write(connection)
            if unlimited and not self.sqlite:
                with engines.without_answer_limit(connection):
                    yield connection
                return
            if self.sqlite:
                engines.set_synchronous(connection, "FULL" if durable else "NORMAL")
            yield connection

    def close(self) -> None:
        self.changes.close()
        if not self._outage.lasts:
            with contextlib.suppress(*_DATABASE_ERRORS, SparkLogError):  # else they expire
                commit_tokens.forget(self.engine, self._answered)
        self.engine.dispose()
        if self._queue is not None:
            self._queue.close()


def _hosts(limit: AnswerLimit) -> "Hosts":
    from spark_log.metadata.connections.postgresql_connection import Hosts  # importing psycopg is slow

    return Hosts(limit)


@contextlib.contextmanager
def _forgotten_if_interrupted(connection: sa.Connection) -> Iterator[None]:
    """Close the connection if KeyboardInterrupt or SystemExit ends the block. With a cursor in the traceback, SQLite
    would go on reading from the old snapshot.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):
            connection.invalidate()
        raise


def _is_lost(error: BaseException | None) -> bool:
    return isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated


def _back_off(number: int, deadline: float, cause: BaseException | None = None) -> None:
    """Wait before the next attempt: 1 ms doubling to 500 ms, with a jitter of 50 %.

    After the deadline, raise MetadataStoreUnavailableError with the message of `cause`; without `cause`, raise the
    current exception again.
    """
    if clock.monotonic_s() >= deadline:
        if cause is not None:
            raise MetadataStoreUnavailableError(str(cause)) from cause
        raise
    clock.sleep_s(min(0.5, 0.001 * 2 ** min(number, 9)) * (0.5 + random.random()))
