"""How much each topic holds: records and bytes of the segments that can be read, by partition."""

from typing import NamedTuple

import sqlalchemy as sa

from spark_log.ids import TopicId
from spark_log.metadata import tables as t


class Usage(NamedTuple):
    """`records` that readers see, `bytes` of their segments once (not once a replica), number of `segments`."""

    records: int = 0
    bytes: int = 0
    segments: int = 0

    def __add__(self, other: object) -> "Usage":
        assert isinstance(other, Usage)
        return Usage(self.records + other.records, self.bytes + other.bytes, self.segments + other.segments)


def usage(connection: sa.Connection, topic_id: TopicId | None = None) -> dict[tuple[int, int], Usage]:
    """Usage by (topic id, partition) of one topic, or of all; a partition without segments is left out.

    Segments that overlap [log start offset, high watermark) count. In the one that the log start offset cuts, the
    records before it do not, unless compaction has left gaps there: then all of its records count.
    """
    s, p = t.segment.c, t.partition.c
    dense = s.record_count == s.end_offset - s.base_offset
    readable = sa.case(
        (dense & (s.base_offset < p.log_start_offset), s.end_offset - p.log_start_offset), else_=s.record_count
    )
    query = (
        sa.select(s.topic_id, s.partition, sa.func.sum(readable), sa.func.sum(s.bytes), sa.func.count())
        .join(t.partition, (p.topic_id == s.topic_id) & (p.partition == s.partition))
        .where(s.end_offset > p.log_start_offset, s.base_offset < p.high_watermark)
        .group_by(s.topic_id, s.partition)
    )
    if topic_id is not None:
        query = query.where(s.topic_id == topic_id)
    return {
        (topic, partition): Usage(int(records), int(size), int(segments))
        for topic, partition, records, size, segments in connection.execute(query)
    }
