"""Write ids: the registered right to create segment files.

A writer registers an id before its first file; the id prefixes the file names. Clean-up deletes the row of an expired
id in a transaction before it deletes the files that no segment names, and an append under an id without a row fails. So
a file is deleted only when no append can name it any more.
"""

import itertools
import threading
import uuid

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.lease import Fence, unfenced
from spark_log.ids import WriteId
from spark_log.metadata import tables as t
from spark_log.metadata.columns import WRITE_ID
from spark_log.metadata.store import Attempt, Store, StoreClock


def register(store: Store, holder: str, lease_ms: int) -> WriteId:
    """A new write id for `lease_ms` milliseconds. `holder` tells people what writes under it."""
    write_id = WriteId(uuid.uuid4().hex)

    def insert(connection: sa.Connection, _attempt: Attempt) -> None:
        now = store.clock(connection)
        values = {
            "write_id": write_id,
            "holder": holder,
            "until_ms": now.lease_ms + lease_ms,
            "clock_epoch": now.clock_epoch,
        }
        connection.execute(t.write_id.insert(), values)

    store.transact(insert)
    return write_id


def renew(store: Store, write_id: WriteId, lease_ms: int) -> bool:
    """Extend the lease; False if clean-up has taken the id away."""

    def update(connection: sa.Connection, _attempt: Attempt) -> bool:
        now = store.clock(connection)
        change = t.write_id.update().where(WRITE_ID.write_id == write_id)
        return bool(
            connection.execute(change.values(until_ms=now.lease_ms + lease_ms, clock_epoch=now.clock_epoch)).rowcount
        )

    return store.transact(update)


def release(store: Store, write_id: WriteId) -> None:
    """Give the id back. What was written under it and is named by no segment may be deleted from now on."""
    store.transact(lambda connection, _attempt: take(connection, write_id))


def take(connection: sa.Connection, write_id: str) -> bool:
    """Delete the id in this transaction; False if an append or clean-up has already done so.

    Only the caller that gets True decides about the files written under it.
    """
    return connection.execute(t.write_id.delete().where(WRITE_ID.write_id == write_id)).rowcount == 1


def expire(store: Store, fence: Fence = unfenced) -> int:
    """Take away the ids whose lease is over; how many. From now on what was written under them, and is named by no
    segment, may be deleted; an append that holds such an id comes before this, or fails.
    """

    def delete(connection: sa.Connection, _attempt: Attempt) -> int:
        fence(connection)
        return connection.execute(t.write_id.delete().where(_is_over(store.clock(connection)))).rowcount

    return store.transact(delete)


def expired(store: Store) -> set[str]:
    """The ids that `expire` would take away now."""

    def read(connection: sa.Connection) -> set[str]:
        query = sa.select(WRITE_ID.write_id).where(_is_over(store.clock(connection)))
        return set(connection.execute(query).scalars())

    return store.read(read)


def _is_over(now: StoreClock) -> sa.ColumnElement[bool]:
    return (WRITE_ID.clock_epoch != now.clock_epoch) | (WRITE_ID.until_ms <= now.lease_ms)


class Writer:
    """A process's write id, registered with the first file and renewed when half its lease is over."""

    def __init__(self, store: Store, holder: str, lease_ms: int) -> None:
        self._store, self._holder, self._lease_ms = store, holder, lease_ms
        self._lock = threading.Lock()
        self._write_id: WriteId | None = None
        self._renew_at_s = 0.0
        self._numbers = itertools.count()

    def file_name(self) -> tuple[WriteId, str]:
        """The write id, and a file name under it that nobody has used or will."""
        with self._lock:
            self._renew()
            if self._write_id is None:
                self._write_id = register(self._store, self._holder, self._lease_ms)
                self._renew_at_s = clock.monotonic_s() + self._lease_ms / 2000
            return self._write_id, f"{self._write_id}-{next(self._numbers)}.parquet"

    def keep(self) -> None:
        """Keep the write id while files are written under it for long."""
        with self._lock:
            self._renew()

    def _renew(self) -> None:
        now_s = clock.monotonic_s()
        if self._write_id is not None and now_s >= self._renew_at_s:
            if not renew(self._store, self._write_id, self._lease_ms):
                self._write_id = None
            self._renew_at_s = now_s + self._lease_ms / 2000

    def forget(self) -> None:
        """Take another id for the next file: clean-up has taken this one, whatever its lease was."""
        with self._lock:
            self._write_id = None

    def close(self) -> None:
        with self._lock:
            if self._write_id is not None:
                release(self._store, self._write_id)
                self._write_id = None
