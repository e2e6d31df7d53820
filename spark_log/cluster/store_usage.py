"""The stores of a cluster with their numbers of topics and partitions."""

from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.store_directory import ACTIVE, StoreInfo, find_stores
from spark_log.ids import HOME, HOME_NAME
from spark_log.metadata.sql_columns import TOPIC


@dataclass(frozen=True)
class StoreUsage:
    """A store, and its topics and partitions as the home store knows them. `address` has no password."""

    name: str
    store_id: int
    state: str
    topics: int
    partitions: int
    address: str


def list_store_usage(cluster: Cluster) -> list[StoreUsage]:
    """Return the home store and the data stores, by number. Only the home store is asked."""
    home = cluster.home

    def read(connection: sa.Connection) -> tuple[list[StoreInfo], dict[int, tuple[int, int]]]:
        counts = sa.select(TOPIC.store_id, sa.func.count(), sa.func.sum(TOPIC.partition_count)).group_by(TOPIC.store_id)
        return find_stores(connection), {row[0]: (row[1], int(row[2])) for row in connection.execute(counts)}

    stores, used = home.store.read(read)
    all_stores = [StoreInfo(HOME, HOME_NAME, home.store.address.without_password, ACTIVE), *stores]
    return [
        StoreUsage(each.name, each.store_id, each.state, *used.get(each.store_id, (0, 0)), each.address)
        for each in all_stores
    ]
