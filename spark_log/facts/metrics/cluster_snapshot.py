"""Reads the facts of a cluster that its metrics need, in one snapshot of each metadata store."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import sqlalchemy as sa

from spark_log.cluster.brokers import BrokerStatus, alive_log_dirs, broker_statuses
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import ASK_TIMEOUT_MS, Answers, ask_stores, store_names
from spark_log.cluster.lease import read_lease
from spark_log.cluster.topics import Topic, find_topics, undamaged
from spark_log.config import ClusterSettings
from spark_log.facts.groups import SHARE_TYPE, read_groups, records_behind
from spark_log.facts.share_partitions import SharePartition, share_partitions
from spark_log.groups.share.rows import parsed_configs
from spark_log.ids import HOME, HOME_NAME, LogDirId, StoreId, TopicId
from spark_log.metadata import tables as t
from spark_log.metadata.connections import server_identity
from spark_log.metadata.sql_columns import GATEWAY, GROUP_OFFSET, PARTITION, REPLICA, SEGMENT, TOPIC, TRANSACTION
from spark_log.metadata.store_clock import StoreClock
from spark_log.tables.lag_measurement import TableLag, offline_tables, publications, table_lags
from spark_log.tables.publication_state import DELTA, TableKey
from spark_log.transactions.rules import ONGOING


@dataclass(frozen=True)
class PartitionFacts:
    """A partition: log_start_offset <= high_watermark <= log_end_offset. `replicas`, `in_sync` and `offline` are
    numbers of replicas. `replicated_offset` is the largest log end offset of a replica: without a leader it may be
    below that of the partition, if files are missing.

    `leader` is a broker id, or None while the partition is offline.
    """

    topic_id: TopicId
    topic: str
    partition: int
    leader: int | None
    preferred_leader: int | None
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    tail_bytes: int
    replicas: int
    in_sync: int
    offline: int
    replicated_offset: int
    min_in_sync: int
    """min.insync.replicas of the topic, or the number of replicas if that is smaller."""

    @property
    def is_offline(self) -> bool:
        """Whether the partition lacks a leader. One that the store itself keeps has no replicas and needs no leader."""
        return self.leader is None and self.replicas > 0

    @property
    def is_under_replicated(self) -> bool:
        return self.in_sync < self.replicas


@dataclass(frozen=True)
class GroupPartitionFacts:
    """A committed offset. `lag` is in records; `lag_s` is the time since the next record to read was appended, None if
    there is no such record.

    With `share`, `committed` is the start offset of a share group, `lag` that of `SharePartition`, and `lag_s` None.
    """

    group: str
    topic: str
    partition: int
    committed: int
    lag: int
    lag_s: float | None
    share: bool = False


@dataclass(frozen=True)
class ReplicationFacts:
    """The replication of a store's PostgreSQL server. `beat_age_ms` is the age of the last heartbeat of the coordinator
    there, or None. After a recent one, the coordinator accepts a promotion.
    """

    synchronous: bool
    beat_age_ms: int | None


@dataclass(frozen=True)
class ClusterSnapshot:
    """The state of a cluster at `now_ms`. `members` has the number of live members of each group. `record_locks` has
    share.partition.max.record.locks of each share group. Times are in ms since 1970, by the store's clock.
    """

    now_ms: int
    controller: str | None
    brokers: tuple[BrokerStatus, ...]
    gateways: int
    topics: Mapping[TopicId, Topic]
    members: Mapping[str, int]
    open_transactions: int
    oldest_transaction_ms: int | None
    share_partitions: tuple[SharePartition, ...]
    record_locks: Mapping[str, int]
    partitions: tuple[PartitionFacts, ...] = ()
    groups: tuple[GroupPartitionFacts, ...] = ()
    table_lags: Mapping[TableKey, TableLag] = field(default_factory=dict)
    stores: Mapping[StoreId, str] = field(default_factory=dict)
    """The names of the stores, by number; empty in a cluster with one store."""
    answering: Mapping[str, bool] = field(default_factory=dict)
    """Whether each store has answered, by its name; empty in a cluster with one store."""
    unaccepted: Mapping[str, bool] = field(default_factory=dict)
    """Whether each store that answered is on a server without an acceptance, by its name (`check_identity`)."""
    ahead_ms: Mapping[str, int] = field(default_factory=dict)
    """By how much the clock of each store that answered is ahead of the home store's, by its name."""
    replication: Mapping[str, ReplicationFacts] = field(default_factory=dict)
    """The replication of each store that answered, by its name; empty on SQLite."""
    publications: Mapping[TableKey, int] = field(default_factory=dict)
    """The number of commits to each table."""
    offline_tables: Mapping[tuple[TopicId, str], int] = field(default_factory=dict)
    """The number of tables in log dirs that are offline, by topic and format."""

    @property
    def delta_lags(self) -> Mapping[tuple[TopicId, LogDirId], TableLag]:
        """Return the lags of the Delta tables, by topic and log dir."""
        return {(key.topic_id, key.log_dir_id): lag for key, lag in self.table_lags.items() if key.target == DELTA}

    def is_available(self, topic: Topic) -> bool:
        """Whether the store of the topic has answered."""
        return self.answering.get(self.stores.get(topic.store_id, ""), True)

    @property
    def needs_coordinator(self) -> bool:
        """Whether a process has to run the periodic tasks. If all brokers are embedded, clients run them too."""
        return any(broker.served for broker in self.brokers)


