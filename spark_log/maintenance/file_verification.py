"""Finds segment files that the metadata names and the log dirs lack, as after a restore of an incomplete backup."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir, segment_path
from spark_log.cluster.topics import Topic, find_topic, find_topics
from spark_log.errors import SparkLogError, redact
from spark_log.ids import LogDirId, OffsetRange, TopicPartition
from spark_log.log.segments.segment_copy import SegmentFile, is_whole
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PARTITION, REPLICA, SEGMENT


@dataclass(frozen=True)
class VerifiedReplica:
    """The files of a partition's replica in one log dir. `log_dir` is its URI without passwords."""

    log_dir: str
    partition: TopicPartition
    files: int
    bytes: int
    problems: tuple["BadFile", ...]


@dataclass(frozen=True)
class BadFile:
    """A segment file that is missing or damaged, with the offsets of the records that it should have."""

    location: str
    offsets: OffsetRange
    problem: str


@dataclass(frozen=True)
class _NamedFile:
    """A segment file that a replica should have."""

    partition: int
    offsets: OffsetRange
    file: SegmentFile


def verify_files(cluster: Cluster, topics: Iterable[str] = (), *, checksums: bool = False) -> Iterator[VerifiedReplica]:
    """Check that the log dirs have every segment file that the metadata names for their replicas, with its size. If
    no replica has some records any more, because the controller found files missing, every replica should have them.

    With `checksums`, also compare the checksum of each file, which reads all of it. `topics` are names, or all topics
    if there are none. A log dir that cannot be opened is a problem of each of its files. Raises
    UnknownTopicOrPartitionError.
    """
    names = sorted(set(topics))
    home = cluster.home
    found = home.store.read(
        lambda c: [find_topic(c, name) for name in names] if names else list(find_topics(c).values())
    )
    for topic in found:
        yield from _verify(home.of(topic), topic, checksums)


def _verify(cluster: Cluster, topic: Topic, checksums: bool) -> Iterator[VerifiedReplica]:
    infos = cluster.log_dirs()
    for log_dir_id, info in infos.items():
        named = cluster.store.read(lambda c, i=log_dir_id, topic=topic: _named(c, topic, i))  # type: ignore[misc]
        if not named:
            continue
        try:
            log_dir = cluster.log_dir(info)
            problems = _problems(log_dir, topic, named, checksums)
        except (SparkLogError, OSError) as error:
            reason = redact(str(error))
            problems = {file.file.path: BadFile(file.file.path, file.offsets, reason) for file in named}
        if problems:  # files that were replaced meanwhile are no problem
            still = cluster.store.read(lambda c, i=log_dir_id, topic=topic: _named(c, topic, i))  # type: ignore[misc]
            problems = {file.file.path: problems[file.file.path] for file in still if file.file.path in problems}
        yield from _replicas(redact(info.uri), topic, named, problems)


def _replicas(
    uri: str, topic: Topic, named: list[_NamedFile], problems: dict[str, BadFile]
) -> Iterator[VerifiedReplica]:
    for number in sorted({file.partition for file in named}):
        files = [file.file for file in named if file.partition == number]
        bad = tuple(problems[file.path] for file in files if file.path in problems)
        yield VerifiedReplica(
            uri, TopicPartition(topic.name, number), len(files), sum(file.bytes for file in files), bad
        )


def _problems(log_dir: LogDir, topic: Topic, named: list[_NamedFile], checksums: bool) -> dict[str, BadFile]:
    sizes = log_dir.list_files(f"{topic.folder}/_segments")
    problems: dict[str, BadFile] = {}
    for each in named:
        file = each.file
        problem = _problem(log_dir, file, sizes.get(file.path), checksums)
        if problem is not None:
            problems[file.path] = BadFile(redact(log_dir.location(file.path)), each.offsets, problem)
    return problems


def _problem(log_dir: LogDir, file: SegmentFile, size: int | None, checksums: bool) -> str | None:
    if size is None:
        return "missing"
    if size != file.bytes:
        return f"has {size:,} bytes, not {file.bytes:,}"
    try:
        return "has another checksum" if checksums and not is_whole(log_dir, file) else None
    except (SparkLogError, OSError) as error:
        return redact(str(error))


def _named(connection: sa.Connection, topic: Topic, log_dir_id: LogDirId) -> list[_NamedFile]:
    """Return the files of the topic that its replicas in the log dir have according to the metadata, or that no replica
    has: a replica that lacks a file also loses the files above it (`lose_files`).
    """
    any_replica = t.replica.alias("any_replica")
    longest = (
        sa.select(sa.func.max(any_replica.c.log_end_offset))
        .where(any_replica.c.topic_id == SEGMENT.topic_id, any_replica.c.partition == SEGMENT.partition)
        .scalar_subquery()
    )
    on_topic = (PARTITION.topic_id == SEGMENT.topic_id) & (PARTITION.partition == SEGMENT.partition)
    replica = (REPLICA.topic_id == SEGMENT.topic_id) & (REPLICA.partition == SEGMENT.partition)
    query = (
        sa.select(
            SEGMENT.partition, SEGMENT.base_offset, SEGMENT.end_offset, SEGMENT.name, SEGMENT.bytes, SEGMENT.checksum
        )
        .join(t.partition, on_topic)
        .join(t.replica, replica & (REPLICA.log_dir_id == log_dir_id))
        .where(SEGMENT.topic_id == topic.topic_id, ~SEGMENT.inline)
        .where(SEGMENT.end_offset > PARTITION.log_start_offset)
        .where((SEGMENT.end_offset <= REPLICA.log_end_offset) | (SEGMENT.end_offset > longest))
        .order_by(SEGMENT.partition, SEGMENT.base_offset)
    )
    return [
        _NamedFile(
            row.partition,
            OffsetRange(row.base_offset, row.end_offset),
            SegmentFile(segment_path(topic.folder, row.partition, row.name), row.bytes, row.checksum),
        )
        for row in connection.execute(query)
    ]
