"""Moves topics between the stores of a cluster. Segment files never move.

    step      store     effect, until the next step
    begin     home      records the move
    freeze    source    the partitions stay unchanged: appends and other changes are refused, and producers repeat them;
                        reads go on
    copy      target    gets all rows; the copy is not live, and its partitions are frozen
    decide    home      assigns the topic to the target; until then the move can be cancelled
    live      target    the partitions thaw; clients look the topic up again, and find it there
    remove    source    deletes the rows

Several processes may do the same steps at once, and another process, such as a coordinator, may continue them
(`continue_moves`). Each change of a store for a move uses `change_copy`: it holds the lock of the topic in this store,
and reads the present state of the move from the primary of the home store. Home decides by one statement, which needs
the recorded move. So it decides for a complete copy of partitions that have not changed since: their rows are read from
the primary of the source (`Store.snapshot_as_primary`). If home is the target, it copies and decides in one
transaction.
"""

import logging
import uuid
from collections.abc import Iterator
from dataclasses import replace

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import validate_user_topic
from spark_log.cluster.store_directory import lock_active_store
from spark_log.cluster.stores import copy_brokers, set_draining
from spark_log.cluster.topics import (
    IS_LIVE,
    LIVE,
    StatedTopic,
    Topic,
    TopicMove,
    delete_topic_rows,
    end_move,
    find_topic,
    insert_copy,
    moving_topics,
    set_move,
    set_partition_count,
    set_replication_factor,
    set_store,
    stated_topic,
    topics_of_store,
)
from spark_log.errors import IllegalStateError, InvalidConfigurationError, SparkLogError, redact
from spark_log.failpoints import failpoint
from spark_log.ids import HOME, HOME_NAME
from spark_log.log.append.producer_rows import copy_producers_of_topic
from spark_log.log.partitions.partition_rows import (
    are_frozen,
    freeze_partitions,
    lock_all_partitions,
    thaw_partitions,
)
from spark_log.metadata.cascade import copy_rows_of_topic, delete_moved_rows
from spark_log.metadata.sql_columns import SHARE_PARTITION, TOPIC
from spark_log.replication.controller.topic_copies import change_copy, check_decided, follow, free_name
from spark_log.transactions.part_rows import has_pending

logger = logging.getLogger(__name__)

PATIENCE_MS = 10_000
"""The time that a move waits for open transactions in the topic. After it, their commits fail, and their clients abort
and repeat them. The move waits for prepared transactions until they have ended.
"""
_PAUSE_S = 0.2


def move_topic(cluster: Cluster, name: str, store: str) -> None:
    """Move a topic to the store with this name. Return when it is there.

    The same call continues an interrupted move. Appends wait while the rows are copied. Raises the errors of
    `begin_move` and of the stores, and IllegalStateError if the move is cancelled meanwhile.
    """
    move = begin_move(cluster, name, store)
    if move is not None:
        continue_move(cluster, *move)


def begin_move(cluster: Cluster, name: str, store: str) -> tuple[Topic, TopicMove] | None:
    """Record the move of a topic. Return the topic and the move, or None if the topic is already in that store.

    Raises UnknownTopicOrPartitionError, StoreNotFoundError, PolicyViolationError for an internal topic, and
    InvalidConfigurationError for a topic that is being moved to another store, a store that takes no topics, and a
    topic that share groups read or write dead letters to.
    """
    validate_user_topic(name, "move")
    home = cluster.home

    def begin(connection: sa.Connection) -> tuple[Topic, TopicMove] | None:
        to = HOME if store == HOME_NAME else lock_active_store(connection, store).store_id
        topic = find_topic(connection, name, lock=True)
        stated = stated_topic(connection, topic.topic_id)
        if stated is not None and stated.move is not None:
            if stated.move.to != to:
                raise InvalidConfigurationError(
                    f"topic {name!r}: it is being moved to another store; `spark-log topic move --cancel` ends that"
                )
            return topic, stated.move
        if topic.store_id == to:
            return None
        groups = sa.select(SHARE_PARTITION.group_id).where(SHARE_PARTITION.topic_id == topic.topic_id).limit(1)
        if to != HOME and (group := connection.execute(groups).scalar()) is not None:
            raise InvalidConfigurationError(
                f"topic {name!r}: share group {group!r} reads it, and share groups read topics of the home store:"
                " delete the group's offsets of it first"
            )
        if topic.store_id == HOME and topic.config.errors_deadletterqueue_group_enable:
            raise InvalidConfigurationError(
                f"topic {name!r}: it may get dead letters of share groups, which write to topics of the home store"
                " only: set errors.deadletterqueue.group.enable=false first"
            )
        move = TopicMove(uuid.uuid4().hex, to, home.store.clock(connection).wall_ms)
        set_move(connection, topic.topic_id, move)
        return topic, move

    begun = home.store.transact(begin)
    failpoint("move.begun")
    return begun


def cancel_move(cluster: Cluster, name: str) -> bool:
    """Cancel the move of a topic. Return False if it is not being moved, or is already in the other store."""
    home = cluster.home

    def cancel(connection: sa.Connection) -> StatedTopic | None:
        topic = find_topic(connection, name, lock=True)
        stated = stated_topic(connection, topic.topic_id)
        if stated is not None and stated.move is not None:  # counted as a move, so that the copy is deleted
            set_store(connection, topic.topic_id, topic.store_id, stated.move_epoch + 1)
        return stated

    stated = home.store.transact(cancel)
    if stated is None or stated.move is None:
        return False
    for store_id in (stated.topic.store_id, stated.move.to):
        follow(home, store_id, stated.topic.topic_id)
    return True


