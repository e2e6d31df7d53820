"""Unclean elections on request."""

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topic
from spark_log.log.partitions.partition_rows import lock_partitions, save_partitions
from spark_log.log.partitions.replication_rules import fail_over, lose_files
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.metadata.store import Attempt
from spark_log.replication.controller.log_truncation import truncate_log
from tests.support.stores import topics_view


def truncate(cluster: Cluster, topic: str, to: int, partition: int = 0) -> None:
    """An unclean election: every log dir returns with only the records below `to`, which is a segment boundary."""
    store = topics_view(cluster).store

    def elect(connection: sa.Connection, _attempt: Attempt) -> None:
        found = find_topic(connection, topic)
        here = (
            (SEGMENT.topic_id == found.topic_id)
            & (SEGMENT.partition == partition)
            & (SEGMENT.base_offset < to)
            & (SEGMENT.end_offset > to)
        )
        assert connection.execute(sa.select(SEGMENT.base_offset).where(here)).first() is None, (
            f"{to}: inside of a segment"
        )
        key = (found.topic_id, partition)
        before = lock_partitions(connection, [key])
        state = before[key]
        for replica in state.replicas:
            state = lose_files(state, replica.broker_id, to)
        after, truncation = fail_over(state, {replica.log_dir_id for replica in state.replicas}, unclean=True)
        assert truncation is not None, "nothing was removed"
        now = store.clock(connection)
        after = truncate_log(connection, found, partition, truncation, state, after, now)
        save_partitions(connection, before, {key: after})

    store.transact(elect)
