"""Measures the lag of each table of a topic: the records that readers of the log see and the table does not contain,
and the age of the oldest of them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.log_dir import LogDirInfo
from spark_log.cluster.log_dir_uris import location_of
from spark_log.cluster.topics import Topic
from spark_log.config import ClusterSettings
from spark_log.ids import LogDirId, TopicId
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import LOG_DIR, PARTITION, PUBLICATION, PUBLICATION_CURSOR, REPLICA, SEGMENT, TOPIC
from spark_log.metadata.store_schema import read_overrides
from spark_log.tables.current.cut import HAS_CURRENT
from spark_log.tables.publication_resets import VERSIONS_SKIPPED
from spark_log.tables.publication_state import (
    CURRENT,
    DELTA,
    ICEBERG,
    REPLICA_LIMIT,
    TableKey,
    recorded_of,
    table_folder,
)
from spark_log.tables.topic_tables import has_table, tables_of_topic


@dataclass(frozen=True)
class TableLag:
    """The lag of a topic's table in a log dir. `records` is the number of records that the table lacks.

    `oldest_ms` is the append time of the oldest of them, by the store's clock. `sealed_ms` is the append time of the
    oldest one in a segment file, which only has to be published; None if all are inline.
    """

    records: int
    oldest_ms: int
    sealed_ms: int | None


LAG_BOUND_MS_MIN = 1_000
"""A smaller delta.max.lag.ms, which no table can keep, counts as this."""


def lag_bound_ms(topic: Topic, target: str) -> int | None:
    """Return the age by which the topic's table of this format is to list a record, or None if there is no such bound.

    A record first gets into a segment file, which an Iceberg table then lists within iceberg.max.lag.ms.
    """
    sealed_ms = topic.config.delta_max_lag_ms
    if sealed_ms < 0:
        return None
    return max(sealed_ms, LAG_BOUND_MS_MIN) + (topic.config.iceberg_max_lag_ms if target == ICEBERG else 0)


def publications(connection: sa.Connection) -> dict[TableKey, int]:
    """Return the number of commits that spark-log has made to each table: the version of its app transaction, without
    the versions that were skipped when a store was accepted.
    """
    query = sa.select(PUBLICATION.topic_id, PUBLICATION.log_dir_id, PUBLICATION.target, PUBLICATION.transaction_version)
    return {TableKey(*key): version % VERSIONS_SKIPPED for *key, version in connection.execute(query)}


def _replicas_with_cursors(target: str) -> sa.FromClause:
    """Join each partition with its replicas, their log dirs, and their cursors in tables of this format."""
    same = (REPLICA.topic_id == PARTITION.topic_id) & (REPLICA.partition == PARTITION.partition)
    published = (
        (PUBLICATION_CURSOR.topic_id == REPLICA.topic_id)
        & (PUBLICATION_CURSOR.partition == REPLICA.partition)
        & (PUBLICATION_CURSOR.log_dir_id == REPLICA.log_dir_id)
        & (PUBLICATION_CURSOR.target == target)
    )
    replicas = t.partition.join(t.replica, same).join(t.log_dir, LOG_DIR.log_dir_id == REPLICA.log_dir_id)
    return replicas.outerjoin(t.publication_cursor, published)


def delta_lags(
    connection: sa.Connection, topic_ids: Collection[TopicId] | None = None
) -> dict[tuple[TopicId, LogDirId], TableLag]:
    """Return the lags of Delta tables by topic and online log dir; None means all topics."""
    lags = _lags(connection, DELTA, topic_ids)
    return {(topic_id, log_dir_id): lag for (topic_id, log_dir_id, _), lag in lags.items()}


def table_lags(connection: sa.Connection, topic_ids: Collection[TopicId] | None = None) -> dict[TableKey, TableLag]:
    """Return the lags of all tables in online log dirs; None means all topics."""
    lags = (_lags(connection, target, topic_ids) for target in (DELTA, ICEBERG, CURRENT))
    return {key: lag for of_target in lags for key, lag in of_target.items()}


def _lags(connection: sa.Connection, target: str, topic_ids: Collection[TopicId] | None) -> dict[TableKey, TableLag]:
    """Return the lags of the tables of this format. Tables without a lag are left out.

    A table has shown every record below `seen_offset`. From there on follow the inline tail and later files, of which
    the table lists those that existed at the last publication. Only offsets count that the replica has and that are
    below the high watermark.
    """
    unseen = (
        (SEGMENT.topic_id == PARTITION.topic_id)
        & (SEGMENT.partition == PARTITION.partition)
        & (SEGMENT.base_offset >= sa.func.coalesce(PUBLICATION_CURSOR.seen_offset, 0))
        & (SEGMENT.base_offset < REPLICA_LIMIT)
    )
    listed = (
        ~SEGMENT.inline
        & (SEGMENT.change <= PUBLICATION_CURSOR.change)
        & (SEGMENT.end_offset <= PUBLICATION_CURSOR.high_watermark)
    )
    may_lag = (PARTITION.tail_bytes > 0) | (PARTITION.change > sa.func.coalesce(PUBLICATION_CURSOR.change, 0))
    if target == CURRENT:  # the tail of another partition may hold it back
        may_lag |= REPLICA_LIMIT > sa.func.coalesce(PUBLICATION_CURSOR.seen_offset, 0)
    query = (
        sa.select(
            REPLICA.topic_id,
            REPLICA.log_dir_id,
            sa.func.sum(SEGMENT.record_count),
            sa.func.min(SEGMENT.appended_ms),
            sa.func.min(sa.case((~SEGMENT.inline, SEGMENT.appended_ms))),
        )
        .select_from(_replicas_with_cursors(target).join(t.segment, unseen))
        .where(LOG_DIR.online, may_lag, has_table(connection, target))
        .where(sa.true() if target == CURRENT else ~sa.func.coalesce(listed, sa.false()))
        .group_by(REPLICA.topic_id, REPLICA.log_dir_id)
    )
    if target != DELTA:
        query = query.where(PARTITION.topic_id.in_(_topics_with(target)))
    if topic_ids is not None:
        query = query.where(PARTITION.topic_id.in_(topic_ids))
    return {
        TableKey(TopicId(topic_id), LogDirId(log_dir_id), target): TableLag(int(records), oldest_ms, sealed_ms)
        for topic_id, log_dir_id, records, oldest_ms, sealed_ms in connection.execute(query).all()
    }


def _topics_with(target: str) -> sa.Select[tuple[int]]:
    """Select the topics that have tables of another format than Delta."""
    return sa.select(TOPIC.topic_id).where(
        TOPIC.configs.contains(HAS_CURRENT if target == CURRENT else f"{DELTA},{target}")
    )


def offline_tables(connection: sa.Connection) -> dict[tuple[TopicId, str], int]:
    """Return the number of tables in log dirs that are offline, by topic and format. Their lag is not known, so
    `table_lags` leaves them out.
    """
    counts: dict[tuple[TopicId, str], int] = {}
    for target in (DELTA, ICEBERG, CURRENT):
        query = (
            sa.select(REPLICA.topic_id, sa.func.count(sa.distinct(REPLICA.log_dir_id)))
            .join(t.log_dir, LOG_DIR.log_dir_id == REPLICA.log_dir_id)
            .where(~LOG_DIR.online, has_table(connection, target))
            .group_by(REPLICA.topic_id)
        )
        if target != DELTA:
            query = query.where(REPLICA.topic_id.in_(_topics_with(target)))
        counts |= {(TopicId(topic_id), target): count for topic_id, count in connection.execute(query)}
    return counts


def topics_behind(connection: sa.Connection, target: str) -> set[TopicId]:
    """Return the topics of which a table of `target`, a format other than Delta, lacks a change or does not exist yet.
    A change is a new, removed or rewritten file. Only log dirs that are online count.

    A current-state table may also lack some records of its files, because there was a tail at its last publication.
    """
    lacks_change = PARTITION.change > sa.func.coalesce(PUBLICATION_CURSOR.change, 0)
    if target == CURRENT:
        unseen = REPLICA_LIMIT > sa.func.coalesce(PUBLICATION_CURSOR.seen_offset, 0)
        lacks_change |= (PARTITION.tail_bytes == 0) & unseen
    query = (
        sa.select(PARTITION.topic_id)
        .distinct()
        .select_from(_replicas_with_cursors(target))
        .where(LOG_DIR.online, lacks_change, PARTITION.topic_id.in_(_topics_with(target)))
        .where(has_table(connection, target))
    )
    return {TopicId(topic_id) for topic_id in connection.execute(query).scalars()}


@dataclass(frozen=True)
class TableInfo:
    """A topic's table of one format (`target`) in a log dir. `location` is a path or URI, or the name of a table in a
    catalog. `version` is None before the first publication.

    `lag_records` is the number of records that the table lacks, and `lag_ms` the time since the oldest of them was
    appended. Both are 0 if the table is up to date, or its log dir is offline.
    """

    log_dir_id: int
    target: str
    location: str
    version: int | None
    lag_records: int
    lag_ms: int


def describe_tables(
    connection: sa.Connection, topics: Sequence[Topic], log_dirs: Mapping[LogDirId, LogDirInfo], now_ms: int
) -> dict[int, list[TableInfo]]:
    """Return the tables of each topic by its id, in each log dir with a replica. `__consumer_offsets` has none.

    `now_ms` is the present time of the store's clock.
    """
    ids = [topic.topic_id for topic in topics]
    lags, versions = table_lags(connection, ids), recorded_of(connection, ids)
    settings = ClusterSettings.from_stored(read_overrides(connection))
    catalog, namespace = settings.iceberg_catalog, settings.iceberg_namespace
    tables: dict[int, list[TableInfo]] = {topic.topic_id: [] for topic in topics}
    for topic in topics:
        for key in tables_of_topic(connection, topic):
            lag = lags.get(key)
            tables[topic.topic_id].append(
                TableInfo(
                    key.log_dir_id,
                    key.target,
                    f"{namespace}.{topic.name} in catalog {catalog}"
                    if catalog and key.target == ICEBERG
                    else location_of(log_dirs[key.log_dir_id].uri, table_folder(topic, key.target)),
                    versions[key][1] if key in versions else None,
                    lag.records if lag else 0,
                    max(0, now_ms - lag.oldest_ms) if lag else 0,
                )
            )
    return tables