def read_cluster(cluster: Cluster) -> ClusterSnapshot:
    """Read the facts of the cluster. The read takes some milliseconds, and about 20 µs for each partition."""
    snapshot, home = cluster.store.read(partial(_read_home, cluster=cluster), timeout_ms=ASK_TIMEOUT_MS)
    stores = cluster.store_ids()
    names, answers = {HOME: HOME_NAME}, Answers[_StoreFacts]()
    if len(stores) > 1:
        commits = cluster.store.read(_commits_elsewhere, timeout_ms=ASK_TIMEOUT_MS)
        answers = ask_stores(cluster, partial(_read_data_store, commits=commits), stores[1:])
        names = {store_id: str(store_id) for store_id in stores} | store_names(cluster)  # one may be removed meanwhile
        answering = {names[store_id]: store_id not in answers.failures for store_id in stores}
        snapshot = replace(snapshot, stores=names, answering=answering)
    by_name = {names[store_id]: facts for store_id, facts in {HOME: home, **answers.results}.items()}
    every = by_name.values()
    partitions = tuple(each for facts in every for each in facts.partitions)
    present = {(each.topic, each.partition) for each in partitions}
    groups = [each for facts in every for each in facts.groups] + [
        GroupPartitionFacts(part.group, part.topic, part.partition, part.start, part.lag, None, share=True)
        for part in snapshot.share_partitions
    ]
    return replace(
        snapshot,
        partitions=partitions,
        # except commits in a copy of a topic that is not live yet, or not any more
        groups=tuple(each for each in groups if (each.topic, each.partition) in present),
        table_lags={key: lag for facts in every for key, lag in facts.table_lags.items()},
        publications={key: count for facts in every for key, count in facts.publications.items()},
        offline_tables={key: count for facts in every for key, count in facts.offline_tables.items()},
        unaccepted={name: facts.unaccepted for name, facts in by_name.items()},
        ahead_ms={name: facts.ahead_ms for name, facts in by_name.items()},
        replication={name: facts.replication for name, facts in by_name.items() if facts.replication is not None},
    )


def _replication(connection: sa.Connection, now: StoreClock) -> ReplicationFacts:
    beat_ms = server_identity.last_beat(connection).at_ms
    return ReplicationFacts(
        server_identity.is_synchronous(connection), None if beat_ms is None else max(0, now.wall_ms - beat_ms)
    )


class _Commit(NamedTuple):
    """A committed offset in a topic of a data store."""

    store_id: int
    group_id: str
    topic_id: int
    partition: int
    committed_offset: int


def _commits_elsewhere(connection: sa.Connection) -> list[_Commit]:
    query = (
        sa.select(TOPIC.store_id, GROUP_OFFSET.group_id, TOPIC.topic_id, GROUP_OFFSET.partition,
                  GROUP_OFFSET.committed_offset)
        .join(t.topic, TOPIC.topic_id == GROUP_OFFSET.topic_id)
        .where(TOPIC.store_id != HOME)
        .order_by(GROUP_OFFSET.group_id, TOPIC.name, GROUP_OFFSET.partition)
    )  # fmt: skip
    return [_Commit(*row) for row in connection.execute(query)]


@dataclass(frozen=True)
class _StoreFacts:
    """The facts of the topics of one store, and of its server."""

    partitions: tuple[PartitionFacts, ...]
    groups: tuple[GroupPartitionFacts, ...]
    table_lags: Mapping[TableKey, TableLag]
    publications: Mapping[TableKey, int]
    offline_tables: Mapping[tuple[TopicId, str], int]
    unaccepted: bool
    ahead_ms: int
    replication: ReplicationFacts | None


