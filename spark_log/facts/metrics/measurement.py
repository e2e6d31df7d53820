"""Computes the records of `__metrics` for one interval: the changes between two snapshots of a cluster. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_log.cluster.names import METRICS_TOPIC, is_internal
from spark_log.cluster.usage import Usage, by_topic
from spark_log.facts.metrics.activity import group_activity, topic_activity
from spark_log.facts.metrics.cluster_snapshot import ClusterSnapshot, GroupPartitionFacts
from spark_log.facts.metrics.history import REFRESH_MS, Kind
from spark_log.facts.metrics.recorded_topics import Recorded
from spark_log.facts.metrics.size_snapshot import SizeSnapshot
from spark_log.facts.metrics.task_runs import TaskRun

NAMES_MAX = 500
"""The maximum number of records of topics, and of groups, in one interval: the busiest topics and the groups that are
furthest behind. Field `omitted` of the cluster's record has the number of the others.
"""

_TEXT_MAX = 4_000
"""The maximum number of characters of an error or of notes."""

Fields = Mapping[str, object]


@dataclass(frozen=True)
class Written:
    """The last record of a topic or group, and when it was written."""

    fields: Fields
    time_ms: int


def measure(before: ClusterSnapshot, now: ClusterSnapshot, sizes: SizeSnapshot) -> dict[Kind, list[Recorded]]:
    """Return all records of the interval, those of topics and groups in the order of their importance.

    The sums of the cluster include users' topics only. Topic `__metrics` has no record, because it would change at each
    interval even in an idle cluster.
    """
    interval_s = max(0.001, (now.now_ms - before.now_ms) / 1000)
    records = {Kind.TOPIC: list(_topics(before, now, sizes)), Kind.GROUP: list(_groups(before, now, interval_s))}
    topics = [record.fields for record in records[Kind.TOPIC] if not is_internal(record.key)]

    def total(field: str) -> int:
        return sum(int(str(fields[field])) for fields in topics)

    appended = total("appended")
    cluster = {
        "interval_s": interval_s,
        "appended": appended,
        "rate": appended / interval_s,
        **{field: total(field) for field in ("records", "bytes", "tail_bytes", "offline", "under_replicated")},
        "delta_lag_s": max((float(str(fields["delta_lag_s"])) for fields in topics), default=0.0),
        "lag_s": max((part.lag_s or 0.0 for part in now.groups), default=0.0),
        "topics": len(topics),
        "partitions": sum(not is_internal(partition.topic) for partition in now.partitions),
        "brokers": sum(broker.alive for broker in now.brokers),
        "open_transactions": now.open_transactions,
    }
    records[Kind.CLUSTER] = [_recorded(Kind.CLUSTER, "", cluster)]
    return records


def select(
    records: Mapping[Kind, Sequence[Recorded]], written: Mapping[tuple[Kind, str], Written], now_ms: int
) -> list[Recorded]:
    """Return the records to write: that of the cluster, and at most NAMES_MAX of topics and of groups. A topic or group
    has one only if its values have changed since its last record, or that record is old.
    """
    (cluster,) = records[Kind.CLUSTER]
    chosen: list[Recorded] = []
    omitted = 0
    for kind in (Kind.TOPIC, Kind.GROUP):
        due = [record for record in records[kind] if _is_due(record, written.get((kind, record.key)), now_ms)]
        chosen += due[:NAMES_MAX]
        omitted += max(0, len(due) - NAMES_MAX)
    return [Recorded(cluster.partition, cluster.key, {**cluster.fields, "omitted": omitted}), *chosen]


def task_records(runs: Sequence[TaskRun], omitted: int) -> list[Recorded]:
    """Return the records of runs of tasks. `omitted` is the number of runs that were left out before them."""
    return [
        _recorded(
            Kind.TASK,
            run.task,
            {
                "lease": run.lease,
                "start_ms": run.start_ms,
                "seconds": run.seconds,
                "outcome": run.outcome,
                "error": None if run.error is None else run.error[:_TEXT_MAX],
                "notes": run.notes[:_TEXT_MAX],
                "omitted": omitted if i == 0 else 0,
            },
        )
        for i, run in enumerate(runs)
    ]


def _is_due(record: Recorded, last: Written | None, now_ms: int) -> bool:
    return last is None or last.fields != record.fields or now_ms - last.time_ms >= REFRESH_MS


def _topics(before: ClusterSnapshot, now: ClusterSnapshot, sizes: SizeSnapshot) -> Iterator[Recorded]:
    ends: dict[str, int] = defaultdict(int)
    for partition in now.partitions:
        ends[partition.topic] += partition.log_end_offset
    totals = by_topic(sizes.sizes.items())
    for topic in topic_activity(before, now):
        if topic.topic != METRICS_TOPIC:
            fields: Fields = {
                "appended": topic.appended,
                "rate": topic.rate,
                "end_offset": ends[topic.topic],
                "records": topic.records,
                "bytes": totals.get(topic.topic, Usage()).bytes,
                "tail_bytes": topic.tail_bytes,
                "delta_lag_s": topic.delta_lag_s,
                "offline": topic.offline,
                "under_replicated": topic.under_replicated,
            }
            yield _recorded(Kind.TOPIC, topic.topic, fields)


def _groups(before: ClusterSnapshot, now: ClusterSnapshot, interval_s: float) -> Iterator[Recorded]:
    by_topic: dict[str, dict[str, list[GroupPartitionFacts]]] = defaultdict(lambda: defaultdict(list))
    for part in now.groups:
        by_topic[part.group][part.topic].append(part)
    offsets = {(g.group, g.topic, g.partition): g.committed for g in before.groups}

    def committed(parts: Sequence[GroupPartitionFacts]) -> int:
        return sum(max(0, g.committed - offsets.get((g.group, g.topic, g.partition), g.committed)) for g in parts)

    for group in group_activity(before, now):
        topics = by_topic[group.group]
        done = sum(map(committed, topics.values()))
        fields: Fields = {"committed": done, "rate": group.rate, "lag": group.lag, "lag_s": group.lag_s}
        yield _recorded(Kind.GROUP, group.group, {**fields, "members": group.members})
        for topic, parts in topics.items():
            own = committed(parts)
            fields = {
                "topic": topic,
                "committed": own,
                "rate": own / interval_s,
                "lag": sum(part.lag for part in parts),
                "lag_s": max(part.lag_s or 0.0 for part in parts),
            }
            yield _recorded(Kind.GROUP, group.group, fields, key=f"{group.group}\n{topic}")


def _recorded(kind: Kind, name: str, fields: Fields, key: str | None = None) -> Recorded:
    return Recorded(int(kind), name if key is None else key, {"kind": kind.name.lower(), "name": name, **fields})
