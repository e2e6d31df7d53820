"""Seals long inline tails before a plan is sent to other processes, because the plan carries the bytes of the tails."""

from collections.abc import Mapping

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.config import ClusterSettings
from spark_log.ids import TopicPartition
from spark_log.log.append.write_ids import Writer
from spark_log.maintenance.rewrite.tail_seal import try_seal


class LongTails:
    """Implements `TailLimit` for plan.inline.bytes.per.task.max and plan.inline.bytes.max."""

    def __init__(self, cluster: Cluster, writer: Writer, settings: ClusterSettings | None = None) -> None:
        self._cluster, self._writer, self._settings = cluster, writer, settings

    def too_long(self, sizes: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the longest tails, chosen so that the other tails stay within the limits of a plan."""
        settings = self._settings or self._cluster.store.settings
        excess = sum(sizes.values()) - settings.plan_inline_bytes_max
        chosen: list[TopicPartition] = []
        for partition, size in sorted(sizes.items(), key=lambda item: -item[1]):
            if size <= settings.plan_inline_bytes_per_task_max and excess <= 0:
                break
            chosen.append(partition)
            excess -= size
        return chosen

    def seal(self, topic: Topic, partition: int) -> bool:
        """Seal a tail. A failure is logged, not raised: the read does not depend on it."""
        return bool(try_seal(self._cluster, self._writer, topic, partition))