def _read_store(
    connection: sa.Connection, now: StoreClock, topics: Iterable[Topic], commits: Iterable[sa.FromClause], ahead_ms: int
) -> _StoreFacts:
    """Read the facts of a store and its `topics`. `commits` have the columns of table group_offset."""
    return _StoreFacts(
        tuple(_partitions(connection, {topic.topic_id: topic for topic in topics}, alive_log_dirs(connection, now))),
        tuple(part for each in commits for part in _group_partitions(connection, now.wall_ms, each)),
        table_lags(connection),
        publications(connection),
        offline_tables(connection),
        server_identity.problem_of(connection) is not None,
        ahead_ms,
        None if connection.dialect.name == "sqlite" else _replication(connection, now),
    )


def _read_data_store(data: Cluster, commits: Sequence[_Commit]) -> _StoreFacts:
    """Read the facts of a data store. `commits` are those in topics of all data stores."""
    here = [commit[1:] for commit in commits if commit.store_id == data.store_id]
    columns = (sa.column("group_id", sa.String), sa.column("topic_id", sa.BigInteger),
               sa.column("partition", sa.Integer), sa.column("committed_offset", sa.BigInteger))  # fmt: skip
    given = [
        sa.values(*columns, name="given").data(here[first : first + _COMMITS_AT_ONCE])
        for first in range(0, len(here), _COMMITS_AT_ONCE)
    ]

    def read(connection: sa.Connection) -> _StoreFacts:
        now, home_now = data.store.clock(connection), data.home.store.now()
        topics = undamaged(find_topics(connection).values())
        return _read_store(connection, now, topics, given, now.wall_ms - home_now.wall_ms)

    return data.store.read(read, timeout_ms=ASK_TIMEOUT_MS)


_COMMITS_AT_ONCE = 5_000
"""The number of committed offsets in one statement to a data store."""


def _read_home(connection: sa.Connection, cluster: Cluster) -> tuple[ClusterSnapshot, _StoreFacts]:
    """Read the facts that the home store has of the whole cluster, and those of its own topics."""
    now = cluster.store.clock(connection)
    topics = {topic.topic_id: topic for topic in undamaged(find_topics(connection).values())}
    transactions = sa.select(sa.func.count(), sa.func.min(TRANSACTION.began_ms)).where(TRANSACTION.state == ONGOING)
    open_transactions, oldest_ms = connection.execute(transactions).one()
    gateways = connection.execute(sa.select(GATEWAY.lease_until_ms, GATEWAY.lease_clock_epoch))
    controller = read_lease(connection, "controller", now)
    groups = read_groups(connection, now)
    share_groups = [group.group_id for group in groups if group.type == SHARE_TYPE]
    snapshot = ClusterSnapshot(
        now.wall_ms,
        controller.holder if controller.left_ms else None,
        tuple(broker_statuses(connection, cluster, now)),
        sum(not now.expired(row.lease_until_ms, row.lease_clock_epoch) for row in gateways),
        topics,
        {group.group_id: group.members for group in groups},
        open_transactions,
        oldest_ms,
        tuple(share_partitions(connection)),
        _record_locks(connection, share_groups, cluster.store.settings) if share_groups else {},
    )
    here = [topic for topic in topics.values() if topic.store_id == HOME]
    return snapshot, _read_store(connection, now, here, [t.group_offset], ahead_ms=0)


def _record_locks(connection: sa.Connection, group_ids: Collection[str], settings: ClusterSettings) -> dict[str, int]:
    configs = {row.group_id: row.configs for row in connection.execute(sa.select(t.group_config))}
    return {
        group_id: parsed_configs(configs.get(group_id, "{}"), settings).share_partition_max_record_locks
        for group_id in group_ids
    }


