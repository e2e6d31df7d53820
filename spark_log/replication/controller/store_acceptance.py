"""Accepts a metadata store that was restored from a backup, or promoted without its last transactions.

Offsets that were assigned after the backup are assigned again, to other records. So each partition begins a leader
epoch above all that the lost store may have begun, and a truncation at its log end offset is recorded. A position of
the lost log then satisfies, as after an unclean election (`log.partitions.lineage`):

    its leader epoch < the epoch of the truncation, and it has diverged if the truncation's offset < its offset

If the home store was restored, topics that only a data store knows are adopted: home gets their rows back. Otherwise
they would be deleted, like the topics that home has deleted. A transaction whose part in one data store is committed is
committed in all: home gets its row back. Otherwise its other parts would be aborted. Each transactional id gets another
producer id: the data stores know later epochs of the old one, and would refuse the epochs that home gives out again.

Ids of topics and producers that the lost store assigned are left out: a position of a lost topic, or a batch of a lost
producer, would be taken for one of another topic or producer with the same id.

If a data store was restored, it may lack its part of a transaction that home has committed: home then takes it as done.
"""

from dataclasses import replace

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_each_store
from spark_log.cluster.names import collision_key
from spark_log.cluster.topics import LIVE, Topic, insert_copy, set_store, stated_topic, topics_of_store
from spark_log.errors import InvalidConfigurationError
from spark_log.ids import TopicId
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
from spark_log.metadata.id_generators import skip_ids
from spark_log.metadata.sql_columns import PARTITION, PRODUCER, TOPIC
from spark_log.metadata.store import Attempt
from spark_log.metadata.store_clock import StoreClock
from spark_log.transactions.left_over_parts import finish_lost_parts, learn_commits
from spark_log.transactions.rules import EPOCH_MAX

EPOCHS_SKIPPED = 10_000
"""More elections of a partition than take place between a backup and the loss of the store."""
IDS_SKIPPED = 1_000_000
"""More topics, or producers, than are created between a backup and the loss of the store."""


def accept_store(cluster: Cluster) -> Identity | None:
    """Record the current server as the right one, and begin a new leader epoch of every partition, in one transaction.

    Raises the error of a data store that does not answer if the home store is accepted, and InvalidConfigurationError
    if a topic of a data store has the name of another topic at home.

    Returns the server's identity. Records that were appended after the restore, and before this call, count as records
    of the lost log: a reader that has a position in the lost log is not told that they differ.
    """
    store = cluster.store
    gives_epochs_again = cluster is cluster.home and len(cluster.store_ids()) > 1
    if cluster is cluster.home:
        in_each_store(cluster, lambda data: _adopt(cluster, data), cluster.store_ids()[1:])
        learn_commits(cluster)
    else:
        finish_lost_parts(cluster)

    def accept(connection: sa.Connection, _attempt: Attempt) -> Identity | None:
        now = store.clock(connection)
        keys = [(i, number) for i, number in connection.execute(sa.select(PARTITION.topic_id, PARTITION.partition))]
        frozen = frozen_topics(connection)  # a move that is cancelled later lets them change again, as they are now
        for topic_id in frozen:
            thaw_partitions(connection, topic_id)
        before = lock_partitions(connection, sorted(keys))
        save_partitions(connection, before, {key: _begin_epoch(connection, key, before[key], now) for key in before})
        for topic_id in frozen:
            freeze_partitions(connection, topic_id)
        if gives_epochs_again:
            use_up_epochs(connection, EPOCH_MAX)
        for column in (TOPIC.topic_id, PRODUCER.producer_id):
            skip_ids(connection, column, IDS_SKIPPED)
        return server_identity.accept(connection, now.wall_ms)

    return store.transact(accept, announce=True)


def _adopt(home: Cluster, data: Cluster) -> None:
    """Insert the rows of topics of the data store that home does not have. A topic that home has in another store was
    moved to the data store later, if its partitions may change there.
    """

    def read(connection: sa.Connection) -> dict[TopicId, Topic]:
        live = {i: each.topic for i, each in topics_of_store(connection, data.store_id).items() if each.state == LIVE}
        return {topic_id: live[topic_id] for topic_id in live.keys() - set(frozen_topics(connection))}

    copies = data.store.read(read)

    def adopt(connection: sa.Connection, _attempt: Attempt) -> None:
        for topic_id, topic in copies.items():
            known = stated_topic(connection, topic_id)
            if known is not None:
                if known.topic.store_id != data.store_id:
                    set_store(connection, topic_id, data.store_id)
                continue
            key = TOPIC.collision_key == collision_key(topic.name)
            if (taken := connection.execute(sa.select(TOPIC.name).where(key)).scalar()) is not None:
                raise InvalidConfigurationError(
                    f"topic {topic.name!r}: store {data.store_id} has a newer topic than topic {taken!r} of the home"
                    f" store: delete that one first (`spark-log topic delete {taken}`)"
                )
            insert_copy(connection, topic)

    if copies:
        home.store.transact(adopt, announce=True)


def _begin_epoch(connection: sa.Connection, key: Key, before: PartitionState, now: StoreClock) -> PartitionState:
    epoch = before.leader_epoch + EPOCHS_SKIPPED
    after = replace(before, leader_epoch=epoch, partition_epoch=before.partition_epoch + EPOCHS_SKIPPED)
    record_truncation(connection, key, Truncation(epoch, before.log_end_offset), before, after, 0, now)
    return after
