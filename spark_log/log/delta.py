"""Publication: a topic in a log dir is also a Delta table, whose active files are the sealed segments below the high
watermark.

By state, not by event: the difference between what the metadata says and what the Delta table has is committed, and the
commit is refused unless the table is still at the version that was compared. So a second publisher, a crash between any
two steps and a foreign commit all heal with the next publication. Where the table is known to be as we left it (its
version and our app transaction are those recorded), only the segments that changed since are looked at; else all are.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import sqlalchemy as sa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir, LogDirInfo
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import SparkLogError, StorageUnavailableError, redact
from spark_log.failpoints import failpoint
from spark_log.ids import LogDirId
from spark_log.metadata import tables as t
from spark_log.metadata.store import Attempt
from spark_log.records.schema import SEGMENT_SCHEMA

logger = logging.getLogger(__name__)

PARTITION_COLUMNS = ["partition", "base_offset"]
DELTA_SCHEMA = pa.schema([("partition", pa.int32()), ("base_offset", pa.int64()), *SEGMENT_SCHEMA])
"""offset = base_offset + offset_delta, for any Delta reader."""

_PROPERTIES = {
    "delta.appendOnly": "true",
    # VACUUM must leave what a lagging reader of an older version is on; clean-up of segments is spark-log's
    "delta.deletedFileRetentionDuration": "interval 36500 days",
    "delta.logRetentionDuration": "interval 30 days",
    "delta.checkpointInterval": "100",
}
_ATTEMPTS = 20


@dataclass(frozen=True)
class PublishedFile:
    """A file as the Delta table should list it. `path` is relative to the table."""

    path: str
    partition: int
    base_offset: int
    bytes: int
    record_count: int
    change: int
    rewritten: bool


@dataclass(frozen=True)
class Difference:
    add: Sequence[PublishedFile]
    remove: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.add or self.remove)


def difference(wanted: Mapping[str, PublishedFile], active: Iterable[str]) -> Difference:
    """What makes the active files of a table the wanted ones."""
    there = set(active)
    return Difference([file for path, file in wanted.items() if path not in there], sorted(there - wanted.keys()))


def delta_tables(cluster: Cluster, topic: Topic) -> dict[LogDirId, str]:
    """Path or URI of the topic's Delta table in each log dir. Their union is the topic."""
    with cluster.store.snapshot() as connection:
        log_dir_ids = _log_dirs_of(connection, topic)
    infos = cluster.log_dirs()
    return {log_dir_id: LogDir(infos[log_dir_id].uri).location(topic.folder) for log_dir_id in log_dir_ids}


def publish(cluster: Cluster, topic: Topic) -> None:
    """Bring the Delta tables of a topic up to the metadata. Raises StorageUnavailableError where a log dir fails."""
    infos = cluster.log_dirs()
    with cluster.store.snapshot() as connection:
        log_dir_ids = _log_dirs_of(connection, topic)
    for log_dir_id in log_dir_ids:
        _publish_log_dir(cluster, topic, infos[log_dir_id])


def try_publish(cluster: Cluster, topics: Iterable[Topic]) -> None:
    """Publish after an append that is done: a failure is logged and healed by the next publication, not raised."""
    for topic in topics:
        try:
            publish(cluster, topic)
        except (SparkLogError, DeltaError, OSError) as error:
            logger.warning(
                "topic %s: Delta table not updated, the next append tries again: %s", topic.name, redact(str(error))
            )


def publish_all(cluster: Cluster) -> None:
    """Bring the Delta tables of every topic up to the metadata."""
    for topic in cluster.store.read(find_topics).values():
        publish(cluster, topic)


def _publish_log_dir(cluster: Cluster, topic: Topic, info: LogDirInfo) -> None:
    log_dir = cluster.log_dir(info)
    for _ in range(_ATTEMPTS):
        try:
            table = _open_table(log_dir, topic)
            if _publish_once(cluster, topic, info, log_dir, table):
                return
        except CommitFailedError:  # somebody else committed first: look at the new state
            continue
        except DeltaError as error:
            raise StorageUnavailableError(
                redact(f"Delta table of topic {topic.name} in {info.uri}: {error}")
            ) from error
    raise StorageUnavailableError(
        f"Delta table of topic {topic.name}: {_ATTEMPTS} commits lost the race; giving up for now"
    )


