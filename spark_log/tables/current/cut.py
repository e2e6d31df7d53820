"""Chooses the offsets up to which a current-state table shows the partitions of its topic."""

from collections.abc import Collection, Mapping

import sqlalchemy as sa

from spark_log.cluster.topics import Topic
from spark_log.ids import LogDirId, TopicId
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import LOG_DIR, PARTITION, PUBLICATION, PUBLICATION_CURSOR, SEGMENT, TOPIC
from spark_log.tables.publication_state import (
    CURRENT,
    DELTA,
    FIRST_BLOBS,
    LOST,
    PARTITIONS,
    Cursor,
    Due,
    TableKey,
    parameters_of,
    rows_of_partitions,
)

Cut = Mapping[int, int]
"""The high watermarks of a topic's partitions, from one snapshot. A cut divides no append over several partitions."""

NO_CUTS: Mapping[TopicId, Cut] = {}
_PARTITIONS_A_QUERY = 1_000

HAS_CURRENT = f'"table.current": "{DELTA}"'
"""A part of the text of the configs of a topic with a current-state table."""


def due_below_cut(connection: sa.Connection, table: TableKey, cut: Cut | None, *, everything: bool) -> Due:
    """Return the new cursors of a current-state table. The table shows the records below a cut of the log.

    This is the present cut if no record below it is inline, or else `cut`, which was taken before the tails were
    sealed, or else the recorded one. The cursor of a partition has the cut as `seen_offset`, and as `limit` the base
    offset of the file that crosses the cut, if there is one. With `everything`, unchanged partitions have cursors too.
    """
    parameters = parameters_of(table)
    rows = connection.execute(PARTITIONS, parameters).all()
    limits = {row[0]: row[2] for row in rows}
    recorded_cut = {row[0]: row[4] or 0 for row in rows}
    blobs_from: dict[int, int] = dict(tuple(row) for row in rows_of_partitions(connection, FIRST_BLOBS, table, limits))
    fallen = any(limit < recorded_cut[number] for number, limit in limits.items())
    chosen = {number: min(end, limits[number]) for number, end in recorded_cut.items()}
    for candidate in (limits, cut or {}):
        ahead = {number: min(candidate.get(number, 0), limit) for number, limit in limits.items()}
        if all(chosen[number] <= end <= blobs_from.get(number, end) for number, end in ahead.items()):
            chosen = ahead
            break
    crossing = _crossing_files(connection, table, {n: end for n, end in chosen.items() if end < limits[n]})
    lost = {partition: Cursor(change, 0, 0) for partition, change, _ in connection.execute(LOST, parameters)}
    everything = everything or fallen or bool(lost)
    cursors = {
        number: Cursor(change, crossing.get(number, chosen[number]), chosen[number])
        for number, change, _, _, _, change_before in rows
        if everything or change > change_before or chosen[number] != recorded_cut[number]
    }
    return Due({**cursors, **lost}, fallen or bool(lost), bool(rows))


def _crossing_files(connection: sa.Connection, table: TableKey, ends: Mapping[int, int]) -> dict[int, int]:
    """Return, by partition, the base offset of the file that has records on both sides of the partition's offset in
    `ends`. Partitions without such a file are left out.
    """
    bases: dict[int, int] = {}
    asked = sorted(ends.items())
    for first in range(0, len(asked), _PARTITIONS_A_QUERY):
        values = sa.values(sa.column("partition", sa.Integer), sa.column("end_offset", sa.BigInteger), name="given")
        cut = values.data(asked[first : first + _PARTITIONS_A_QUERY]).cte("cut")
        same = (SEGMENT.topic_id == table.topic_id) & (SEGMENT.partition == cut.c.partition)
        last = (
            sa.select(SEGMENT.base_offset)
            .where(same, SEGMENT.base_offset < cut.c.end_offset)
            .order_by(SEGMENT.base_offset.desc())
            .limit(1)
            .scalar_subquery()
        )
        below = sa.select(cut.c.partition, cut.c.end_offset, last.label("base_offset")).subquery()
        query = (
            sa.select(SEGMENT.partition, SEGMENT.base_offset)
            .join(
                below,
                (SEGMENT.topic_id == table.topic_id)
                & (SEGMENT.partition == below.c.partition)
                & (SEGMENT.base_offset == below.c.base_offset),
            )
            .where(SEGMENT.end_offset > below.c.end_offset)
        )
        bases |= dict(tuple(row) for row in connection.execute(query))
    return bases


def cuts(connection: sa.Connection, topic_ids: Collection[TopicId]) -> dict[TopicId, Cut]:
    """Return the present cuts of those of the topics that have a current-state table."""
    if not topic_ids:
        return {}
    query = (
        sa.select(PARTITION.topic_id, PARTITION.partition, PARTITION.high_watermark)
        .join(t.topic, TOPIC.topic_id == PARTITION.topic_id)
        .where(PARTITION.topic_id.in_(topic_ids), TOPIC.configs.contains(HAS_CURRENT))
    )
    by_topic: dict[TopicId, dict[int, int]] = {}
    for topic_id, number, high_watermark in connection.execute(query):
        by_topic.setdefault(TopicId(topic_id), {})[number] = high_watermark
    return dict(by_topic)


def shown_tables(connection: sa.Connection, topic: Topic) -> dict[LogDirId, tuple[int, dict[int, int]]]:
    """Return the current-state tables of the topic in online log dirs: the version of each, and the offset below which
    that version shows each partition.
    """
    same = (PUBLICATION_CURSOR.topic_id == PUBLICATION.topic_id) & (
        PUBLICATION_CURSOR.log_dir_id == PUBLICATION.log_dir_id
    )
    query = (
        sa.select(
            PUBLICATION.log_dir_id,
            PUBLICATION.table_version,
            PUBLICATION_CURSOR.partition,
            PUBLICATION_CURSOR.seen_offset,
        )
        .select_from(
            t.publication.join(t.publication_cursor, same & (PUBLICATION_CURSOR.target == PUBLICATION.target)).join(
                t.log_dir, LOG_DIR.log_dir_id == PUBLICATION.log_dir_id
            )
        )
        .where(PUBLICATION.topic_id == topic.topic_id, PUBLICATION.target == CURRENT, LOG_DIR.online)
    )
    tables: dict[LogDirId, tuple[int, dict[int, int]]] = {}
    for log_dir_id, version, partition, end in connection.execute(query):
        tables.setdefault(LogDirId(log_dir_id), (version, {}))[1][partition] = end
    return {log_dir_id: table for log_dir_id, table in tables.items() if table[0] >= 0}
