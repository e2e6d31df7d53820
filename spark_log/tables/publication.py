"""Publishes topics as open tables: the active files of a topic's table in a log dir are the sealed segments below the
high watermark that the replicas in this log dir have. Each format (`target`) has tables of its own over the same files.

Publication is based on state, not on events: it commits the difference between the metadata and the table, and the
commit fails unless the table is still at the version that was compared. So the next publication corrects the effects of
a second publisher, of a crash between any two steps, and of a commit by another program. If the versions of the table
and of our app transaction are those recorded, the table is unchanged, and only the segments that changed since then are
compared. Otherwise all segments are compared. In a local log dir an unchanged table that this process has opened before
is not opened again (`unopened_publication`).
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.log_dir_uris import location_of
from spark_log.cluster.topics import Topic, topics_of_ids
from spark_log.errors import CorruptRecordError, SparkLogError, StorageUnavailableError, StoreChangedError, redact
from spark_log.failpoints import failpoint
from spark_log.ids import LogDirId, TopicId
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.remembered import BoundedDict
from spark_log.tables import checkpoints, publication_intent, publication_state, table_work, topic_tables
from spark_log.tables.current.cut import NO_CUTS, Cut
from spark_log.tables.current.open_current import OpenCurrent
from spark_log.tables.delta_log_repair import TornLogError, repair
from spark_log.tables.delta_table import OpenDelta, open_table
from spark_log.tables.iceberg.catalog import create_table
from spark_log.tables.iceberg.open_iceberg import OpenIceberg
from spark_log.tables.publication_intent import Intent
from spark_log.tables.publication_state import CURRENT, DELTA, ICEBERG, TableKey
from spark_log.tables.seen_offsets import listed_above_tail
from spark_log.tables.table_changes import (
    Changes,
    ConflictingCommitError,
    Difference,
    OpenTable,
    RefusedCommitError,
    TopicTable,
    find_changes,
    storage_error,
    storage_errors,
)
from spark_log.tables.unopened_publication import (
    opened,
    publish_unopened,
    report_hang,
    settle,
    verify,
    withdraw_if_absent,
)

logger = logging.getLogger(__name__)

_ATTEMPTS = 20
_TOPICS_AT_ONCE = 64


@dataclass(frozen=True)
class Published:
    """The publication of a topic: the first error of its tables, and whether a log has so many commits since its last
    checkpoint that `checkpoints.maintain_logs` is due.
    """

    error: Exception | None = None
    checkpoint_due: bool = False


def delta_tables(cluster: Cluster, topic: Topic) -> dict[LogDirId, str]:
    """Return the path or URI of the topic's table in each log dir. Together the tables contain the whole topic."""
    cluster = cluster.of(topic)
    log_dir_ids = cluster.store.read(lambda connection: topic_tables.log_dirs_with_replicas(connection, topic))
    infos = cluster.log_dirs()
    return {log_dir_id: location_of(infos[log_dir_id].uri, topic.folder) for log_dir_id in log_dir_ids}


def publish(cluster: Cluster, topic: Topic) -> None:
    """Publish the topic to its tables in every log dir that is online.

    A failing table does not stop the others; the first error, usually StorageUnavailableError, is raised at the end.
    """
    error = publish_all(cluster.of(topic), [topic], eager=True)[topic.topic_id].error
    if error is not None:
        raise error


def try_publish(
    cluster: Cluster,
    topics: Iterable[Topic],
    *,
    eager: bool = False,
    cuts: Mapping[TopicId, Cut] = NO_CUTS,
    catalogs: bool = True,
    checkpoints_due: dict[TopicId, Topic] | None = None,
) -> bool:
    """Publish topics like `publish_all`, and then write the checkpoints that are due, or add their topics to
    `checkpoints_due` for the caller. A failure is logged, and the next publication corrects it.

    Returns whether all tables were published.
    """
    by_id = {topic.topic_id: topic for topic in topics}
    published = publish_all(cluster, list(by_id.values()), eager=eager, cuts=cuts, catalogs=catalogs)
    for topic_id, outcome in published.items():
        log_failure(by_id[topic_id], outcome)
        if outcome.checkpoint_due and checkpoints_due is not None:
            checkpoints_due[topic_id] = by_id[topic_id]
        elif outcome.checkpoint_due:
            checkpoints.try_maintain_logs(cluster, by_id[topic_id])
    return not any(outcome.error for outcome in published.values())