def _publish_once(cluster: Cluster, topic: Topic, info: LogDirInfo, log_dir: LogDir, table: DeltaTable) -> bool:
    application = f"spark-log/{topic.uuid}/{info.uuid}"
    in_table = table.transaction_version(application) or 0
    with cluster.store.snapshot() as connection:
        recorded, recorded_delta_version = _recorded(connection, topic, info)
        as_we_left_it = (in_table, table.version()) == (recorded, recorded_delta_version)
        cursors = _stale_cursors(connection, topic, info)
        if as_we_left_it and not cursors:
            return True
        published = _published_changes(connection, topic, info)
        if as_we_left_it:
            wanted = _changed_segments(connection, topic, info)
            gone = _retired(connection, topic)
        else:
            wanted = _all_segments(connection, topic, info)
    active = _active_files(table)
    if as_we_left_it:
        what = Difference(
            [file for file in wanted if file.path not in active], [path for path in gone if path in active]
        )
    else:
        what = difference({file.path: file for file in wanted}, active)
    failpoint("publish.before-commit")
    version, delta_version = in_table, table.version()
    if what:
        # without retries a commit makes exactly the version after the one that was compared, or fails
        version, delta_version = in_table + 1, table.version() + 1
        _commit(table, what, active, published, Transaction(application, version))
        log_dir.sync(f"{topic.folder}/_delta_log/{delta_version:020d}.json")
    failpoint("publish.committed")
    _record(cluster, topic, info, recorded, version, delta_version, cursors)
    failpoint("publish.recorded")
    return True


def _open_table(log_dir: LogDir, topic: Topic) -> DeltaTable:
    location, options = log_dir.location(topic.folder), storage_options(log_dir)
    try:
        return DeltaTable(location, storage_options=options)
    except TableNotFoundError:
        pass
    if log_dir.local:
        log_dir.make_folder(f"{topic.folder}/_delta_log")
    try:
        table = DeltaTable.create(
            location,
            schema=DELTA_SCHEMA,
            partition_by=PARTITION_COLUMNS,
            name=topic.name,
            description="A spark-log topic. offset = base_offset + offset_delta. Written by spark-log alone.",
            configuration=_PROPERTIES,
            storage_options=options,
        )
        log_dir.sync(f"{topic.folder}/_delta_log/{table.version():020d}.json")
        return table
    except DeltaError:  # another publisher was first
        return DeltaTable(location, storage_options=options)


def _active_files(table: DeltaTable) -> dict[str, dict[str, Any]]:
    """The table's active files by path, with what a removal must repeat of them."""
    columns = pa.table(table.get_add_actions(flatten=True))
    facts = columns.select(["path", "size_bytes", "partition.partition", "partition.base_offset"]).to_pydict()
    rows = zip(
        facts["path"], facts["size_bytes"], facts["partition.partition"], facts["partition.base_offset"], strict=True
    )
    return {path: {"size": size, "partition": part, "base_offset": base} for path, size, part, base in rows}


def _commit(
    table: DeltaTable,
    what: Difference,
    active: Mapping[str, dict[str, Any]],
    published: Mapping[int, tuple[int, int]],
    transaction: Transaction,
) -> None:
    """One Delta commit, on exactly the version that was compared. CommitFailedError if somebody else was first."""
    now_ms = clock.wall_ms()
    actions: list[AddAction | RemoveAction] = [
        # never a data change: that would end every stream that reads the table
        RemoveAction(
            path,
            False,
            now_ms,
            active[path]["size"],
            _partition_values(active[path]["partition"], active[path]["base_offset"]),
        )
        for path in what.remove
    ]
    for file in what.add:
        change, high_watermark = published.get(file.partition, (0, 0))
        seen_before = file.rewritten or (file.change <= change and file.base_offset < high_watermark)
        values = _partition_values(file.partition, file.base_offset)
        actions.append(
            AddAction(
                file.path, file.bytes, values, now_ms, not seen_before, json.dumps({"numRecords": file.record_count})
            )
        )
    table.create_write_transaction(
        actions,
        mode="append",
        schema=table.schema(),
        partition_by=PARTITION_COLUMNS,
        commit_properties=CommitProperties(app_transactions=[transaction], max_commit_retries=0),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
    )


