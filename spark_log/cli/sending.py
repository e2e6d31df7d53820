"""Appends records that the command line has read: batches to Arrow, Arrow to partitions, partitions to the log."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log import clock
from spark_log.append.partitioner import partition_of, split_by_partition
from spark_log.append.rules import Acks, Rejected
from spark_log.cli.record_lines import Header, Record
from spark_log.cluster.topics import Topic
from spark_log.log.log import Log, Records
from spark_log.records.schema import HEADERS, RECORD_SCHEMA, TIMESTAMP


class Sender(ABC):
    """Sends batches to a topic and counts. `partition` and `headers` are for every record; its own partition, if it
    has one, gives way, and its own headers come first."""

    def __init__(self, topic: Topic, partition: int | None = None, headers: Sequence[Header] = ()) -> None:
        self.topic, self.partition, self.headers = topic, partition, headers
        self.records = self.bytes = self._batches = 0
        self.ends: dict[int, int] = {}
        """End offset of the last append, by partition."""

    def __enter__(self) -> "Sender":
        return self

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing more comes."""

    @abstractmethod
    def _append(self, table: pa.Table, partitions: npt.NDArray[np.int32]) -> None: ...

    def send(self, records: Sequence[Record]) -> None:
        """Append one batch. Raises what was rejected, after the partitions that were not have been counted."""
        table = self._table(records)
        explicit = pa.array(
            [record.partition if self.partition is None else self.partition for record in records], pa.int64()
        )
        partitions = partition_of(table.column("key"), explicit, self.topic.partition_count, self._batches)
        self._batches += 1
        self._append(table, partitions)

    def _count(self, table: pa.Table) -> None:
        self.records += table.num_rows
        self.bytes += sum(pc.sum(pc.binary_length(table.column(name))).as_py() or 0 for name in ("key", "value"))

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


class LogSender(Sender):
    """Each batch is durable, and seen, when `send` returns."""

    def __init__(self, log: Log, topic: Topic, acks: Acks, partition: int | None, headers: Sequence[Header]) -> None:
        super().__init__(topic, partition, headers)
        self._log, self._acks = log, acks

    def __exit__(self, *_: object) -> None:
        pass

    def _append(self, table: pa.Table, partitions: npt.NDArray[np.int32]) -> None:
        parts = [Records(number, part) for number, part in split_by_partition(table, partitions)]
        rejected = None
        for part, outcome in zip(parts, self._log.append(self.topic, parts, acks=self._acks), strict=True):
            if isinstance(outcome, Rejected):
                rejected = outcome
                continue
            self._count(part.table)
            self.ends[part.partition] = outcome.end_offset
        if rejected is not None:
            raise rejected.error


class TransactionSender(Sender):
    """All batches are one transaction of `producer`: seen when the `with` block ends, or never after an error."""

    def __init__(self, producer: Any, topic: Topic, partition: int | None, headers: Sequence[Header]) -> None:
        super().__init__(topic, partition, headers)
        self._producer = producer
        producer.init_transactions()
        producer.begin_transaction()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                written = self._producer.commit_transaction()  # in order of offsets
                self.ends = {each.topic_partition.partition: each.end_offset for each in written}
        finally:
            if not self.ends:
                self.records = self.bytes = 0
            self._producer.close()  # aborts what is open

    def _append(self, table: pa.Table, partitions: npt.NDArray[np.int32]) -> None:
        self._producer.send_table(self.topic.name, table.append_column("partition", pa.array(partitions)))
        self._count(table)