def publish_above_tails(cluster: Cluster, topic: Topic) -> None:
    """Publish the topic if a table lists files above records that were inline at its last publication
    (`listed_above_tail`). Until the next one these files are not rewritten, though the records may be in files now.
    Tables in offline log dirs, which cannot be published, do not count. A failure is only logged.
    """
    if cluster.store.read(lambda connection: listed_above_tail(connection, topic, online=True)):
        try_publish(cluster, [topic], eager=True)


def log_failure(topic: Topic, published: Published) -> None:
    """Log a failed publication, which the next one corrects."""
    error = published.error
    if isinstance(error, SparkLogError | OSError):
        reason = redact(str(error))
        logger.warning("topic %s: table not updated, the next append tries again: %s", topic.name, reason)
    elif error is not None:  # a bug
        logger.error("topic %s: table not updated", topic.name, exc_info=error)


def publish_all(
    cluster: Cluster,
    topics: Sequence[Topic],
    *,
    eager: bool = False,
    cuts: Mapping[TopicId, Cut] = NO_CUTS,
    catalogs: bool = True,
    folders: bool = True,
) -> dict[TopicId, Published]:
    """Publish topics to their tables in every log dir that is online. A failing table does not stop the others.

    Unless `eager`, Iceberg tables that this process has published lately wait, so that they get no more snapshots than
    iceberg.max.lag.ms demands, and only the errors of Delta tables are returned, while other errors are logged. `cuts`
    are for current-state tables (`current.cut`). Without `catalogs`, tables in a catalog, which may not answer, are
    left out; without `folders`, all other tables are.
    """
    published: dict[TopicId, Published] = {}
    away: dict[LogDirId, Exception] = {}
    for first in range(0, len(topics), _TOPICS_AT_ONCE):
        together = topics[first : first + _TOPICS_AT_ONCE]
        try:
            tables, errors = _tables(cluster, together, cuts)
            tables = [table for table in tables if (folders if table.catalog is None else catalogs)]
            versions = publish_unopened(cluster, tables, away)
        except Exception as error:  # of the metadata store
            published |= {topic.topic_id: Published(error) for topic in together}
            continue
        due: set[TopicId] = set()
        waiting = set() if eager else {topic.topic_id for topic in together if has_time(topic, ICEBERG)}
        for table in sorted(tables, key=lambda table: table.catalog is not None):  # catalogs, which may hang, last
            topic_id = table.topic.topic_id
            if table.target == ICEBERG and topic_id in waiting:
                continue
            try:
                version = versions.get(table.key)
                if version is None:
                    _began_s[table.topic.uuid, table.target] = clock.monotonic_s()
                    verify(table, away)  # each time: no new table may be created in a folder that came back empty
                    version = _publish_opened(cluster, table)
                if version is not None and table.target != ICEBERG and checkpoints.is_due(table, version):
                    due.add(topic_id)
            except Exception as error:  # of whatever kind: the other tables go on
                report_hang(cluster, table)
                if table.target == DELTA or eager:
                    errors.setdefault(topic_id, error)
                else:
                    logger.warning("%s not updated, tried again later: %s", table.title, redact(str(error)))
        ids = [topic.topic_id for topic in together]
        published |= {topic_id: Published(errors.get(topic_id), topic_id in due) for topic_id in ids}
    return published


