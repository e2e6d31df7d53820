"""Stores brokers and their log dirs, and finds which of them are alive.

A log dir is online unless the controller has declared it failed. A broker is alive only if one of its log dirs is
online. An *embedded* broker has no process: clients and coordinators do its work. A *served* broker is a process
(`spark-log broker start`) that holds a lease in the store, and it is dead once the lease has expired.
"""

import os
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster, embedded_broker_row
from spark_log.cluster.log_dir_uris import normalise_uri
from spark_log.cluster.stores import copy_brokers, copy_to_stores
from spark_log.config.values import can_be_stored
from spark_log.errors import BrokerIdNotRegisteredError, DuplicateBrokerRegistrationError, InvalidConfigurationError
from spark_log.ids import HOME, BrokerId, LogDirId
from spark_log.metadata import tables as t
from spark_log.metadata.cascade import delete_rows_of_log_dirs
from spark_log.metadata.sql_columns import BROKER, LOG_DIR, PARTITION, REPLICA
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock

RACK_CHARACTERS_MAX = 249
ONLINE_LOG_DIRS = sa.select(LOG_DIR.log_dir_id).where(LOG_DIR.online)


@dataclass(frozen=True)
class LogDirStatus:
    """The status of a log dir. `failure` is the reason why it is offline; `replicas` is the number of its replicas."""

    log_dir_id: int
    uri: str
    online: bool
    failure: str | None
    replicas: int


@dataclass(frozen=True)
class BrokerStatus:
    """The status of a broker. `leaders` is the number of partitions that it leads.

    `lease_left_ms` is None for an embedded broker, and 0 if the lease of a served one has expired.
    """

    broker_id: int
    rack: str | None
    served: bool
    holder: str | None
    epoch: int
    lease_left_ms: int | None
    log_dirs: tuple[LogDirStatus, ...]
    leaders: int

    @property
    def alive(self) -> bool:
        return (not self.served or bool(self.lease_left_ms)) and any(log_dir.online for log_dir in self.log_dirs)


def add_broker(cluster: Cluster, broker_id: int, log_dirs: Sequence[str], rack: str | None = None) -> None:
    """Add an embedded broker with its log dirs, which must be empty. `broker start` makes it a served one. If a call
    was interrupted, the same call adds the log dirs that the broker lacks.

    Raises InvalidConfigurationError for an invalid argument or overlapping log dirs, LogDirMismatchError if a log dir
    is not empty, StorageUnavailableError if it cannot be written, and DuplicateBrokerRegistrationError. After an error
    a new broker is removed again, unless another call has added a log dir to it; marker files that were written remain.
    """
    _check_id(broker_id)
    if rack is not None and not (1 <= len(rack) <= RACK_CHARACTERS_MAX and can_be_stored(rack)):
        raise InvalidConfigurationError(
            f"rack: expected 1 to {RACK_CHARACTERS_MAX} characters without NUL and lone surrogates, got {rack!r}"
        )
    if not log_dirs:
        raise InvalidConfigurationError("log_dirs: a broker needs at least one log dir")
    uris = [normalise_uri(location) for location in log_dirs]
    if len(set(uris)) < len(uris):
        raise InvalidConfigurationError(f"log_dirs: the same one twice among {', '.join(log_dirs)}")

    def add(connection: sa.Connection) -> set[str] | None:
        row = connection.execute(sa.select(t.broker).where(BROKER.broker_id == broker_id)).one_or_none()
        if row is None:
            connection.execute(t.broker.insert(), embedded_broker_row(broker_id, rack))
            return None
        present = set(connection.execute(sa.select(LOG_DIR.uri).where(LOG_DIR.broker_id == broker_id)).scalars())
        if row.served or row.rack != rack or not present < set(uris):
            raise DuplicateBrokerRegistrationError(f"broker_id: there is a broker {broker_id} already")
        return present

    present = cluster.store.transact(add)
    added: set[LogDirId] = set()
    try:
        for location, uri in zip(log_dirs, uris, strict=True):
            if uri not in (present or ()):
                added.add(cluster.add_log_dir(BrokerId(broker_id), location))
    except BaseException:
        if present is None:  # only here: a data store may be away
            cluster.store.transact(_removal(cluster, broker_id, only_with=added), announce=True)
        raise
    copy_to_stores(cluster)


def remove_broker(cluster: Cluster, broker_id: int) -> None:
    """Remove a broker and its log dirs from the metadata; the files stay.

    Raises BrokerIdNotRegisteredError, and InvalidConfigurationError if the broker has replicas, its process runs, or it
    is the only broker.
    """
    for store_id in cluster.store_ids()[1:]:  # in a store that lacks the other brokers, it would be the only one
        copy_brokers(cluster.home, cluster.at(store_id))
    _in_each_store(cluster, _removal(cluster, broker_id))


