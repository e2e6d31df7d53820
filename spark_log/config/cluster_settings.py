"""Defines the cluster settings, each documented where it is defined."""

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from spark_log.config.values import DAY_MS, GIB, INT64_MAX, LEASE_MS_MAX, MIB
from spark_log.errors import InvalidConfigurationError

logger = logging.getLogger(__name__)

_IGNORED = {"log_seal_interval_ms": "table.loop.poll.ms"}
"""Settings of earlier versions that have no effect any more, with their successors."""

_AT_MOST = {
    "table_loop_share_percent": 100,
    "table_loop_threads": 64,
    "broker_session_timeout_ms": LEASE_MS_MAX,
    "controller_lease_ms": LEASE_MS_MAX,
}
"""The largest valid values of some settings. A larger value that an earlier version has stored counts as this one."""

_MAY_BE_OFF = frozenset({"metrics_interval_ms"})
"""Settings for which -1 is valid too."""

_CHOICES = {
    "store_promotion_accept": ("manual", "synchronous"),
    "transaction_cross_store": ("refuse", "allow"),
    "group_consumer_migration_policy": ("bidirectional", "upgrade", "downgrade", "disabled"),
}
"""The valid values of the settings that are words, which may be given in upper or lower case."""


@dataclass(frozen=True)
class ClusterSettings:
    """The settings of the whole cluster, not of one topic. Most are positive whole numbers.

    Values that differ from the defaults are stored with the cluster (`cluster/settings.py`). Clients and coordinators
    read them on first use, and again when they are older than 5 s (`Store.settings`).
    """

    plan_tasks_max: int = 200
    """Tasks of one Spark read, unless the user requests more with minPartitions or maxRecordsPerPartition. A task costs
    about 30 ms, so 10,000 topic-partitions at one task each would spend minutes on starting tasks.
    """

    plan_inline_bytes_per_task_max: int = 4 * MIB
    """Inline bytes that one task of a read plan may contain. Above this, the planner seals the tail first."""

    plan_inline_bytes_max: int = 64 * MIB
    """Inline bytes that one read plan may contain: half of Spark's `spark.rpc.message.maxSize` (128 MiB)."""

    commit_inline_bytes_per_task_max: int = MIB
    """Bytes of records that a write task may return in its commit message; above this the task writes a segment file.
    The messages of a thousand tasks stay below `spark.driver.maxResultSize` (1 GiB).
    """

    spark_write_id_lease_ms: int = DAY_MS
    """Lease of a Spark job's write id. The lease is long, since it is not renewed while tasks run. The files of a job
    that takes longer may be removed as orphans, and its append is then refused.
    """

    producer_write_id_lease_ms: int = 15 * 60 * 1000
    """Lease of a Producer's write id, which it renews after half of this."""

    producer_id_expiration_ms: int = DAY_MS
    """Time for which a producer's sequences are kept after its last append (Kafka's producer.id.expiration.ms)."""

    transaction_max_timeout_ms: int = 15 * 60 * 1000
    """Largest transaction.timeout.ms that a producer may request (Kafka's transaction.max.timeout.ms)."""

    transaction_abort_interval_ms: int = 10_000
    """Interval at which the coordinator aborts transactions that have exceeded their time-out (Kafka's
    transaction.abort.timed.out.transaction.cleanup.interval.ms).
    """

    transaction_cross_store: str = "refuse"
    """Whether a transaction may write to topics of several metadata stores: refuse or allow. It is committed in all of
    them or in none, but readers may see it in one store first. Group offsets may be of topics of any store.
    """

    transactional_id_expiration_ms: int = 7 * DAY_MS
    """Time for which a transactional id is kept after its last transaction (Kafka's transactional.id.expiration.ms)."""

    broker_session_timeout_ms: int = 9_000
    """A served broker whose lease is older counts as dead (Kafka's broker.session.timeout.ms). At most 10 minutes."""

    initial_broker_registration_timeout_ms: int = 60_000
    """Longest time for which a starting broker waits until the lease of its killed predecessor has expired (Kafka's
    initial.broker.registration.timeout.ms).
    """

    controller_lease_ms: int = 9_000
    """Lease of the controller and of the coordinator, renewed at a third of this, judged by the store's clock. At most
    10 minutes.
    """

    offsets_retention_ms: int = 7 * DAY_MS
    """Time for which committed offsets are kept once their group is empty (Kafka's offsets.retention.minutes)."""

    offset_metadata_max_bytes: int = 4096
    """Largest free text of a committed offset, in UTF-8 (Kafka's offset.metadata.max.bytes)."""

    group_min_session_timeout_ms: int = 100
    """Smallest session.timeout.ms of a member. Kafka's is 6 s, to limit the load of its brokers; here each member reads
    the store itself, and writes once in a third of the time-out. Below a few seconds, live members on a busy host lose
    their sessions.
    """

    group_max_session_timeout_ms: int = 30 * 60 * 1000
    """Largest session.timeout.ms of a member (Kafka's group.max.session.timeout.ms)."""

    group_consumer_session_timeout_ms: int = 45_000
    """Time without a heartbeat that ends the membership of a Kafka client with group.protocol=consumer (Kafka's
    group.consumer.session.timeout.ms)."""

    group_consumer_heartbeat_interval_ms: int = 5_000
    """How often a client with group.protocol=consumer sends a heartbeat, by which it learns of a rebalance (Kafka's
    group.consumer.heartbeat.interval.ms)."""

    group_consumer_max_size: int = 2**31 - 1
    """Largest number of members of a group with group.protocol=consumer (Kafka's group.consumer.max.size)."""

    group_consumer_migration_policy: str = "bidirectional"
    """Whether a group of consumers changes its type while it has members (Kafka's group.consumer.migration.policy).
    upgrade: from classic, when a client with group.protocol=consumer joins. downgrade: to classic, when the last such
    client has gone. bidirectional: both. disabled: neither.
    """

    group_share_record_lock_duration_ms: int = 30_000
    """Time for which a record of a share group is locked for the member that acquired it, unless its group sets
    share.record.lock.duration.ms (Kafka's group.share.record.lock.duration.ms)."""

    group_share_min_record_lock_duration_ms: int = 15_000
    """Smallest share.record.lock.duration.ms of a group (Kafka's name and default)."""

    group_share_max_record_lock_duration_ms: int = 60_000
    """Largest share.record.lock.duration.ms of a group (Kafka's name and default)."""

    group_share_delivery_count_limit: int = 5
    """Number of deliveries after which a share group archives a record, unless it sets share.delivery.count.limit
    (Kafka's group.share.delivery.count.limit)."""

    group_share_min_delivery_count_limit: int = 2
    """Smallest share.delivery.count.limit of a group (Kafka's name and default)."""

    group_share_max_delivery_count_limit: int = 10
    """Largest share.delivery.count.limit of a group (Kafka's name and default)."""

    group_share_partition_max_record_locks: int = 2_000
    """Largest number of unfinished records of a partition in a share group, unless it sets
    share.partition.max.record.locks (Kafka's group.share.partition.max.record.locks)."""

    group_share_min_partition_max_record_locks: int = 100
    """Smallest share.partition.max.record.locks of a group (Kafka's name and default)."""

    group_share_max_partition_max_record_locks: int = 4_000
    """Largest share.partition.max.record.locks of a group (Kafka's name and default)."""

    group_share_session_timeout_ms: int = 45_000
    """Time without a heartbeat that ends the membership in a share group, unless it sets share.session.timeout.ms
    (Kafka's group.share.session.timeout.ms)."""

    group_share_min_session_timeout_ms: int = 45_000
    """Smallest share.session.timeout.ms of a group (Kafka's name and default)."""

    group_share_max_session_timeout_ms: int = 60_000
    """Largest share.session.timeout.ms of a group (Kafka's name and default)."""

    group_share_heartbeat_interval_ms: int = 5_000
    """How often a member of a share group sends a heartbeat, unless the group sets share.heartbeat.interval.ms
    (Kafka's group.share.heartbeat.interval.ms)."""

    group_share_min_heartbeat_interval_ms: int = 5_000
    """Smallest share.heartbeat.interval.ms of a group (Kafka's name and default)."""

    group_share_max_heartbeat_interval_ms: int = 15_000
    """Largest share.heartbeat.interval.ms of a group (Kafka's name and default)."""

    group_share_max_size: int = 200
    """Largest number of members of a share group (Kafka's group.share.max.size)."""

    group_share_max_share_sessions: int = 2_000
    """Largest number of share sessions of one gateway (Kafka's group.share.max.share.sessions)."""

    errors_deadletterqueue_topic_name_prefix: str = "dlq."
    """The names of dead letter topics of share groups begin with this (Kafka's
    errors.deadletterqueue.topic.name.prefix)."""

    errors_deadletterqueue_auto_create_topics_enable: bool = False
    """Whether a missing dead letter topic is created (Kafka's errors.deadletterqueue.auto.create.topics.enable)."""

    schema_registry_urls_allowed: str = "*"
    """Not in Kafka. The addresses that schema.registry.url of a topic may name, separated by commas; * allows any. With
    that config a user who may alter a topic chooses where gateways and coordinators send requests.
    """

    store_answer_timeout_ms: int = 20_000
    """Not in Kafka. Time without an answer of PostgreSQL after which a client ends the connection and asks the primary
    that answers then. Above the 5 s for which a statement may wait for a lock. A client uses the default until it has
    read this setting.
    """

    store_promotion_accept: str = "manual"
    """Not in Kafka. synchronous: the coordinator accepts the promotion of a synchronous standby of PostgreSQL without a
    person, so that clean-up and publication continue. manual: after each promotion they wait for `spark-log store
    accept`.
    """

    store_promotion_max_age_ms: int = 300_000
    """Not in Kafka. A promotion is accepted without a person only if the coordinator's last beat in the promoted store
    is at most this old. The coordinator writes a beat every 10 s.
    """

    topic_default_store: str = "home"
    """Not in Kafka. The name of the store that gets the partitions of new topics (`spark-log store list`)."""

    replica_lag_time_max_ms: int = 30_000
    """A replica leaves the ISR if it has not reached the log end offset that its leader had this long ago (Kafka's
    replica.lag.time.max.ms)."""

    auto_leader_rebalance_enable: bool = True
    """Whether the controller returns leadership to preferred leaders (Kafka's auto.leader.rebalance.enable)."""

    leader_imbalance_per_broker_percentage: int = 10
    """Share of the partitions that prefer a broker and are led by another, above which the controller returns
    leadership (Kafka's leader.imbalance.per.broker.percentage).
    """

    leader_imbalance_check_interval_ms: int = 300_000
    """Interval at which the controller checks leader imbalance (Kafka's leader.imbalance.check.interval.seconds)."""

    log_retention_check_interval_ms: int = 300_000
    """Interval at which the coordinator drops expired segments (Kafka's log.retention.check.interval.ms)."""

    log_clean_up_interval_ms: int = 3_600_000
    """Interval at which the coordinator deletes files that readers no longer need. It lists every partition's folder in
    every log dir, and object stores charge for that.
    """

    log_cleaner_backoff_ms: int = 15_000
    """Time for which the coordinator waits before it checks again for partitions to compact (Kafka's
    log.cleaner.backoff.ms).
    """

    log_cleaner_local_bytes_max: int = GIB
    """Not in Kafka. Stored bytes of a partition above which the coordinator and `spark-log maintenance` leave its
    compaction to jobs/maintenance.py, with a note.
    """

    log_flush_scheduler_interval_ms: int = 1_000
    """Interval at which the coordinator checks for data that is due to be forced to disk by flush.ms (Kafka's
    log.flush.scheduler.interval.ms, which is infinite by default; here a check is one short statement).
    """

    table_loop_poll_ms: int = 250
    """Not in Kafka. Interval at which the coordinator checks for inline tails to seal (delta.max.lag.ms, segment.ms, or
    left over by a failure), and for Delta tables that are behind.
    """

    table_loop_threads: int = 4
    """Not in Kafka. The number of threads in which the coordinator seals tails."""

    table_loop_share_percent: int = 50
    """Not in Kafka. The share of its time in which the coordinator seals tails and publishes Delta tables. If too many
    topics are due, the oldest records come first, and delta.max.lag.ms is missed, as the lag metrics show.
    """

    log_merge_interval_ms: int = 60_000
    """Not in Kafka. Interval at which the coordinator merges small segments."""

    delta_maintenance_interval_ms: int = 600_000
    """Not in Kafka. Interval at which the coordinator compares Delta tables with the log, writes checkpoints, and
    deletes old log files.
    """

    table_current_cache_bytes: int = 256 * MIB
    """Not in Kafka. Bytes of keys of current-state tables (table.current) that a process keeps in memory. It reads the
    keys of other files again when it publishes.
    """

    iceberg_catalog: str = ""
    """Not in Kafka. The catalog that has the Iceberg tables of topics (table.formats=delta,iceberg), by its name in
    pyiceberg's configuration, which has its address and secrets. Without a name, the folder of a topic has its table.
    """

    iceberg_namespace: str = "spark_log"
    """Not in Kafka. The namespace of the tables in iceberg.catalog, with dots between its levels. A table has the name
    of its topic.
    """

    offsets_retention_check_interval_ms: int = 600_000
    """Interval at which the coordinator deletes offsets of empty groups, and inactive producers (Kafka's
    offsets.retention.check.interval.ms).
    """

    metrics_interval_ms: int = 60_000
    """Not in Kafka. Interval at which the coordinator appends throughput, lag and runs of tasks to topic `__metrics`.
    With -1 it does not.
    """

    @classmethod
    def parse(cls, pairs: Mapping[str, str]) -> "ClusterSettings":
        """Return the settings of these dotted names and texts, with defaults for the others.

        Raise InvalidConfigurationError that names an unknown setting, or a setting and its invalid value.
        """
        settings = {entry.name: entry for entry in fields(cls)}
        values: dict[str, Any] = {}
        for dotted, text in pairs.items():
            name = dotted.replace(".", "_")
            if name in _IGNORED:
                logger.warning("cluster setting %s has no effect any more: use %s", dotted, _IGNORED[name])
                continue
            if name not in settings:
                near = difflib.get_close_matches(name, settings, n=1, cutoff=0.6)
                hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(settings)}"
                raise InvalidConfigurationError(f"Unknown cluster setting {dotted!r}. {hint.replace('_', '.')}")
            if isinstance(settings[name].default, str):
                values[name] = text.lower() if name in _CHOICES else text
                continue
            words = {"true": True, "false": False} if isinstance(settings[name].default, bool) else {}
            digits = text.isascii() and text.removeprefix("-").isdigit()
            values[name] = words.get(text.lower(), int(text) if digits and not words else text)
        return cls(**values)

    @classmethod
    def from_stored(cls, overrides: Mapping[str, str]) -> "ClusterSettings":
        """Parse stored settings. Those of a newer spark-log that this version does not know are left out."""
        known = cls().as_text()
        largest = {name.replace("_", "."): value for name, value in _AT_MOST.items()}
        return cls.parse(
            {
                name: str(min(int(text), largest[name])) if name in largest else text
                for name, text in overrides.items()
                if name in known
            }
        )

    def as_text(self) -> dict[str, str]:
        """Return every setting's dotted name and value as text. `parse` of the result returns equal settings."""
        values = {entry.name.replace("_", "."): getattr(self, entry.name) for entry in fields(self)}
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}

    def __post_init__(self) -> None:
        for entry in fields(self):
            name, value = entry.name, getattr(self, entry.name)
            if isinstance(entry.default, bool):
                valid, expected = isinstance(value, bool), "true or false"
            elif name in _CHOICES:
                valid, expected = value in _CHOICES[name], " or ".join(_CHOICES[name])
            elif isinstance(entry.default, str):
                valid = value == value.strip() and (name != "iceberg_namespace" or all(value.split(".")))
                expected = "a name"
            else:
                whole = isinstance(value, int) and not isinstance(value, bool)
                valid = whole and (1 <= value <= _largest(name) or (name in _MAY_BE_OFF and value == -1))
                expected = f"a whole number from 1 to {_largest(name)}{', or -1' if name in _MAY_BE_OFF else ''}"
            if not valid:
                dotted = name.replace("_", ".")
                raise InvalidConfigurationError(
                    f"Invalid value {value!r} for cluster setting {dotted!r}: expected {expected}"
                )


def _largest(name: str) -> int:
    return _AT_MOST.get(name, INT64_MAX)
