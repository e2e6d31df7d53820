"""Counts gaps: offsets whose record was removed by compaction or erasing. As long as the segments of a range are not
deleted, their number only grows, so equal counts at two times mean that no record was removed in between.
"""

from collections.abc import Mapping

import sqlalchemy as sa

from spark_log.cluster.topics import Topic
from spark_log.ids import OffsetRange
from spark_log.metadata.sql_columns import SEGMENT

# Built once, because building such a statement takes longer than running it.
_GAPS = (
    sa.select(sa.func.sum(SEGMENT.end_offset - SEGMENT.base_offset - SEGMENT.record_count))
    .where(SEGMENT.topic_id == sa.bindparam("topic_id"), SEGMENT.partition == sa.bindparam("number"))
    .where(SEGMENT.base_offset < sa.bindparam("before"), SEGMENT.end_offset > sa.bindparam("after"))
)


def count_gaps(connection: sa.Connection, topic: Topic, ranges: Mapping[int, OffsetRange]) -> dict[int, int]:
    """Return for each partition the number of offsets without a record in all segments that overlap its range."""
    counts: dict[int, int] = {}
    for partition, (start, end) in ranges.items():
        parameters = {"topic_id": topic.topic_id, "number": partition, "before": end, "after": start}
        counts[partition] = int(connection.execute(_GAPS, parameters).scalar() or 0)
    return counts
