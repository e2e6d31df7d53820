"""Identifies the database server of the metadata, and checks that it is the recorded one: the server on which the
cluster was created, or that was accepted last.

A server that was restored from a backup, or a standby that was promoted without the last transactions, may lack
metadata of files in the log dirs. Clean-up would delete these files, and publication would remove their records from
the Delta tables. Both call `check_identity` first. Such a server has another system identifier, which initdb creates,
or another timeline, which each promotion and each point-in-time recovery raises; a dump that was restored on the same
server is in another database, or in new tables (`pg_restore --clean`), whose OIDs are others. A connection's server and
database do not change, so each connection asks for them once, when it is opened. The tables may be replaced meanwhile,
so each check asks for their OID.

SQLite has no such identity, and a PostgreSQL server whose data folder was replaced by an older copy keeps both values.
A Delta table that is ahead of the metadata shows these cases (tables/publication.py).
"""

import logging
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import sqlalchemy as sa

from spark_log.errors import StoreChangedError
from spark_log.metadata import tables as t
from spark_log.metadata.address import Address
from spark_log.metadata.sql_columns import CLUSTER

logger = logging.getLogger(__name__)

_INFO, _MATCHES = "spark_log_identity", "spark_log_identity_matches"
"""The keys of a connection's server, and of its last identity that was found to be the recorded one."""

_ASK = (
    "SELECT system_identifier::text, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint,"
    " (SELECT oid::bigint FROM pg_database WHERE datname = current_database())"
    " FROM pg_control_system()"
)
"""Returns the system identifier, the timeline that is written now (pg_control_checkpoint() would return that of the
last checkpoint), and the database. Every role may run it, unless EXECUTE on pg_control_system(),
pg_current_wal_lsn() or pg_walfile_name(pg_lsn) was revoked.
"""


_TABLE = sa.text("SELECT 'cluster'::regclass::oid::bigint")


@dataclass(frozen=True)
class Identity:
    """A PostgreSQL server: its system identifier and its timeline, and the database of the store there."""

    system_identifier: str
    timeline: int
    database: int | None = None
    """The OID of the database; None in a record of an earlier release."""
    table: int | None = None
    """The OID of table `cluster`, which no restart, promotion or VACUUM changes; None in a record of an earlier
    release.
    """

    def __str__(self) -> str:
        database = "" if self.database is None else f", database {self.database}"
        table = "" if self.table is None else f", table {self.table}"
        return f"system {self.system_identifier}, timeline {self.timeline}{database}{table}"

    def is_system_of(self, recorded: "Identity") -> bool:
        """Whether this is a recorded server or one with its write-ahead log, and the store is in the same tables of the
        same database.
        """
        same_tables = recorded.database in (None, self.database) and recorded.table in (None, self.table)
        return self.system_identifier == recorded.system_identifier and same_tables

    def is_same_as(self, recorded: "Identity") -> bool:
        return self.is_system_of(recorded) and self.timeline == recorded.timeline


@dataclass(frozen=True)
class Beat:
    """The last beat of the coordinator, by which it accepts a promotion (`cluster.promotion`)."""

    number: int
    at_ms: int | None
    """Time of the beat by the store clock, or None if there has been none."""
    synchronous: bool
    """Whether synchronous_standby_names was set at that time."""


def ask_server(driver_connection: Any, info: dict[str, Any], address: Address) -> "Identity | None":
    """Return the identity of a new connection's server, or None if the server refuses to show it.

    The identity is stored in `info`, from which `of_server` reads it. Raise psycopg.DatabaseError if the connection is
    lost.
    """
    import psycopg

    try:
        row = driver_connection.execute(_ASK).fetchone()
        info[_INFO] = Identity(row[0], int(row[1]), int(row[2]))
    except psycopg.DatabaseError as error:
        if driver_connection.broken:
            raise
        info[_INFO] = None
        _warn(str(address), str(error).partition("\n")[0])
    finally:
        if not driver_connection.broken:
            driver_connection.rollback()
    identity: Identity | None = info[_INFO]
    return identity


@cache  # once a process
def _warn(address: str, why: str) -> None:
    logger.warning(
        "metadata store at %s does not show its system identifier and timeline (%s): a server restored from a"
        " backup cannot be detected. GRANT EXECUTE ON FUNCTION pg_control_system(), pg_current_wal_lsn(),"
        " pg_walfile_name(pg_lsn)",
        address,
        why,
    )


