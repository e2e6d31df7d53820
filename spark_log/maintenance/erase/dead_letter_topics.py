"""Finds the topics of dead letters of share groups that hold copies of records to erase."""

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import SparkLogError
from spark_log.groups.share.rows import parsed_configs
from spark_log.ids import OffsetRange
from spark_log.log.reader import LogReader
from spark_log.maintenance.erase.key_matches import Scan, holds
from spark_log.maintenance.erase.workers import Workers
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import GROUP_CONFIG, SHARE_PARTITION


def in_dead_letters(cluster: Cluster, topic: Topic, workers: Workers) -> list[str]:
    """Return a note for each topic to which a share group of this topic writes dead letters, and that holds records of
    such keys or cannot be read. Share groups and their dead letters are in the home store.
    """
    if cluster is not cluster.home:
        return []
    targets = cluster.store.read(lambda connection: _dead_letter_topics(connection, cluster, topic))
    return [
        f"topic {target.name!r}, to which share groups of {topic.name} write dead letters, has records of such keys, or"
        f" cannot be read: erase the keys there too (`spark-log topic erase {target.name}`)"
        for target in targets
        if _may_hold(cluster, target, workers)
    ]


def _dead_letter_topics(connection: sa.Connection, cluster: Cluster, topic: Topic) -> list[Topic]:
    query = (
        sa.select(GROUP_CONFIG.configs)
        .distinct()
        .join(t.share_partition, SHARE_PARTITION.group_id == GROUP_CONFIG.group_id)
        .where(SHARE_PARTITION.topic_id == topic.topic_id)
    )
    configs = [parsed_configs(text, cluster.store.settings) for text in connection.execute(query).scalars()]
    names = {config.errors_deadletterqueue_topic_name for config in configs} - {"", topic.name}
    return sorted(find_topics(connection, names).values(), key=lambda target: target.name)


def _may_hold(cluster: Cluster, target: Topic, workers: Workers) -> bool:
    reader = LogReader(cluster)
    try:
        plan = reader.plan({tp: OffsetRange(*ends) for tp, ends in reader.positions(target).items()})
        scans = [Scan(piece, piece.end, plan.log_dirs) for piece in plan.slices]
        return any(verdict is not False for verdict in workers.run(holds, scans))
    except SparkLogError:  # for example, retention deleted the records, or the topic was deleted, meanwhile
        return True
