"""Publishes topics as Delta tables: the active files of a topic's table in a log dir are the sealed segments that its
replicas there have below the high watermark.

Publication is based on state, not on events: it commits the difference between the metadata and the Delta table, and
the commit fails unless the table is still at the version that was compared. So the next publication corrects the
effects of a second publisher, of a crash between any two steps, and of a commit by another program. If the version of
the table and of our app transaction are those recorded, the table is unchanged, and only the segments that changed
since then are compared; otherwise all are. In a local log dir an unchanged table that this process has opened before is
not opened again (`unopened_commit`).
"""

import json
import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir, LogDirInfo
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import CorruptRecordError, SparkLogError, StorageUnavailableError, StoreChangedError, redact
from spark_log.failpoints import failpoint
from spark_log.ids import LogDirId
from spark_log.log.columns.field_paths import contains
from spark_log.metadata.connections.server_identity import accepted_at_ms, check_identity
from spark_log.tables import publication_intent, publication_state
from spark_log.tables.delta_log_repair import repair
from spark_log.tables.delta_table import (
    Difference,
    active_files,
    add_columns,
    commit_changes,
    difference,
    is_checkpointed,
    open_table,
    shorten_tombstones,
    sync_checkpoint,
)
from spark_log.tables.publication_state import Cursor, PublishedFile
from spark_log.tables.unopened_commit import (
    commit_content,
    commit_path,
    is_newest,
)

if TYPE_CHECKING:  # deltalake is imported when a table is published: most clients start without it
    from deltalake import DeltaTable

logger = logging.getLogger(__name__)

_ATTEMPTS = 20

_opened: dict[str, pa.StructType | None] = {}
"""The typed columns that each table had when this process opened it last, by application id; None if none are known.
Columns are never removed. A power loss, which may tear a log (`delta_log_repair`), ends every process of the host. So
it is enough that each process opens a table once, which finds a torn log.
"""


def delta_tables(cluster: Cluster, topic: Topic) -> dict[LogDirId, str]:
    """Return the path or URI of the topic's table in each log dir. Together the tables contain the whole topic."""
    log_dir_ids = cluster.store.read(lambda connection: publication_state.log_dirs_with_replicas(connection, topic))
    infos = cluster.log_dirs()
    return {log_dir_id: LogDir(infos[log_dir_id].uri).location(topic.folder) for log_dir_id in log_dir_ids}


def publish(cluster: Cluster, topic: Topic) -> None:
    """Publish the topic to its Delta tables in every log dir that is online.

    A failing table does not stop the others; the first error, usually StorageUnavailableError, is raised at the end.
    """
    log_dirs = cluster.store.read(lambda connection: publication_state.log_dirs_to_publish(connection, topic))
    infos = cluster.log_dirs()  # after the others: a log dir may have been added
    failed: Exception | None = None
    for log_dir_id, has_replicas in log_dirs.items():
        try:
            _publish_log_dir(cluster, topic, infos[log_dir_id], has_replicas)
        except (SparkLogError, OSError) as error:
            failed = failed or error
    if failed is not None:
        raise failed


def check_publication(cluster: Cluster, topic: Topic) -> None:
    """Raise StoreChangedError if `publish` would raise it. Changes nothing."""
    log_dirs = cluster.store.read(lambda connection: publication_state.log_dirs_to_publish(connection, topic))
    infos = cluster.log_dirs()
    for log_dir_id in log_dirs:
        info, log_dir = infos[log_dir_id], cluster.log_dir(infos[log_dir_id])
        table = open_table(log_dir, topic, create=False)
        if table is None:
            continue
        in_table = table.transaction_version(_application(topic, info)) or 0
        at = (in_table, table.version())
        found = cluster.store.read(lambda connection, info=info, at=at: _find_changes(connection, topic, info, at))  # type: ignore[misc]
        if found is not None and not found.in_doubt and not found.incremental:
            _compare_all(cluster, topic, info, log_dir, table, found, in_table)


def try_publish(cluster: Cluster, topics: Iterable[Topic]) -> bool:
    """Publish topics. A failure is logged, and the next publication corrects it.

    Returns whether all tables were published.
    """
    done = True
    for topic in topics:
        try:
            publish(cluster, topic)
        except (SparkLogError, OSError) as error:
            done = False
            logger.warning(
                "topic %s: Delta table not updated, the next append tries again: %s", topic.name, redact(str(error))
            )
    return done


