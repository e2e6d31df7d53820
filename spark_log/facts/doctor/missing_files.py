"""Finds the file that keeps a partition without a leader although all its log dirs are online."""

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import segment_path
from spark_log.cluster.log_dir_uris import location_of
from spark_log.cluster.topics import Topic
from spark_log.errors import redact
from spark_log.facts.doctor.cluster_rules import MissingFile
from spark_log.facts.metrics.cluster_snapshot import PartitionFacts
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import REPLICA, SEGMENT


def find_missing_file(cluster: Cluster, topic: Topic, facts: PartitionFacts) -> MissingFile | None:
    """Return the file at whose base offset the longest replica of the partition ends, None if it has it meanwhile."""
    view = cluster.of(topic)
    of_replica = (REPLICA.topic_id == SEGMENT.topic_id) & (REPLICA.partition == SEGMENT.partition)
    query = (
        sa.select(SEGMENT.base_offset, SEGMENT.end_offset, SEGMENT.name, REPLICA.log_dir_id)
        .join(t.replica, of_replica & (REPLICA.log_end_offset == SEGMENT.base_offset))
        .where(SEGMENT.topic_id == topic.topic_id, SEGMENT.partition == facts.partition, ~SEGMENT.inline)
        .order_by(SEGMENT.base_offset.desc(), REPLICA.preference)
    )
    row = view.store.read(lambda connection: connection.execute(query).first())
    if row is None:
        return None
    uri = view.log_dirs()[row.log_dir_id].uri
    location = location_of(uri, segment_path(topic.folder, facts.partition, row.name))
    return MissingFile(facts.topic, facts.partition, row.base_offset, row.end_offset, redact(location))