def _tables(
    cluster: Cluster, topics: Sequence[Topic], cuts: Mapping[TopicId, Cut] = NO_CUTS
) -> tuple[list[TopicTable], dict[TopicId, Exception]]:
    """Return the tables of the topics in the log dirs that are online, and the first error of each topic with a log dir
    that cannot be opened, for example because it is not mounted on this host.

    The configs of the topics are read again: an erase or a compaction pass may have found its topic hours ago, and a
    table that was added since then would be taken for one that is not needed any more. Deleted topics have no tables.
    """

    def read(connection: sa.Connection) -> list[tuple[Topic, dict[TableKey, bool]]]:
        present = topics_of_ids(connection, {topic.topic_id for topic in topics})
        return [(topic, topic_tables.tables_to_publish(connection, topic)) for topic in present.values()]

    by_topic = cluster.store.read(read)
    settings = cluster.store.settings
    infos = cluster.log_dirs()  # after the others: a log dir may have been added
    log_dirs: dict[LogDirId, LogDir | Exception] = {}
    for log_dir_id in {key.log_dir_id for _, of_topic in by_topic for key in of_topic}:
        try:
            log_dirs[log_dir_id] = cluster.log_dir(infos[log_dir_id])
        except (SparkLogError, OSError) as error:
            log_dirs[log_dir_id] = error
    tables: list[TopicTable] = []
    errors: dict[TopicId, Exception] = {}
    for topic, of_topic in by_topic:
        for (_, log_dir_id, target), listing in of_topic.items():
            log_dir = log_dirs[log_dir_id]
            if isinstance(log_dir, Exception):
                errors.setdefault(topic.topic_id, log_dir)
            else:
                cut = cuts.get(topic.topic_id)
                tables.append(TopicTable(topic, infos[log_dir_id], log_dir, target, listing, settings, infos, cut))
    return tables, errors


def tables_of(cluster: Cluster, topic: Topic) -> list[TopicTable]:
    """Return the topic's tables in the log dirs that are online. Raises the first error of a log dir."""
    tables, errors = _tables(cluster, [topic])
    if errors:
        raise errors[topic.topic_id]
    return tables


def open_as_is(table: TopicTable) -> OpenTable | None:
    """Open a table, or return None if it does not exist. Raises StorageUnavailableError if it cannot be read."""
    with storage_errors(table.title):
        return _open(table, create=False)


def check_publication(cluster: Cluster, topic: Topic) -> None:
    """Raise StoreChangedError if `publish` would raise it. Changes nothing."""
    for table in tables_of(cluster, topic):
        there = _open(table, create=False)
        if there is None:
            continue
        changes = cluster.store.read(lambda c, table=table, there=there: find_changes(c, table, there.at))  # type: ignore[misc]
        if changes is not None and not changes.in_doubt and not changes.incremental:
            _compare_all(cluster, table, there, changes)


_began_s: BoundedDict[tuple[str, str], float] = BoundedDict()
"""When this process last began to publish each topic to its tables of a format, by the topic's uuid and the format."""


def has_time(topic: Topic, target: str) -> bool:
    """Whether this process has published the topic to its tables of this format, or tried to, so lately that new files
    can wait. A part of the table's maximum lag is left for the commit.
    """
    began_s = _began_s.get((topic.uuid, target))
    lag_ms = topic.config.iceberg_max_lag_ms if target == ICEBERG else topic.config.delta_max_lag_ms
    return began_s is not None and clock.monotonic_s() - began_s < 0.8 * lag_ms / 1000


def _open(table: TopicTable, *, create: bool) -> OpenTable | None:
    if table.target == ICEBERG:
        return OpenIceberg.open(table, create=create)
    if table.target == CURRENT:
        return OpenCurrent.open(table, create=create)
    delta = open_table(table.log_dir, table.topic, create=create)
    return None if delta is None else OpenDelta(table, delta)


def _publish_opened(cluster: Cluster, table: TopicTable) -> int | None:
    """Open the table and publish to it. Returns its version, or None if it does not exist and is not needed."""
    from deltalake.exceptions import DeltaError

    topic, log_dir, uri = table.topic, table.log_dir, redact(table.info.uri)
    made_anew = False
    for _ in range(_ATTEMPTS):
        try:
            there = _open(table, create=table.listing)
            if there is None:
                opened.setdefault(table.table_id, None)
                if table.target != DELTA:  # another program has deleted it
                    cluster.store.transact(lambda c: publication_state.forget(c, table.key))
                return None
            version = _publish_once(cluster, table, there)
            if version is not None:
                opened.setdefault(table.table_id, None)
                return version
        except ConflictingCommitError:  # another process was first: compare with the new state
            continue
        except CorruptRecordError as error:
            if table.catalog is None or made_anew:
                raise
            # a power loss has torn its metadata file; or, while the folder had the table, clean-up has
            # deleted manifests that only the catalog's table needed
            logger.warning("%s in %s is made anew: %s", table.title, uri, redact(str(error)))
            create_table(
                table.catalog, topic.name, log_dir, topic.folder, table.locations, topic.all_columns, anew=True
            )
            made_anew = True
        except BaseException as error:
            unavailable = storage_error(f"{table.title} in {uri}", error)
            if unavailable is None:
                raise
            if isinstance(error, DeltaError | TornLogError) and repair(log_dir, table.folder):
                logger.warning("topic %s: the torn Delta log in %s was repaired", topic.name, uri)
                continue
            raise unavailable from error
    raise StorageUnavailableError(
        f"{table.title}: {_ATTEMPTS} commits conflicted with those of other writers; the next publication tries again"
    )


