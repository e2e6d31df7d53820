"""Says which tables a topic has by its configs, and in which log dirs; and whether these tables can be made.

Each format has a table in each log dir with replicas of the topic. A catalog has one Iceberg table for a topic, in an
online log dir with a replica of every partition. The table stays in this log dir while this is so.
"""

import importlib.util

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.files.object_puts import can_create
from spark_log.cluster.topics import Topic
from spark_log.config import TopicConfig
from spark_log.errors import InvalidConfigurationError, install_extra, redact
from spark_log.ids import LogDirId
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import LOG_DIR, PARTITION, PUBLICATION, REPLICA
from spark_log.metadata.store_schema import read_overrides
from spark_log.tables.publication_state import CURRENT, DELTA, ICEBERG, TableKey

_ONLINE_LOG_DIRS = sa.select(LOG_DIR.log_dir_id).where(LOG_DIR.online)


def targets(topic: Topic) -> list[str]:
    """Return the formats of the tables that a topic has by its configs."""
    return [*topic.config.table_formats.split(","), *([CURRENT] if topic.config.table_current == DELTA else [])]


def log_dirs_with_replicas(connection: sa.Connection, topic: Topic) -> list[LogDirId]:
    """Return the log dirs with a replica of the topic, by id."""
    query = sa.select(REPLICA.log_dir_id).distinct().where(REPLICA.topic_id == topic.topic_id)
    return [LogDirId(log_dir_id) for log_dir_id in connection.execute(query.order_by(REPLICA.log_dir_id)).scalars()]


def tables_of_topic(connection: sa.Connection, topic: Topic) -> list[TableKey]:
    """Return the tables that the topic is to have, by log dir."""
    log_dirs, formats = log_dirs_with_replicas(connection, topic), targets(topic)
    if ICEBERG not in formats or not _has_catalog(connection):
        return [TableKey(topic.topic_id, log_dir_id, target) for log_dir_id in log_dirs for target in formats]
    in_catalog = {row.log_dir_id for row in connection.execute(_tables_in_catalogs(sa.literal(topic.topic_id)))}
    return [
        TableKey(topic.topic_id, log_dir_id, target)
        for log_dir_id in log_dirs
        for target in formats
        if target != ICEBERG or log_dir_id in in_catalog
    ]


def tables_to_publish(connection: sa.Connection, topic: Topic) -> dict[TableKey, bool]:
    """Return the tables in online log dirs that must list the files of a replica there (True), or that exist and must
    list none, because there is no replica, or the target is not in table.formats any more.
    """
    online = set(connection.execute(_ONLINE_LOG_DIRS).scalars())
    query = sa.select(PUBLICATION.log_dir_id, PUBLICATION.target).where(PUBLICATION.topic_id == topic.topic_id)
    exist = {
        TableKey(topic.topic_id, LogDirId(log_dir_id), target): False
        for log_dir_id, target in connection.execute(query)
    }
    needed = dict.fromkeys(tables_of_topic(connection, topic), True)
    return {key: listing for key, listing in sorted({**exist, **needed}.items()) if key.log_dir_id in online}


def has_table(connection: sa.Connection, target: str) -> sa.ColumnElement[bool]:
    """Return the condition that the log dir of a row of `replica` has a table of its topic in this format. It applies
    only to topics with tables of this format.
    """
    if target != ICEBERG or not _has_catalog(connection):
        return sa.true()
    return sa.tuple_(REPLICA.topic_id, REPLICA.log_dir_id).in_(_tables_in_catalogs())


def _has_catalog(connection: sa.Connection) -> bool:
    return bool(read_overrides(connection).get("iceberg.catalog"))


def _tables_in_catalogs(topic_id: sa.ColumnElement[int] | None = None) -> sa.Select[tuple[int, int]]:
    """Select all topics, or this topic, with the log dir of the Iceberg table: of the online log dirs with a replica of
    every partition, the first with a table, or else the first.
    """
    replicas = (
        sa.select(REPLICA.topic_id, REPLICA.log_dir_id, sa.func.count().label("count"))
        .where(REPLICA.log_dir_id.in_(_ONLINE_LOG_DIRS))
        .group_by(REPLICA.topic_id, REPLICA.log_dir_id)
    )
    partitions = sa.select(PARTITION.topic_id, sa.func.count().label("count")).group_by(PARTITION.topic_id)
    if topic_id is not None:
        replicas, partitions = (
            replicas.where(REPLICA.topic_id == topic_id),
            partitions.where(PARTITION.topic_id == topic_id),
        )
    here, all_ = replicas.subquery(), partitions.subquery()
    published = (
        (PUBLICATION.topic_id == here.c.topic_id)
        & (PUBLICATION.log_dir_id == here.c.log_dir_id)
        & (PUBLICATION.target == ICEBERG)
    )
    complete = here.join(all_, (all_.c.topic_id == here.c.topic_id) & (all_.c["count"] == here.c["count"]))
    first = sa.func.coalesce(
        sa.func.min(sa.case((PUBLICATION.log_dir_id.is_not(None), here.c.log_dir_id))), sa.func.min(here.c.log_dir_id)
    )
    return (
        sa.select(here.c.topic_id, first.label("log_dir_id"))
        .select_from(complete.outerjoin(t.publication, published))
        .group_by(here.c.topic_id)
    )


TABLE_CONFIGS = {
    "table.formats",
    "table.current",
    "table.current.order",
    "value.envelope",
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
}
"""The configs on which the topic's tables depend."""


def check_tables(cluster: Cluster, config: TopicConfig) -> None:
    """Raise InvalidConfigurationError if a table that the configs demand cannot be made in the cluster's log dirs."""
    unlimited = config.retention_ms == -1 and config.retention_bytes == -1
    if config.table_current != "none" and config.deletes and not unlimited:
        raise InvalidConfigurationError(
            "table.current=delta: retention would remove the last records of keys: it needs cleanup.policy=compact, or"
            " retention.ms=-1 and retention.bytes=-1"
        )
    if config.table_current_order == "sequence" and "none" in (config.table_current, config.value_envelope):
        raise InvalidConfigurationError(
            "table.current.order=sequence: it needs table.current=delta, and value.envelope=debezium, whose events have"
            " sequences"
        )
    for name, package, extra in (
        ("table.formats=delta,iceberg", "fastavro", "iceberg"),
        ("table.current=delta", "pyroaring", "current"),
    ):
        config_name, _, value = name.partition("=")
        if config.as_text()[config_name] != value:
            continue
        if importlib.util.find_spec(package) is None:
            raise InvalidConfigurationError(f"{name} needs a package: {install_extra(extra)}")
        for info in cluster.log_dirs().values():
            if not (info.uri.startswith("file:") or can_create(info.uri)):
                raise InvalidConfigurationError(
                    f"{name}: log dir {redact(info.uri)} is an object store: S3 needs the package obstore, and no other"
                    " is supported"
                )
