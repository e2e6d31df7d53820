"""Rows of segments and blobs in the metadata store."""

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from spark_log.metadata import tables as t
from spark_log.metadata.columns import BLOB, SEGMENT

_NAMES_PER_STATEMENT = 5_000


class RemovedSegments(NamedTuple):
    """Segments whose rows were deleted: names of their files, bytes of their blobs, and all their records."""

    files: list[str]
    inline_bytes: int
    record_count: int


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
    for first in range(0, len(names), _NAMES_PER_STATEMENT):
        chosen = names[first : first + _NAMES_PER_STATEMENT]
        connection.execute(t.blob.delete().where(BLOB.name.in_(chosen)))
