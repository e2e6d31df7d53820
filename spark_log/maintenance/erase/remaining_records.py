"""Finds the places that still hold records of erased keys after an erase or a purge, and writes notes for users. A note
names the place, and the action that deletes the records. Each action ends with running the same erase again.
"""

import io
import json
from collections.abc import Iterator, Sequence

import pyarrow.parquet as pq
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDirInfo, is_topic_folder
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import SparkLogError, redact
from spark_log.groups.share.rows import parsed_configs
from spark_log.ids import LogDirId, OffsetRange
from spark_log.log.reader import LogReader
from spark_log.maintenance.erase.key_matches import OldFile, Scan, holds, old_file_holds
from spark_log.maintenance.erase.workers import Workers
from spark_log.maintenance.removal.cleanable_log_dirs import CleanableLogDirs
from spark_log.maintenance.removal.orphans import is_copy, write_id_of
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import in_list
from spark_log.metadata.sql_columns import (
    GROUP_CONFIG,
    PRODUCER,
    RETIRED_REPLICA,
    SHARE_PARTITION,
    TOPIC,
    TRANSACTION_SEGMENT,
    WRITE_ID,
)
from spark_log.tables.iceberg.manifests import files_with_bounds
from spark_log.tables.publication_state import CURRENT, DELTA, ICEBERG, named_paths, table_folder
from spark_log.tables.unfinished_files import is_unfinished
from spark_log.text import count_of

_NAMED_MAX = 10
"""Maximum number of files or transactions that one note names."""


def in_open_transactions(connection: sa.Connection, cluster: Cluster, topic: Topic) -> list[str]:
    """Return notes for the batches of open transactions, which an erase does not scan; also for topics that were
    deleted since.
    """
    gone = ~sa.exists().where(TOPIC.topic_id == TRANSACTION_SEGMENT.topic_id)
    in_store = sa.func.sum(sa.case((TRANSACTION_SEGMENT.inline, 1), else_=0))
    query = (
        sa.select(PRODUCER.transactional_id, sa.func.count(), in_store)
        .join(t.transaction_segment, TRANSACTION_SEGMENT.producer_id == PRODUCER.producer_id)
        .where((TRANSACTION_SEGMENT.topic_id == topic.topic_id) | gone)
        .group_by(PRODUCER.transactional_id)
        .order_by(PRODUCER.transactional_id)
    )
    return [
        f"transaction {name!r} is open; not checked: its {count_of(count, 'batch', 'batches')} ({inline} in the"
        f" metadata store at {cluster.store.address}, {count - inline} in log dirs). When it has ended"
        " (`spark-log transaction abort` ends it), erase again"
        for name, count, inline in connection.execute(query)
    ]


def in_dead_letters(cluster: Cluster, topic: Topic, workers: Workers) -> list[str]:
    """Return a note for each topic to which a share group of this topic writes dead letters, and that holds records of
    such keys or cannot be read. Share groups and their dead letters are in the home store.
    """
    if cluster is not cluster.home:
        return []
    targets = cluster.store.read(lambda connection: _dead_letter_topics(connection, cluster, topic))
    return [
        f"topic {target.name!r}, to which share groups of {topic.name} write dead letters, has records of such keys, or"
        f" cannot be read: erase the keys there too (`spark-log topic erase {target.name}`)"
        for target in targets
        if _may_hold(cluster, target, workers)
    ]


def _dead_letter_topics(connection: sa.Connection, cluster: Cluster, topic: Topic) -> list[Topic]:
    query = (
        sa.select(GROUP_CONFIG.configs)
        .distinct()
        .join(t.share_partition, SHARE_PARTITION.group_id == GROUP_CONFIG.group_id)
        .where(SHARE_PARTITION.topic_id == topic.topic_id)
    )
    configs = [parsed_configs(text, cluster.store.settings) for text in connection.execute(query).scalars()]
    names = {config.errors_deadletterqueue_topic_name for config in configs} - {"", topic.name}
    return sorted(find_topics(connection, names).values(), key=lambda target: target.name)


def _may_hold(cluster: Cluster, target: Topic, workers: Workers) -> bool:
    reader = LogReader(cluster)
    try:
        plan = reader.plan({tp: OffsetRange(*ends) for tp, ends in reader.positions(target).items()})
        scans = [Scan(piece, piece.end, plan.log_dirs) for piece in plan.slices]
        return any(verdict is not False for verdict in workers.run(holds, scans))
    except SparkLogError:  # for example, retention deleted the records, or the topic was deleted, meanwhile
        return True


