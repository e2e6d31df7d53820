"""Partitions the Arrow tables of `send_table`, without a Python object per record."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from spark_log.clients.produce.producer_batch import TopicBatch
from spark_log.cluster.topics import Topic
from spark_log.errors import InvalidRecordError
from spark_log.log.append.encoding import Encoding, prepare
from spark_log.log.append.partitioner import partition_of, split_by_partition
from spark_log.log.records.schema import normalise
from spark_log.log.records.segment_write import own

SLICE_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of one slice of a table. A larger table takes several appends: the next slice is partitioned while one
is written, and memory is bounded."""

_COLUMNS = ("value", "key", "partition", "timestamp", "headers")


class TableBatch(TopicBatch):
    """Checked records of a table, by partition. Its rows have no futures of their own."""

    __slots__ = ("_parts",)

    def __init__(self, topic: str, parts: Sequence[tuple[int, pa.Table]], size: int) -> None:
        super().__init__(topic)
        self._parts, self.bytes = parts, size

    def take_parts(self) -> Sequence[tuple[int, pa.Table]]:
        """Return the records and drop the reference, because futures keep topic batches and must not keep records."""
        parts, self._parts = self._parts, ()
        return parts

    def fail(self, error: Exception) -> None:
        super().fail(error)
        self._parts = ()


def checked(
    table: pa.Table | pa.RecordBatch, topic: Topic, now_ms: int, max_request_size: int
) -> tuple[pa.Table, pa.ChunkedArray | None]:
    """Return (records as they will be stored, explicit partitions).

    Columns are value, and optionally key, partition, timestamp, headers. Raises InvalidRecordError for any other
    column or partition, and it or a subclass for a record that the topic refuses.
    """
    strangers = [name for name in table.schema.names if name not in _COLUMNS]
    if strangers:
        raise InvalidRecordError(f"columns {strangers}: expected some of {list(_COLUMNS)}")
    encoding = Encoding.of(topic)
    limit = min(encoding.limits.max_message_bytes, max_request_size)
    encoding = replace(encoding, limits=replace(encoding.limits, max_message_bytes=limit))
    records = prepare(normalise(table, timestamp_ms=now_ms), encoding, now_ms)
    explicit = table.column("partition") if "partition" in table.schema.names else None
    if explicit is not None:  # all of them now, so that nothing of an invalid table is sent
        partition_of(pa.nulls(len(explicit), pa.binary()), explicit, topic.partition_count)
    return records, explicit


def topic_batches(
    topic: Topic, records: pa.Table, explicit: pa.ChunkedArray | None, bytes_max: int, first_run: int, run_bytes: int
) -> Iterator[TableBatch]:
    """Yield the table in slices of at most `bytes_max` bytes (or one record), each split by partition.

    Raises InvalidRecordError for a partition that does not exist.
    """
    per_run = max(1, run_bytes * records.num_rows // max(1, records.nbytes))
    for number, (start, batch) in enumerate(_slices(records, min(SLICE_BYTES_MAX, bytes_max))):
        if batch.get_total_buffer_size() > 2 * batch.nbytes:
            batch = own([batch])  # otherwise a few rows would keep the buffers of the whole table
        given = None if explicit is None else explicit.slice(start, batch.num_rows)
        if topic.partition_count == 1 and given is None:
            parts = [(0, batch)]
        else:
            found = partition_of(batch.column("key"), given, topic.partition_count, first_run + number, per_run)
            parts = split_by_partition(batch, found)
        yield TableBatch(topic.name, parts, batch.nbytes)


def _slices(records: pa.Table, bytes_max: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield (first row, slice). A slice has `bytes_max` bytes if all rows are alike; larger ones are halved."""
    per_slice = max(1, records.num_rows * bytes_max // max(1, records.nbytes))
    waiting = [(start, per_slice) for start in range(0, records.num_rows, per_slice)][::-1]
    while waiting:
        start, count = waiting.pop()
        batch = records.slice(start, count)
        if batch.nbytes > bytes_max and batch.num_rows > 1:
            half = batch.num_rows // 2
            waiting += [(start + half, batch.num_rows - half), (start, half)]
        else:
            yield start, batch
