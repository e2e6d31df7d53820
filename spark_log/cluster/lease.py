"""A lease lets exactly one holder act. A new holder has a higher epoch, which all its transactions check."""

import os
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.errors import NotControllerError, NotCoordinatorError
from spark_log.metadata import tables as t
from spark_log.metadata.insert import insert_if_missing
from spark_log.metadata.sql_columns import LEASE
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock

COORDINATOR = "coordinator"
"""The name of the lease whose holder runs the periodic tasks that are not the controller's."""

Fence = Callable[[sa.Connection], None]
"""A function that raises inside a transaction if the caller's lease has ended."""


def unfenced(_connection: sa.Connection) -> None:
    """The fence of a caller that needs no lease."""


@dataclass(frozen=True)
class LeaseStatus:
    """The holder of a lease, by the store's clock at the time of the query."""

    name: str
    holder: str | None
    """None if the lease was given back or never taken."""
    epoch: int
    left_ms: int
    """The remaining time. With 0 it has expired or was given back, and any process may take it."""


class Lease:
    """A lease that this process takes and renews. For one thread, except `check` and `check_of_term`, which any thread
    may call.
    """

    def __init__(self, store: Store, name: str, duration_ms: int) -> None:
        self.holder = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.epoch: int | None = None
        """The epoch of the term that this process holds, None while it holds none."""
        self._store = store
        self._name = name
        self.duration_ms = duration_ms
        """The duration of the next term or renewal."""

    def take_or_renew(self) -> bool:
        """Take or renew the lease, if it is free or held by this process. Returns whether this process holds it."""

        def body(connection: sa.Connection) -> int | None:
            here = LEASE.name == self._name
            row = connection.execute(sa.select(t.lease).where(here).with_for_update()).one_or_none()
            if row is None:
                new = {"name": self._name, "holder": None, "epoch": 0, "until_ms": 0, "clock_epoch": ""}
                insert_if_missing(connection, t.lease, new)
                row = connection.execute(sa.select(t.lease).where(here).with_for_update()).one()
            now = self._store.clock(connection)
            ours = row.holder == self.holder and row.epoch == self.epoch
            free = row.holder is None or not now.left_ms(row.until_ms, row.clock_epoch)
            if not ours and not free:
                return None
            epoch = int(row.epoch) if ours and not free else int(row.epoch) + 1
            until_ms = now.lease_ms + self.duration_ms
            values = {"holder": self.holder, "epoch": epoch, "until_ms": until_ms, "clock_epoch": now.clock_epoch}
            connection.execute(t.lease.update().where(here).values(values))
            return epoch

        self.epoch = self._store.transact(body)
        return self.epoch is not None

    def give_back(self) -> None:
        """End the term, so that another process may take the lease at once."""
        if self.epoch is not None:
            ours = (LEASE.name == self._name) & (LEASE.holder == self.holder) & (LEASE.epoch == self.epoch)
            free = t.lease.update().where(ours).values(holder=None)
            self.epoch = None
            self._store.transact(lambda connection: connection.execute(free), announce=True)

    def check(self, connection: sa.Connection) -> None:
        """Raise NotControllerError or NotCoordinatorError if the term has ended.

        The holder calls it first in each of its transactions. The row stays locked until the end of the transaction, so
        that no other term begins before that.
        """
        self._check(connection, self.epoch)

    def check_of_term(self, left: Callable[[], bool] = lambda: False) -> Fence:
        """Return `check` of the present term. It also fails once `left` returns True, and in a later term of this
        holder: work that was planned before a pause must not go on.
        """
        epoch = self.epoch
        return lambda connection: self._check(connection, None if left() else epoch)

    def _check(self, connection: sa.Connection, epoch: int | None) -> None:
        query = sa.select(LEASE.holder, LEASE.epoch, LEASE.until_ms, LEASE.clock_epoch).where(LEASE.name == self._name)
        row = connection.execute(query.with_for_update(read=True)).one_or_none()
        now = self._store.clock(connection)
        ours = row is not None and (row.holder, row.epoch) == (self.holder, epoch)
        if row is None or not ours or not now.left_ms(row.until_ms, row.clock_epoch):
            error = NotControllerError if self._name == "controller" else NotCoordinatorError
            raise error(f"lease {self._name!r}: term {epoch} of {self.holder} has ended")


def lease_status(store: Store, name: str) -> LeaseStatus:
    """Return the present status of a lease. The epoch is 0 if it was never held."""
    return store.read(lambda connection: read_lease(connection, name, store.clock(connection)))


def read_lease(connection: sa.Connection, name: str, now: StoreClock) -> LeaseStatus:
    """Return the status of a lease in the caller's snapshot."""
    row = connection.execute(sa.select(t.lease).where(LEASE.name == name)).one_or_none()
    if row is None:
        return LeaseStatus(name, None, 0, 0)
    left_ms = 0 if row.holder is None else now.left_ms(row.until_ms, row.clock_epoch)
    return LeaseStatus(name, row.holder, row.epoch, left_ms)
