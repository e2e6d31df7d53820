"""Finds the log dirs for new segment files: the leader's, and with acks=all those of the ISR."""

from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from spark_log.cluster.topics import Topic
from spark_log.ids import LogDirId
from spark_log.log.append.encoding import Target
from spark_log.log.append.rules import Acks
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PARTITION, REPLICA


def targets_of(
    connection: sa.Connection, topic: Topic, partitions: Sequence[int] | None, acks: Acks
) -> dict[int, Target]:
    """Return the log dirs for new files by partition: the leader's, and with acks=all those of the ISR.

    With `partitions=None` it has all partitions.
    """
    query = (
        sa.select(
            PARTITION.partition,
            PARTITION.leader,
            PARTITION.leader_epoch,
            REPLICA.broker_id,
            REPLICA.log_dir_id,
            REPLICA.in_sync,
        )
        .join(t.replica, (REPLICA.topic_id == PARTITION.topic_id) & (REPLICA.partition == PARTITION.partition))
        .where(PARTITION.topic_id == topic.topic_id)
        .order_by(PARTITION.partition, REPLICA.preference)
    )
    if partitions is not None and len(partitions) < 1_000:
        query = query.where(PARTITION.partition.in_(partitions))
    targets: dict[int, Target] = {}
    for partition, leader, leader_epoch, broker_id, log_dir_id, in_sync in connection.execute(query):
        if partition not in targets:
            targets[partition] = Target(topic.topic_id, topic.folder, partition, leader_epoch, {})
        if leader is not None and (broker_id == leader or (in_sync and acks == "all")):
            target = targets[partition]
            targets[partition] = replace(target, log_dirs={**target.log_dirs, broker_id: LogDirId(log_dir_id)})
    return targets
