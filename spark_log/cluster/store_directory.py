"""Reads and locks the directory of the cluster's data stores, which is in the home store.

A cluster has one *home* store, and may have *data* stores. Each topic is whole in one store: its partitions, replicas,
segments and publications. A data store has the same tables as the home store, and copies of the rows of brokers, log
dirs and of its own topics, so that all code that works on partitions runs on a data store unchanged.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from spark_log.errors import (
    InvalidConfigurationError,
    StoreNotFoundError,
    TopicMovedError,
    UnknownTopicOrPartitionError,
)
from spark_log.ids import HOME, HOME_NAME, StoreId
from spark_log.metadata.sql_columns import STORE

ADDING, ACTIVE, DRAINING, REMOVED = "adding", "active", "draining", "removed"
"""States of a store. The row of a removed one stays: its number is not used again, because processes may have it open.
"""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True)
class StoreInfo:
    """A data store. `address` has no password. The state is adding, active or draining."""

    store_id: StoreId
    name: str
    address: str
    state: str

    def address_to_open(self, environ: Mapping[str, str] = os.environ) -> str:
        """Return the address to open: the value of SPARK_LOG_STORE_<NAME> if it is set, else the recorded address. The
        value may have a password, or be the path of a file with the address.
        """
        return environ.get(variable(self.name)) or self.address


def variable(name: str) -> str:
    """Return the name of the environment variable with the address of a store."""
    return f"SPARK_LOG_STORE_{name.upper().replace('-', '_')}"


def check_name(name: str) -> None:
    """Raise InvalidConfigurationError unless this is a legal name of a data store."""
    if name == HOME_NAME or not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidConfigurationError(
            f"store: {name!r}: expected 1 to 63 of a-z, 0-9 and -, not beginning with -, other than {HOME_NAME}"
        )


def find_stores(connection: sa.Connection) -> list[StoreInfo]:
    """Return the data stores, by number. The connection is to the home store."""
    columns = (STORE.store_id, STORE.name, STORE.address, STORE.state)
    query = sa.select(*columns).where(STORE.state != REMOVED).order_by(STORE.store_id)
    return [_info(row) for row in connection.execute(query)]


def find_store(connection: sa.Connection, name: str) -> StoreInfo:
    """Return a data store by its name. Raises StoreNotFoundError."""
    stores = find_stores(connection)
    for each in stores:
        if each.name == name:
            return each
    names = ", ".join([HOME_NAME, *(each.name for each in stores)])
    raise StoreNotFoundError(f"store {name!r}: there is no such store; the stores are: {names}")


def lock_store(connection: sa.Connection, name: str) -> StoreInfo:
    """Return a data store as `find_store` does; its state stays as it is until the transaction ends."""
    connection.execute(sa.select(STORE.store_id).where(STORE.name == name).with_for_update()).all()
    return find_store(connection, name)


def lock_active_store(connection: sa.Connection, name: str) -> StoreInfo:
    """Do as `lock_store`, and raise InvalidConfigurationError unless the store takes new topics."""
    lock_store(connection, name)
    return find_active_store(connection, name)


def find_active_store(connection: sa.Connection, name: str) -> StoreInfo:
    """Do as `find_store`, and raise InvalidConfigurationError unless the store takes new topics."""
    info = find_store(connection, name)
    if info.state != ACTIVE:
        raise InvalidConfigurationError(f"store {name!r}: it is {info.state}, and takes no new topics")
    return info


def keep_store(connection: sa.Connection, store_id: StoreId) -> None:
    """Keep the store from being removed until the transaction ends, so that `remove_store` finds what this transaction
    writes. Raises UnknownTopicOrPartitionError if the data store was removed: clients then look its topics up again.
    """
    if store_id == HOME:
        return
    query = sa.select(STORE.state).where(STORE.store_id == store_id).with_for_update(read=True)
    if connection.execute(query).scalar() in (None, REMOVED):
        raise UnknownTopicOrPartitionError(f"store number {store_id}: it was removed, and its topics are elsewhere")


def find_store_of_id(connection: sa.Connection, store_id: StoreId) -> StoreInfo:
    """Return a data store by its number. Raises TopicMovedError if it was removed: clients then look its topics up
    again.
    """
    for each in find_stores(connection):
        if each.store_id == store_id:
            return each
    raise TopicMovedError(f"store number {store_id}: it was removed from the cluster, and its topics are elsewhere")


def name_of(store_id: StoreId, stores: list[StoreInfo]) -> str:
    """Return the store's name for people; `home` for the home store."""
    names = {each.store_id: each.name for each in stores}
    return HOME_NAME if store_id == HOME else names.get(store_id, str(store_id))


def _info(row: Any) -> StoreInfo:
    return StoreInfo(StoreId(row.store_id), row.name, row.address, row.state)
