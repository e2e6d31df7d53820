"""Measures the metadata store: its clock, its database, and what it knows of retired and missing files."""

import os
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import segment_path
from spark_log.cluster.log_dir_uris import location_of
from spark_log.cluster.topics import Topic, find_topics
from spark_log.config import TopicConfig
from spark_log.errors import MetadataStoreUnavailableError, SparkLogError, redact
from spark_log.facts.doctor.cluster_rules import MissingFile
from spark_log.facts.doctor.file_rules import RetiredFiles
from spark_log.facts.doctor.store_rules import FolderFacts, PostgresFacts, SqliteFacts
from spark_log.facts.metrics.cluster_snapshot import PartitionFacts
from spark_log.metadata import tables as t
from spark_log.metadata.address import SQLITE_FILE, SQLITE_LOCK_FILE
from spark_log.metadata.connections import server_identity
from spark_log.metadata.sql_columns import REPLICA, RETIRED_FILE, SEGMENT
from spark_log.metadata.store import Store


def measure_clock(store: Store) -> tuple[float, float]:
    """Return how far the store's clock is ahead of this machine's, and the uncertainty of this, in ms."""

    def read(connection: sa.Connection) -> tuple[float, float]:
        before_ms = clock.wall_ms()
        now_ms = store.clock(connection).wall_ms
        after_ms = clock.wall_ms()
        return now_ms - (before_ms + after_ms) / 2, (after_ms - before_ms) / 2 + 1

    return store.read(read)


def measure_sqlite(store: Store, folder: Path) -> SqliteFacts:
    def read(connection: sa.Connection) -> tuple[str, int]:
        names = ("journal_mode", "synchronous")
        mode, synchronous = (connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names)
        return str(mode), int(synchronous)

    mode, synchronous = store.read(read)
    return SqliteFacts(mode, synchronous, _size(folder / SQLITE_FILE), _size(folder / f"{SQLITE_FILE}-wal"))


