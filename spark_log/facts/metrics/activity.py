"""Computes the activity between two snapshots of a cluster: rates of topics and groups. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from spark_log.facts.metrics.cluster_snapshot import ClusterSnapshot, GroupPartitionFacts, PartitionFacts


@dataclass(frozen=True)
class TopicActivity:
    """The activity of a topic. `rate` is in records appended per second. Only the metadata store has the `tail_bytes`.
    `delta_lag_s` is the age of the oldest record that the Delta table lacks, 0 if it lacks none.
    """

    topic: str
    partitions: int
    appended: int
    rate: float
    records: int
    tail_bytes: int
    delta_lag_s: float
    offline: int
    under_replicated: int


@dataclass(frozen=True)
class GroupActivity:
    """A group's activity: records committed per second (`rate`), the sum of lags in records, the largest `lag_s`."""

    group: str
    members: int
    rate: float
    lag: int
    lag_s: float


@dataclass(frozen=True)
class TotalLag:
    """The lag of a group in `partitions` partitions. `lag` is the sum in records, and `lag_s` the largest lag in
    seconds, or None if none is known.
    """

    partitions: int
    lag: int
    lag_s: float | None


NO_LAG = TotalLag(0, 0, None)


def topic_activity(before: ClusterSnapshot, now: ClusterSnapshot) -> list[TopicActivity]:
    """Return the topics, the busiest first."""
    ends = {(p.topic_id, p.partition): p.log_end_offset for p in before.partitions}
    # the store of a topic did not answer then
    unknown = before.topics.keys() - {topic_id for topic_id, _ in ends}
    age_s: dict[int, float] = defaultdict(float)
    for (topic_id, _), lag in now.delta_lags.items():
        age_s[topic_id] = max(age_s[topic_id], (now.now_ms - lag.oldest_ms) / 1000)
    of_topic: dict[int, list[PartitionFacts]] = defaultdict(list)
    for partition in now.partitions:
        of_topic[partition.topic_id].append(partition)
    topics = []
    for topic_id, topic in now.topics.items():
        partitions = of_topic[topic_id]
        appended = sum(max(0, p.log_end_offset - ends.get((topic_id, p.partition), 0)) for p in partitions)
        if topic_id in unknown:
            appended = 0
        topics.append(
            TopicActivity(
                topic.name,
                len(partitions),
                appended,
                appended / _seconds(before, now),
                sum(p.high_watermark - p.log_start_offset for p in partitions),
                sum(p.tail_bytes for p in partitions),
                age_s[topic_id],
                sum(p.is_offline for p in partitions),
                sum(p.is_under_replicated for p in partitions),
            )
        )
    return sorted(topics, key=lambda topic: (-topic.rate, topic.topic))


def group_activity(before: ClusterSnapshot, now: ClusterSnapshot) -> list[GroupActivity]:
    """Return the groups, those with the largest lag first."""
    offsets = {(g.group, g.topic, g.partition): g.committed for g in before.groups}
    read: dict[str, int] = defaultdict(int)
    for g in now.groups:
        read[g.group] += max(0, g.committed - offsets.get((g.group, g.topic, g.partition), g.committed))
    lags = lag_by_group(now.groups)
    groups = []
    for group, members in now.members.items():
        own = lags.get(group, NO_LAG)
        groups.append(GroupActivity(group, members, read[group] / _seconds(before, now), own.lag, own.lag_s or 0.0))
    return sorted(groups, key=lambda group: (-group.lag_s, -group.lag, group.group))


def lag_by_group(partitions: Iterable[GroupPartitionFacts]) -> dict[str, TotalLag]:
    """Return the lag of each group over these partitions."""
    of_group: dict[str, list[GroupPartitionFacts]] = defaultdict(list)
    for partition in partitions:
        of_group[partition.group].append(partition)
    return {
        group: TotalLag(
            len(own), sum(g.lag for g in own), max((g.lag_s for g in own if g.lag_s is not None), default=None)
        )
        for group, own in of_group.items()
    }


def _seconds(before: ClusterSnapshot, now: ClusterSnapshot) -> float:
    return max(0.001, (now.now_ms - before.now_ms) / 1000)
