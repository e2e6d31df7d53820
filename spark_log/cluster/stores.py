"""Adds data stores to a cluster, lists and removes them; copies the rows of brokers and log dirs to them."""

import logging
import uuid
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster, embedded_broker_row
from spark_log.cluster.log_dir import LogDir, LogDirInfo, Marker, open_log_dir
from spark_log.cluster.store_directory import (
    ACTIVE,
    ADDING,
    DRAINING,
    REMOVED,
    StoreInfo,
    check_name,
    find_store,
    find_stores,
    lock_store,
)
from spark_log.cluster.topics import LIVE, moving_topics, topics_of_store
from spark_log.errors import (
    ClusterAlreadyExistsError,
    InvalidConfigurationError,
    MetadataConflictError,
    SparkLogError,
    UnsupportedStoreError,
    redact,
)
from spark_log.failpoints import failpoint
from spark_log.ids import HOME, HOME_NAME, StoreId
from spark_log.metadata import tables as t
from spark_log.metadata.address import Address
from spark_log.metadata.cascade import delete_rows_of_log_dirs
from spark_log.metadata.sql_columns import BROKER, LOG_DIR, REPLICA, STORE, TOPIC, TRANSACTION
from spark_log.metadata.store_opening import create_store
from spark_log.metadata.store_schema import read_overrides
from spark_log.text import count_of

logger = logging.getLogger(__name__)


def add_store(cluster: Cluster, name: str, address: str) -> StoreInfo:
    """Create a data store in an empty PostgreSQL database, and add it to the cluster. It has no topics yet.

    The same call finishes an addition that was interrupted. A password in `address` is not recorded: other processes
    take it from PGPASSWORD, ~/.pgpass or SPARK_LOG_STORE_<NAME>.

    Raises UnsupportedStoreError on SQLite, InvalidConfigurationError for a name that is not legal or is taken,
    ClusterAlreadyExistsError if the database has a store, and the errors of the address.
    """
    home = cluster.home
    check_name(name)
    parsed = Address.parse(address)
    if home.store.sqlite or parsed.folder is not None:
        raise UnsupportedStoreError(
            "store: a cluster whose metadata is in a folder has one store; several stores need PostgreSQL databases"
        )
    recorded = parsed.without_password

    def reserve(connection: sa.Connection) -> StoreInfo:
        stores = find_stores(connection)
        same = next((each for each in stores if each.name == name), None)
        if same is not None:
            if same.state != ADDING or same.address != recorded:
                raise InvalidConfigurationError(f"store {name!r}: there is one at {same.address} already")
            return same
        last = connection.execute(sa.select(sa.func.max(STORE.store_id))).scalar() or 0
        info = StoreInfo(StoreId(last + 1), name, recorded, ADDING)
        added_ms = home.store.clock(connection).wall_ms
        connection.execute(t.store.insert(), {**vars(info), "added_ms": added_ms})
        return info

    try:
        info = home.store.transact(reserve)
    except MetadataConflictError as error:
        raise InvalidConfigurationError(f"store {name!r}: another process is adding one; repeat the call") from error
    failpoint("store.reserved")
    try:
        create_store(parsed, home.cluster_id, store_id=info.store_id).close()
    except ClusterAlreadyExistsError:
        pass  # by an interrupted call; `at` refuses any other store
    except SparkLogError:
        home.store.transact(lambda c: _delete_reservation(c, info.store_id))
        raise
    failpoint("store.created")
    copy_brokers(home, home.at(info.store_id))
    home.store.transact(lambda c: _set_state(c, info.store_id, ACTIVE), announce=True)
    return home.store.read(lambda connection: find_store(connection, name))


def remove_store(cluster: Cluster, name: str) -> None:
    """Remove a data store from the cluster. Its database stays, and may be dropped when all processes have closed it,
    some ten seconds later.

    Raises StoreNotFoundError, and InvalidConfigurationError while a topic, or part of a transaction, is in it, a topic
    is being moved to it, or topic.default.store names it.
    """
    home = cluster.home

    def remove(connection: sa.Connection) -> StoreInfo:
        info = lock_store(connection, name)
        refuse_use(connection, info)
        topics = topics_of_store(connection, info.store_id).values()
        held = next((each.topic.name for each in topics if each.state == LIVE), None)
        if held is not None:
            raise InvalidConfigurationError(
                f"store {name!r}: it has topics, for example {held!r}: move them away first (`spark-log store drain`)"
            )
        if topics:
            raise InvalidConfigurationError(f"store {name!r}: {unfinished_topics(len(topics))}")
        for topic, move in moving_topics(connection):
            if move.to == info.store_id:
                raise InvalidConfigurationError(f"store {name!r}: topic {topic.name!r} is being moved to it")
        gone = {"state": REMOVED, "name": f"{REMOVED}/{info.store_id}"}  # no legal name of a store
        connection.execute(t.store.update().where(STORE.store_id == info.store_id).values(gone))
        return info

    info = home.store.transact(remove, announce=True)
    for log_dir in home.log_dirs().values():
        try:
            LogDir(log_dir.uri, info.store_id).delete_marker()
        except (SparkLogError, OSError) as error:
            logger.warning("a marker of store %s stays in a log dir: %s", name, redact(str(error)))


