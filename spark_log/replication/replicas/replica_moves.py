"""Runs reassignments: copies the new replicas, and switches a partition to its target when this is in sync.

The controller and served brokers do this in the background. Without a controller, the process that requests the
reassignment does it here.
"""

from collections.abc import Callable, Collection, Mapping

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import partitions_by_store
from spark_log.cluster.lease import Fence, lease_status
from spark_log.cluster.topics import Topic, find_topics
from spark_log.config import ClusterSettings
from spark_log.errors import NotControllerError
from spark_log.ids import TopicPartition
from spark_log.log.partitions.retired_replicas import delete_retired_replicas
from spark_log.replication.controller.controller import LEASE, fallback_term
from spark_log.replication.controller.reassignment_rows import (
    ReassignmentStatus,
    list_reassignments,
    read_ready_partitions,
)
from spark_log.replication.controller.reassignments import finish_reassignments
from spark_log.replication.replicas.followers import Followers
from spark_log.tables.publication import try_publish

_POLL_S = 0.5

UnderWay = Mapping[TopicPartition, ReassignmentStatus]


def switch_reassignments(cluster: Cluster, fence: Fence) -> list[TopicPartition]:
    """Finish the reassignments whose target is in sync. Publish their topics, which removes replicas from Delta tables.

    Return the partitions.
    """
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
    """Wait for the end of all reassignments of these partitions. `progress` gets the running ones at each poll.

    While no process is the controller, this process acts as the controller and copies to embedded brokers. The call may
    be interrupted at any time, and any process may repeat it.
    """
    for store_id, there in partitions_by_store(cluster, partitions).items():
        _run_in_store(cluster.at(store_id), settings, there, progress)


def _run_in_store(
    cluster: Cluster,
    settings: ClusterSettings,
    partitions: Collection[TopicPartition],
    progress: Callable[[UnderWay], None],
) -> None:
    chosen = frozenset(partitions)
    followers = Followers(cluster)
    try:
        while True:
            _switch_as_fallback(cluster, settings)
            seen = cluster.store.changes.current()
            left = {tp: status for tp, status in list_reassignments(cluster.store).items() if tp in chosen}
            progress(left)
            if not left:
                return
            # A process that holds the lease copies, under the same throttle. Without such a process, this one copies.
            if not lease_status(cluster.store, LEASE).left_ms:
                followers.wake()
            cluster.store.changes.wait(seen, _POLL_S)
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
    except NotControllerError:  # the store was unavailable for longer than the lease: the next poll continues
        pass
