"""Creates and opens the metadata store of a cluster."""

import secrets
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import sqlalchemy as sa

from spark_log.errors import (
    ClusterAlreadyExistsError,
    MetadataConflictError,
    UnsupportedVersionError,
    WrongDatabaseError,
)
from spark_log.ids import HOME, StoreId
from spark_log.metadata import store_schema, tables
from spark_log.metadata.address import Address, cluster_not_found
from spark_log.metadata.connections import server_identity
from spark_log.metadata.connections.schema_fence import number_of
from spark_log.metadata.sql_columns import CLUSTER
from spark_log.metadata.store import READ_TIMEOUT_MS, Store
from spark_log.metadata.store_schema import read_overrides


def create_store(
    address: Address,
    cluster_id: str,
    fill: Callable[[sa.Connection], None] = lambda _: None,
    *,
    store_id: StoreId = HOME,
) -> Store:
    """Create a store with all tables, the cluster's row and the rows that `fill` adds, in one transaction.

    Raise ClusterAlreadyExistsError if the address has a cluster, or UnsupportedVersionError if the server is too
    old.
    """
    if address.folder:
        address.folder.mkdir(parents=True, exist_ok=True)
    store = Store(address, create=True)

    def create(connection: sa.Connection) -> None:
        store_schema.check_server(connection)
        revision = store_schema.revision_of(connection)
        if revision is None:
            store_schema.create(connection)
        elif not store_schema.is_empty(connection, revision):
            raise ClusterAlreadyExistsError(f"there is a cluster at {address} already: Cluster.open opens it")
        connection.execute(
            tables.cluster.insert(),
            {
                "singleton": 1,
                "cluster_id": cluster_id,
                "store_id": store_id,
                "created_ms": store.clock(connection).wall_ms,
                "oldest_revision": number_of(tables.OLDEST_REVISION),
                "secret": secrets.token_bytes(32),
                **server_identity.values(server_identity.of_server(connection)),
            },
        )
        fill(connection)

    try:
        with store.fence.lifted():
            store.transact(create, timeout_ms=10_000, unlimited=True)
    except BaseException as error:
        store.close()
        if isinstance(error, MetadataConflictError):
            raise ClusterAlreadyExistsError(f"another process has just created a cluster at {address}") from error
        raise
    return store


def open_store(
    address: Address,
    *,
    store_id: StoreId = HOME,
    cluster_id: str | None = None,
    timeout_ms: int = READ_TIMEOUT_MS,
    upgrade: bool = True,
) -> Store:
    """Open the store at `address`, and upgrade it if an earlier release created it. It must have the number `store_id`,
    and belong to the cluster `cluster_id` if that is given.

    Raise ClusterNotFoundError if there is no cluster, UnsupportedVersionError if this version cannot upgrade the store
    or, without `upgrade`, would have to; WrongDatabaseError for another store.
    """
    store = Store(address)
    try:
        with store.fence.lifted():
            stored = store.read(_read_cluster, timeout_ms=timeout_ms)
            if stored.revision is None:
                raise cluster_not_found(address)
            if not stored.usable:
                store_schema.check_known(stored.revision, address)
                if not upgrade:
                    raise UnsupportedVersionError(
                        f"the metadata store at {address} has revision {stored.revision!r}, which is older than"
                        f" {tables.SCHEMA_REVISION!r}, and this command upgrades no store: `spark-log status` does"
                    )
                store.transact(lambda connection: store_schema.upgrade(connection, address), unlimited=True)
                stored = store.read(_read_cluster)
        _check_number(stored, store_id, cluster_id, address)
        store.keep_settings(stored.settings)
    except BaseException:
        store.close()
        raise
    return store


class _StoredCluster(NamedTuple):
    """The store at an address. The revision is None without a cluster. Unless it is usable, this version cannot use the
    store as it is, and nothing else was read.
    """

    revision: str | None
    usable: bool = False
    store_id: int = HOME
    cluster_id: str = ""
    settings: Mapping[str, str] = MappingProxyType({})


def _read_cluster(connection: sa.Connection) -> _StoredCluster:
    revision = store_schema.revision_of(connection)
    if store_schema.is_empty(connection, revision):
        return _StoredCluster(None)
    if not store_schema.is_usable(connection, revision):
        return _StoredCluster(revision)
    [(store_id, cluster_id)] = connection.execute(sa.select(CLUSTER.store_id, CLUSTER.cluster_id))
    return _StoredCluster(revision, True, store_id, cluster_id, read_overrides(connection))


def _check_number(stored: _StoredCluster, store_id: StoreId, cluster_id: str | None, address: Address) -> None:
    if cluster_id not in (None, stored.cluster_id):
        raise WrongDatabaseError(f"store {store_id} at {address}: it is of another cluster, {stored.cluster_id}")
    if stored.store_id == store_id:
        return
    number = f"data store {stored.store_id}" if stored.store_id else "the home store"
    if store_id == HOME:
        raise WrongDatabaseError(
            f"cluster: {address} is {number} of cluster {stored.cluster_id}: give the address of its home store"
        )
    raise WrongDatabaseError(f"store {store_id} at {address}: this database is {number} of the cluster")
