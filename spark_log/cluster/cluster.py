"""A cluster consists of its metadata stores and the log dirs of its brokers.

Most clusters have one store, the home store. `Cluster.open` opens it, and `Cluster.of` gives the same cluster as the
store of a topic sees it: all code that works on partitions takes such an object (`store_directory`).
"""

import logging
import threading
import uuid
import weakref
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

import sqlalchemy as sa

from spark_log.cluster.files.new_file import make_root
from spark_log.cluster.log_dir import MARKER, LogDir, LogDirInfo, Marker, open_log_dir
from spark_log.cluster.log_dir_uris import local_uri, normalise_uri, refuse_overlap, refuse_percent_sign
from spark_log.cluster.store_directory import ADDING, find_store_of_id, find_stores
from spark_log.errors import (
    ClusterAlreadyExistsError,
    InvalidConfigurationError,
    LogDirMismatchError,
    SparkLogError,
    redact,
)
from spark_log.ids import HOME, BrokerId, LogDirId, StoreId
from spark_log.metadata import tables
from spark_log.metadata.address import Address
from spark_log.metadata.sql_columns import BROKER, CLUSTER, LOG_DIR
from spark_log.metadata.store import READ_TIMEOUT_MS, Store
from spark_log.metadata.store_opening import create_store, open_store
from spark_log.process import Stop, forget_parent_in_child, start_thread

if TYPE_CHECKING:
    from spark_log.cluster.topics import Topic

logger = logging.getLogger(__name__)

FIRST_BROKER = BrokerId(1)
_FOLLOW_S = 5.0
"""The time between reads of the list of stores by a process that has data stores open."""
_LAST_TRIES_S = 10.0
"""Time for which an ending process still tries to reach a store."""


def embedded_broker_row(broker_id: int, rack: str | None) -> dict[str, object]:
    """Return the row of a new embedded broker."""
    lease = {"served": False, "holder": None, "epoch": 0, "lease_until_ms": None, "lease_clock_epoch": None}
    return {"broker_id": broker_id, "rack": rack, **lease}


class StoreUser(Protocol):
    """An object that keeps resources of data stores open."""

    def close_at(self, store_id: StoreId) -> None:
        """Close the resources of a store that was removed from the cluster."""
        ...