def drain_store(cluster: Cluster, name: str, to: str) -> Iterator[tuple[str, int]]:
    """Let a store take no new topics, and move its topics to the store `to`. Yield the name of each moved topic, and
    the number of topics left. Raises StoreNotFoundError and the errors of `move_topic`.
    """
    home = cluster.home
    info = set_draining(home, name)
    topics = home.store.read(lambda connection: topics_of_store(connection, info.store_id))
    names = [stated.topic.name for stated in topics.values() if stated.state == LIVE]
    for left, topic in enumerate(reversed(names)):
        move_topic(home, topic, to)
        yield topic, len(names) - left - 1


def continue_move(cluster: Cluster, topic: Topic, move: TopicMove, *, wait: bool = True) -> None:
    """Do the steps of a recorded move. `topic` is the topic when the move began. Without `wait`, return if the move has
    to wait for transactions; a later call continues it. Raises IllegalStateError if the move is cancelled meanwhile.
    """
    home = cluster.home
    source, target = home.at(topic.store_id), home.at(move.to)
    copy_brokers(home, target)
    while not _freeze(source, topic, move):
        if not wait:
            return
        clock.sleep_s(_PAUSE_S)
    failpoint("move.frozen")
    _copy(source, target, topic, move)
    failpoint("move.copied")
    if target is not home:
        home.store.transact(lambda connection: end_move(connection, topic.topic_id, move), announce=True)
        failpoint("move.decided")
    for view in (target, source):  # clients find the topic in the new store before the old one removes it
        follow(home, view.store_id, topic.topic_id)
        failpoint("move.followed")
    now = home.store.read(lambda connection: stated_topic(connection, topic.topic_id))
    if now is None or now.topic.store_id != move.to:
        raise IllegalStateError(f"topic {topic.name!r}: its move was cancelled, or the topic was deleted or moved on")


def continue_moves(cluster: Cluster) -> None:
    """Continue the interrupted moves. Log the error of a move, which does not stop the others."""
    for topic, move in cluster.home.store.read(lambda connection: moving_topics(connection, IS_LIVE)):
        try:
            continue_move(cluster, topic, move, wait=False)
        except SparkLogError as error:
            logger.warning("topic %s: it is not moved yet: %s", topic.name, redact(str(error)))


def _freeze(source: Cluster, topic: Topic, move: TopicMove) -> bool:
    """Freeze the partitions, unless the home store has ended the move. Return False if transactions must end first."""

    def freeze(connection: sa.Connection, stated: StatedTopic | None) -> bool:
        if stated is None or stated.state != LIVE or stated.move != move:
            return True
        here = TOPIC.topic_id == topic.topic_id
        connection.execute(sa.select(TOPIC.topic_id).where(here).with_for_update()).all()  # no partitions are added
        # parts that are prepared later find the partitions frozen; those prepared before are visible here
        lock_all_partitions(connection, topic.topic_id)
        waited_ms = source.home.store.now().wall_ms - move.began_ms
        if has_pending(connection, topic.topic_id, only_prepared=waited_ms >= PATIENCE_MS):
            return False
        freeze_partitions(connection, topic.topic_id)
        return True

    return change_copy(source, topic.topic_id, freeze)


def _copy(source: Cluster, target: Cluster, topic: Topic, move: TopicMove) -> None:
    """Copy the rows, unless they were copied for this move before, or the home store has ended the move."""

    def copy(connection: sa.Connection, stated: StatedTopic | None) -> None:
        if stated is None or stated.state != LIVE or stated.move != move:
            return
        there = stated_topic(connection, topic.topic_id)
        if target.store_id != HOME and there is not None and there.move == move:
            return
        check_decided(target, stated, there)
        delete_moved_rows(connection, topic.topic_id)  # of another move
        # a former primary may have partitions that are frozen for an earlier move, and lack the appends since
        with source.store.snapshot_as_primary() as reading:
            copied = stated_topic(reading, topic.topic_id)
            if copied is None or not are_frozen(reading, topic.topic_id):
                raise IllegalStateError(f"topic {topic.name!r}: its partitions are not frozen")
            # the home store may not know yet that partitions were added
            numbers = copied.topic.partition_count, copied.topic.replication_factor
            if target.store_id == HOME:
                set_partition_count(connection, topic.topic_id, numbers[0])
                set_replication_factor(connection, topic.topic_id, numbers[1])
            else:
                delete_topic_rows(connection, topic.topic_id)
                free_name(target, connection, topic.name)
                now = replace(stated.topic, partition_count=numbers[0], replication_factor=numbers[1])
                insert_copy(connection, now, stated.move_epoch + 1, move)
            copy_producers_of_topic(reading, connection, topic.topic_id)
            copy_rows_of_topic(reading, connection, topic.topic_id)
        failpoint("move.copying")
        if target.store_id == HOME:
            if not end_move(connection, topic.topic_id, move):
                raise IllegalStateError(f"topic {topic.name!r}: its move was cancelled")
            thaw_partitions(connection, topic.topic_id, fence_writers=True)

    change_copy(target, topic.topic_id, copy, unlimited=True)
