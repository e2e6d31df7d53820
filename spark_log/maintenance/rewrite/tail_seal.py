"""Seals the inline tail of a partition: writes it into Parquet segments, at the same offsets."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

import numpy as np
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, unfenced
from spark_log.cluster.topics import Topic
from spark_log.errors import SchemaRegistryUnavailableError, SparkLogError, redact
from spark_log.ids import TopicId
from spark_log.log.append.write_ids import Writer
from spark_log.log.columns.framing import unframed
from spark_log.log.records.inline import decode as decode_inline
from spark_log.maintenance.rewrite.rewrite_plan import Rewriting, Segment, may_follow, plan_rewriting, segments
from spark_log.maintenance.rewrite.segment_rewrite import Written, write_and_swap
from spark_log.maintenance.rewrite.table_schedule import Tail
from spark_log.metadata.sql_columns import PARTITION, SEGMENT
from spark_log.registry.external_ids import learn_schemas, unknown_ids

logger = logging.getLogger(__name__)

Learn = Callable[[Cluster, Topic, Mapping[str, Set[int]]], Topic | None]
"""Adds schemas of an external registry, by their ids in keys and values, to a topic: see `learn_schemas`."""


def runs(tail: Sequence[Segment], bytes_max: int, seen: Collection[int] = ()) -> list[list[Segment]]:
    """Divide the segments, all of the tail or all files, into runs that may each become one file, by offset. In a run,
    offsets meet, there is one timestamp type, at most OFFSETS_MAX offsets, and at most `bytes_max` bytes unless a
    single segment is larger.

    No run of files crosses one of `seen` (`tables/seen_offsets.py`).
    """
    seal_runs: list[list[Segment]] = []
    size = 0
    for piece in tail:
        run = seal_runs[-1] if seal_runs else None
        if run is None or size + piece.bytes > bytes_max or not may_follow(run[0], run[-1], piece, seen):
            seal_runs.append([])
            size = 0
        seal_runs[-1].append(piece)
        size += piece.bytes
    return seal_runs


def seal(
    cluster: Cluster,
    writer: Writer,
    topic: Topic,
    partition: int,
    fence: Fence = unfenced,
    *,
    waits_for_schemas: bool = True,
) -> int:
    """Write the partition's tail below the high watermark into segment files; returns their number."""
    files = sealing(cluster, writer, topic, partition, fence, waits_for_schemas=waits_for_schemas)
    return sum(1 for _ in files)


def try_seal(cluster: Cluster, writer: Writer, topic: Topic, partition: int) -> int | None:
    """Seal the tail like `seal`. A failure is logged, not raised, and the result is None then."""
    try:
        return seal(cluster, writer, topic, partition)
    except (SparkLogError, OSError) as error:
        logger.warning("%s-%s: tail not sealed, tried again later: %s", topic.name, partition, redact(str(error)))
        return None


def sealing(
    cluster: Cluster,
    writer: Writer,
    topic: Topic,
    partition: int,
    fence: Fence = unfenced,
    end_offset: int | None = None,
    *,
    waits_for_schemas: bool = True,
    learn: Learn = learn_schemas,
) -> Iterator[tuple[Rewriting, Written]]:
    """Seal the tail like `seal`, but yield each file when it has been swapped in. With `end_offset`, seal only segments
    that end at or below it.

    Each swap is a transaction that changes nothing if another process has sealed the run meanwhile. `learn` adds the
    schemas to the topic, or returns None to leave the rest of the tail.

    Raises SchemaRegistryUnavailableError if the tail has schema ids that only an external registry may know, and it
    does not answer; without `waits_for_schemas` these are bad records until the backfill of the columns.
    """
    tail = cluster.store.read(lambda connection: segments(connection, topic, partition, inline=True))
    if end_offset is not None:
        tail = [piece for piece in tail if piece.end_offset <= end_offset]
    for run in runs(tail, topic.config.segment_bytes):
        rewriting = cluster.store.read(partial(plan_rewriting, topic=topic, partition=partition, inputs=run))
        if rewriting is None:
            continue
        unknown = unknown_ids(topic, _schema_ids(rewriting)) if topic.config.schema_registry_url else {}
        if unknown:
            try:
                learnt = learn(cluster, topic, unknown)
            except SchemaRegistryUnavailableError:
                if waits_for_schemas:
                    raise
            else:
                if learnt is None:
                    return
                topic = learnt
            rewriting = replace(rewriting, topic=topic)
        written = write_and_swap(cluster, writer, rewriting, fence, "seal")
        if written is not None:
            yield rewriting, written


def _schema_ids(rewriting: Rewriting) -> dict[str, set[int]]:
    """Return the ids of Confluent's framing in the keys and values of inline segments."""
    columns = rewriting.topic.columns
    framed = () if columns is None else [part.source for part, each in columns.parts if each.framing == "confluent"]
    ids_by_source: dict[str, set[int]] = {source: set() for source in framed}
    for piece in rewriting.slices:
        assert piece.data is not None
        records = decode_inline(piece.data, piece.checksum, piece.record_count)
        for source, ids in ids_by_source.items():
            ids.update(np.unique(unframed(records.column(source).combine_chunks())[1]).tolist())
    return ids_by_source


def last_files_ms(connection: sa.Connection, topic_id: TopicId) -> int:
    """Return the append time of the newest record in a file, among the topic's partitions that have a tail; 0 for
    none.
    """
    last = (
        sa.select(SEGMENT.appended_ms)
        .where(SEGMENT.topic_id == PARTITION.topic_id, SEGMENT.partition == PARTITION.partition, ~SEGMENT.inline)
        .order_by(SEGMENT.base_offset.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = sa.select(sa.func.max(sa.func.coalesce(last, 0))).where(
        PARTITION.topic_id == topic_id, PARTITION.tail_bytes > 0
    )
    return connection.execute(query).scalar_one() or 0


def tails(connection: sa.Connection, topic_ids: Collection[TopicId] | None = None) -> dict[TopicId, list[Tail]]:
    """Return the tails of the partitions that have one, by topic; by default of all topics."""
    first = (
        sa.select(SEGMENT.appended_ms)
        .where(SEGMENT.topic_id == PARTITION.topic_id, SEGMENT.partition == PARTITION.partition, SEGMENT.inline)
        .order_by(SEGMENT.base_offset)
        .limit(1)
        .scalar_subquery()
    )
    query = (
        sa.select(PARTITION.topic_id, PARTITION.partition, PARTITION.tail_bytes, sa.func.coalesce(first, 0))
        .where(PARTITION.tail_bytes > 0)
        .order_by(PARTITION.topic_id, PARTITION.partition)
    )
    if topic_ids is None:  # the index of inline segments, instead of all partitions
        inline = sa.select(SEGMENT.topic_id, SEGMENT.partition).where(SEGMENT.inline)
        query = query.where(sa.tuple_(PARTITION.topic_id, PARTITION.partition).in_(inline))
    else:
        query = query.where(PARTITION.topic_id.in_(topic_ids))
    found: dict[TopicId, list[Tail]] = {}
    for topic_id, *facts in connection.execute(query):
        found.setdefault(topic_id, []).append(Tail(*facts))
    return found
