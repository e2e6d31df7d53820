"""A write id is the registered right to create segment files.

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
from spark_log.metadata.sql_columns import WRITE_ID
from spark_log.metadata.store import Store


def register(store: Store, holder: str, lease_ms: int, write_id: WriteId | None = None) -> WriteId:
    """Register a write id with a lease of `lease_ms` milliseconds. `holder` describes the writer, for operators.

    The id is new, or it is `write_id`: a writer to topics of several stores registers the same id in each store.
    """
    write_id = write_id or WriteId(uuid.uuid4().hex)

    def insert(connection: sa.Connection) -> None:
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
    """Extend the lease. Returns False if clean-up has deleted the id."""

    def update(connection: sa.Connection) -> bool:
        now = store.clock(connection)
        change = t.write_id.update().where(WRITE_ID.write_id == write_id)
        return bool(
            connection.execute(change.values(until_ms=now.lease_ms + lease_ms, clock_epoch=now.clock_epoch)).rowcount
        )

    return store.transact(update)


def release(store: Store, write_id: WriteId) -> None:
    """Delete the id. From then on clean-up may delete files with this id that no segment names."""
    store.transact(lambda connection: take(connection, write_id))


def take(connection: sa.Connection, write_id: str) -> bool:
    """Delete the id in this transaction. Returns False if an append or clean-up has already deleted it.

    Only the caller that gets True decides about the files written under it.
    """
    return connection.execute(t.write_id.delete().where(WRITE_ID.write_id == write_id)).rowcount == 1


def expire(store: Store, fence: Fence = unfenced) -> int:
    """Delete the ids whose lease is over, and return their number. From then on clean-up may delete files with these
    ids that no segment names. An append with such an id either commits before this, or fails.
    """

    def delete(connection: sa.Connection) -> int:
        return connection.execute(t.write_id.delete().where(store.clock(connection).has_expired(WRITE_ID))).rowcount

    return store.transact(delete, fence=fence)


def expired(store: Store) -> set[str]:
    """Return the ids that `expire` would delete now."""

    def read(connection: sa.Connection) -> set[str]:
        query = sa.select(WRITE_ID.write_id).where(store.clock(connection).has_expired(WRITE_ID))
        return set(connection.execute(query).scalars())

    return store.read(read)


class Writer:
    """Holds the write id of a process: registers it with the first file, and renews it after half of its lease."""

    def __init__(self, store: Store, holder: str, lease_ms: int) -> None:
        self._store, self._holder, self._lease_ms = store, holder, lease_ms
        self._lock = threading.Lock()
        self._write_id: WriteId | None = None
        self._renew_at_s = 0.0
        self._numbers = itertools.count()

    def file_name(self) -> tuple[WriteId, str]:
        """Return the write id, and a unique file name under it."""
        with self._lock:
            self._renew()
            if self._write_id is None:
                self._write_id = register(self._store, self._holder, self._lease_ms)
                self._renew_at_s = clock.monotonic_s() + self._lease_ms / 2000
            return self._write_id, f"{self._write_id}-{next(self._numbers)}.parquet"

    def keep(self) -> None:
        """Renew the write id if half of its lease is over. Called during a long write."""
        with self._lock:
            self._renew()

    def _renew(self) -> None:
        now_s = clock.monotonic_s()
        if self._write_id is not None and now_s >= self._renew_at_s:
            if not renew(self._store, self._write_id, self._lease_ms):
                self._write_id = None
            self._renew_at_s = now_s + self._lease_ms / 2000

    def forget(self) -> None:
        """Use a new write id for the next file, since clean-up may have expired this one, or its append has failed."""
        with self._lock:
            self._write_id = None

    def close(self) -> None:
        with self._lock:
            if self._write_id is not None:
                release(self._store, self._write_id)
                self._write_id = None
