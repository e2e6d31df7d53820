"""Creates and opens the metadata store of a cluster."""

import secrets
from collections.abc import Callable

import sqlalchemy as sa

from spark_log.errors import ClusterAlreadyExistsError, MetadataConflictError
from spark_log.metadata import store_schema, tables
from spark_log.metadata.address import Address, cluster_not_found
from spark_log.metadata.connections import server_identity
from spark_log.metadata.schema_fence import number_of
from spark_log.metadata.store import Attempt, Store
from spark_log.metadata.store_schema import read_overrides


def create_store(address: Address, cluster_id: str, fill: Callable[[sa.Connection], None] = lambda _: None) -> Store:
    """Create a store with all tables, the cluster's row and the rows that `fill` adds, in one transaction.

    Raise ClusterAlreadyExistsError if there is a cluster at the address.
    """
    if address.folder:
        address.folder.mkdir(parents=True, exist_ok=True)
    store = Store(address, create=True)

    def create(connection: sa.Connection, _attempt: Attempt) -> None:
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


def open_store(address: Address) -> Store:
    """Open the store at `address`, and upgrade it if an earlier release created it.

    Raise ClusterNotFoundError if there is no cluster, UnsupportedVersionError if this version cannot upgrade the store.
    """
    store = Store(address)
    try:
        with store.fence.lifted():
            revision, overrides = store.read(_revision_and_settings)
            if revision is None:
                raise cluster_not_found(address)
            if overrides is None:
                store_schema.check_known(revision, address)
                store.transact(lambda connection, _attempt: store_schema.upgrade(connection, address), unlimited=True)
        if overrides is not None:
            store.keep_settings(overrides)
    except BaseException:
        store.close()
        raise
    return store


def _revision_and_settings(connection: sa.Connection) -> tuple[str | None, dict[str, str] | None]:
    """Return the store's revision, or None if it has no cluster, and its stored settings.

    The settings are None if this version cannot use the store as it is.
    """
    revision = store_schema.revision_of(connection)
    if store_schema.is_empty(connection, revision):
        return None, None
    return revision, read_overrides(connection) if store_schema.is_usable(connection, revision) else None
