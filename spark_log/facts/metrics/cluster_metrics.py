"""Computes the metrics of a cluster from its facts. Pure.

The names are those that dashboards for Kafka query: of kafka_exporter (`kafka_topic_partition_current_offset`), of
Strimzi's rules for Kafka's JMX metrics (`kafka_server_replicamanager_underreplicatedpartitions`), and of
kafka-lag-exporter (`kafka_consumergroup_group_lag_seconds`). Metrics that Kafka does not have begin with `spark_log_`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from spark_log.cluster.usage import by_topic
from spark_log.facts.metrics.cluster_snapshot import (
    ClusterSnapshot,
    GroupPartitionFacts,
    PartitionFacts,
    ReplicationFacts,
)
from spark_log.facts.metrics.exposition import Gauges
from spark_log.facts.metrics.size_snapshot import SizeSnapshot
from spark_log.facts.metrics.table_metrics import table_metrics
from spark_log.ids import HOME_NAME

PARTITIONS_MAX = 20_000
"""The maximum number of partitions that have metrics of their own. Sums include all partitions."""

_PARTITION = ("topic", "partition")
_GROUP_PARTITION = ("consumergroup", "topic", "partition")
_SHARE_PARTITION = ("group", "topic", "partition")


def cluster_metrics(snapshot: ClusterSnapshot) -> Iterator[Metric]:
    """Yield the metrics of brokers, topics, partitions, groups and transactions."""
    replicated = [partition for partition in snapshot.partitions if partition.replicas]
    shown = replicated[:PARTITIONS_MAX]
    yield _gauge("spark_log_metrics_partitions_omitted", "Partitions without metrics of their own.",
                 len(replicated) - len(shown))  # fmt: skip
    yield from _broker_metrics(snapshot)
    yield from _controller_metrics(snapshot)
    yield from _topic_metrics(snapshot)
    yield from _partition_metrics(shown)
    yield from _group_metrics(snapshot, [group for group in snapshot.groups if not group.share])
    yield from _share_metrics(snapshot)
    yield from table_metrics(snapshot)
    yield Gauges("spark_log_data_store_up", "1 if the data store answered this process.", ("store",),
                 (((name,), int(up)) for name, up in snapshot.answering.items() if name != HOME_NAME))  # fmt: skip
    yield Gauges("spark_log_store_unaccepted",
                 "1: the metadata store was restored or promoted; clean-up and publication wait for `store accept`.",
                 ("store",), (((name,), int(waits)) for name, waits in snapshot.unaccepted.items()))  # fmt: skip
    yield Gauges("spark_log_store_clock_ahead_seconds", "Clock of the store minus that of the home store.",
                 ("store",), (((name,), ms / 1000) for name, ms in snapshot.ahead_ms.items()))  # fmt: skip
    yield from _replication_metrics(snapshot.replication)
    now_ms, oldest_ms = snapshot.now_ms, snapshot.oldest_transaction_ms
    yield _gauge("spark_log_open_transactions", "Open transactions.", snapshot.open_transactions)
    yield _gauge("spark_log_oldest_transaction_seconds", "Age of the oldest open transaction; 0: there is none.",
                 0 if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000)  # fmt: skip


def size_metrics(snapshot: SizeSnapshot) -> Iterator[Metric]:
    """Yield the metrics of segments and bad records."""
    sizes = list(snapshot.sizes.items())[:PARTITIONS_MAX]
    yield Gauges("kafka_log_log_size", "Bytes of the partition's segments.", _PARTITION,
                  (((p.topic, str(p.partition)), size.bytes) for p, size in sizes))  # fmt: skip
    totals = by_topic(snapshot.sizes.items())
    yield _by_topic("spark_log_segments", "Segments: files and blobs of the inline tail.",
                    {topic: size.segments for topic, size in totals.items()})  # fmt: skip
    yield _by_topic("spark_log_small_segments", "Segment files below 1 MiB.",
                    {topic: size.small_files for topic, size in totals.items()})  # fmt: skip
    yield _by_topic("spark_log_bad_records", "Keys and values in files that do not fit the topic's schemas.",
                    snapshot.bad_records)  # fmt: skip


def _replication_metrics(replication: Mapping[str, ReplicationFacts]) -> Iterator[Metric]:
    yield Gauges("spark_log_store_synchronous", "1: commits wait for a standby (synchronous_standby_names is set).",
                 ("store",), (((name,), int(each.synchronous)) for name, each in replication.items()))  # fmt: skip
    ages_ms = {name: each.beat_age_ms for name, each in replication.items() if each.beat_age_ms is not None}
    yield Gauges("spark_log_store_beat_age_seconds",
                 "Age of the last beat by which a promotion of the store is accepted without a person.",
                 ("store",), (((name,), ms / 1000) for name, ms in ages_ms.items()))  # fmt: skip


def _broker_metrics(snapshot: ClusterSnapshot) -> Iterator[Metric]:
    alive = [broker for broker in snapshot.brokers if broker.alive]
    log_dirs = [log_dir for broker in snapshot.brokers for log_dir in broker.log_dirs]
    yield _gauge("kafka_brokers", "Brokers that are alive.", len(alive))
    yield Gauges("kafka_broker_info", "A broker; address: the process that serves it, or embedded.",
                  ("id", "address"),
                  (((str(b.broker_id), (b.served and b.holder) or "embedded"), 1) for b in alive))  # fmt: skip
    yield _gauge("kafka_log_logmanager_offlinelogdirectorycount", "Log dirs that have failed.",
                 sum(not log_dir.online for log_dir in log_dirs))  # fmt: skip
    yield _gauge("spark_log_gateways", "Gateways that serve Kafka clients.", snapshot.gateways)


def _controller_metrics(snapshot: ClusterSnapshot) -> Iterator[Metric]:
    partitions = snapshot.partitions
    server, controller = "kafka_server_replicamanager_", "kafka_controller_kafkacontroller_"
    numbers = {
        f"{controller}activecontrollercount": ("Processes that hold the lease of the controller.",
                                               int(snapshot.controller is not None)),
        f"{controller}globaltopiccount": ("Topics.", len(snapshot.topics)),
        f"{controller}globalpartitioncount": ("Partitions.", len(partitions)),
        f"{controller}offlinepartitionscount": ("Partitions without a leader.", sum(p.is_offline for p in partitions)),
        f"{server}partitioncount": ("Replicas.", sum(p.replicas for p in partitions)),
        f"{server}leadercount": ("Partitions with a leader.", sum(p.leader is not None for p in partitions)),
        f"{server}offlinereplicacount": ("Replicas on failed log dirs or dead brokers.",
                                         sum(p.offline for p in partitions)),
        f"{server}underreplicatedpartitions": ("Partitions with replicas that are not in sync.",
                                               sum(p.is_under_replicated for p in partitions)),
        f"{server}underminisrpartitioncount": ("Partitions with fewer in-sync replicas than min.insync.replicas.",
                                               sum(p.in_sync < p.min_in_sync for p in partitions)),
        f"{server}atminisrpartitioncount": ("Partitions with as many in-sync replicas as min.insync.replicas.",
                                            sum(p.in_sync == p.min_in_sync < p.replicas for p in partitions)),
    }  # fmt: skip
    for name, (text, value) in numbers.items():
        yield _gauge(name, text, value)


def _topic_metrics(snapshot: ClusterSnapshot) -> Iterator[Metric]:
    # topics of a store that does not answer have no samples: 0 would be a reset of the counter
    count, appended, tail = Counter[str](), Counter[str](), Counter[str]()
    for partition in snapshot.partitions:
        count[partition.topic] += 1
        appended[partition.topic] += partition.log_end_offset
        tail[partition.topic] += partition.tail_bytes
    yield _by_topic("kafka_topic_partitions", "Partitions of the topic.", count)
    records = CounterMetricFamily("kafka_server_brokertopicmetrics_messagesin", "Offsets assigned.", labels=["topic"])
    for topic, number in appended.items():
        records.add_metric((topic,), number)
    yield records
    yield _by_topic("spark_log_inline_tail_bytes", "Bytes of records that are not in a segment file yet.", tail)


def _partition_metrics(partitions: Sequence[PartitionFacts]) -> Iterator[Metric]:
    labels = [(p.topic, str(p.partition)) for p in partitions]
    prefix = "kafka_topic_partition_"
    columns: dict[str, tuple[str, list[float]]] = {
        "current_offset": ("High watermark.", [p.high_watermark for p in partitions]),
        "oldest_offset": ("Log start offset.", [p.log_start_offset for p in partitions]),
        "replicas": ("Replicas.", [p.replicas for p in partitions]),
        "in_sync_replica": ("In-sync replicas.", [p.in_sync for p in partitions]),
        "leader": ("Broker id of the leader, -1 without one.",
                   [-1 if p.leader is None else p.leader for p in partitions]),
        "leader_is_preferred": ("1 if the leader is the preferred one.",
                                [p.leader is not None and p.leader == p.preferred_leader for p in partitions]),
        "under_replicated_partition": ("1 if replicas are not in sync.", [p.is_under_replicated for p in partitions]),
    }  # fmt: skip
    for name, (text, values) in columns.items():
        yield Gauges(prefix + name, text, _PARTITION, zip(labels, values, strict=True))


def _group_metrics(snapshot: ClusterSnapshot, all_: Sequence[GroupPartitionFacts]) -> Iterator[Metric]:
    groups = all_[:PARTITIONS_MAX]
    labels = [(g.group, g.topic, str(g.partition)) for g in groups]
    yield Gauges("kafka_consumergroup_current_offset", "Committed offset.", _GROUP_PARTITION,
                  zip(labels, (g.committed for g in groups), strict=True))  # fmt: skip
    yield Gauges("kafka_consumergroup_lag", "Records between the committed offset and the high watermark.",
                  _GROUP_PARTITION, zip(labels, (g.lag for g in groups), strict=True))  # fmt: skip
    offsets: dict[tuple[str, str], int] = defaultdict(int)
    lags: dict[tuple[str, str], int] = defaultdict(int)
    seconds: dict[str, float] = dict.fromkeys(snapshot.members.keys() - snapshot.record_locks.keys(), 0.0)
    for g in all_:
        offsets[g.group, g.topic] += g.committed
        lags[g.group, g.topic] += g.lag
        seconds[g.group] = max(seconds.get(g.group, 0.0), g.lag_s or 0.0)
    by_topic = ("consumergroup", "topic")
    yield Gauges("kafka_consumergroup_current_offset_sum", "Committed offsets, all partitions.", by_topic,
                  offsets.items())  # fmt: skip
    yield Gauges("kafka_consumergroup_lag_sum", "Lag in records, all partitions.", by_topic, lags.items())
    yield Gauges("kafka_consumergroup_members", "Live members.", ("consumergroup",),
                  (((group,), number) for group, number in snapshot.members.items()))  # fmt: skip
    lag_seconds = [((g.group, g.topic, str(g.partition)), g.lag_s or 0.0) for g in groups]
    yield Gauges("kafka_consumergroup_group_lag_seconds", "Time since the next record to read was appended.",
                  ("group", "topic", "partition"), lag_seconds)  # fmt: skip
    yield Gauges("kafka_consumergroup_group_max_lag_seconds", "Largest lag in seconds, all partitions.", ("group",),
                  (((group,), value) for group, value in seconds.items()))  # fmt: skip
    yield Gauges("spark_log_consumergroup_beyond_retention", "1 if records were deleted before the group read them.",
                  _GROUP_PARTITION, _beyond_retention(snapshot, groups))  # fmt: skip


def _share_metrics(snapshot: ClusterSnapshot) -> Iterator[Metric]:
    parts = snapshot.share_partitions[:PARTITIONS_MAX]
    labels = [(p.group, p.topic, str(p.partition)) for p in parts]
    gauges: dict[str, tuple[str, list[int]]] = {
        "lag": ("Records that are not finished, without those that are archiving.", [p.lag for p in parts]),
        "start_offset": ("First offset that is not finished.", [p.start for p in parts]),
        "in_flight_records": ("Records that members have acquired.", [p.in_flight for p in parts]),
        "available_records": ("Records that wait for their next delivery.", [p.available for p in parts]),
        "delayed_records": ("Records that wait for their delivery time.", [p.delayed for p in parts]),
        "archiving_records": ("Records that wait for their dead letter.", [p.archiving for p in parts]),
    }
    for name, (text, values) in gauges.items():
        yield Gauges(f"spark_log_share_group_{name}", text, _SHARE_PARTITION, zip(labels, values, strict=True))
    totals: dict[str, tuple[str, list[int]]] = {
        "lock_timeouts": ("Records whose lock ended by time.", [p.lock_timeouts for p in parts]),
        "dead_letters": ("Dead letters written.", [p.dead_letters for p in parts]),
        "expired_records": ("Unfinished records that retention removed.", [p.expired for p in parts]),
    }
    for name, (text, values) in totals.items():
        counter = CounterMetricFamily(f"spark_log_share_group_{name}", text, labels=_SHARE_PARTITION)
        for key, value in zip(labels, values, strict=True):
            counter.add_metric(key, value)
        yield counter
    yield Gauges("spark_log_share_group_record_locks_max", "share.partition.max.record.locks of the group.", ("group",),
                 (((group,), limit) for group, limit in snapshot.record_locks.items()))  # fmt: skip


def _beyond_retention(
    snapshot: ClusterSnapshot, groups: Iterable[GroupPartitionFacts]
) -> Iterator[tuple[tuple[str, ...], float]]:
    starts = {(p.topic, p.partition): p.log_start_offset for p in snapshot.partitions}
    for g in groups:
        yield (g.group, g.topic, str(g.partition)), g.committed < starts[g.topic, g.partition]


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value)


def _by_topic(name: str, text: str, values: Mapping[str, float]) -> Metric:
    return Gauges(name, text, ("topic",), (((topic,), value) for topic, value in values.items()))
