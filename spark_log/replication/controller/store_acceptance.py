"""Accepts a metadata store that was restored from a backup, or promoted without its last transactions.

Offsets that were assigned after the backup are assigned again, to other records. So each partition begins a leader
epoch above all epochs that the lost store may have begun, and a truncation at its log end offset is recorded. For a
position in the lost log, this then holds, as after an unclean election (`log.partitions.lineage`):

    its leader epoch < the epoch of the truncation, and it has diverged if the truncation's offset < its offset

If the home store was restored, topics that only a data store knows are adopted: the home store gets their rows back.
Otherwise they would be deleted, like topics that the home store has deleted. If one data store has committed its part
of a transaction, the transaction is committed in all stores: the home store gets its row back. Otherwise the other
parts would be aborted. Each transactional id gets another producer id, because data stores, and producers that outlived
the restore, know later epochs of the old one.

Ids of topics and producers that the lost store may have assigned are skipped: otherwise a position in a lost topic, or
a batch of a lost producer, would count as one of another topic or producer with the same id. Versions of commits to
tables are skipped too: the next publication may remove files that the metadata does not name.

If a data store was restored, it may lack its part of a transaction that the home store has committed: this part then
counts as done. It may also have copies of topics that the home store has deleted since: they are deleted.
"""

from typing import NamedTuple

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_each_store
from spark_log.cluster.names import collision_key
from spark_log.cluster.topics import (
    DELETING,
    LIVE,
    StatedTopic,
    Topic,
    insert_copy,
    set_deleting,
    set_store,
    stated_topic,
    topics_of_store,
)
from spark_log.errors import InvalidConfigurationError
from spark_log.ids import HOME, TopicId
from spark_log.log.append.producer_rows import use_up_epochs
from spark_log.log.partitions.partition_rows import (
    Key,
    freeze_partitions,
    frozen_topics,
    lock_partitions,
    save_partitions,
    thaw_partitions,
)
from spark_log.log.partitions.replication_rules import PartitionState, Truncation
from spark_log.log.partitions.truncations import record_truncation
from spark_log.metadata.connections import server_identity
from spark_log.metadata.connections.server_identity import Identity
from spark_log.metadata.insert import last_id, skip_ids
from spark_log.metadata.sql_columns import PARTITION, PRODUCER, TOPIC
from spark_log.metadata.store_clock import StoreClock
from spark_log.tables.publication_resets import use_up_versions
from spark_log.transactions.left_over_parts import finish_lost_parts, learn_commits
from spark_log.transactions.rules import EPOCH_MAX

EPOCHS_SKIPPED = 10_000
"""A number above the elections of a partition between a backup and the loss of the store."""
IDS_SKIPPED = 1_000_000
"""A number above the topics, or producers, that are created between a backup and the loss of the store."""


def accept_store(cluster: Cluster) -> Identity | None:
    """Record the current server as the valid one, and begin a new leader epoch of every partition, in one transaction.

    If the home store is accepted, raises the error of a data store that does not answer, and InvalidConfigurationError
    if a topic of a data store has the name, or the id, of another topic in the home store.

    Return the server's identity. Records that were appended between the restore and this call count as records of the
    lost log: a reader with a position in the lost log does not detect that they differ.
    """
    store = cluster.store
    is_home = cluster is cluster.home
    if is_home:
        _adopt(cluster)
        learn_commits(cluster)
    else:
        finish_lost_parts(cluster)
        _mark_deleted(cluster)

    def accept(connection: sa.Connection) -> Identity | None:
        now = store.clock(connection)
        keys = [(i, number) for i, number in connection.execute(sa.select(PARTITION.topic_id, PARTITION.partition))]
        frozen = frozen_topics(connection)  # a cancelled move thaws them later, with the state of this transaction
        for topic_id in frozen:
            thaw_partitions(connection, topic_id)
        before = lock_partitions(connection, sorted(keys))
        save_partitions(connection, before, {key: _begin_epoch(connection, key, before[key], now) for key in before})
        for topic_id in frozen:
            freeze_partitions(connection, topic_id)
        if is_home:
            use_up_epochs(connection, EPOCH_MAX)
        for column in (TOPIC.topic_id, PRODUCER.producer_id):
            skip_ids(connection, column, IDS_SKIPPED)
        use_up_versions(connection)
        return server_identity.accept(connection, now.wall_ms)

    return store.transact(accept, announce=True)


