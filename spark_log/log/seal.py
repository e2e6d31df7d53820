"""Sealing: the inline tail of a partition becomes Parquet segments, at the same offsets."""

from collections.abc import Sequence

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Guard, nobody_forbids
from spark_log.cluster.topics import Topic, find_topics
from spark_log.failpoints import failpoint
from spark_log.log.rewriting import Segment, plan_rewriting, segments, swap, write
from spark_log.log.write_ids import Writer
from spark_log.metadata import tables as t


def runs(tail: Sequence[Segment], bytes_max: int) -> list[list[Segment]]:
    """The tail cut into runs that may each become one file: no file segment in between (the offsets meet), one
    timestamp type, at most `bytes_max` bytes unless a single segment is larger. `tail` is by offset.
    """
    found: list[list[Segment]] = []
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


def seal(cluster: Cluster, writer: Writer, topic: Topic, partition: int, guard: Guard = nobody_forbids) -> int:
    """Write the partition's tail below the high watermark into segment files; returns how many.

    Each run is swapped in by one transaction that changes nothing if somebody else has sealed it meanwhile.
    """
    tail = cluster.store.read(lambda connection: segments(connection, topic, partition, inline=True))
    sealed = 0
    for run in runs(tail, topic.config.segment_bytes):
        with cluster.store.snapshot() as connection:
            rewriting = plan_rewriting(connection, topic, partition, run)
        if rewriting is None:
            continue
        write_id, name = writer.file_name()
        written = write(rewriting, name, cluster.log_dirs(), cluster.log_dir)
        failpoint("seal.file-written")
        if swap(cluster, write_id, rewriting, written, guard):
            failpoint("seal.committed")
            sealed += 1
    return sealed


def partitions_with_tails(connection: sa.Connection) -> list[tuple[Topic, int]]:
    """Every partition that has something to seal."""
    topics = {topic.topic_id: topic for topic in find_topics(connection).values()}
    p = t.partition.c
    query = sa.select(p.topic_id, p.partition).where(p.tail_bytes > 0).order_by(p.topic_id, p.partition)
    return [(topics[topic_id], partition) for topic_id, partition in connection.execute(query) if topic_id in topics]