def _publish_log_dir(cluster: Cluster, topic: Topic, info: LogDirInfo, has_replicas: bool) -> None:
    log_dir = cluster.log_dir(info)
    log_dir.verify(info.uuid)  # each time: no new table may be created in a folder that came back empty
    if _publish_unopened(cluster, topic, info, log_dir):
        return
    from deltalake.exceptions import CommitFailedError, DeltaError

    for _ in range(_ATTEMPTS):
        try:
            table = open_table(log_dir, topic, create=has_replicas)
            if table is None or _publish_once(cluster, topic, info, log_dir, table):
                _opened.setdefault(_application(topic, info), None)
                return
        except CommitFailedError:  # another process committed first: compare with the new state
            continue
        except BaseException as error:
            # an object store that does not complete its answer raises OSError
            if not (isinstance(error, DeltaError | OSError) or type(error).__name__ == "PanicException"):
                raise
            if isinstance(error, DeltaError) and repair(log_dir, topic):
                logger.warning("topic %s: the torn Delta log in %s was repaired", topic.name, redact(info.uri))
                continue
            # deltalake panics, with an exception class of its own, in a forked child of a process that has used it
            raise StorageUnavailableError(
                redact(f"Delta table of topic {topic.name} in {info.uri}: {_one_line(error)}")
            ) from error
    raise StorageUnavailableError(
        f"Delta table of topic {topic.name}: {_ATTEMPTS} commits conflicted with those of other writers; the"
        " next publication tries again"
    )


def _one_line(error: BaseException) -> str:
    """Format an error of deltalake, which is a coloured tree of lines, as one line."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|↳", "", str(error)).split())


class _Found(NamedTuple):
    """The metadata of a table that must be changed, from one snapshot.

    If only changes are compared (`incremental`), `wanted` are the changed segments, and `gone` the retired paths;
    otherwise `wanted` are all segments.
    """

    recorded: tuple[int, int] | None
    in_doubt: bool
    due: publication_state.Due
    cursors: dict[int, Cursor]
    incremental: bool
    wanted: list[PublishedFile]
    gone: list[str]
    columns: pa.StructType | None
    """The typed columns of the topic, which may be in any of its files."""


def _find_changes(connection: sa.Connection, topic: Topic, info: LogDirInfo, left_at: tuple[int, int]) -> _Found | None:
    """Return the changes of a table, or None if it is up to date, or its topic and replicas are deleted.

    `left_at` is the version of our app transaction in the table, and the version of the table. The caller reads from
    the primary, because files are removed from the table on the basis of the result.
    """
    check_identity(connection)
    in_table = left_at[0]
    recorded = publication_state.recorded(connection, topic, info)
    in_doubt = in_table > (recorded or (0, 0))[0] and publication_intent.is_noted(connection, topic, info, in_table)
    as_we_left_it = left_at == (recorded or (0, 0))
    due = publication_state.due(connection, topic, info)
    now = find_topics(connection, [topic.name]).get(topic.name)
    if as_we_left_it and due.has_replicas and not due.cursors:
        return None
    if not due.has_replicas and now is None:
        return None  # deleted meanwhile, together with its records
    incremental, gone = as_we_left_it and not due.fallen, []
    # a table without a commit by spark-log has not shown any record
    changed = due.cursors.keys() if incremental else None
    cursors = publication_state.cursors(connection, topic, info, changed) if in_table else {}
    if incremental:
        segments = publication_state.changed_segments(connection, topic, info, due.cursors)
        gone = publication_state.retired_paths(connection, topic, info, due.cursors)
    else:
        segments = publication_state.all_segments(connection, topic, info)
    columns = now.all_columns if now is not None and now.topic_id == topic.topic_id else None
    typed = None if columns is None else columns.fields
    return _Found(recorded, in_doubt, due, cursors, incremental, segments, gone, typed)


def _publish_unopened(cluster: Cluster, topic: Topic, info: LogDirInfo, log_dir: LogDir) -> bool:
    """Publish to a table without opening it, if it is unchanged since the last publication.

    Returns False if the table must be opened: it has changed, must be compared as a whole, is due for a checkpoint, may
    lack typed columns, or has not been opened by this process; or its log dir is an object store.
    """
    if _application(topic, info) not in _opened:
        return False
    recorded = cluster.store.read(lambda connection: publication_state.recorded(connection, topic, info))
    if recorded is None or not is_newest(log_dir, topic, recorded[1]):
        return False
    changes = cluster.store.read_as_primary(lambda connection: _find_changes(connection, topic, info, recorded))
    if changes is None:
        return True
    version = recorded[1] + 1
    if changes.recorded != recorded or not changes.incremental or not log_dir.local or is_checkpointed(version):
        return False
    known = _opened[_application(topic, info)]
    if changes.columns is not None and (known is None or not contains(known, changes.columns)):
        return False  # the table may lack typed columns
    what = Difference(changes.wanted, changes.gone)
    if not what:
        cluster.store.transact(
            lambda c, _attempt: publication_state.record(c, topic, info, recorded, recorded, changes.due)
        )
        return True
    noted = cluster.store.transact(
        lambda c, _attempt: publication_intent.note(c, topic, info, recorded, recorded, what.add, changes.due)
    )
    if noted is None:
        return False
    failpoint("publish.before-commit")
    content = commit_content(what.add, what.remove, changes.cursors, _application(topic, info), noted, clock.wall_ms())
    if not log_dir.create_whole(commit_path(topic, version), content):
        return False  # another process committed first
    _settle(cluster, topic, info, noted)
    return True


def _application(topic: Topic, info: LogDirInfo) -> str:
    """Return the application id of our transactions in the topic's table."""
    return f"spark-log/{topic.uuid}/{info.uuid}"