def _removal(
    cluster: Cluster, broker_id: int, only_with: Collection[LogDirId] | None = None
) -> Callable[[sa.Connection], None]:
    """Return a function that removes a broker. With `only_with`, it keeps a broker that has any other log dir."""

    def remove(connection: sa.Connection) -> None:
        broker_ids = connection.execute(sa.select(BROKER.broker_id)).scalars().all()
        keep_brokers(connection, [each for each in broker_ids if each < broker_id])  # in the order of ids, as others do
        row = _lock(connection, broker_id, to_remove=True)
        mine = sa.select(LOG_DIR.log_dir_id).where(LOG_DIR.broker_id == broker_id)
        if only_with is not None and not set(connection.execute(mine).scalars()) <= set(only_with):
            return
        keep_brokers(connection, [each for each in broker_ids if each > broker_id])
        if _left_ms(row, cluster.store.clock(connection)):
            raise InvalidConfigurationError(f"broker {broker_id} is running ({row.holder}): stop it first")
        replicas = connection.execute(sa.select(sa.func.count()).where(REPLICA.broker_id == broker_id)).scalar_one()
        if replicas:
            raise InvalidConfigurationError(
                f"broker {broker_id} has {replicas} replica(s): move them first (spark-log partition reassign)"
            )
        others = connection.execute(sa.select(sa.func.count()).where(BROKER.broker_id != broker_id)).scalar_one()
        if not others:
            raise InvalidConfigurationError(f"broker {broker_id} is the only one of the cluster")
        delete_rows_of_log_dirs(connection, mine)
        connection.execute(t.log_dir.delete().where(LOG_DIR.broker_id == broker_id))
        connection.execute(t.broker.delete().where(BROKER.broker_id == broker_id))

    return remove


def embed_broker(cluster: Cluster, broker_id: int) -> None:
    """Make a served broker, whose process must have ended, an embedded one again.

    Raises BrokerIdNotRegisteredError, and InvalidConfigurationError while its process runs.
    """

    def embed(connection: sa.Connection) -> None:
        row = _lock(connection, broker_id)
        if _left_ms(row, cluster.store.clock(connection)):
            raise InvalidConfigurationError(f"broker {broker_id} is running ({row.holder}): stop it first")
        values = {"served": False, "holder": None, "lease_until_ms": None, "lease_clock_epoch": None}
        connection.execute(t.broker.update().where(BROKER.broker_id == broker_id).values(values))

    _in_each_store(cluster, embed)


def _in_each_store(cluster: Cluster, change: Callable[[sa.Connection], None]) -> None:
    """Change a broker in each store that has it, home last: after a failure, its copies are made from home again."""
    for store_id in reversed(cluster.store_ids()):
        try:
            cluster.at(store_id).store.transact(change, announce=True)
        except BrokerIdNotRegisteredError:  # a data store has no copy of it yet
            if store_id == HOME:
                raise


def list_brokers(cluster: Cluster) -> list[BrokerStatus]:
    """Return the present status of all brokers, by id."""
    return cluster.store.read(lambda c: broker_statuses(c, cluster, cluster.store.clock(c)))


def broker_statuses(connection: sa.Connection, cluster: Cluster, now: StoreClock) -> list[BrokerStatus]:
    """Return the status of all brokers, by id, in the caller's snapshot."""
    replicas = _counts(connection, REPLICA.log_dir_id)
    leaders = _counts(connection, PARTITION.leader)
    dirs: dict[int, list[LogDirStatus]] = {}
    for row in connection.execute(sa.select(t.log_dir).order_by(LOG_DIR.log_dir_id)):
        uri, count = cluster.absolute(row.uri), replicas.get(row.log_dir_id, 0)
        status = LogDirStatus(row.log_dir_id, uri, row.online, row.failure, count)
        dirs.setdefault(row.broker_id, []).append(status)
    return [
        BrokerStatus(
            row.broker_id, row.rack, row.served, row.holder, row.epoch, _left_ms(row, now),
            tuple(dirs.get(row.broker_id, ())), leaders.get(row.broker_id, 0),
        )
        for row in connection.execute(sa.select(t.broker).order_by(BROKER.broker_id))
    ]  # fmt: skip


def change_log_dirs(
    connection: sa.Connection, log_dir_ids: Collection[int], *where: sa.ColumnElement[bool], **values: object
) -> int:
    """Set columns of those log dirs for which `where` holds. Returns their number."""
    here = (LOG_DIR.log_dir_id.in_(list(log_dir_ids)), *where)
    return connection.execute(t.log_dir.update().where(*here).values(values)).rowcount