def refuse_use(connection: sa.Connection, info: StoreInfo, *where: sa.ColumnElement[bool]) -> None:
    """Raise InvalidConfigurationError if topic.default.store names a data store, or if a transaction for which `where`
    holds has a part in it.
    """
    if read_overrides(connection).get("topic.default.store") == info.name:
        raise InvalidConfigurationError(
            f"store {info.name!r}: topic.default.store names it, so new topics get there; change that setting first"
            " (`spark-log cluster config`)"
        )
    parts = connection.execute(sa.select(TRANSACTION.part_stores).where(TRANSACTION.part_stores != "", *where))
    if any(str(info.store_id) in stores.split() for stores in parts.scalars()):
        raise InvalidConfigurationError(
            f"store {info.name!r}: a transaction that has not ended writes to it; repeat the call when it has"
            " (`spark-log transaction list`)"
        )


def unfinished_topics(count: int) -> str:
    """Return a message about the unfinished topics of a store that has no other topics, and how they are finished."""
    topics = f"{count_of(count, 'topic')} being created or deleted"
    return f"it still has {topics}: run `spark-log coordinator` while it answers"


def set_draining(cluster: Cluster, name: str, *, draining: bool = True) -> StoreInfo:
    """Make a data store refuse new topics, or take them again. Raises StoreNotFoundError, and
    InvalidConfigurationError for a store that is being added.
    """

    def change(connection: sa.Connection) -> StoreInfo:
        info = lock_store(connection, name)
        if info.state == ADDING:
            raise InvalidConfigurationError(f"store {name!r}: it is being added")
        _set_state(connection, info.store_id, DRAINING if draining else ACTIVE)
        return info

    return cluster.home.store.transact(change, announce=True)


def _set_state(connection: sa.Connection, store_id: StoreId, state: str) -> None:
    connection.execute(t.store.update().where(STORE.store_id == store_id).values(state=state))


def _delete_reservation(connection: sa.Connection, store_id: StoreId) -> None:
    connection.execute(t.store.delete().where(STORE.store_id == store_id, STORE.state == ADDING))


def copy_to_stores(cluster: Cluster) -> None:
    """Copy the rows of brokers and log dirs to all data stores after a change. If a store does not answer, this
    is logged, and a coordinator repeats the copy.
    """
    for store_id in cluster.store_ids()[1:]:
        try:
            copy_brokers(cluster.home, cluster.at(store_id))
        except SparkLogError as error:
            logger.warning("store %s does not follow the home store: %s", store_id, redact(str(error)))


def copy_brokers(home: Cluster, data: Cluster) -> None:
    """Give a data store the brokers and log dirs of home, with the same ids.

    Racks and locations are copied again when they change. Leases and the state of log dirs are the data store's own.
    Brokers and log dirs that home does not have are removed if they have no replicas.
    """
    brokers = home.store.read(lambda c: {row.broker_id: row.rack for row in c.execute(sa.select(t.broker))})
    infos = home.log_dirs()
    copied = data.log_dirs()
    copied_brokers = data.store.read(lambda c: {row.broker_id: row.rack for row in c.execute(sa.select(t.broker))})
    places = {log_dir_id: info.uri for log_dir_id, info in infos.items()}
    if copied_brokers == brokers and {log_dir_id: info.uri for log_dir_id, info in copied.items()} == places:
        return
    new = [_new_row(data, info) for log_dir_id, info in infos.items() if log_dir_id not in copied]

    def copy(connection: sa.Connection) -> None:
        present = set(connection.execute(sa.select(BROKER.broker_id).with_for_update()).scalars())
        missing = [embedded_broker_row(each, rack) for each, rack in brokers.items() if each not in present]
        if missing:
            connection.execute(t.broker.insert(), missing)
        for broker_id in brokers.keys() & present:
            connection.execute(t.broker.update().where(BROKER.broker_id == broker_id).values(rack=brokers[broker_id]))
        log_dir_ids = set(connection.execute(sa.select(LOG_DIR.log_dir_id)).scalars())
        if rows := [row for row in new if row["log_dir_id"] not in log_dir_ids]:
            connection.execute(t.log_dir.insert(), rows)
        for log_dir_id in places.keys() & log_dir_ids:
            connection.execute(
                t.log_dir.update().where(LOG_DIR.log_dir_id == log_dir_id).values(uri=places[log_dir_id])
            )
        used = sa.select(REPLICA.log_dir_id)
        gone = sa.select(LOG_DIR.log_dir_id).where(LOG_DIR.log_dir_id.not_in(places), LOG_DIR.log_dir_id.not_in(used))
        delete_rows_of_log_dirs(connection, gone)
        connection.execute(t.log_dir.delete().where(LOG_DIR.log_dir_id.in_(gone)))
        owners = sa.select(LOG_DIR.broker_id)
        connection.execute(t.broker.delete().where(BROKER.broker_id.not_in(brokers), BROKER.broker_id.not_in(owners)))

    data.store.transact(copy, announce=True)


def _new_row(data: Cluster, info: LogDirInfo) -> dict[str, object]:
    """Write the data store's marker to a log dir, and return the row of the log dir: offline if the write failed."""
    marker = Marker(data.cluster_id, info.broker_id, str(uuid.uuid4()), counter=0)
    failure = None
    try:
        open_log_dir(info)
        LogDir(info.uri, data.store_id).write_marker(marker)
    except (SparkLogError, OSError) as error:
        failure = redact(str(error))
    row = {"log_dir_id": info.log_dir_id, "broker_id": info.broker_id, "uri": info.uri, "uuid": marker.uuid}
    return {**row, "counter": 0, "online": failure is None, "failure": failure}


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