class _Copy(NamedTuple):
    """A data store's copy of a topic. Partitions of a frozen copy do not change: the topic is being, or was, moved."""

    stated: StatedTopic
    frozen: bool

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """The rank of the copy: the copy with the largest rank has the newest records. A copy that is not live yet has
        no records of its own: it was made from a frozen copy, or its move was cancelled.
        """
        return self.stated.state == LIVE, self.stated.move_epoch, not self.frozen


def _adopt(home: Cluster) -> None:
    """Insert the rows of topics that only data stores have, and assign each topic to the store with its newest copy.

    Backups of several stores have different times, so a moved topic may be in both stores, or home may not know of the
    move. The home store then gets a higher count of moves than any copy has, so that the other copies are deleted.
    """
    copies = in_each_store(home, _copies, home.store_ids()[1:])
    newest: dict[TopicId, _Copy] = {}
    moves: dict[TopicId, int] = {}
    for of_store in copies.values():
        for topic_id, copy in of_store.items():
            moves[topic_id] = max(moves.get(topic_id, 0), copy.stated.move_epoch)
            if topic_id not in newest or copy.rank > newest[topic_id].rank:
                newest[topic_id] = copy

    def adopt(connection: sa.Connection) -> None:
        for topic_id, copy in newest.items():
            topic, epoch = copy.stated.topic, copy.stated.move_epoch
            stated = stated_topic(connection, topic_id)
            if stated is None:
                _check_name_is_free(connection, topic)
                insert_copy(connection, topic, moves[topic_id] + 1)
                continue
            _check_id_is_free(stated.topic, topic)
            here = stated.topic.store_id
            is_lost = here != HOME and topic_id not in copies.get(here, {})
            is_newer = copy.stated.state == LIVE and epoch > stated.move_epoch
            counted = max(moves[topic_id] + 1, stated.move_epoch)
            if here != topic.store_id and (is_newer or is_lost):
                set_store(connection, topic_id, topic.store_id, counted)
            else:
                set_store(connection, topic_id, here, counted, stated.move)

    if newest:
        home.store.transact(adopt, announce=True)


def _copies(data: Cluster) -> dict[TopicId, _Copy]:
    def read(connection: sa.Connection) -> dict[TopicId, _Copy]:
        frozen, topics = set(frozen_topics(connection)), topics_of_store(connection, data.store_id)
        return {
            topic_id: _Copy(each, topic_id in frozen) for topic_id, each in topics.items() if each.state != DELETING
        }

    return data.store.read(read)


def _mark_deleted(data: Cluster) -> None:
    """Mark the copies in a restored data store as deleted whose topics the home store has deleted since the backup: it
    has assigned their ids, and has no rows with them. If the home store was restored as well and is not accepted yet,
    it does not decide, and nothing is marked.
    """
    copies = _copies(data)  # read before the home store, which then has a row for each topic created meanwhile

    def deleted(connection: sa.Connection) -> list[TopicId]:
        if server_identity.problem_of(connection) is not None:
            return []
        last = last_id(connection, TOPIC.topic_id)
        return [each for each in copies if each <= last and stated_topic(connection, each) is None]

    def mark(connection: sa.Connection) -> None:
        for topic_id in topic_ids:
            set_deleting(connection, topic_id)

    topic_ids = data.home.store.read_as_primary(deleted)
    if topic_ids:
        data.store.transact(mark)


def _check_id_is_free(stated: Topic, copy: Topic) -> None:
    if stated.uuid != copy.uuid:
        raise InvalidConfigurationError(
            f"topic {copy.name!r} of store {copy.store_id} has the id of topic {stated.name!r}, which was created after"
            f" the restore of the home store: delete that one first (`spark-log topic delete {stated.name}`)"
        )


def _check_name_is_free(connection: sa.Connection, topic: Topic) -> None:
    key = TOPIC.collision_key == collision_key(topic.name)
    if (taken := connection.execute(sa.select(TOPIC.name).where(key)).scalar()) is not None:
        raise InvalidConfigurationError(
            f"topic {topic.name!r}: store {topic.store_id} has a newer topic than topic {taken!r} of the home"
            f" store: delete that one first (`spark-log topic delete {taken}`)"
        )


def _begin_epoch(connection: sa.Connection, key: Key, before: PartitionState, now: StoreClock) -> PartitionState:
    epoch = before.leader_epoch + EPOCHS_SKIPPED
    after = before._replace(leader_epoch=epoch, partition_epoch=before.partition_epoch + EPOCHS_SKIPPED)
    record_truncation(connection, key, Truncation(epoch, before.log_end_offset), before, after, 0, now)
    return after