def _partitions(
    connection: sa.Connection, topics: Mapping[TopicId, Topic], alive: Collection[LogDirId]
) -> Iterator[PartitionFacts]:
    counted = (
        sa.select(
            REPLICA.topic_id,
            REPLICA.partition,
            sa.func.count().label("replicas"),
            sa.func.sum(sa.case((REPLICA.in_sync, 1), else_=0)).label("in_sync"),
            sa.func.sum(sa.case((REPLICA.log_dir_id.in_(alive), 0), else_=1)).label("offline"),
            sa.func.max(sa.case((REPLICA.preference == 0, REPLICA.broker_id))).label("preferred"),
            sa.func.max(REPLICA.log_end_offset).label("replicated_offset"),
        )
        .group_by(REPLICA.topic_id, REPLICA.partition)
        .subquery()
    )
    same = (counted.c.topic_id == PARTITION.topic_id) & (counted.c.partition == PARTITION.partition)
    query = (
        sa.select(
            PARTITION.topic_id,
            PARTITION.partition,
            PARTITION.leader,
            counted.c.preferred,
            PARTITION.log_start_offset,
            PARTITION.high_watermark,
            PARTITION.log_end_offset,
            PARTITION.tail_bytes,
            counted.c.replicas,
            counted.c.in_sync,
            counted.c.offline,
            counted.c.replicated_offset,
        )
        .select_from(t.partition.outerjoin(counted, same))
        .order_by(PARTITION.topic_id, PARTITION.partition)
    )
    for row in connection.execute(query).all():
        topic_id, partition, leader, preferred, start, high_watermark, end, tail, *counted_replicas = row
        topic = topics.get(topic_id)
        if topic is None:  # a copy that is not live yet, or not any more
            continue
        # partitions of __consumer_offsets have no replicas: the store keeps their records
        replicas, in_sync, offline, replicated = (int(number or 0) for number in counted_replicas)
        minimum = min(topic.config.min_insync_replicas, replicas)
        yield PartitionFacts(
            topic_id, topic.name, partition, leader, preferred, start, high_watermark, end, tail, replicas, in_sync,
            offline, replicated, minimum,
        )  # fmt: skip


def _group_partitions(connection: sa.Connection, now_ms: int, commits: sa.FromClause) -> Iterator[GroupPartitionFacts]:
    """Yield every committed offset. The next record was appended at the time of its blob. In a file, this time follows
    from the timestamps, which clients may set, but lies between the last append of the segment before (or the creation
    of the topic) and that of this file. `commits` has the columns of table group_offset.
    """
    commit = commits.c
    here = (SEGMENT.topic_id == commit.topic_id) & (SEGMENT.partition == commit.partition)
    next_offset = sa.case(  # the records below the log start are gone
        (commit.committed_offset < PARTITION.log_start_offset, PARTITION.log_start_offset),
        else_=commit.committed_offset,
    )
    first_unread = (
        sa.select(sa.func.max(SEGMENT.base_offset))
        .where(here, SEGMENT.base_offset <= next_offset)
        .correlate(commits, t.partition)
        .scalar_subquery()
    )
    earlier = t.segment.alias()
    before_file = (
        sa.select(earlier.c.appended_ms)
        .where(
            earlier.c.topic_id == SEGMENT.topic_id,
            earlier.c.partition == SEGMENT.partition,
            earlier.c.base_offset < SEGMENT.base_offset,
        )
        .order_by(earlier.c.base_offset.desc())
        .limit(1)
        .correlate(t.segment)
        .scalar_subquery()
    )
    same = (PARTITION.topic_id == commit.topic_id) & (PARTITION.partition == commit.partition)
    query = (
        sa.select(
            commit.group_id,
            TOPIC.name,
            commit.partition,
            commit.committed_offset,
            PARTITION.high_watermark,
            next_offset,
            SEGMENT.base_offset,
            SEGMENT.end_offset,
            SEGMENT.min_timestamp_ms,
            SEGMENT.max_timestamp_ms,
            sa.case((SEGMENT.inline, SEGMENT.appended_ms), else_=sa.func.coalesce(before_file, TOPIC.created_ms)),
            SEGMENT.appended_ms,
        )
        .select_from(
            commits.join(t.topic, TOPIC.topic_id == commit.topic_id)
            .join(t.partition, same)
            .outerjoin(
                t.segment,
                here & (commit.committed_offset < PARTITION.high_watermark) & (SEGMENT.base_offset == first_unread),
            )
        )
        .order_by(commit.group_id, TOPIC.name, commit.partition)
    )
    for row in connection.execute(query).all():
        group, topic, partition, committed, end, following, base, segment_end, *times = row
        lag_s = None
        if committed < end and base is not None:
            low_ms, high_ms, before_ms, appended_ms = times
            part = min(1.0, (following - base) / (segment_end - base))
            at_ms = min(max(low_ms + part * (high_ms - low_ms), before_ms), appended_ms)
            lag_s = max(0.0, (now_ms - at_ms) / 1000)
        yield GroupPartitionFacts(group, topic, partition, committed, records_behind(committed, end), lag_s)
