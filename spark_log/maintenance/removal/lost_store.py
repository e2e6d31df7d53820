"""Removes a data store that is lost for good, with all that home knows of it."""

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.store_directory import find_store, lock_store
from spark_log.cluster.stores import refuse_use, remove_store, set_draining
from spark_log.cluster.topics import (
    LIVE,
    Topic,
    delete_topic_rows,
    find_topics,
    moving_topics,
    set_store,
    stated_topic,
    topics_of_store,
)
from spark_log.errors import (
    ClusterNotFoundError,
    InvalidConfigurationError,
    MetadataStoreUnavailableError,
    SparkLogError,
    WrongDatabaseError,
)
from spark_log.failpoints import failpoint
from spark_log.ids import StoreId
from spark_log.log.partitions.retired_files import retire_folder
from spark_log.metadata.connections.server_identity import problem_of
from spark_log.metadata.sql_columns import TRANSACTION
from spark_log.metadata.store import READ_TIMEOUT_MS
from spark_log.replication.controller.topic_copies import follow
from spark_log.transactions.rules import COMMITTED
from spark_log.transactions.transaction_parts import find_unfollowed, finish

_OPEN = TRANSACTION.state != COMMITTED.value
"""Condition of the transactions that have not ended: `_finish_commits` ends the committed ones."""


def remove_lost_store(cluster: Cluster, name: str) -> list[str]:
    """Remove a data store that does not answer and never will, and return the names of its topics, which are deleted.

    Their files stay for 7 days, the default of file.delete.delay.ms. Committed transactions count as done there, and
    moves to the store are cancelled. The same call continues an interrupted one. Raises the errors of `check_lost` and
    `remove_store`.
    """
    home = cluster.home
    store_id = home.store.read(lambda connection: find_store(connection, name)).store_id
    check_lost(home, name)
    home.store.read(lambda connection: refuse_use(connection, find_store(connection, name), _OPEN))
    set_draining(home, name)  # it gets no topics meanwhile
    _finish_commits(home, store_id)
    deleted, moving = home.store.transact(lambda c: _forget_topics(c, home, name), announce=True)
    failpoint("store.topics-forgotten")
    for topic in moving:
        follow(home, topic.store_id, topic.topic_id)
    remove_store(home, name)
    return deleted


def check_lost(cluster: Cluster, name: str) -> SparkLogError:
    """Return the error of a data store that may be lost: nothing answers for READ_TIMEOUT_MS, or its database is
    missing, empty or of another store. Raises InvalidConfigurationError if the store answers, and every other error.
    """
    home = cluster.home
    store_id = home.store.read(lambda connection: find_store(connection, name)).store_id
    try:
        home.at(store_id, timeout_ms=READ_TIMEOUT_MS).store.read(problem_of, timeout_ms=READ_TIMEOUT_MS)
    except (MetadataStoreUnavailableError, ClusterNotFoundError, WrongDatabaseError) as error:
        return error
    raise InvalidConfigurationError(f"store {name!r}: it answers: move its topics away (`spark-log store drain`)")


def _finish_commits(home: Cluster, store_id: StoreId) -> None:
    """Mark commits as finished whose part this store has not appended: their records there are lost."""
    committed = home.store.read(lambda connection: find_unfollowed(home.store, connection, store_id))
    for producer_id, transaction in committed.items():
        if transaction is not None:
            finish(home.store, producer_id, transaction.parts.number, store_id)


def _forget_topics(connection: sa.Connection, home: Cluster, name: str) -> tuple[list[str], list[Topic]]:
    """Delete the topics of the store, and cancel the moves to it. Returns the names of the live topics that it deletes,
    and the topics whose move it cancels.
    """
    info = lock_store(connection, name)
    refuse_use(connection, info)
    store_id = info.store_id
    names = {stated.topic.name for stated in topics_of_store(connection, store_id).values()}
    names |= {topic.name for topic, _ in moving_topics(connection)}
    find_topics(connection, names, lock=True)
    topics = topics_of_store(connection, store_id)
    live = [stated.topic for stated in topics.values() if stated.state == LIVE]
    for topic in live:  # the folders of those that are being deleted are retired already
        retire_folder(connection, topic, home.store.clock(connection))
    for topic_id in topics:
        delete_topic_rows(connection, topic_id)
    moving = [topic for topic, move in moving_topics(connection) if move.to == store_id]
    for topic in moving:
        stated = stated_topic(connection, topic.topic_id)
        if stated is not None:
            set_store(connection, topic.topic_id, topic.store_id, stated.move_epoch + 1)  # the move is cancelled
    return sorted(topic.name for topic in live), moving