def alive_log_dirs(connection: sa.Connection, now: StoreClock) -> frozenset[LogDirId]:
    """Return the online log dirs of brokers that are alive: replicas there may lead and be in sync."""
    query = sa.select(LOG_DIR.log_dir_id, BROKER.served, BROKER.lease_until_ms, BROKER.lease_clock_epoch)
    rows = connection.execute(query.join(t.broker, BROKER.broker_id == LOG_DIR.broker_id).where(LOG_DIR.online))
    return frozenset(LogDirId(row.log_dir_id) for row in rows if not row.served or _left_ms(row, now))


def _counts(connection: sa.Connection, column: sa.Column[Any]) -> dict[int, int]:
    """Return the number of rows by value of the column."""
    rows = connection.execute(sa.select(column, sa.func.count()).group_by(column))
    return {int(value): count for (value, count) in rows if value is not None}


def keep_brokers(connection: sa.Connection, broker_ids: Collection[int] | None = None) -> None:
    """Lock the brokers (all for None), so that they cannot be removed until the end of the transaction."""
    query = sa.select(BROKER.broker_id).order_by(BROKER.broker_id)
    if broker_ids is not None:
        query = query.where(BROKER.broker_id.in_(sorted(broker_ids)))
    connection.execute(query.with_for_update(read=True, key_share=True)).all()


def _left_ms(row: Any, now: StoreClock) -> int | None:
    """Return the remaining time of a served broker's lease, 0 if it has expired, or None for an embedded broker."""
    if not row.served:
        return None
    return now.left_ms(row.lease_until_ms or 0, row.lease_clock_epoch or "")


def _lock(connection: sa.Connection, broker_id: int, *, to_remove: bool = False) -> Any:
    """Lock and return the broker's row. Only a removal waits for `keep_brokers`: a lease must be renewed in time."""
    _check_id(broker_id)
    query = sa.select(t.broker).where(BROKER.broker_id == broker_id).with_for_update(key_share=not to_remove)
    row = connection.execute(query).one_or_none()
    if row is None:
        known = connection.execute(sa.select(BROKER.broker_id).order_by(BROKER.broker_id)).scalars()
        raise BrokerIdNotRegisteredError(
            f"broker_id: there is no broker {broker_id!r} in this cluster; there are {', '.join(map(str, known))}"
        )
    return row


def _check_id(broker_id: object) -> None:
    if isinstance(broker_id, bool) or not isinstance(broker_id, int) or not 1 <= broker_id <= 2**31 - 1:
        raise InvalidConfigurationError(f"broker_id: expected a number from 1 to {2**31 - 1}, got {broker_id!r}")


class BrokerSession:
    """The lease of a served broker, held by the one process that serves it. Used by one thread."""

    def __init__(self, store: Store, broker_id: int, duration_ms: int) -> None:
        self.broker_id = broker_id
        self.holder = f"{socket.gethostname()}-{os.getpid()}"
        self.epoch: int | None = None
        self._store = store
        self.duration_ms = duration_ms

    def register(self) -> None:
        """Begin to serve the broker, in a new epoch.

        Raises DuplicateBrokerRegistrationError while a process serves it, and BrokerIdNotRegisteredError.
        """

        def body(connection: sa.Connection) -> int:
            row = _lock(connection, self.broker_id)
            now = self._store.clock(connection)
            if left_ms := _left_ms(row, now):
                raise DuplicateBrokerRegistrationError(
                    f"broker {self.broker_id} is served by {row.holder}; its lease ends in {left_ms} ms unless that"
                    " process renews it"
                )
            epoch = int(row.epoch) + 1
            values = {"served": True, "holder": self.holder, "epoch": epoch}
            lease = {"lease_until_ms": now.lease_ms + self.duration_ms, "lease_clock_epoch": now.clock_epoch}
            connection.execute(t.broker.update().where(BROKER.broker_id == self.broker_id).values({**values, **lease}))
            return epoch

        self.epoch = self._store.transact(body, announce=True)

    def renew(self) -> bool:
        """Renew the lease. Returns False if it has expired or another process has it; then register again."""

        def body(connection: sa.Connection) -> bool:
            row = _lock(connection, self.broker_id)
            now = self._store.clock(connection)
            if (row.holder, row.epoch) != (self.holder, self.epoch) or not _left_ms(row, now):
                return False
            lease = {"lease_until_ms": now.lease_ms + self.duration_ms, "lease_clock_epoch": now.clock_epoch}
            connection.execute(t.broker.update().where(BROKER.broker_id == self.broker_id).values(lease))
            return True

        return self._store.transact(body)

    def end(self) -> None:
        """End the lease, so that the broker counts as dead at once."""
        ours = (BROKER.broker_id == self.broker_id) & (BROKER.holder == self.holder) & (BROKER.epoch == self.epoch)
        over = t.broker.update().where(ours).values(lease_until_ms=0)
        self._store.transact(lambda connection: connection.execute(over), announce=True)
