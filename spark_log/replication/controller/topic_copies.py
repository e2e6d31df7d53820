"""Lets the data stores follow the home store: updates the rows of their topics, brokers and log dirs.

The home store (home) decides which topics exist, and has their names, configs and typed columns. A topic's data store
has a copy of these, and decides about partitions and replicas. `follow` brings both up to date, in any order of events:

    home            data store      step
    creating        no row          the data store inserts the topic with its partitions; if it has too few brokers,
                                    home deletes the topic
    creating        a row           home makes the topic live
    live            a row           configs and typed columns are copied to the data store, and the numbers of
                                    partitions and replicas to home; frozen partitions thaw, unless it is being moved
    live            creating        the topic has been moved here: the data store makes it live
    deleting        a row           the data store deletes the topic
    deleting        no row          home deletes its row
    in another      a row           the data store deletes the rows, unless the topic is being moved here, or the other
    store                           store does not have it live yet
    no row          a row           home, which was restored, has lost the topic: nothing is deleted (`check_decided`)

The process that changes a topic does the steps at once. A coordinator repeats the steps for all topics, because
processes may be killed and stores may not answer.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.stores import copy_brokers
from spark_log.cluster.topics import (
    CREATING,
    DELETING,
    LIVE,
    StatedTopic,
    Topic,
    delete_topic_row,
    delete_topic_rows,
    insert_copy,
    set_configs,
    set_deleting,
    set_live,
    set_partition_count,
    set_replication_factor,
    stated_topic,
    topics_left,
    topics_of_store,
    topics_with_name,
)
from spark_log.errors import InvalidReplicationFactorError, StoreChangedError, redact
from spark_log.errors.first_failure import FirstFailure
from spark_log.failpoints import failpoint
from spark_log.ids import HOME, StoreId
from spark_log.log.partitions.partition_rows import (
    frozen_topics,
    insert_partitions,
    lock_all_partitions,
    thaw_partitions,
)
from spark_log.metadata.cascade import delete_moved_rows
from spark_log.metadata.connections.server_identity import check_identity
from spark_log.replication.controller.placement import place_replicas
from spark_log.replication.controller.replica_loads import read_loads

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOCK_COPY = sa.text("SELECT pg_advisory_xact_lock(hashtextextended('topic ' || :topic_id, 0))")


def change_copy(
    view: Cluster,
    topic_id: int,
    change: Callable[[sa.Connection, StatedTopic | None], T],
    *,
    unlimited: bool = False,
) -> T:
    """Call `change` in a transaction of this store, under the lock for changes of the topic's copy. Return the result.
    The second parameter of `change` is the present topic in the primary of the home store.
    """
    home = view.home

    def stated(connection: sa.Connection) -> tuple[StatedTopic | None]:
        check_identity(connection)
        return (stated_topic(connection, topic_id),)

    def run(connection: sa.Connection) -> T:
        connection.execute(_LOCK_COPY, {"topic_id": str(topic_id)})
        return change(connection, home.store.read_as_primary(stated)[0])

    return view.store.transact(run, announce=True, unlimited=unlimited)


def follow(cluster: Cluster, store_id: StoreId, topic_id: int | None = None) -> None:
    """Bring a data store and the home store up to date, for one topic or for all topics of the data store. For the home
    store itself, remove the rows that moves have left there.

    Raises the errors of both stores, and InvalidReplicationFactorError if a new topic cannot be placed. A failing topic
    does not stop the others: the first error is raised at the end.
    """
    home, data = cluster.home, cluster.at(store_id)
    if home.store.sqlite:
        return
    with FirstFailure() as failure:
        _thaw(data, topic_id, failure)
        if store_id == HOME:
            for left_id in home.store.read(topics_left):
                if topic_id in (None, left_id):
                    with failure.attempt():
                        _delete_copy(home, left_id)
            return
        # read before the home store: a copy without a topic there was then deleted, not just created
        copies = data.store.read(lambda connection: topics_of_store(connection, store_id, topic_id))
        stated = home.store.read(lambda connection: topics_of_store(connection, store_id, topic_id))
        for left_id in copies.keys() - stated.keys():
            with failure.attempt():
                _delete_copy(data, left_id)
        for stated_id, one in stated.items():
            with failure.attempt():
                _follow_topic(home, data, one, copies.get(stated_id))


def _follow_topic(home: Cluster, data: Cluster, stated: StatedTopic, copy: StatedTopic | None) -> None:
    """Do the next step for a topic that the home store assigns to the data store."""
    topic, state = stated.topic, stated.state
    topic_id, store_id = topic.topic_id, data.store_id
    if state == DELETING:
        _finish_deletion(home, stated)
        return
    if copy is not None:
        _check_same(topic, copy.topic)
    if copy is None and state == CREATING:
        try:
            _create(data, topic)
        except InvalidReplicationFactorError as error:
            logger.warning("topic %s cannot be created in store %s: %s", topic.name, store_id, redact(str(error)))
            home.store.transact(lambda c: set_deleting(c, topic_id, CREATING))
            _finish_deletion(home, stated)
            raise
        failpoint("topic.copied")
    elif copy is None:  # for example after a restore of the data store: the topic's files are kept
        logger.error("store %s has lost topic %s", store_id, topic.name)
        return
    elif copy.state == CREATING:
        change_copy(data, topic_id, lambda c, stated: _make_live(c, topic_id, stated, store_id))
    elif copy.topic != topic:
        _copy(home, data, topic, copy.topic)
    if state == CREATING:
        home.store.transact(lambda c: set_live(c, topic_id), announce=True)


def _finish_deletion(home: Cluster, stated: StatedTopic) -> None:
    """Delete the copies of a topic that is being deleted, and then its row in the home store."""
    topic_id = stated.topic.topic_id
    for store_id in sorted(stated.stores - {HOME}):
        _delete_copy(home.at(store_id), topic_id)
    failpoint("topic.copy-deleted")
    home.store.transact(lambda c: delete_topic_row(c, topic_id))


def _make_live(connection: sa.Connection, topic_id: int, stated: StatedTopic | None, store_id: StoreId) -> None:
    if stated is not None and stated.state == LIVE and stated.topic.store_id == store_id:
        set_live(connection, topic_id)
        if stated.move is None:
            thaw_partitions(connection, topic_id, fence_writers=True)


def _thaw(view: Cluster, topic_id: int | None, failure: FirstFailure) -> None:
    """Thaw the partitions of this store that are still frozen for a cancelled move."""

    def thaw(connection: sa.Connection, stated: StatedTopic | None) -> None:
        if stated is not None and stated.topic.store_id == view.store_id and stated.move is None:
            copy = stated_topic(connection, stated.topic.topic_id)
            if copy is not None and copy.state == LIVE:
                thaw_partitions(connection, stated.topic.topic_id)

    for each in view.store.read(frozen_topics):
        if topic_id in (None, each):
            with failure.attempt():
                change_copy(view, each, thaw)


def follow_all(cluster: Cluster) -> None:
    """Bring all data stores up to date. Log an error of a store, which does not stop the others."""
    home = cluster.home
    stores = home.store_ids()
    if stores == [HOME]:
        return
    for store_id in stores:
        try:
            if store_id != HOME:
                copy_brokers(home, home.at(store_id))
            follow(home, store_id)
        except Exception as error:  # any error: the other stores go on
            logger.warning("store %s does not follow the home store: %s", store_id, redact(str(error)))


def _create(data: Cluster, topic: Topic) -> None:
    def create(connection: sa.Connection, stated: StatedTopic | None) -> None:
        if stated is None or stated.state != CREATING or stated.topic.store_id != data.store_id:
            return
        if (copy := stated_topic(connection, topic.topic_id)) is not None:
            _check_same(topic, copy.topic)
            return  # another process was faster
        free_name(data, connection, topic.name)
        loads = read_loads(connection, data.store.clock(connection))
        placement = place_replicas(loads, topic.partition_count, topic.replication_factor)
        insert_copy(connection, topic, stated.move_epoch)
        insert_partitions(connection, topic.topic_id, 0, placement)

    change_copy(data, topic.topic_id, create)


def _copy(home: Cluster, data: Cluster, topic: Topic, copy: Topic) -> None:
    if (topic.configs, topic.typed_columns) != (copy.configs, copy.typed_columns):
        data.store.transact(lambda c: set_configs(c, topic.topic_id, topic.configs, topic.typed_columns))

    def take_numbers(connection: sa.Connection) -> None:
        set_partition_count(connection, topic.topic_id, copy.partition_count)
        set_replication_factor(connection, topic.topic_id, copy.replication_factor)

    if (topic.partition_count, topic.replication_factor) != (copy.partition_count, copy.replication_factor):
        home.store.transact(take_numbers, announce=True)


def free_name(view: Cluster, connection: sa.Connection, name: str) -> None:
    """Mark other copies with this name in the data store as deleted. The home store has freed the name before."""
    for topic_id in topics_with_name(connection, name):
        stated = view.home.store.read_as_primary(lambda c, i=topic_id: (stated_topic(c, i),))[0]  # type: ignore[misc]
        check_decided(view, stated, stated_topic(connection, topic_id))
        set_deleting(connection, topic_id)


def _delete_copy(view: Cluster, topic_id: int) -> None:
    """Delete the rows of a topic that the home store has deleted, or assigned to another store where it is live."""

    def delete(connection: sa.Connection, stated: StatedTopic | None) -> None:
        copy = stated_topic(connection, topic_id)
        if copy is None:
            return
        exists = stated is not None and stated.state != DELETING
        if stated is not None and exists and view.store_id in stated.stores:
            return
        if stated is not None and not exists and stated.topic.uuid != copy.topic.uuid:
            return  # the home store was restored, and gave the id of this lost topic to the deleted one
        check_decided(view, stated, copy)
        if stated is not None and exists and not _is_live_there(view, stated):
            return
        # appends lock their partition's row: wait for them, or their segment rows would outlive the topic
        lock_all_partitions(connection, topic_id)
        if exists:
            delete_moved_rows(connection, topic_id)
        if view.store_id != HOME:
            delete_topic_rows(connection, topic_id)

    change_copy(view, topic_id, delete, unlimited=True)  # a million rows may take a minute


def _is_live_there(view: Cluster, stated: StatedTopic) -> bool:
    """Whether the topic is live in the store that the home store names. Until then, no other copy is deleted."""
    topic = stated.topic
    if topic.store_id == HOME:
        return True
    owner = view.home.at(topic.store_id).store
    copy = owner.read_as_primary(lambda connection: (stated_topic(connection, topic.topic_id),))[0]
    return copy is not None and copy.state == LIVE


def check_decided(view: Cluster, stated: StatedTopic | None, copy: StatedTopic | None) -> None:
    """Raise StoreChangedError unless the home store has decided that this data store must delete its copy of a topic.

    The home store keeps the row of a topic until no data store has a copy, and counts its moves, even cancelled ones.
    So if it has no row, or has counted fewer moves than the copy, it is older than the store that decided about the
    copy. `store accept` adopts the newest copy of each topic, and counts one more move: so the others are deleted.
    """
    if copy is None or view.store_id == HOME or copy.state == DELETING:
        return
    if stated is not None and stated.topic.uuid == copy.topic.uuid:
        was_live = copy.state == LIVE
        if stated.state == DELETING or copy.move_epoch < stated.move_epoch + (not was_live):
            return
    raise _unknown(copy.topic)


def _check_same(topic: Topic, copy: Topic) -> None:
    """Raise StoreChangedError if the home store was restored, and gave the id of a lost topic to another one."""
    if topic.uuid != copy.uuid:
        raise _unknown(copy)


def _unknown(copy: Topic) -> StoreChangedError:
    return StoreChangedError(
        f"topic {copy.name!r}: a data store has it, and the home store does not know that: one of them was restored"
        " from an older copy. Nothing of the topic is deleted. See `spark-log store status`, then run `spark-log store"
        " accept`, which keeps the topic; or, if only the data store was restored, `spark-log store accept --store"
        " NAME`, which deletes it if home has deleted it"
    )
