"""Appends records that the command line has read: batches to Arrow, Arrow to partitions, partitions to the log."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_log import clock
from spark_log.cli.record_lines import Header, Record
from spark_log.cluster.topics import Topic
from spark_log.log.append import Acks, Rejected
from spark_log.log.log import Log, Records
from spark_log.log.partitioner import partition_of, split_by_partition
from spark_log.records.schema import HEADERS, RECORD_SCHEMA, TIMESTAMP


@dataclass
class Sender:
    """Appends batches to a topic and counts. `partition` and `headers` are for every record; its own partition, if it
    has one, gives way, and its own headers come first."""

    log: Log
    topic: Topic
    acks: Acks = "all"
    partition: int | None = None
    headers: Sequence[Header] = ()
    records: int = 0
    bytes: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    """End offset of the last append, by partition."""
    _batches: int = 0

    def send(self, records: Sequence[Record]) -> None:
        """Append one batch. Raises what was rejected, after the partitions that were not have been counted."""
        table = self._table(records)
        explicit = pa.array(
            [record.partition if self.partition is None else self.partition for record in records], pa.int64()
        )
        numbers = partition_of(table.column("key"), explicit, self.topic.partition_count, self._batches)
        parts = [Records(number, part) for number, part in split_by_partition(table, numbers)]
        self._batches += 1
        rejected = None
        for part, outcome in zip(parts, self.log.append(self.topic, parts, acks=self.acks), strict=True):
            if isinstance(outcome, Rejected):
                rejected = outcome
                continue
            self.records += part.table.num_rows
            self.bytes += sum(
                pc.sum(pc.binary_length(part.table.column(name))).as_py() or 0 for name in ("key", "value")
            )
            self.ends[part.partition] = outcome.end_offset
        if rejected is not None:
            raise rejected.error

    def _table(self, records: Sequence[Record]) -> pa.Table:
        now_ms = clock.wall_ms()
        times = [(now_ms if r.timestamp_ms is None else r.timestamp_ms) * 1000 for r in records]
        headers = [
            [{"key": key, "value": value} for key, value in (*record.headers, *self.headers)] or None
            for record in records
        ]
        columns = [
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.array(headers, HEADERS),
            pa.array(times, pa.int64()).cast(TIMESTAMP),
        ]
        return pa.table(columns, schema=RECORD_SCHEMA)
