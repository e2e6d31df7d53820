"""Inserts and deletes rows of segments and blobs in the metadata store. No other module does so, except that
`metadata.cascade` deletes whole topics.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import bindparam

from spark_log.metadata import tables as t
from spark_log.metadata.prepared import Prepared, in_list
from spark_log.metadata.sql_columns import BLOB, SEGMENT

_INSERT_SEGMENTS = Prepared(t.segment.insert())
_OPTIONAL = {
    "producer_id": None,
    "producer_epoch": None,
    "first_sequence": None,
    "columns_version": None,
    "stats": None,
    "rewritten": False,
}
_INSERT_BLOBS = Prepared(t.blob.insert())
_DELETE_BELOW = Prepared(
    t.segment.delete().where(
        SEGMENT.topic_id == bindparam("topic_id"), SEGMENT.partition == bindparam("partition"),
        SEGMENT.base_offset < bindparam("low"), SEGMENT.end_offset <= bindparam("low"),
    )
)  # fmt: skip


class RemovedSegments(NamedTuple):
    """Segments whose rows were deleted: the names of their files, the bytes of their blobs, and the number of their
    records.
    """

    files: list[str]
    inline_bytes: int
    record_count: int


def insert_segments(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert segments. A row may lack the columns of the producer and of typed columns, and `rewritten`."""
    if rows:
        # Each row gets all columns, because the statement is compiled once, for the columns of its first row.
        _INSERT_SEGMENTS.run(connection, [{**_OPTIONAL, **row} for row in rows])


def insert_blobs(connection: sa.Connection, blobs: Mapping[str, bytes]) -> None:
    """Insert blobs, given as bytes by name."""
    if blobs:
        _INSERT_BLOBS.run(connection, [{"name": name, "data": data} for name, data in blobs.items()])


def delete_segments_below(connection: sa.Connection, bounds: Sequence[Mapping[str, int]]) -> None:
    """Delete the segments that end at or below an offset, but not their blobs. Each of `bounds` has the keys topic_id,
    partition and low, which is the offset.
    """
    _DELETE_BELOW.run(connection, bounds)


def delete_segments(connection: sa.Connection, topic_id: int, partition: int, start: int, end: int) -> None:
    """Delete the segments whose base offset is in [start, end), but not their blobs."""
    here = (SEGMENT.topic_id == topic_id, SEGMENT.partition == partition)
    connection.execute(t.segment.delete().where(*here, SEGMENT.base_offset >= start, SEGMENT.base_offset < end))


def delete_segments_above(connection: sa.Connection, key: tuple[int, int], offset: int) -> RemovedSegments:
    """Delete the segments of the partition (topic id, number) that end above `offset`, with their blobs."""
    here = (SEGMENT.topic_id == key[0]) & (SEGMENT.partition == key[1]) & (SEGMENT.end_offset > offset)
    rows = connection.execute(
        sa.select(SEGMENT.name, SEGMENT.inline, SEGMENT.bytes, SEGMENT.record_count).where(here)
    ).all()
    connection.execute(t.segment.delete().where(here))
    delete_blobs(connection, [row.name for row in rows if row.inline])
    return RemovedSegments(
        files=[row.name for row in rows if not row.inline],
        inline_bytes=sum(row.bytes for row in rows if row.inline),
        record_count=sum(row.record_count for row in rows),
    )


def delete_blobs(connection: sa.Connection, names: Sequence[str]) -> None:
    """Delete the blobs of these inline segments."""
    if names:
        connection.execute(t.blob.delete().where(in_list(BLOB.name, names)))
