"""The inline tails of a cluster: how much they hold, and their age."""

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_each_store
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import SEGMENT
from tests.support.producing import change


def tail(cluster: Cluster) -> int:
    """Records in inline tails, of all stores."""
    query = sa.select(sa.func.coalesce(sa.func.sum(SEGMENT.record_count), 0)).where(SEGMENT.inline)
    counts = in_each_store(cluster, lambda view: view.store.read(lambda c: c.execute(query).scalar_one()))
    return int(sum(counts.values()))


def make_older(cluster: Cluster, by_ms: int) -> None:
    """Age every segment by `by_ms`, as if it had been appended earlier."""
    change(cluster, t.segment.update().values(appended_ms=SEGMENT.appended_ms - by_ms))
