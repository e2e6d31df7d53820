"""Publishes to Delta tables that are unchanged since their last publication without opening them, many in one round:
one snapshot, one transaction for all intents, a commit file for each table, and one transaction that records them.
"""

import contextlib
import logging
from collections.abc import Sequence

import pyarrow as pa
import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir_failures import report_failure
from spark_log.errors import SparkLogError
from spark_log.failpoints import failpoint
from spark_log.ids import LogDirId
from spark_log.log.columns.field_paths import contains
from spark_log.remembered import BoundedDict
from spark_log.tables import publication_intent, publication_state, table_work
from spark_log.tables.publication_intent import Intent
from spark_log.tables.publication_state import DELTA, ICEBERG, TableKey
from spark_log.tables.table_changes import Changes, Difference, TopicTable, find_changes
from spark_log.tables.unopened_commit import commit_content, commit_path, is_newest

logger = logging.getLogger(__name__)

opened: BoundedDict[str, pa.StructType | None] = BoundedDict()
"""The typed columns that each table had when this process opened it last, by the table's id; None if none are known. A
table that is not remembered is opened again. Columns are never removed. A power loss, which may tear a log
(`delta_log_repair`), ends every process of the host. So it is enough that each process opens a table once, and then
finds a torn log.
"""


def publish_unopened(
    cluster: Cluster, tables: Sequence[TopicTable], away: dict[LogDirId, Exception]
) -> dict[TableKey, int]:
    """Publish to those of the tables that need not be opened. Returns their Delta versions; the others must be opened.
    `away` gets the log dirs that have another id, or do not answer.

    A table must be opened if it has changed, must be compared as a whole, may lack typed columns, or has not been
    opened by this process; or if there is something to commit and its log dir is an object store where spark-log cannot
    create a commit file (`LogDir.creates_whole`).
    """
    began_s = clock.monotonic_s()
    tables = _verified([table for table in tables if table.target == DELTA and table.table_id in opened], away)
    if not tables:
        return {}
    changes = _changes(cluster, tables)
    versions: dict[TableKey, int] = {}
    due: list[tuple[TopicTable, Changes, Difference]] = []
    for table in tables:
        at, change = changes[table.key]
        if at is None or not _is_newest(table, at[1]):
            continue
        if change is None:
            versions[table.key] = at[1]
        elif change.recorded == at and change.incremental and _can_commit(table, change):
            due.append((table, change, Difference(change.wanted, change.gone)))
    versions |= _record_without_commit(cluster, [(table, change) for table, change, what in due if not what])
    committed = _commit(cluster, [each for each in due if each[2]])
    for table, _, _ in due:
        if table.key in committed:  # the tables share the time, as they share transactions
            table_work.published(table.topic, table.target, (clock.monotonic_s() - began_s) / len(committed))
    return versions | committed


def _verified(tables: Sequence[TopicTable], away: dict[LogDirId, Exception]) -> list[TopicTable]:
    """Return the tables in log dirs with the right id. `verify` raises the reason for the others."""
    for table in {table.info.log_dir_id: table for table in tables}.values():
        with contextlib.suppress(SparkLogError, OSError):
            verify(table, away)
    return [table for table in tables if table.info.log_dir_id not in away]


def verify(table: TopicTable, away: dict[LogDirId, Exception]) -> None:
    """Raise an error if the log dir of a table has another id, or does not answer. `away` has the errors of earlier
    calls: an object store may take minutes to fail, and the tables in other log dirs wait.
    """
    log_dir_id = table.info.log_dir_id
    if log_dir_id in away:
        raise away[log_dir_id]
    try:
        table.log_dir.check_that_no_call_hangs()
        table.log_dir.verify(table.info.uuid)
    except (SparkLogError, OSError) as error:
        away[log_dir_id] = error
        raise


def _changes(
    cluster: Cluster, tables: Sequence[TopicTable]
) -> dict[TableKey, tuple[tuple[int, int] | None, Changes | None]]:
    """Return the recorded state of each table, and its changes since then."""

    def read(connection: sa.Connection) -> dict[TableKey, tuple[tuple[int, int] | None, Changes | None]]:
        recorded = publication_state.recorded_of(connection, {table.topic.topic_id for table in tables})
        return {
            table.key: (at, None if at is None else find_changes(connection, table, at, reads_all=False))
            for table in tables
            for at in [recorded.get(table.key)]
        }

    return cluster.store.read_as_primary(read)


