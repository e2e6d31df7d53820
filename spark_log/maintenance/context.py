"""The input of a maintenance task."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from spark_log.append.write_ids import Writer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, unfenced
from spark_log.cluster.names import is_internal
from spark_log.cluster.topics import Topic, find_topics
from spark_log.config import ClusterSettings
from spark_log.errors import UnknownTopicOrPartitionError
from spark_log.maintenance.rewrite.segment_merge import GROWTH


@dataclass(frozen=True)
class MaintenanceContext:
    """`fence` is called first in each transaction of a task; `writer` names the files that the task writes."""

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
        """The topics to work on, by name, without internal ones.

        UnknownTopicOrPartitionError for a named topic that does not exist.
        """
        topics = self.cluster.store.read(lambda connection: find_topics(connection, self.topic_names))
        for name in self.topic_names or ():
            if name not in topics:
                raise UnknownTopicOrPartitionError(f"topic {name!r}: unknown topic or partition")
        for name in sorted(topics):
            if not is_internal(name):
                yield topics[name]