def _partition_values(partition: int | None, base_offset: int | None) -> dict[str, str | None]:
    return {
        "partition": None if partition is None else str(partition),
        "base_offset": None if base_offset is None else str(base_offset),
    }


_P, _R, _S, _C = t.partition.c, t.replica.c, t.segment.c, t.publication_cursor.c
_LIMIT = sa.case((_P.high_watermark < _R.log_end_offset, _P.high_watermark), else_=_R.log_end_offset)
"""Up to where this replica's segments may be published: whole there, and below the high watermark."""


def _log_dirs_of(connection: sa.Connection, topic: Topic) -> list[LogDirId]:
    query = sa.select(_R.log_dir_id).distinct().where(_R.topic_id == topic.topic_id).order_by(_R.log_dir_id)
    return [LogDirId(log_dir_id) for log_dir_id in connection.execute(query).scalars()]


def _recorded(connection: sa.Connection, topic: Topic, info: LogDirInfo) -> tuple[int, int]:
    """(our transaction version, Delta version) of the last publication recorded; (0, 0) before the first."""
    p = t.publication.c
    query = sa.select(p.transaction_version, p.delta_version).where(
        p.topic_id == topic.topic_id, p.log_dir_id == info.log_dir_id
    )
    row = connection.execute(query).one_or_none()
    return (row.transaction_version, row.delta_version) if row else (0, 0)


def _from_partitions(topic: Topic, info: LogDirInfo) -> tuple[Any, Any]:
    """FROM partition, its replica in this log dir, and its cursor; and the conditions that pick topic and log dir."""
    source = t.partition.join(
        t.replica, (_R.topic_id == _P.topic_id) & (_R.partition == _P.partition) & (_R.log_dir_id == info.log_dir_id)
    ).outerjoin(
        t.publication_cursor,
        (_C.topic_id == _P.topic_id) & (_C.partition == _P.partition) & (_C.log_dir_id == info.log_dir_id),
    )
    return source, _P.topic_id == topic.topic_id


def _stale_cursors(connection: sa.Connection, topic: Topic, info: LogDirInfo) -> list[tuple[int, int, int]]:
    """(partition, change, limit) of the partitions that changed since they were published."""
    source, here = _from_partitions(topic, info)
    query = (
        sa.select(_P.partition, _P.change, _LIMIT)
        .select_from(source)
        .where(here, _P.change > sa.func.coalesce(_C.change, 0))
    )
    return [(partition, change, limit) for partition, change, limit in connection.execute(query)]


def _published_changes(connection: sa.Connection, topic: Topic, info: LogDirInfo) -> dict[int, tuple[int, int]]:
    query = sa.select(_C.partition, _C.change, _C.high_watermark).where(
        _C.topic_id == topic.topic_id, _C.log_dir_id == info.log_dir_id
    )
    return {partition: (change, high_watermark) for partition, change, high_watermark in connection.execute(query)}


_FILE_COLUMNS = (_S.partition, _S.base_offset, _S.bytes, _S.record_count, _S.change, _S.rewritten, _S.name)


def _files(topic: Topic, rows: Iterable[Any]) -> list[PublishedFile]:
    return [
        PublishedFile(f"_segments/{partition}/{name}", partition, base, size, count, change, rewritten)
        for partition, base, size, count, change, rewritten, name in rows
    ]