def _settle(cluster: Cluster, topic: Topic, info: LogDirInfo, transaction_version: int) -> None:
    """Record our commit with this version, which is on disk."""
    failpoint("publish.committed")
    cluster.store.transact(
        lambda c, _attempt: publication_intent.settle(c, topic, info, transaction_version), durable=False
    )
    failpoint("publish.recorded")


def _publish_once(cluster: Cluster, topic: Topic, info: LogDirInfo, log_dir: LogDir, table: "DeltaTable") -> bool:
    application = _application(topic, info)
    in_table = table.transaction_version(application) or 0
    left_at = (in_table, table.version())
    changes = cluster.store.read_as_primary(lambda connection: _find_changes(connection, topic, info, left_at))
    if changes is None:
        return True
    recorded, in_doubt, due, cursors, incremental, segments, gone, columns = changes
    if in_doubt:  # a publisher died before it recorded its commit
        cluster.store.transact(lambda c, _attempt: publication_intent.settle(c, topic, info, in_table))
        return False
    active = active_files(table)
    if incremental:
        what = Difference(
            [file for file in segments if file.path not in active], [path for path in gone if path in active]
        )
    else:
        what = _compare_all(cluster, topic, info, log_dir, table, changes, in_table)
    compared = (in_table, table.version())
    if not what:
        cluster.store.transact(lambda c, _attempt: publication_state.record(c, topic, info, recorded, compared, due))
        return True
    if (columns is not None and add_columns(table, columns)) or shorten_tombstones(table):
        log_dir.sync(commit_path(topic, table.version()))
        return False
    _opened[application] = columns
    version = cluster.store.transact(
        lambda c, _attempt: publication_intent.note(c, topic, info, recorded, compared, what.add, due)
    )
    if version is None:
        return False
    failpoint("publish.before-commit")
    # without retries a commit makes exactly the version after the compared one, or fails
    delta_version = table.version() + 1
    commit_changes(table, what, active, cursors, application, version)
    log_dir.sync(commit_path(topic, delta_version))
    if is_checkpointed(delta_version):
        sync_checkpoint(log_dir, topic, delta_version)
    _settle(cluster, topic, info, version)
    return True


def _compare_all(
    cluster: Cluster, topic: Topic, info: LogDirInfo, log_dir: LogDir, table: "DeltaTable", found: _Found, in_table: int
) -> Difference:
    """Compare all files of the table and the metadata. Raises StoreChangedError if the metadata seems to be an older
    copy.
    """
    what = difference({file.path: file for file in found.wanted}, active_files(table))
    if in_table > (found.recorded or (0, 0))[0]:
        _check_store_is_not_older(cluster, topic, info, log_dir, table, what)
    return what


def _check_store_is_not_older(
    cluster: Cluster, topic: Topic, info: LogDirInfo, log_dir: LogDir, table: "DeltaTable", what: Difference
) -> None:
    """Raise StoreChangedError if the table, which has later commits than the metadata knows, lists segments that the
    metadata does not name: then it was restored from an older copy, and does not tell which files to remove.

    An operator who has accepted the store after the last commit allows the removal.
    """
    ours = [path for path in what.remove if path.startswith("_segments/")]
    if not ours:
        return
    named = cluster.store.read(lambda connection: publication_state.named_paths(connection, topic))
    unknown = sum(path not in named for path in ours)
    accepted_ms = cluster.store.read(accepted_at_ms)
    committed_ms = _committed_ms(log_dir, topic, table.version())
    if unknown and (accepted_ms is None or accepted_ms <= committed_ms):
        raise StoreChangedError(
            f"Delta table of topic {topic.name} in {redact(info.uri)} lists {unknown} segments that the metadata store"
            " does not know: the store seems to be restored from an older copy. Publication and clean-up of the"
            " topic's files have stopped. See what it lacks with `spark-log store status`, then allow both with"
            " `spark-log store accept`"
        )


def _committed_ms(log_dir: LogDir, topic: Topic, version: int) -> int:
    """Return the time of the commit of a version by the clock of its writer, 0 if the commit file was cleaned up.

    `DeltaTable.history` returns it too, but holds the GIL while it waits for an object store.
    """
    try:
        blocks = log_dir.read_blocks(commit_path(topic, version))
        actions = [json.loads(line) for line in b"".join(map(bytes, blocks)).splitlines()]
    except CorruptRecordError:
        return 0
    return max((action.get("commitInfo", {}).get("timestamp", 0) for action in actions), default=0)
