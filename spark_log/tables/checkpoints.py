"""Maintains the logs of Delta tables: writes checkpoints, and deletes expired log files. Publication leaves this to
maintenance, so as not to be delayed.

A reader loads the last checkpoint and every commit after it. Files that no kept version needs are deleted
(`log_clean_up`).
"""

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.files.log_dir_folder import Entry
from spark_log.cluster.log_dir import LogDir, LogDirInfo
from spark_log.cluster.topics import Topic
from spark_log.errors import SparkLogError, redact
from spark_log.remembered import BoundedDict
from spark_log.tables import publication_state, table_work, topic_tables
from spark_log.tables.current.clean_up import clean_up as clean_up_vectors
from spark_log.tables.delta_table import CHECKPOINT_COMMITS
from spark_log.tables.iceberg.open_iceberg import OpenIceberg
from spark_log.tables.log_clean_up import clean_up
from spark_log.tables.publication_state import CURRENT, DELTA, ICEBERG, TableKey
from spark_log.tables.table_changes import TopicTable, storage_errors
from spark_log.tables.unfinished_files import delete_unfinished
from spark_log.tables.unopened_commit import is_newest

if TYPE_CHECKING:  # deltalake is imported when a table is published: most clients start without it
    from deltalake import DeltaTable

logger = logging.getLogger(__name__)

COMMITS_MAX = 10
"""A checkpoint is due after this number of commits: Delta's own default of delta.checkpointInterval."""

_METADATA_FOLDERS = {DELTA: ("/_delta_log",), CURRENT: ("", "/_delta_log"), ICEBERG: ("/metadata",)}
"""By format, the folders, relative to a table's, into which publication writes metadata. The last has the log."""


@dataclass(frozen=True)
class LogFiles:
    """The log maintenance of one table: the `version` of the checkpoint, and the number and total bytes of the log's
    files, with the checkpoint, before and after expired ones were deleted.
    """

    version: int
    files_before: int
    bytes_before: int
    files_after: int
    bytes_after: int


_asked: BoundedDict[str, tuple[int, int]] = BoundedDict()
"""By table id, the table's version when its log was last asked for the checkpoint, and the version of the checkpoint.
"""


def is_due(table: TopicTable, version: int) -> bool:
    """Whether the log of a table at this version has CHECKPOINT_COMMITS commits since its last checkpoint."""
    asked, checkpointed = _asked.get(table.table_id, (version - CHECKPOINT_COMMITS, -1))
    if version - checkpointed < CHECKPOINT_COMMITS:
        return False
    if version - asked < CHECKPOINT_COMMITS // 10:
        return True  # it was due a few commits ago
    try:
        checkpointed = _checkpointed_version(table.log_dir, table.folder)
    except (SparkLogError, OSError):  # the next publication asks again
        return False
    _asked[table.table_id] = version, checkpointed
    return version - checkpointed >= CHECKPOINT_COMMITS


def try_maintain_logs(cluster: Cluster, topic: Topic, *, catalogs: bool = True) -> None:
    """Maintain the logs of the topic's tables. A failure is logged, and the logs stay due."""
    try:
        for _ in maintain_logs(cluster, topic, catalogs=catalogs):
            pass
    except (SparkLogError, OSError) as error:
        logger.warning("topic %s: no checkpoint of the Delta table: %s", topic.name, redact(str(error)))


def maintain_logs(cluster: Cluster, topic: Topic, *, catalogs: bool = True) -> Iterator[LogFiles]:
    """Delete unneeded metadata files of the topic's tables. Checkpoint and yield each Delta log with at least
    COMMITS_MAX commits since its last checkpoint. Without `catalogs`, tables in a catalog, which may hang, are left
    out.

    Only tables in online log dirs are maintained. A failing table does not stop the others; the first error, usually
    StorageUnavailableError, is raised at the end.
    """
    failed: Exception | None = None
    in_catalog = bool(cluster.store.settings.iceberg_catalog)
    for key, info in _tables(cluster, topic).items():
        if key.target == ICEBERG and in_catalog and not catalogs:
            continue
        try:
            with storage_errors(f"table of topic {topic.name} in {info.uri}"):
                done = _tidy(cluster, key, info, topic)
        except (SparkLogError, OSError) as error:
            failed = failed or error
            continue
        if done is not None:
            yield done
    if failed is not None:
        raise failed


