"""Skips files whose statistics prove that no record passes the filters on typed columns. Needs the metadata store."""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from spark_log.cluster.topics import Topic
from spark_log.log.segments.field_filters import file_excluded
from spark_log.log.segments.slices import FieldFilter, Slice
from spark_log.log.segments.typed_columns import has_present_columns
from spark_log.metadata.sql_columns import SEGMENT


def without_excluded(
    connection: sa.Connection, topics: Mapping[str, Topic], slices: Sequence[Slice], filters: Sequence[FieldFilter]
) -> list[Slice]:
    """Return the slices, in order, without those of files in which no record passes the filters.

    Slices of files without the topic's present typed columns stay, because the statistics do not apply to them. Slices
    whose segments have been replaced since they were planned stay too.
    """
    excluded: set[str] = set()
    for name in {piece.topic for piece in slices}:
        by_name = {piece.name: piece for piece in slices if piece.topic == name and has_present_columns(piece)}
        if not by_name:
            continue
        offsets = [piece.base_offset for piece in by_name.values()]
        query = sa.select(SEGMENT.name, SEGMENT.stats, SEGMENT.record_count).where(
            SEGMENT.topic_id == topics[name].topic_id,
            SEGMENT.partition.in_({piece.partition for piece in by_name.values()}),
            SEGMENT.base_offset.between(min(offsets), max(offsets)),
            SEGMENT.stats.is_not(None),
        )
        for segment_name, stats, record_count in connection.execute(query):
            columns = by_name[segment_name].columns if segment_name in by_name else None
            if columns is not None and file_excluded(filters, columns.fields, stats, record_count):
                excluded.add(segment_name)
    return [piece for piece in slices if piece.name not in excluded]
