"""Reads the clock of a metadata store, and detects its steps."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa

from spark_log import clock
from spark_log.config.values import LEASE_MS_MAX
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.metadata.prepared import Prepared

T = TypeVar("T")

_SERVER_TIME_MS = Prepared(sa.text("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"))

_CLOCK_INTERVAL_MS = 5_000

STEP_MS_MAX = 3_600_000
"""If the difference of the clocks changes by more than this between two readings, the wall clock was set."""

DISTRUSTED_MS = 24 * 3_600_000
"""How long the wall clock is not trusted after it was set, unless it is set back. Operators have a day to notice a
wrong clock.
"""


@dataclass(frozen=True)
class StoreClock:
    """A reading of the store's clock.

    `wall_ms` is for timestamps. Leases are compared with `lease_ms`, whose values are comparable only within one
    `clock_epoch`. On SQLite, `lease_ms` is the host's boot clock, which is never set back, and the clock epoch is the
    boot id. On PostgreSQL, `lease_ms` is the server's clock, and the clock epoch is empty.
    """

    wall_ms: int
    lease_ms: int
    clock_epoch: str

    def expired(self, until_ms: int, clock_epoch: str) -> bool:
        """Return whether a lease until `until_ms` has ended. `clock_epoch` is that in which `until_ms` was written."""
        return clock_epoch != self.clock_epoch or until_ms <= self.lease_ms

    def in_this_epoch_ms(self, until_ms: int, clock_epoch: str) -> int:
        """Return `until_ms`, or 0 if it was written in another clock epoch: it is over then."""
        return until_ms if clock_epoch == self.clock_epoch else 0

    def left_ms(self, until_ms: int, clock_epoch: str) -> int:
        """Return the remaining time of a coordinator's, a controller's or a broker's lease, or 0 if any process may
        take it. That is so if the lease has ended, or ends later than a lease that is taken now: then the clock was set
        back since its renewal.
        """
        left_ms = self.in_this_epoch_ms(until_ms, clock_epoch) - self.lease_ms
        return left_ms if 0 < left_ms <= LEASE_MS_MAX else 0

    def has_expired(self, row: Any) -> sa.ColumnElement[bool]:
        """Return the condition of `expired` in SQL, for the columns `until_ms` and `clock_epoch` of a table."""
        return sa.or_(row.clock_epoch != self.clock_epoch, row.until_ms <= self.lease_ms)


class ClockWatch:
    """Decides whether ages measured by the wall clock can be trusted. Safe to share between threads.

    It detects only steps after its first reading: a process that starts after a step trusts the clock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trusted: int | None = None
        """Wall clock minus boot clock, in ms, when the wall clock was last trusted."""
        self._stepped: tuple[int, int] | None = None
        """Wall clock minus boot clock after the last step, and the boot clock at that time, in ms."""

    def is_steady(self, wall_ms: int, boot_ms: int) -> bool:
        """Compare new readings of both clocks, and return whether the wall clock is trusted."""
        ahead = wall_ms - boot_ms
        with self._lock:
            if self._trusted is None or abs(ahead - self._trusted) <= STEP_MS_MAX:
                self._trusted, self._stepped = ahead, None
                return True
            if self._stepped is None or abs(ahead - self._stepped[0]) > STEP_MS_MAX:
                self._stepped = (ahead, boot_ms)
            if boot_ms - self._stepped[1] < DISTRUSTED_MS:
                return False
            self._trusted, self._stepped = ahead, None
            return True


class StoreTime:
    """The methods of a store that read the time."""

    def __init__(self, *, sqlite: bool) -> None:
        self.sqlite = sqlite
        self._ahead = (-_CLOCK_INTERVAL_MS - 1, 0)
        """When the server was asked last, and by how much its clock was ahead of the host's monotonic clock, in ms."""
        self._clock_watch = ClockWatch()

    def read(self, body: Callable[[sa.Connection], T], *, timeout_ms: int | None = None) -> T:
        raise NotImplementedError

    def clock(self, connection: sa.Connection) -> StoreClock:
        """Return the store's current time, read through this connection."""
        return self.ask_clock(connection)()

    def ask_clock(self, connection: sa.Connection) -> Callable[[], StoreClock]:
        """Ask for the store's time, and return a function that returns it. Inside `one_message`, call the function
        after the block.
        """
        if self.sqlite:
            return self.now
        answer = _SERVER_TIME_MS.ask(connection, {})

        def read() -> StoreClock:
            [(now_ms,)] = answer.rows()
            return StoreClock(now_ms, now_ms, "")

        return read

    def now(self) -> StoreClock:
        """Return the store's time for the timestamps of records. For leases, use `clock` inside a transaction.

        On SQLite it is the host's time. On PostgreSQL the server is asked every 5 s, and the host's monotonic clock
        measures the time since then, so the timestamps are right even if the host's wall clock is wrong.
        """
        if self.sqlite:
            return StoreClock(clock.wall_ms(), clock.boot_ms(), clock.boot_id())
        host_ms = int(clock.monotonic_s() * 1000)
        asked_ms, ahead_ms = self._ahead
        if host_ms - asked_ms > _CLOCK_INTERVAL_MS:
            try:
                told_ms = self.read(self.clock, timeout_ms=None if asked_ms < 0 else 1_000).wall_ms
                ahead_ms = told_ms - int(clock.monotonic_s() * 1000)
                self._ahead = (host_ms, ahead_ms)
            except MetadataStoreUnavailableError:
                if asked_ms < 0:  # else the last answer is still used, so that an append survives an unavailable store
                    raise
        return StoreClock(host_ms + ahead_ms, host_ms + ahead_ms, "")

    def clock_is_steady(self) -> bool:
        """Return False if this process has seen that the store's wall clock was set recently (`ClockWatch`).

        Check it before anything is deleted because of its age.
        """
        wall_ms = clock.wall_ms() if self.sqlite else self.read(self.clock).wall_ms
        return self._clock_watch.is_steady(wall_ms, clock.boot_ms())