def measure_folder(folder: Path) -> FolderFacts:
    """Read the permissions and the space of a SQLite store's folder. The folder must exist."""
    disk = os.statvfs(folder)
    names = (SQLITE_FILE, f"{SQLITE_FILE}-wal", f"{SQLITE_FILE}-shm", SQLITE_LOCK_FILE)
    files = [path for name in names if (path := folder / name).exists()]
    refused = [path.name for path in files if not os.access(path, os.R_OK | os.W_OK)]
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        refused.append("new files")
    return FolderFacts(
        str(folder),
        bool(disk.f_flag & os.ST_RDONLY),
        tuple(refused),
        disk.f_bavail * disk.f_frsize,
        disk.f_blocks * disk.f_frsize,
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


_SETTINGS = sa.text(
    "SELECT current_setting('server_version') AS version, current_setting('fsync') AS fsync,"
    " current_setting('full_page_writes') AS full_page_writes,"
    " current_setting('synchronous_commit') AS synchronous_commit, current_setting('autovacuum') AS autovacuum,"
    " (SELECT sum(numbackends)::int FROM pg_stat_database) AS connections,"
    " current_setting('max_connections')::int AS max_connections,"
    " current_setting('synchronous_standby_names') AS synchronous_standby_names,"
    " (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')) AS synchronous_standbys,"
    " (SELECT count(*) FROM pg_stat_replication) AS standbys,"
    " pg_has_role('pg_read_all_stats', 'USAGE') AS sees_standbys,"
    " (SELECT max(age(datfrozenxid)) FROM pg_database) AS transaction_id_age,"
    " (SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep') AS waiting_commits,"
    " pg_database_size(current_database()) AS bytes"
)
_IDLE_SLOTS = sa.text(
    "SELECT coalesce(string_agg(slot_name, ', ' ORDER BY slot_name), '') AS idle_slots,"
    " coalesce(max(pg_current_wal_lsn() - restart_lsn), 0)::bigint AS idle_slot_bytes"
    " FROM pg_replication_slots WHERE NOT active"
)
_OLDEST = sa.text(
    "SELECT pid, application_name, extract(epoch FROM clock_timestamp() - xact_start) AS seconds FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
    " AND backend_type = 'client backend' ORDER BY xact_start LIMIT 1"
)


def measure_postgres(store: Store) -> PostgresFacts:
    """Read the settings and the activity. A role that is no member of pg_monitor sees neither sessions of other roles
    nor which standbys are synchronous.
    """

    slots = _idle_slots(store)

    def read(connection: sa.Connection) -> PostgresFacts:
        row = connection.execute(_SETTINGS).one()
        oldest = connection.execute(_OLDEST).first()
        return PostgresFacts(
            **row._mapping,
            **slots,
            oldest_transaction_s=None if oldest is None else float(oldest.seconds),
            oldest_session=None if oldest is None else (oldest.pid, oldest.application_name or ""),
            accepts_promotions=_accepts_promotions(connection, store),
            identity_problem=server_identity.problem_of(connection),
        )

    return store.read(read)


def _idle_slots(store: Store) -> dict[str, Any]:
    """Return the fields on replication slots, or none if the role may not ask for the end of the write-ahead log."""
    try:
        return dict(store.read(lambda connection: connection.execute(_IDLE_SLOTS).one())._mapping)
    except MetadataStoreUnavailableError:
        raise
    except SparkLogError:
        return {}


def accepts_promotions(store: Store) -> bool:
    """Whether a coordinator accepts promotions: by the cluster's setting or by its own, which its heartbeats show."""
    return not store.sqlite and store.read(lambda connection: _accepts_promotions(connection, store))


def _accepts_promotions(connection: sa.Connection, store: Store) -> bool:
    settings, last = store.settings, server_identity.last_beat(connection)
    age_ms = None if last.at_ms is None else store.clock(connection).wall_ms - last.at_ms
    beats = age_ms is not None and age_ms <= settings.store_promotion_max_age_ms
    return beats or settings.store_promotion_accept == "synchronous"


def read_retired(view: Cluster) -> RetiredFiles:
    """Count the retired files, and those whose deletion is due."""

    def read(connection: sa.Connection) -> RetiredFiles:
        now_ms = view.store.clock(connection).wall_ms
        topics = {topic.topic_id: topic for topic in find_topics(connection).values()}
        query = sa.select(
            RETIRED_FILE.topic_id, RETIRED_FILE.fresh, sa.func.count(), sa.func.min(RETIRED_FILE.retired_ms)
        ).group_by(RETIRED_FILE.topic_id, RETIRED_FILE.fresh)
        files = overdue = overdue_ms = 0
        for topic_id, fresh, count, oldest_ms in connection.execute(query):
            config = topics[topic_id].config if topic_id in topics else TopicConfig()
            delay_ms = config.file_delete_delay_fresh_ms if fresh else config.file_delete_delay_ms
            due = (RETIRED_FILE.topic_id == topic_id, RETIRED_FILE.fresh == fresh)
            late = RETIRED_FILE.retired_ms < now_ms - delay_ms
            files += count
            if oldest_ms < now_ms - delay_ms:
                overdue += connection.execute(sa.select(sa.func.count()).where(*due, late)).scalar_one()
                overdue_ms = max(overdue_ms, now_ms - delay_ms - oldest_ms)
        return RetiredFiles(files, overdue, overdue_ms)

    return view.store.read(read)


def find_missing_file(cluster: Cluster, topic: Topic, facts: PartitionFacts) -> MissingFile | None:
    """Return the file at whose base offset the longest replica of the partition ends, or None if none is missing."""
    view = cluster.of(topic)
    of_replica = (REPLICA.topic_id == SEGMENT.topic_id) & (REPLICA.partition == SEGMENT.partition)
    query = (
        sa.select(SEGMENT.base_offset, SEGMENT.end_offset, SEGMENT.name, REPLICA.log_dir_id)
        .join(t.replica, of_replica & (REPLICA.log_end_offset == SEGMENT.base_offset))
        .where(SEGMENT.topic_id == topic.topic_id, SEGMENT.partition == facts.partition, ~SEGMENT.inline)
        .order_by(SEGMENT.base_offset.desc(), REPLICA.preference)
    )
    row = view.store.read(lambda connection: connection.execute(query).first())
    if row is None:
        return None
    uri = view.log_dirs()[row.log_dir_id].uri
    location = location_of(uri, segment_path(topic.folder, facts.partition, row.name))
    return MissingFile(facts.topic, facts.partition, row.base_offset, row.end_offset, redact(location))
