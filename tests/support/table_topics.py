"""Compacted topics for the tests of tables."""

from spark_log.cluster.cluster import Cluster
from spark_log.config import ClusterSettings
from spark_log.log.append.write_ids import Writer
from spark_log.maintenance.compaction.local_compaction import compact
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.report import Report


def compact_now(cluster: Cluster, topic: str) -> Report:
    """Compact all of the topic that can be compacted; there must be work."""
    writer = Writer(cluster.store, "compaction of a test", 60_000)
    try:
        [report] = compact(MaintenanceContext(cluster, ClusterSettings(), writer, topic_names=[topic]), force=True)
        return report
    finally:
        writer.close()