def _is_newest(table: TopicTable, version: int) -> bool:
    try:
        return is_newest(table.log_dir, table.folder, version)
    except (SparkLogError, OSError):  # opening the table raises it again
        return False


def _can_commit(table: TopicTable, change: Changes) -> bool:
    return table.log_dir.creates_whole and not _may_lack_columns(table, change)


def _may_lack_columns(table: TopicTable, change: Changes) -> bool:
    columns = opened.get(table.table_id)
    return change.columns is not None and (columns is None or not contains(columns, change.columns.fields))


def _record_without_commit(cluster: Cluster, due: Sequence[tuple[TopicTable, Changes]]) -> dict[TableKey, int]:
    """Record new cursors of tables that list the right files already."""
    for table, change in due:
        at = change.recorded
        assert at is not None
        cluster.store.transact(
            lambda c, table=table, change=change, at=at: publication_state.record(  # type: ignore[misc]
                c, table.topic, table.key, at, at, change.due
            )
        )
    return {table.key: change.recorded[1] for table, change in due if change.recorded is not None}


def _commit(cluster: Cluster, due: Sequence[tuple[TopicTable, Changes, Difference]]) -> dict[TableKey, int]:
    """Note, commit and settle the changes. Return the versions, without tables that another process changed."""
    intents = [
        Intent(table.topic, table.key, change.recorded, change.recorded, what.add, change.due)
        for table, change, what in due
        if change.recorded is not None
    ]
    if not intents:
        return {}
    noted = cluster.store.transact(lambda c: publication_intent.note(c, intents))
    versions: dict[TableKey, int] = {}
    commits: list[tuple[TopicTable, int]] = []
    for table, change, what in due:
        transaction_version = noted.get(table.key)
        if transaction_version is None or change.recorded is None:
            continue
        failpoint("publish.before-commit")
        version = change.recorded[1] + 1
        content = commit_content(
            what.add, what.remove, change.cursors, table.applications, transaction_version, clock.wall_ms()
        )
        try:
            done = table.log_dir.create_whole(commit_path(table.folder, version), content)
        except (SparkLogError, OSError) as error:  # the table is opened, which raises it if it lasts
            logger.info("topic %s: commit %s failed: %s", table.topic.name, version, error)
            withdraw_if_absent(cluster, table, version, transaction_version)
            continue
        if done:  # otherwise another process committed first
            failpoint("publish.committed")
            versions[table.key] = version
            commits.append((table, transaction_version))
    if commits:
        settle(cluster, commits)
    return versions


def report_hang(cluster: Cluster, table: TopicTable) -> None:
    """After a failed publication, ask the controller to inspect the log dir if a call into its folder hangs."""
    if table.log_dir.hangs():
        with contextlib.suppress(SparkLogError):  # of the store: the next publication reports it
            report_failure(cluster.store, table.info.log_dir_id, size=1)


def withdraw_if_absent(
    cluster: Cluster, table: TopicTable, version: int, transaction_version: int, *, refused: bool = False
) -> None:
    """Withdraw the intent of a failed commit of this process, if it is certain that the commit was not made. It may
    still be made in an object store or a catalog, whose answer may be lost, and in a folder in which a call hangs; but
    not if deltalake has `refused` it.
    """
    may_come = table.target == ICEBERG or not table.log_dir.local or table.log_dir.hangs()
    if (refused or not may_come) and _is_newest(table, version - 1):
        cluster.store.transact(lambda c: publication_intent.withdraw(c, table.key, transaction_version))


def settle(cluster: Cluster, commits: Sequence[tuple[TopicTable, int]], *, durable: bool = False) -> None:
    """Record our commits, which are on disk, each with the version of its app transaction."""
    settled = [(table.topic, table.key, version) for table, version in commits]
    cluster.store.transact(lambda c: publication_intent.settle(c, settled), durable=durable)
    failpoint("publish.recorded")
