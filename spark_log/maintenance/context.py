"""Defines the input of a maintenance task."""

from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster, cluster_of
from spark_log.cluster.lease import Fence, unfenced
from spark_log.cluster.names import is_kept_by_store
from spark_log.cluster.topics import Topic, find_topics, undamaged, unknown_topic
from spark_log.config import ClusterSettings
from spark_log.errors.first_failure import FirstFailure
from spark_log.log.append.write_ids import Writer
from spark_log.maintenance.rewrite.segment_merge import GROWTH

R = TypeVar("R")


@dataclass(frozen=True)
class MaintenanceContext:
    """The input of a maintenance task, which gives `fence` to each transaction, and names its files with `writer`."""

    cluster: Cluster
    settings: ClusterSettings
    writer: Writer
    fence: Fence = unfenced
    topic_names: Collection[str] | None = None
    """The topics to work on; None for all."""
    now: bool = False
    """Whether to seal every tail, whatever its age."""
    growth: int = GROWTH
    """Factor by which a merge must enlarge the files that it merges (`rewrite.segment_merge`)."""
    stopping: Callable[[], bool] = lambda: False
    """Whether to leave the remaining work to the next run: called between two long steps."""

    def topics(self) -> Iterator[Topic]:
        """Yield the topics to work on, by name: those of the store, without internal ones that have no files. It ends
        early if the remaining work is to be left to the next run.
        """
        topics = self.cluster.store.read(lambda connection: find_topics(connection, self.topic_names))
        for topic in undamaged(topics[name] for name in sorted(topics)):
            if self.stopping():
                return
            if not is_kept_by_store(topic.name) and topic.store_id == self.cluster.store_id:
                yield topic


def check_topics(cluster: Cluster, names: Collection[str] | None) -> None:
    """Raise UnknownTopicOrPartitionError for a named topic that does not exist."""

    def check(connection: sa.Connection) -> None:
        topics = find_topics(connection, names)
        for name in names or ():
            if name not in topics:
                raise unknown_topic(connection, name)

    cluster.home.store.read(check)


def work_in_each_store(
    cluster: "str | Cluster",
    holder: str,
    topics: Collection[str] | None,
    work: Callable[[MaintenanceContext], Iterator[R]],
    *,
    settings: ClusterSettings | None = None,
    now: bool = False,
    on_spark: bool = False,
) -> Iterator[R]:
    """Yield the results of `work` on request, in one store after the other. A cluster that is given by its address is
    opened, and closed at the end.

    Raises UnknownTopicOrPartitionError for a named topic that does not exist, before any change. A store that fails
    does not stop the others: the first error is raised at the end.
    """
    with cluster_of(cluster) as opened, FirstFailure() as failure:
        check_topics(opened, topics)
        for store_id in opened.store_ids():
            with (
                failure.attempt(),
                open_maintenance(opened.at(store_id), holder, topics, settings, now=now, on_spark=on_spark) as context,
            ):
                yield from work(context)


@contextmanager
def open_maintenance(
    cluster: Cluster,
    holder: str,
    topics: Collection[str] | None,
    settings: ClusterSettings | None,
    *,
    now: bool = False,
    on_spark: bool = False,
) -> Iterator[MaintenanceContext]:
    """Yield a context for work on request in one store.

    With `on_spark`, write ids get a long lease, because they are not renewed while the driver is busy, and a task may
    wait for a core.
    """
    settings = settings or cluster.store.settings
    lease_ms = settings.spark_write_id_lease_ms if on_spark else settings.producer_write_id_lease_ms
    with closing(Writer(cluster.store, holder, lease_ms)) as writer:
        yield MaintenanceContext(cluster, settings, writer, topic_names=topics, now=now)
