"""The inline tails of a cluster: how much they hold, and their age."""

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import SEGMENT


def tail(cluster: Cluster) -> int:
    """Records in inline tails."""
    query = sa.select(sa.func.coalesce(sa.func.sum(SEGMENT.record_count), 0)).where(SEGMENT.inline)
    return int(cluster.store.read(lambda connection: connection.execute(query).scalar_one()))


def make_older(cluster: Cluster, by_ms: int) -> None:
    """Age every segment by `by_ms`, as if it had been appended earlier."""
    change = t.segment.update().values(appended_ms=SEGMENT.appended_ms - by_ms)
    cluster.store.transact(lambda connection, _attempt: connection.execute(change))
