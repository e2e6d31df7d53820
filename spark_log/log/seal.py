"""Sealing: the inline tail of a partition becomes Parquet segments, at the same offsets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.inspection import report_failure
from spark_log.cluster.log_dir import segment_path
from spark_log.cluster.partition_rows import lock_partitions, save_partitions
from spark_log.cluster.replication import rewrite
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import WriteIdExpiredError
from spark_log.failpoints import failpoint
from spark_log.ids import LogDirId
from spark_log.log.appender import check_write_id
from spark_log.log.encode import Encoding, SegmentFiles
from spark_log.log.write_ids import Writer
from spark_log.metadata import tables as t
from spark_log.records import inline


@dataclass(frozen=True)
class TailSegment:
    """An inline segment, as far as sealing asks."""

    base_offset: int
    end_offset: int
    bytes: int
    timestamp_type: int
    leader_epoch: int
    name: str
    checksum: str
    record_count: int


def runs(tail: Sequence[TailSegment], bytes_max: int) -> list[list[TailSegment]]:
    """The tail cut into runs that may each become one file: no file segment in between (the offsets meet), one
    timestamp type, at most `bytes_max` bytes unless a single segment is larger. `tail` is by offset.
    """
    found: list[list[TailSegment]] = []
    size = 0
    for piece in tail:
        last = found[-1][-1] if found else None
        if (
            last is None
            or last.end_offset != piece.base_offset
            or last.timestamp_type != piece.timestamp_type
            or size + piece.bytes > bytes_max
        ):
            found.append([])
            size = 0
        found[-1].append(piece)
        size += piece.bytes
    return found


def seal(cluster: Cluster, writer: Writer, topic: Topic, partition: int) -> int:
    """Write the partition's tail below the high watermark into segment files; returns how many.

    Each run is swapped in by one transaction that changes nothing if somebody else has sealed it meanwhile: then the
    file just written, which nobody names, is removed again.
    """
    store = cluster.store
    tail = store.read(lambda connection: _tail(connection, topic, partition))
    sealed = 0
    for run in runs(tail, topic.config.segment_bytes):
        with store.snapshot() as connection:
            data = _blobs(connection, run)
            targets, partition_epoch = _in_sync_log_dirs(connection, topic, partition)
        if len(data) < len(run) or partition_epoch is None:
            continue
        sealed += _seal_run(cluster, writer, topic, partition, run, data, targets, partition_epoch)
    return sealed


def _seal_run(
    cluster: Cluster,
    writer: Writer,
    topic: Topic,
    partition: int,
    run: Sequence[TailSegment],
    data: dict[str, bytes],
    targets: Mapping[int, LogDirId],
    partition_epoch: int,
) -> bool:
    write_id, name = writer.file_name()
    path = segment_path(topic.folder, partition, name)
    infos = cluster.log_dirs()
    log_dirs = {broker_id: infos[log_dir_id] for broker_id, log_dir_id in targets.items()}
    files = SegmentFiles(log_dirs, cluster.log_dir, path, Encoding.of(topic.config))
    try:
        tables = [inline.decode(data[piece.name], piece.checksum, piece.record_count) for piece in run]
        files.append(pa.concat_tables(tables))  # at once: a thousand one-record row groups would take a second
        facts = files.commit()
    except BaseException:
        files.abort()
        raise
    for broker_id in files.failures:
        report_failure(cluster.store, targets[broker_id], facts.bytes)
    failpoint("seal.file-written")
    row = {
        "topic_id": topic.topic_id,
        "partition": partition,
        "base_offset": run[0].base_offset,
        "end_offset": run[-1].end_offset,
        "timestamp_type": run[0].timestamp_type,
        "leader_epoch": run[-1].leader_epoch,
        "name": name,
        "inline": False,
        **vars(facts),
    }
    have_it = [targets[broker_id] for broker_id in files.brokers]
    try:
        swapped = cluster.store.transact(lambda c, _attempt: _swap(c, write_id, row, run, have_it, partition_epoch))
    except WriteIdExpiredError:
        swapped = False
    if not swapped:  # ours alone to delete: our write id, and a transaction that is known not to have named it
        for broker_id in files.brokers:
            cluster.log_dir(log_dirs[broker_id]).delete(path)
        return False
    failpoint("seal.committed")
    return True


def _swap(
    connection: sa.Connection,
    write_id: str,
    row: dict[str, Any],
    run: Sequence[TailSegment],
    targets: Sequence[LogDirId],
    partition_epoch: int,
) -> bool:
    s = t.segment.c
    key = topic_id, partition = row["topic_id"], row["partition"]
    before = lock_partitions(connection, [key])
    if key not in before:
        return False
    after = rewrite(before[key], run[0].base_offset, run[-1].end_offset, targets, partition_epoch)
    if after is None:
        return False
    in_run = (
        (s.topic_id == topic_id)
        & (s.partition == partition)
        & (s.base_offset >= run[0].base_offset)
        & (s.base_offset < run[-1].end_offset)
    )
    names = list(connection.execute(sa.select(s.name).where(in_run).order_by(s.base_offset)).scalars())
    if names != [piece.name for piece in run]:
        return False
    check_write_id(connection, write_id, release=False)
    connection.execute(t.segment.delete().where(in_run))
    for first in range(0, len(names), 5_000):
        connection.execute(t.blob.delete().where(t.blob.c.name.in_(names[first : first + 5_000])))
    after = replace(after, tail_bytes=after.tail_bytes - sum(piece.bytes for piece in run))
    save_partitions(connection, before, {key: after})
    connection.execute(t.segment.insert(), {**row, "change": after.change})
    return True


def _tail(connection: sa.Connection, topic: Topic, partition: int) -> list[TailSegment]:
    s, p = t.segment.c, t.partition.c
    query = (
        sa.select(
            s.base_offset, s.end_offset, s.bytes, s.timestamp_type, s.leader_epoch, s.name, s.checksum, s.record_count
        )
        .join(t.partition, (p.topic_id == s.topic_id) & (p.partition == s.partition))
        .where(s.topic_id == topic.topic_id, s.partition == partition, s.inline, s.end_offset <= p.high_watermark)
        .order_by(s.base_offset)
    )
    return [TailSegment(*row) for row in connection.execute(query)]


def _blobs(connection: sa.Connection, run: Sequence[TailSegment]) -> dict[str, bytes]:
    b = t.blob.c
    found: dict[str, bytes] = {}
    for first in range(0, len(run), 5_000):
        names = [piece.name for piece in run[first : first + 5_000]]
        found.update(
            (row.name, bytes(row.data))
            for row in connection.execute(sa.select(b.name, b.data).where(b.name.in_(names)))
        )
    return found


def _in_sync_log_dirs(
    connection: sa.Connection, topic: Topic, partition: int
) -> tuple[dict[int, LogDirId], int | None]:
    """The ISR's log dirs by broker, and the partition epoch under which they are that; None: the partition is gone."""
    r, p = t.replica.c, t.partition.c
    query = sa.select(r.broker_id, r.log_dir_id).where(
        r.topic_id == topic.topic_id, r.partition == partition, r.in_sync
    )
    epoch = sa.select(p.partition_epoch).where(p.topic_id == topic.topic_id, p.partition == partition)
    rows = connection.execute(query.order_by(r.preference))
    return {broker_id: LogDirId(log_dir_id) for broker_id, log_dir_id in rows}, connection.execute(epoch).scalar()


def partitions_with_tails(connection: sa.Connection) -> list[tuple[Topic, int]]:
    """Every partition that has something to seal."""
    topics = {topic.topic_id: topic for topic in find_topics(connection).values()}
    p = t.partition.c
    query = sa.select(p.topic_id, p.partition).where(p.tail_bytes > 0).order_by(p.topic_id, p.partition)
    return [(topics[topic_id], partition) for topic_id, partition in connection.execute(query) if topic_id in topics]
