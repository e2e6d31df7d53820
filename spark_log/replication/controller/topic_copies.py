"""Makes the data stores follow the home store: the rows of their topics, brokers and log dirs.

The home store decides which topics exist, and has their names, configs and typed columns. The data store of a topic has
a copy of them, and decides about its partitions and replicas. `follow` brings both up to date, in any order of events:

    home            data store      step
    creating        no row          the data store inserts the topic with its partitions
    creating        a row           home makes the topic live
    live            a row           configs and typed columns are copied to the data store, and the numbers of
                                    partitions and replicas to home
    deleting        a row           the data store deletes the topic
    deleting        no row          home deletes its row
    no row          a row           the data store deletes the topic; ids are never used again

The caller that changes a topic does the steps at once. A coordinator repeats them for all topics, for processes that
were killed and for stores that did not answer.
"""

import logging

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.stores import copy_brokers
from spark_log.cluster.topics import (
    CREATING,
    DELETING,
    Topic,
    delete_topic_row,
    delete_topic_rows,
    insert_copy,
    set_deleting,
    set_live,
    set_overrides,
    set_partition_count,
    set_replication_factor,
    topics_of_store,
    topics_with_name,
)
from spark_log.errors import SparkLogError, redact
from spark_log.failpoints import failpoint
from spark_log.ids import HOME, StoreId, TopicId
from spark_log.log.partitions.partition_rows import insert_partitions
from spark_log.metadata.connections.server_identity import check_identity
from spark_log.metadata.sql_columns import PARTITION
from spark_log.metadata.store import Attempt
from spark_log.replication.controller.placement import place_replicas
from spark_log.replication.controller.replica_loads import read_loads

logger = logging.getLogger(__name__)


def follow(cluster: Cluster, store_id: StoreId, topic_id: int | None = None) -> None:
    """Bring a data store and home up to date, for one topic or for all topics of the store.

    Raises the errors of both stores, InvalidReplicationFactorError if a new topic cannot be placed.
    """
    if store_id == HOME:
        return
    home, data = cluster.home, cluster.at(store_id)
    # the data store first: a topic that is not at home when home is read later was deleted, and not just created
    copies = data.store.read(lambda connection: topics_of_store(connection, store_id, topic_id))
    stated = home.store.read(lambda connection: topics_of_store(connection, store_id, topic_id))
    if unknown := copies.keys() - stated.keys():
        for each in unknown - _stated_now(home, store_id):
            _delete_copy(data, each)
    for each, (topic, state) in stated.items():
        copy = copies.get(each)
        if state == DELETING:
            if copy is not None:
                _delete_copy(data, each)
            failpoint("topic.copy-deleted")
            home.store.transact(lambda c, _, i=each: delete_topic_row(c, i, DELETING))  # type: ignore[misc]
            continue
        if copy is None:
            _create(data, topic)
            failpoint("topic.copied")
        elif copy.topic != topic:
            _copy(home, data, topic, copy.topic)
        if state == CREATING:
            home.store.transact(lambda c, _, i=each: set_live(c, i), announce=True)  # type: ignore[misc]


def _stated_now(home: Cluster, store_id: StoreId) -> set[TopicId]:
    """Return the ids of the topics of a data store that home has. Topics are deleted for what it lacks, so it must be
    the recorded store, and the primary: `store accept` of a restored home store adopts their topics.
    """

    def read(connection: sa.Connection) -> set[TopicId]:
        check_identity(connection)
        return set(topics_of_store(connection, store_id))

    return home.store.read_as_primary(read)


def follow_all(cluster: Cluster) -> None:
    """Bring all data stores up to date. One that does not answer is logged, and does not stop the others."""
    home = cluster.home
    for store_id in home.store_ids()[1:]:
        try:
            copy_brokers(home, home.at(store_id))
            follow(home, store_id)
        except SparkLogError as error:
            logger.warning("store %s does not follow the home store: %s", store_id, redact(str(error)))


def _create(data: Cluster, topic: Topic) -> None:
    def create(connection: sa.Connection, _attempt: Attempt) -> None:
        if topics_of_store(connection, data.store_id, topic.topic_id):
            return  # another process was first
        for deleted in topics_with_name(connection, topic.name):  # home has freed the name; `follow` deletes the rows
            set_deleting(connection, deleted)
        loads = read_loads(connection, data.store.clock(connection))
        placement = place_replicas(loads, topic.partition_count, topic.replication_factor)
        insert_copy(connection, topic)
        insert_partitions(connection, topic.topic_id, 0, placement)

    data.store.transact(create, announce=True)


def _copy(home: Cluster, data: Cluster, topic: Topic, copy: Topic) -> None:
    if (topic.overrides, topic.typed_columns) != (copy.overrides, copy.typed_columns):
        data.store.transact(lambda c, _: set_overrides(c, topic.topic_id, topic.overrides, topic.typed_columns))

    def take_numbers(connection: sa.Connection, _attempt: Attempt) -> None:
        set_partition_count(connection, topic.topic_id, copy.partition_count)
        set_replication_factor(connection, topic.topic_id, copy.replication_factor)

    if (topic.partition_count, topic.replication_factor) != (copy.partition_count, copy.replication_factor):
        home.store.transact(take_numbers, announce=True)


def _delete_copy(data: Cluster, topic_id: int) -> None:
    def delete(connection: sa.Connection, _attempt: Attempt) -> None:
        # appends hold their partition's row: wait for them, or their segment rows would outlive the topic
        rows = sa.select(PARTITION.partition).where(PARTITION.topic_id == topic_id).order_by(PARTITION.partition)
        connection.execute(rows.with_for_update()).all()
        delete_topic_rows(connection, topic_id)

    data.store.transact(delete, announce=True, unlimited=True)