def _publish_once(cluster: Cluster, table: TopicTable, there: OpenTable) -> int | None:
    """Publish to the open table with at most one commit. Returns its version, or None if it must be opened again."""
    topic, compared = table.topic, there.at
    if table.target == CURRENT and there.has_to_change_first(_present_columns(cluster, topic)):  # even if it is idle
        return None
    changes = cluster.store.read_as_primary(lambda connection: find_changes(connection, table, compared))
    if changes is None:
        return compared[1]
    if changes.in_doubt or changes.recorded is None:
        there.force(changes.recorded[1] if changes.recorded else -1)  # before the metadata rely on it
    if changes.in_doubt:  # a publisher died before it recorded its commit
        settle(cluster, [(table, compared[0])], durable=True)
        return None
    if changes.incremental:
        what = there.incremental(changes.wanted, changes.gone)
    else:
        what = _compare_all(cluster, table, there, changes)
    recorded, due, columns = changes.recorded, changes.due, changes.columns
    if not what and not there.has_foreign_schema(columns):
        cluster.store.transact(lambda c: publication_state.record(c, topic, table.key, recorded, compared, due))
        return compared[1]
    if there.has_to_change_first(columns):
        return None
    there.prepare(what, changes.cursors, due.cursors, columns)
    opened[table.table_id] = None if columns is None else columns.fields
    intent = Intent(topic, table.key, recorded, compared, what.add, due)
    transaction_version = cluster.store.transact(lambda c: publication_intent.note(c, [intent])).get(intent.key)
    if transaction_version is None:
        return None
    failpoint("publish.before-commit")
    try:
        version = there.commit(what, changes.cursors, columns, transaction_version)
    except BaseException as error:
        refused = isinstance(error, RefusedCommitError)
        withdraw_if_absent(cluster, table, compared[1] + 1, transaction_version, refused=refused)
        raise
    failpoint("publish.committed")
    settle(cluster, [(table, transaction_version)])
    table_work.published(topic, table.target, clock.monotonic_s() - _began_s[topic.uuid, table.target])
    return version


def _present_columns(cluster: Cluster, topic: Topic) -> TopicColumns | None:
    now = cluster.store.read(lambda connection: topics_of_ids(connection, [topic.topic_id])).get(topic.topic_id)
    return None if now is None else now.all_columns


def _compare_all(cluster: Cluster, table: TopicTable, there: OpenTable, found: Changes) -> Difference:
    """Compare all files of the table and the metadata. Raises StoreChangedError if the metadata seems to be an older
    copy.
    """
    what = there.compared(found.wanted)
    if there.at[0] > (found.recorded or (0, 0))[0]:
        _check_store_is_not_older(cluster, table, what)
    return what


def _check_store_is_not_older(cluster: Cluster, table: TopicTable, what: Difference) -> None:
    """Raise StoreChangedError if the table, which has later commits than the metadata knows, lists segments that the
    metadata does not name: then the metadata was restored from an older copy, and does not tell which files to remove.

    An operator who accepts the store allows the removal (`publication_resets.use_up_versions`).
    """
    ours = [path for path in what.remove if path.startswith("_segments/")]
    if not ours:
        return
    topic = table.topic
    named = cluster.store.read(lambda connection: publication_state.named_paths(connection, topic))
    unknown = sum(path not in named for path in ours)
    if unknown:
        raise StoreChangedError(
            f"{table.title} in {redact(table.info.uri)} lists {unknown} segments that the metadata"
            " store does not know: the store seems to be restored from an older copy. Publication and clean-up of the"
            " topic's files have stopped. See what it lacks with `spark-log store status`, then allow both with"
            " `spark-log store accept`"
        )
