"""Carrying out reassignments: what is new is copied, and what is in sync is switched.

A controller and served brokers do this by themselves; where there are none, whoever has asked for it does it here.
"""

from collections.abc import Callable, Collection, Mapping

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, lease_status
from spark_log.cluster.topics import Topic, find_topics
from spark_log.config import ClusterSettings
from spark_log.controller.controller import LEASE, fallback_term
from spark_log.controller.reassignment_rows import ReassignmentStatus, list_reassignments, read_ready_partitions
from spark_log.controller.reassignments import finish_reassignments
from spark_log.delta.publication import try_publish
from spark_log.errors import NotControllerError
from spark_log.ids import TopicPartition
from spark_log.partitions.retired_replicas import delete_retired_replicas
from spark_log.replicas.followers import Followers

_LOOK_S = 0.5

UnderWay = Mapping[TopicPartition, ReassignmentStatus]


def switch_reassignments(cluster: Cluster, fence: Fence) -> list[TopicPartition]:
    """Finish the reassignments whose target is in sync, and take what has left out of the Delta tables."""
    done = finish_reassignments(cluster.store, fence)
    if not done:
        return []
    topics: dict[int, Topic] = {topic.topic_id: topic for topic in cluster.store.read(find_topics).values()}
    switched = [(topics[topic_id], partition) for topic_id, partition in done if topic_id in topics]
    try_publish(cluster, {topic.topic_id: topic for topic, _ in switched}.values())
    return [TopicPartition(topic.name, partition) for topic, partition in switched]


def run_reassignments(
    cluster: Cluster,
    settings: ClusterSettings,
    partitions: Collection[TopicPartition],
    progress: Callable[[UnderWay], None] = lambda _: None,
) -> None:
    """Until no reassignment of these partitions is under way: be the controller and copy to embedded brokers, where
    nobody else does; else watch. `progress` is told, every now and then, which of them are left.

    May be given up at any time, and begun again by anybody.
    """
    wanted = frozenset(partitions)
    followers = Followers(cluster)
    try:
        while True:
            _switch_as_fallback(cluster, settings)
            seen = cluster.store.changes.current()
            left = {tp: status for tp, status in list_reassignments(cluster.store).items() if tp in wanted}
            progress(left)
            if not left:
                return
            if not lease_status(cluster.store, LEASE).left_ms:  # else its holder copies, under the same throttle
                followers.wake()
            cluster.store.changes.wait(seen, _LOOK_S)
    finally:
        followers.close()


def _switch_as_fallback(cluster: Cluster, settings: ClusterSettings) -> None:
    if not cluster.store.read(read_ready_partitions):
        return
    try:
        with fallback_term(cluster.store, settings) as fence:
            if fence is not None:
                switch_reassignments(cluster, fence)
                delete_retired_replicas(cluster, fence)
    except NotControllerError:  # the store was away for longer than our term: the next look goes on
        pass