def of_server(connection: sa.Connection) -> Identity | None:
    """Return the identity of the connection's server; None on SQLite, or if the server refused to show it."""
    server: Identity | None = connection.info.get(_INFO)
    return None if server is None else replace(server, table=connection.execute(_TABLE).scalar_one())


def recorded(connection: sa.Connection) -> Identity | None:
    """Return the identity of the server that was accepted last, or else of that on which the cluster was created.

    Return None if it was not known.
    """
    row = connection.execute(sa.select(CLUSTER.system_identifier, CLUSTER.timeline, CLUSTER.table_oid)).one()
    if row.system_identifier is None:
        return None
    system, _, database = row.system_identifier.partition("/")
    return Identity(system, row.timeline, int(database) if database else None, row.table_oid)


def values(identity: Identity | None) -> dict[str, Any]:
    """Return the values of the columns of table `cluster` that record the identity."""
    if identity is None:
        return {"system_identifier": None, "timeline": None, "table_oid": None}
    database = "" if identity.database is None else f"/{identity.database}"
    return {
        "system_identifier": f"{identity.system_identifier}{database}",
        "timeline": identity.timeline,
        "table_oid": identity.table,
    }


def check_identity(connection: sa.Connection) -> None:
    """Raise StoreChangedError if the metadata is on another server than the recorded one.

    If either identity is unknown, nothing is checked. Call it before anything is deleted, or removed from a Delta
    table, because the metadata does not refer to it.
    """
    now = of_server(connection)
    if now is None or connection.info.get(_MATCHES) == now:
        return
    before = recorded(connection)
    if before is not None and not now.is_same_as(before):
        if now.is_system_of(before):
            what = "restored or promoted"
        elif now.is_system_of(replace(before, table=None)):
            what = "restored from a dump"
        else:
            what = "on another server or in another database"
        raise StoreChangedError(
            f"the metadata store is {what}: it was {before}, and is {now}; it may know less than the log dirs hold, so"
            " clean-up of files and publication to Delta tables have stopped. See what it lacks with"
            " `spark-log store status`, then allow both with `spark-log store accept`"
        )
    connection.info[_MATCHES] = None if before is None else now


def problem_of(connection: sa.Connection) -> str | None:
    """Return the message of `check_identity`, or None if the metadata is on the recorded server."""
    try:
        check_identity(connection)
    except StoreChangedError as error:
        return str(error)
    return None


def accepted_at_ms(connection: sa.Connection) -> int | None:
    """Return when an operator last accepted the store, by the store's clock; None if never."""
    at: int | None = connection.execute(sa.select(CLUSTER.accepted_ms)).scalar_one()
    return at


def accept(connection: sa.Connection, now_ms: int) -> Identity | None:
    """Record the current server and the time, and return the server's identity."""
    identity = of_server(connection)
    connection.execute(t.cluster.update().values(**values(identity), accepted_ms=now_ms))
    return identity


def promoted_at_ms(connection: sa.Connection) -> int | None:
    """Return when the coordinator last accepted a promotion, by the store's clock; None if never."""
    at: int | None = connection.execute(sa.select(CLUSTER.promoted_ms)).scalar_one()
    return at


def accept_promotion(connection: sa.Connection, now_ms: int) -> None:
    """Record the current server and the time, for a promotion that the coordinator accepts without a person."""
    connection.execute(t.cluster.update().values(**values(of_server(connection)), promoted_ms=now_ms))


def last_beat(connection: sa.Connection) -> Beat:
    row = connection.execute(sa.select(CLUSTER.beat, CLUSTER.beat_ms, CLUSTER.synchronous)).one()
    return Beat(row.beat, row.beat_ms, bool(row.synchronous))


def void_beat(connection: sa.Connection) -> None:
    """Forget the time of the last beat, so that no promotion is accepted before the next one."""
    connection.execute(t.cluster.update().values(beat_ms=None, synchronous=False))


_SYNCHRONOUS = sa.text("current_setting('synchronous_standby_names') <> ''")


def is_synchronous(connection: sa.Connection) -> bool:
    """Whether synchronous_standby_names of the PostgreSQL server is set, so that commits wait for a standby."""
    synchronous: bool = connection.execute(sa.select(_SYNCHRONOUS)).scalar_one()
    return synchronous


def beat(connection: sa.Connection, now_ms: int) -> int:
    """Record a beat on PostgreSQL, and return its number."""
    statement = t.cluster.update().values(beat=CLUSTER.beat + 1, beat_ms=now_ms, synchronous=_SYNCHRONOUS)
    number: int = connection.execute(statement.returning(CLUSTER.beat)).scalar_one()
    return number