def after_purge(cluster: Cluster, log_dirs: CleanableLogDirs, topic: Topic, workers: Workers) -> list[str]:
    """Return notes for every place in the log dirs that may still hold such records."""
    notes = [
        f"log dir {redact(log_dirs.infos[log_dir_id].uri)} could not be reached ({reason}), and may still hold such"
        " records: when it is back, erase again"
        for log_dir_id, reason in sorted(log_dirs.failures.items())
        if log_dir_id in log_dirs.infos
    ]
    notes += cluster.store.read(lambda connection: _retired_replicas(connection, log_dirs, topic))
    for log_dir_id, info in log_dirs.infos.items():
        if log_dirs.open(log_dir_id) is not None:
            try:
                notes += _unnamed_files(cluster, log_dirs, info, topic, workers)
                notes += _bounds_in_tables(cluster, log_dirs, info, topic)
            except (SparkLogError, OSError) as error:
                notes.append(f"log dir {redact(info.uri)} may still hold such records: {redact(str(error))}")
    return notes


_BOUNDS = {
    DELTA: ("Delta log", "/_delta_log", "delta.log.retention.ms, which is 30 days by default"),
    CURRENT: ("Delta log of the current state", "/_delta_log", "delta.log.retention.ms, which is 30 days by default"),
    ICEBERG: ("Iceberg metadata", "/metadata", "iceberg.snapshot.retention.ms, which is 6 hours by default"),
}
"""The names of the metadata that have bounds, their folders in that of the table, and when maintenance deletes them."""


def _bounds_in_tables(cluster: Cluster, log_dirs: CleanableLogDirs, info: LogDirInfo, topic: Topic) -> list[str]:
    """Return a note for each table of the topic whose metadata cannot be read, or have bounds of typed columns of files
    that the store does not name: these bounds may be values of erased records. Unfinished metadata files may have such
    bounds too.
    """
    log_dir = log_dirs.open(info.log_dir_id)
    assert log_dir is not None
    if topic.typed_columns is None:
        return []
    notes: list[str] = []
    named = cluster.store.read(lambda connection: named_paths(connection, topic))
    for target, (what, folder, retention) in _BOUNDS.items():
        files = log_dir.list_files(table_folder(topic, target) + folder)
        contents = (
            log_dir.read(file)
            for file in files
            if file.endswith((".json", ".parquet") if target != ICEBERG else "-m0.avro")
        )
        with_bounds = files_with_bounds if target == ICEBERG else _files_with_bounds
        unfinished = [file for file in files if is_unfinished(_name(file))]
        if unfinished:
            notes.append(
                f"{_files(unfinished)} in log dir {redact(info.uri)}, which a publisher that was killed has left, may"
                " have values of such records. Maintenance deletes them a day after the last byte was written to them"
            )
        location = log_dir.location(topic.folder)
        try:
            bounded = (path for content in contents for path in with_bounds(content))
            if all(path.removeprefix(f"{location}/").removeprefix("../") in named for path in bounded):
                continue
        except ValueError:  # a power loss has cut off a file
            pass
        notes.append(
            f"the {what} of the topic in log dir {redact(info.uri)} has the smallest and largest values of typed"
            " columns in files that were removed, which may be those of such records. Maintenance deletes them after"
            f" {retention}"
        )
    return notes


def _is_metadata_of_table(path: str, folder: str) -> bool:
    """Whether a file in a topic's folder has no records: it belongs to the metadata of a table."""
    return path.startswith((f"{folder}/_delta_log/", f"{folder}/metadata/", f"{folder}/_current/_delta_log/")) or (
        path.startswith((f"{folder}/_current/deletion_vector_", f"{folder}/_current/.deletion_vector_"))
        and path.endswith((".bin", ".bin.tmp"))
    )


def _files_with_bounds(content: bytes) -> Iterator[str]:
    """Return the paths of the files for which a commit or a checkpoint of a Delta log has bounds."""
    if content.startswith(b"PAR1"):
        column = pq.ParquetFile(io.BytesIO(content)).read(["add.path", "add.stats"]).column("add")
        added = [action for action in column.to_pylist() if action is not None]
    else:
        actions = [json.loads(line) for line in content.splitlines()]
        added = [action["add"] for action in actions if "add" in action]
    return (action["path"] for action in added if "minValues" in (action.get("stats") or ""))