def due_for_checkpoint(cluster: Cluster, topic: Topic) -> list[int]:
    """Return the versions of the tables that `maintain_logs` would checkpoint now.

    Raises StorageUnavailableError or LogDirMismatchError if a table or its log dir cannot be read.
    """
    versions: list[int] = []
    for key, info in _tables(cluster, topic).items():
        if key.target == ICEBERG:
            continue
        with storage_errors(f"table of topic {topic.name} in {info.uri}"):
            table = _due_table(cluster, cluster.log_dir(info), key, info, topic)
            versions += [] if table is None else [table.version()]
    return versions


def _tables(cluster: Cluster, topic: Topic) -> dict[TableKey, LogDirInfo]:
    """Return the tables of the topic in online log dirs that exist or should exist, with their log dirs."""
    found = cluster.store.read(lambda connection: topic_tables.tables_to_publish(connection, topic))
    infos = cluster.log_dirs()  # after the others: a log dir may have been added
    return {key: infos[key.log_dir_id] for key in found}


def _due_table(cluster: Cluster, log_dir: LogDir, key: TableKey, info: LogDirInfo, topic: Topic) -> "DeltaTable | None":
    """Return the Delta table in the log dir; None if there is none or if it has fewer than COMMITS_MAX commits since
    its checkpoint.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    log_dir.verify(info.uuid)
    folder = publication_state.table_folder(topic, key.target)
    location, options = log_dir.location(folder), log_dir.storage_options
    recorded = cluster.store.read(lambda connection: publication_state.recorded(connection, key))
    checkpointed = _checkpointed_version(log_dir, folder)
    if recorded is not None and recorded[1] - checkpointed < COMMITS_MAX and is_newest(log_dir, folder, recorded[1]):
        return None  # the table is not opened, because that takes longer with every file that it lists
    try:
        # is_deltatable would hold the GIL, and so stop all other threads, while it waits for an object store
        table = DeltaTable(location, storage_options=options)
    except TableNotFoundError:
        return None
    return table if table.version() - checkpointed >= COMMITS_MAX else None


def _tidy(cluster: Cluster, key: TableKey, info: LogDirInfo, topic: Topic) -> LogFiles | None:
    log_dir, table_folder = cluster.log_dir(info), publication_state.table_folder(topic, key.target)
    if cluster.store.clock_is_steady():
        now_ms = cluster.store.now().wall_ms
        folders = [table_folder + each for each in _METADATA_FOLDERS[key.target]]
        counts = delete_unfinished(log_dir, folders, now_ms)
        if counts.get(folders[-1]):  # the last one is that of the log
            table_work.maintained(topic, key.target, key.log_dir_id, counts[folders[-1]])
        if key.target == ICEBERG:
            settings, log_dirs = cluster.store.settings, cluster.log_dirs()
            opened = OpenIceberg.open(TopicTable(topic, info, log_dir, ICEBERG, True, settings, log_dirs), create=False)
            if opened is not None:
                opened.clean_up(now_ms)
        elif key.target == CURRENT:
            clean_up_vectors(log_dir, topic, now_ms)
    if key.target == ICEBERG:
        return None
    folder = f"{table_folder}/_delta_log"
    table = _due_table(cluster, log_dir, key, info, topic)
    if table is None:
        return None
    version = table.version()
    table.create_checkpoint()
    # deltalake does not force it to disk, and a torn checkpoint stops every reader
    for name in (f"{version:020d}.checkpoint.parquet", "_last_checkpoint"):
        log_dir.sync(f"{folder}/{name}")  # before the log files that it replaces are deleted
    # listed once: the log of a table that changes all the time has tens of thousands of files
    before = after = [entry for entry in log_dir.entries(folder) if not entry.folder]
    if cluster.store.clock_is_steady():
        after = clean_up(log_dir, before, topic.config, cluster.store.now().wall_ms)
    table_work.maintained(topic, key.target, key.log_dir_id, len(after))
    return LogFiles(version, len(before), _bytes(before), len(after), _bytes(after))


def _bytes(files: Iterable[Entry]) -> int:
    return sum(file.bytes for file in files)


def _checkpointed_version(log_dir: LogDir, folder: str) -> int:
    """Return the version of the last checkpoint of a table by its hint, -1 if there is no readable hint."""
    path = f"{folder}/_delta_log/_last_checkpoint"
    if log_dir.sizes([path]) == [None]:
        return -1
    try:
        return int(json.loads(log_dir.read(path))["version"])
    except (ValueError, KeyError, TypeError):  # torn by a power loss: it is written again
        return -1
