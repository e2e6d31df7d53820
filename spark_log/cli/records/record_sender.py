"""Sends the records that the command line has read. A producer appends each batch as an Arrow table."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from spark_log.cli.output import note
from spark_log.cli.records.record_lines import Header, Record
from spark_log.clients.produce.future import Written
from spark_log.clients.produce.producer import Producer
from spark_log.log.records.schema import HEADERS, TIMESTAMP


class RecordSender:
    """Sends batches to a topic with `producer`, which it closes, and counts the stored records.

    `partition` and `headers` apply to every record. If `partition` is None, a record's own partition is used. A
    record's own headers come first. A producer with a transactional id sends all batches in one transaction, which
    `commit` ends.
    """

    def __init__(
        self, producer: Producer, topic: str, partition: int | None = None, headers: Sequence[Header] = ()
    ) -> None:
        self._producer, self._topic, self._partition, self._headers = producer, topic, partition, headers
        self._transactional = producer.config["transactional_id"] is not None
        self.records = self.bytes = 0
        self.ends: dict[int, int] = {}
        """The end offset of the last append to each partition."""
        if self._transactional:
            producer.init_transactions()
            producer.begin_transaction()

    def send(self, records: Sequence[Record]) -> None:
        """Send one batch and wait until it is stored. Raises the error of a rejected record or partition."""
        table = self._table(records)
        future = self._producer.send_table(self._topic, table)
        try:
            future.get()
        except BaseException:
            self._producer.close()
            self._count(future.written())
            raise
        self.bytes += sum(pc.sum(pc.binary_length(table.column(name))).as_py() or 0 for name in ("key", "value"))
        if self._transactional:
            self.records += len(records)
        else:
            self._count(future.written())

    def commit(self) -> None:
        """Commit the transaction, if there is one, so that its records become visible."""
        if self._transactional:
            for tp, _, end in self._producer.commit_transaction():  # in order of offsets
                self.ends[tp.partition] = end

    def close(self) -> None:
        """Close the producer. An uncommitted transaction is aborted: none of its records is stored or counted."""
        if self._transactional and not self.ends:
            self.records = self.bytes = 0
        self._producer.close()

    def _count(self, written: Sequence[Written]) -> None:
        for tp, base, end in written:
            self.records += end - base
            self.ends[tp.partition] = end

    def _table(self, records: Sequence[Record]) -> pa.Table:
        times = [None if record.timestamp_ms is None else record.timestamp_ms * 1000 for record in records]
        headers = [
            [{"key": key, "value": value} for key, value in (*record.headers, *self._headers)] or None
            for record in records
        ]
        partitions = [record.partition if self._partition is None else self._partition for record in records]
        return pa.table(
            {
                "key": pa.array([record.key for record in records], pa.binary()),
                "value": pa.array([record.value for record in records], pa.binary()),
                "headers": pa.array(headers, HEADERS),
                "timestamp": pa.array(times, pa.int64()).cast(TIMESTAMP),
                "partition": pa.array(partitions, pa.int64()),
            }
        )


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print the library's log warnings on stderr, for example about records that retention will delete soon."""
    logger, handler = logging.getLogger("spark_log"), _Notes(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(f"Warning: {record.getMessage()}")
