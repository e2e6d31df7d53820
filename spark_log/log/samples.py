"""Reads samples of the newest keys or values of a topic."""

import pyarrow as pa

from spark_log.cluster.topics import Topic
from spark_log.ids import OffsetRange
from spark_log.log.reader import LogReader
from spark_log.log.records.schema import read_schema


def newest(log: LogReader, topic: Topic, count: int, source: str) -> pa.BinaryArray:
    """Read column `source` (key or value) of about `count` records below the high watermarks. Each partition has the
    same share, and nulls are included.
    """
    positions = log.positions(topic)
    share = -(-count // len(positions))
    ranges = {
        tp: OffsetRange(max(here.log_start_offset, here.high_watermark - share), here.high_watermark)
        for tp, here in positions.items()
    }
    batches = log.read(ranges, read_schema(columns=[source]), topics={topic.name: topic})
    return pa.concat_arrays([batch.column(source) for batch in batches] or [pa.array([], pa.binary())])