class Cluster:
    """An open cluster.

    >>> cluster = Cluster.init("/data/log")                                  # doctest: +SKIP
    >>> cluster = Cluster.open("/data/log")                                  # doctest: +SKIP
    >>> cluster = Cluster.init("/data/log", if_not_exists=True)              # doctest: +SKIP
    >>> cluster = Cluster.init("postgresql+psycopg://me@db/log", log_dir="s3://bucket/log")   # doctest: +SKIP
    """

    def __init__(
        self, store: Store, *, store_id: StoreId = HOME, home: "Cluster | None" = None, upgrades: bool = True
    ) -> None:
        """Without `upgrades`, data stores of an earlier release are not opened (`at`)."""
        self.store, self.store_id = store, store_id
        self._upgrades = upgrades
        self.home = home or self
        """The cluster as the home store sees it."""
        self._checked: dict[LogDirInfo, LogDir] = {}
        self._at: dict[StoreId, Cluster] = {}
        self.failures: dict[StoreId, tuple[float, SparkLogError]] = {}
        """The data stores that did not answer `each_store`, with the time until which they are not asked again."""
        self._opening: defaultdict[StoreId, threading.Lock] = defaultdict(threading.Lock)
        self._users: set[weakref.ref[StoreUser]] = set()
        self._closed = Stop()
        self._follower: threading.Thread | None = None
        forget_parent_in_child(self)

    @classmethod
    def init(cls, address: str, *, log_dir: str | None = None, if_not_exists: bool = False) -> "Cluster":
        """Create a cluster with broker 1. `log_dir` defaults to `<folder>/broker-1`, and is needed with a database.

        With `if_not_exists`, an existing cluster is opened and not changed; without it, ClusterAlreadyExistsError is
        raised. Raises InvalidConfigurationError (also if the log dir is not empty), LogDirMismatchError if the log dir
        belongs to another cluster, and StorageUnavailableError if it cannot be written.
        """
        parsed = Address.parse(address)
        if log_dir is None:
            if parsed.folder is None:
                raise InvalidConfigurationError(
                    "log_dir: a cluster with its metadata in a database needs a folder or URI for its segments"
                    " that every worker can reach"
                )
            uri = f"broker-{FIRST_BROKER}"  # relative: the cluster's folder may be moved or mounted elsewhere
        else:
            uri = normalise_uri(log_dir)
        refuse_percent_sign(_absolute(uri, parsed))
        if parsed.folder is not None:
            make_root(parsed.folder)
        directory = LogDir(_absolute(uri, parsed))
        cluster_id, log_dir_uuid = str(uuid.uuid4()), str(uuid.uuid4())

        def fill(connection: sa.Connection) -> None:
            if not directory.empty():
                raise InvalidConfigurationError(f"log dir: {redact(uri)} is not empty")
            # the default log dir belongs to this store: if it has a marker, an interrupted init wrote it
            marker = directory.read_marker() if log_dir is not None else None
            if marker is not None:
                raise LogDirMismatchError(
                    f"log dir: {redact(uri)} belongs to cluster {marker.cluster_id}; if an interrupted init left it,"
                    f" remove its {MARKER} first"
                )
            # The marker is written before the commit, so that an existing cluster always has its log dir. A marker
            # without a cluster is harmless.
            directory.write_marker(Marker(cluster_id, FIRST_BROKER, log_dir_uuid, counter=0))
            connection.execute(tables.broker.insert(), embedded_broker_row(FIRST_BROKER, rack=None))
            connection.execute(
                tables.log_dir.insert(),
                {"broker_id": FIRST_BROKER, "uri": uri, "uuid": log_dir_uuid, "counter": 0, "online": True},
            )

        try:
            return cls(create_store(parsed, cluster_id, fill))
        except ClusterAlreadyExistsError:
            if not if_not_exists:
                raise
            return cls.open(address)

    @classmethod
    def open(cls, address: str, *, read_timeout_ms: int = READ_TIMEOUT_MS) -> "Cluster":
        """Open a cluster. Raises ClusterNotFoundError, UnsupportedVersionError, UnsupportedStoreError.

        `read_timeout_ms` is how long this and reads are repeated while a store is unavailable.
        """
        cluster = cls(open_store(Address.parse(address), timeout_ms=read_timeout_ms))
        cluster.store.read_timeout_ms = read_timeout_ms
        return cluster

    def __repr__(self) -> str:
        return f"Cluster({str(self.store.address)!r})"

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed.set()
        self.store.close()
        for each in list(self._at.values()):
            each.store.close()

    def give_up_soon(self) -> None:
        """Let the process end although a store is away: after 10 s no call is repeated, not even one that runs."""
        for each in (self, *self._at.values()):
            each.store.give_up_within(_LAST_TRIES_S)

    def at(self, store_id: StoreId, *, timeout_ms: int | None = None) -> "Cluster":
        """Return the cluster as this store sees it. A data store is opened at the first call, and closed with home.
        A data store of an earlier release is upgraded then, as by `open`.

        Raises TopicMovedError if the store was removed, WrongDatabaseError if the database is not that store, and the
        errors of `open`.
        """
        home = self.home
        if store_id == HOME:
            return home
        opened = home._at.get(store_id)
        if opened is not None and home._follower is not None:  # a forked child has the stores, but not the thread
            return opened
        with home._opening[store_id]:  # one that does not answer delays only its own users
            if store_id not in home._at:
                info = home.store.read(lambda connection: find_store_of_id(connection, store_id))
                store = open_store(
                    Address.parse(info.address_to_open()),
                    store_id=store_id,
                    cluster_id=home.cluster_id,
                    timeout_ms=home.store.read_timeout_ms if timeout_ms is None else timeout_ms,
                    upgrade=home._upgrades,
                )
                store.read_timeout_ms = home.store.read_timeout_ms
                with home._opening[HOME]:
                    home.store.include(store)
                home._at[store_id] = Cluster(store, store_id=store_id, home=home)
            home._start_follower()
            return home._at[store_id]

    def tell_of_removals(self, user: StoreUser) -> None:
        """Call `close_at` of the user after the removal of a data store, for as long as the user exists."""
        users = self.home._users
        users.add(weakref.ref(user, users.discard))

    def forget_parent(self) -> None:
        self._opening.clear()
        self._follower = None

    def _start_follower(self) -> None:
        with self._opening[HOME]:
            if self._follower is None:
                follow = partial(_follow_removals, weakref.ref(self), self._closed)
                self._follower = start_thread(follow, "spark-log removed stores")

    def _close_removed(self, removed: frozenset[StoreId]) -> frozenset[StoreId]:
        """Close those of these data stores that are still removed. Return the open ones to close in the next round."""
        try:
            present = {each.store_id for each in self.store.read(find_stores)}
        except SparkLogError:  # the home store does not answer
            return removed
        for store_id in removed & self._at.keys() - present:
            data = self._at.pop(store_id)
            users = [user for reference in list(self._users) if (user := reference()) is not None]
            closes = [partial(user.close_at, store_id) for user in users]
            for close in (*closes, partial(self._close_store, data.store)):
                try:
                    close()
                except Exception as error:
                    logger.warning("store %s was removed, and not closed in order: %s", store_id, redact(str(error)))
        return frozenset(self._at.keys() - present)

    def _close_store(self, store: Store) -> None:
        with self._opening[HOME]:
            self.store.exclude(store)
        store.close()

    def of(self, topic: "Topic") -> "Cluster":
        """Return the cluster as the store of the topic sees it."""
        return self if topic.store_id == self.store_id else self.at(topic.store_id)

    def store_ids(self) -> list[StoreId]:
        """Return the stores of the cluster, home first, without those that are being added."""
        # a cluster in a folder has one store
        stores = [] if self.home.store.sqlite else self.home.store.read(find_stores)
        return [HOME, *(each.store_id for each in stores if each.state != ADDING)]

    @cached_property
    def cluster_id(self) -> str:
        return str(self.store.read(lambda c: c.execute(sa.select(CLUSTER.cluster_id)).scalar_one()))

    def log_dirs(self, *, timeout_ms: int | None = None) -> dict[LogDirId, LogDirInfo]:
        """Return every log dir of the cluster, by id."""
        t = tables.log_dir
        query = sa.select(t.c.log_dir_id, t.c.broker_id, t.c.uri, t.c.uuid).order_by(t.c.log_dir_id)
        rows = self.store.read(lambda c: c.execute(query).all(), timeout_ms=timeout_ms)
        return {
            LogDirId(i): LogDirInfo(i, broker, self.absolute(uri), uuid_, self.store_id)
            for i, broker, uri, uuid_ in rows
        }

    def absolute(self, uri: str) -> str:
        """Return the URI that pyarrow.fs accepts for a value of column log_dir.uri."""
        return _absolute(uri, self.store.address)

    def log_dir(self, info: LogDirInfo) -> LogDir:
        """Open the log dir; later calls return the same object.

        Raises LogDirMismatchError unless it has the id that the metadata expects, and StorageUnavailableError.
        """
        if info not in self._checked:  # the key has the uuid: a log dir that came back empty has a new one
            self._checked[info] = open_log_dir(info)
        return self._checked[info]

    def opened_log_dir(self, info: LogDirInfo) -> LogDir | None:
        """Return what `log_dir` has opened, or None."""
        return self._checked.get(info)

    def add_log_dir(self, broker_id: BrokerId, location: str) -> LogDirId:
        """Add an empty log dir to a broker, and return its id. It may have the marker that an addition to the same
        broker has left.

        Raises InvalidConfigurationError if there is no such broker, or if the location equals, contains or is inside
        another log dir (symbolic links are resolved), LogDirMismatchError if it is not empty,
        MetadataConflictError if another call adds it at the same time, and StorageUnavailableError.
        """
        uri = normalise_uri(location)
        refuse_percent_sign(uri)
        known = sa.select(BROKER.broker_id).where(BROKER.broker_id == broker_id)
        if self.store.read(lambda c: c.execute(known).first()) is None:
            raise InvalidConfigurationError(f"broker_id: there is no broker {broker_id!r} in this cluster")
        infos = self.log_dirs().values()
        refuse_overlap(uri, [info.uri for info in infos])
        directory = LogDir(uri)
        left = directory.read_marker()
        if left is not None and (
            left != Marker(self.cluster_id, broker_id, left.uuid, counter=0)
            or left.uuid in {info.uuid for info in infos}
        ):
            raise LogDirMismatchError(f"log dir: {redact(uri)} belongs to a cluster already")
        if not directory.empty():
            raise LogDirMismatchError(f"log dir: {redact(uri)} is not empty")
        marker = left or Marker(self.cluster_id, broker_id, str(uuid.uuid4()), counter=0)

        def add(connection: sa.Connection) -> LogDirId:
            values = {"broker_id": broker_id, "uri": uri, "uuid": marker.uuid, "counter": 0, "online": True}
            inserted = connection.execute(tables.log_dir.insert().returning(LOG_DIR.log_dir_id), values).scalar_one()
            # only after the row, which is unique: two calls at once must not both write a marker
            directory.write_marker(marker)
            return LogDirId(inserted)

        return self.store.transact(add)


def cluster_of(argument: str | Cluster) -> AbstractContextManager[Cluster]:
    """Return a context with the given open cluster, or with the one at this address, which is closed at the end."""
    return Cluster.open(argument) if isinstance(argument, str) else nullcontext(argument)


def _follow_removals(reference: "weakref.ref[Cluster]", closed: Stop) -> None:
    """Close the data stores that were removed from the cluster, one round after the removal was noticed: by then, other
    threads that follow the list of stores have ended their work. Ends with the cluster.
    """
    removed: frozenset[StoreId] = frozenset()
    while not closed.wait(_FOLLOW_S):
        cluster = reference()
        if cluster is None:
            return
        removed = cluster._close_removed(removed)
        del cluster


def _absolute(uri: str, address: Address) -> str:
    return uri if "://" in uri or address.folder is None else local_uri(address.folder / uri)