def _all_segments(connection: sa.Connection, topic: Topic, info: LogDirInfo) -> list[PublishedFile]:
    source, here = _from_partitions(topic, info)
    source = source.join(t.segment, (_S.topic_id == _P.topic_id) & (_S.partition == _P.partition))
    query = sa.select(*_FILE_COLUMNS).select_from(source).where(here, ~_S.inline, _S.end_offset <= _LIMIT)
    return _files(topic, connection.execute(query.order_by(_S.partition, _S.base_offset)))


def _changed_segments(connection: sa.Connection, topic: Topic, info: LogDirInfo) -> list[PublishedFile]:
    """Segments that came since the cursors, or lay above their limit then. Two index scans rather than one OR."""
    source, here = _from_partitions(topic, info)
    same = (_S.topic_id == _P.topic_id) & (_S.partition == _P.partition)
    newer = same & (_S.change > sa.func.coalesce(_C.change, 0))
    above = same & (_S.base_offset >= sa.func.coalesce(_C.high_watermark, 0))
    found = sa.union(
        *(
            sa.select(*_FILE_COLUMNS)
            .select_from(source.join(t.segment, condition))
            .where(here, _P.change > sa.func.coalesce(_C.change, 0), ~_S.inline, _S.end_offset <= _LIMIT)
            for condition in (newer, above)
        )
    )
    return _files(topic, sorted(connection.execute(found).all()))


def _retired(connection: sa.Connection, topic: Topic) -> list[str]:
    """Files of the topic, relative to its table, that the metadata no longer names."""
    prefix = topic.folder + "/"
    path = t.retired_file.c.path
    query = sa.select(path).where(path.startswith(prefix, autoescape=True))
    return [found[len(prefix) :] for found in connection.execute(query).scalars()]


def _record(
    cluster: Cluster,
    topic: Topic,
    info: LogDirInfo,
    before: int,
    after: int,
    delta_version: int,
    cursors: Sequence[tuple[int, int, int]],
) -> None:
    """Note what was published, unless another publisher has noted something newer."""
    p = t.publication.c
    here = (p.topic_id == topic.topic_id) & (p.log_dir_id == info.log_dir_id)
    keys = {"topic_id": topic.topic_id, "log_dir_id": info.log_dir_id}

    def record(connection: sa.Connection, _attempt: Attempt) -> None:
        # the partitions' parent row: a topic deleted meanwhile takes no more notes, two publishers take turns
        now = find_topics(connection, [topic.name], lock=True).get(topic.name)
        if now is None or now.topic_id != topic.topic_id:
            return
        current = connection.execute(sa.select(p.transaction_version).where(here)).scalar()
        if (current or 0) != before:
            return
        values = {"transaction_version": after, "delta_version": delta_version}
        if current is None:
            connection.execute(t.publication.insert(), {**keys, **values})
        else:
            connection.execute(t.publication.update().where(here).values(values))
        numbers = [partition for partition, _, _ in cursors]
        for first in range(0, len(numbers), 5_000):
            connection.execute(
                t.publication_cursor.delete().where(
                    _C.topic_id == topic.topic_id,
                    _C.log_dir_id == info.log_dir_id,
                    _C.partition.in_(numbers[first : first + 5_000]),
                )
            )
        if cursors:
            connection.execute(
                t.publication_cursor.insert(),
                [
                    {**keys, "partition": partition, "change": change, "high_watermark": limit}
                    for partition, change, limit in cursors
                ],
            )

    cluster.store.transact(record)


def storage_options(log_dir: LogDir) -> dict[str, str]:
    """deltalake's storage options for a log dir whose URI is written for pyarrow.fs."""
    if log_dir.local:
        return {}
    parts = urlsplit(log_dir.uri)
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    options: dict[str, str] = {}
    if parts.username:
        options["aws_access_key_id"] = unquote(parts.username)
    if parts.password:
        options["aws_secret_access_key"] = unquote(parts.password)
    if "region" in query:
        options["aws_region"] = query["region"]
    if "endpoint_override" in query:
        endpoint = query["endpoint_override"]
        scheme = query.get("scheme", "https")
        options["aws_endpoint_url"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
        options["aws_allow_http"] = "true" if options["aws_endpoint_url"].startswith("http://") else "false"
    return options