def previous_folders(log_dirs: CleanableLogDirs, log_dir_id: LogDirId, topic: Topic) -> list[str]:
    """Return the folders in a log dir of deleted topics of the same name."""
    log_dir = log_dirs.open(log_dir_id)
    entries = log_dir.entries() if log_dir is not None else []
    return [
        each.name
        for each in entries
        if each.folder and is_topic_folder(each.name, topic.name) and each.name != topic.folder
    ]


def _retired_replicas(connection: sa.Connection, log_dirs: CleanableLogDirs, topic: Topic) -> list[str]:
    query = sa.select(RETIRED_REPLICA.log_dir_id, RETIRED_REPLICA.partition).where(
        RETIRED_REPLICA.topic_id == topic.topic_id
    )
    return [
        f"log dir {redact(log_dirs.infos[LogDirId(log_dir_id)].uri)} still has the files of {topic.name}-{partition},"
        " which was moved away from it: when it can be written, erase again"
        for log_dir_id, partition in connection.execute(
            query.order_by(RETIRED_REPLICA.log_dir_id, RETIRED_REPLICA.partition)
        )
        if log_dir_id in log_dirs.infos
    ]


def _unnamed_files(
    cluster: Cluster, log_dirs: CleanableLogDirs, info: LogDirInfo, topic: Topic, workers: Workers
) -> list[str]:
    """Return notes for files that no metadata names, and that hold such a record or cannot be read."""
    log_dir = log_dirs.open(info.log_dir_id)
    assert log_dir is not None
    paths: list[str] = []
    # two topics with long names may have the same folder names but for the id
    others = {each.folder for each in cluster.home.store.read(find_topics).values()} - {topic.folder}
    for folder in [topic.folder, *previous_folders(log_dirs, info.log_dir_id, topic)]:
        if folder in others:
            continue
        paths += [path for path in log_dir.list_files(folder) if not _is_metadata_of_table(path, folder)]
    # after the listing: files that were appended meanwhile are named by now
    named = cluster.store.read(lambda connection: named_paths(connection, topic))
    unnamed = [path for path in sorted(paths) if path.removeprefix(f"{topic.folder}/") not in named]
    items = [OldFile(path, (info,)) for path in unnamed]
    held = [path for path, held in zip(unnamed, workers.run(old_file_holds, items), strict=True) if held]
    held = [path for path, size in zip(held, log_dir.sizes(held), strict=True) if size is not None]
    return _notes_on(cluster, redact(info.uri), held)


def _notes_on(cluster: Cluster, uri: str, held: Sequence[str]) -> list[str]:
    copies = [path for path in held if is_copy(_name(path))]
    ours = [path for path in held if write_id_of(_name(path)) and path not in copies]
    foreign = [path for path in held if path not in copies and path not in ours]
    notes: list[str] = []
    if ours:
        holders = cluster.store.read(lambda connection: _holders(connection, ours))
        by = f"of {', '.join(holders)}" if holders else "of writers that have ended"
        notes.append(
            f"{_files(ours)} in log dir {uri} that no metadata names, {by}, hold such records or cannot be read: close"
            " those programs (what a killed one left goes when its write id has run out, after 24 hours at most), and"
            " erase again"
        )
    if copies:
        notes.append(
            f"{_files(copies)} in log dir {uri}, unfinished copies, may hold such records: a day after the last byte"
            " was written to them, erase again"
        )
    if foreign:
        notes.append(
            f"{_files(foreign)} in log dir {uri}, which other programs put into the Delta table, hold such records or"
            " cannot be read: delete them, and erase again"
        )
    return notes


def _files(paths: Sequence[str]) -> str:
    more = f" and {count_of(len(paths) - _NAMED_MAX, 'more file')}" if len(paths) > _NAMED_MAX else ""
    return ", ".join(paths[:_NAMED_MAX]) + more


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _holders(connection: sa.Connection, paths: Sequence[str]) -> list[str]:
    """Return the owners of the write ids of these files, at most _NAMED_MAX."""
    ids = {write_id for path in paths if (write_id := write_id_of(_name(path)))}
    query = sa.select(WRITE_ID.holder).distinct().where(in_list(WRITE_ID.write_id, ids))
    return sorted(connection.execute(query).scalars())[:_NAMED_MAX]
