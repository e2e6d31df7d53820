"""From a table of records to a batch that can be appended: a blob if it is small, else a segment file. On executors
too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_log.cluster.log_dir import LogDir, NewFile
from spark_log.config import TopicConfig
from spark_log.ids import LogDirId
from spark_log.log.append import Batch, ProducerSequence
from spark_log.records import inline
from spark_log.records.check import RecordLimits, check, truncate_to_milliseconds
from spark_log.records.schema import TimestampType, stamp
from spark_log.records.segment_file import SegmentFacts, SegmentWriter


@dataclass(frozen=True)
class Encoding:
    """How a topic's records are checked and stored: its configs, as far as a writer needs them."""

    codec: str
    level: int | None
    timestamp_type: TimestampType
    inline_max_bytes: int
    segment_bytes: int
    limits: RecordLimits

    @classmethod
    def of(cls, config: TopicConfig, codec: str | None = None) -> "Encoding":
        """`codec`: the producer's, instead of the topic's."""
        codec = codec or config.compression_type
        levels = {"zstd": config.compression_zstd_level, "gzip": config.compression_gzip_level}
        append_time = config.message_timestamp_type == "LogAppendTime"
        return cls(
            codec,
            levels.get(codec),
            TimestampType.LOG_APPEND_TIME if append_time else TimestampType.CREATE_TIME,
            config.inline_max_bytes,
            config.segment_bytes,
            RecordLimits(
                max_message_bytes=config.max_message_bytes,
                timestamp_before_max_ms=config.message_timestamp_before_max_ms,
                timestamp_after_max_ms=config.message_timestamp_after_max_ms,
                compacted=config.compacts,
            ),
        )


@dataclass(frozen=True)
class Target:
    """Where a file of a partition goes: the partition, and the log dirs of the leader and, with acks=all, the ISR."""

    topic_id: int
    folder: str
    partition: int
    leader_epoch: int
    brokers: frozenset[int]
    log_dir_ids: tuple[LogDirId, ...]


def segment_batch(
    target: Target, name: str, facts: SegmentFacts, encoding: Encoding, sequence: ProducerSequence | None = None
) -> Batch:
    """The batch of a segment file that lies in all log dirs of its target."""
    return Batch(
        topic_id=target.topic_id,
        partition=target.partition,
        name=name,
        inline=False,
        timestamp_type=int(encoding.timestamp_type),
        written_to=target.brokers,
        sequence=sequence,
        leader_epoch=target.leader_epoch,
        **vars(facts),
    )


def blob_batch(
    topic_id: int,
    partition: int,
    name: str,
    facts: SegmentFacts,
    encoding: Encoding,
    sequence: ProducerSequence | None = None,
) -> Batch:
    """The batch of an inline blob."""
    return Batch(
        topic_id=topic_id,
        partition=partition,
        name=name,
        inline=True,
        timestamp_type=int(encoding.timestamp_type),
        sequence=sequence,
        **vars(facts),
    )


def prepare(records: pa.Table, encoding: Encoding, now_ms: int) -> pa.Table:
    """Records as they will be stored: timestamps in whole milliseconds, or the append's time for LogAppendTime.

    `now_ms` is the store's time. Raises the errors of `records.check` for what may not be written at all.
    """
    if encoding.timestamp_type is TimestampType.LOG_APPEND_TIME:
        records = stamp(records, now_ms)
    else:
        place = records.schema.get_field_index("timestamp")
        milliseconds = truncate_to_milliseconds(records.column(place))
        records = records.set_column(place, records.schema.field(place), milliseconds)
    check(records, encoding.limits, now_ms)
    return records


def encode_inline(records: pa.Table, encoding: Encoding) -> inline.InlineBlob | None:
    """The records as a blob, None if they are too large for the inline tail."""
    if records.nbytes >= 2 * encoding.inline_max_bytes and encoding.codec == "none":
        return None
    if records.nbytes >= 16 * encoding.inline_max_bytes:
        return None
    blob = inline.encode(records, "none" if encoding.codec == "none" else "zstd")
    return blob if len(blob.data) < encoding.inline_max_bytes else None


class SegmentFiles:
    """One segment in the making in one or more log dirs: the same bytes in each."""

    def __init__(self, log_dirs: Sequence[LogDir], path: str, encoding: Encoding) -> None:
        self._files: list[NewFile] = []
        try:
            for log_dir in log_dirs:
                self._files.append(log_dir.create(path))
            self._encoder = SegmentWriter(self, encoding.codec, encoding.level)
        except BaseException:
            for file in self._files:
                file.abort()
            raise

    def write(self, data: bytes, /) -> int:
        for file in self._files:
            file.write(data)
        return len(data)

    @property
    def bytes_written(self) -> int:
        """Bytes of the row groups so far."""
        return self._encoder.bytes_written

    @property
    def bytes_waiting(self) -> int:
        """Arrow bytes of the rows that wait for their row group."""
        return self._encoder.bytes_waiting

    def append(self, records: pa.Table) -> None:
        self._encoder.write(records)

    def flush_rows(self) -> None:
        """Write out the rows that wait, as a row group smaller than usual."""
        self._encoder.flush_rows()

    def own_rows(self) -> None:
        """Let go of the batches that the rows that wait are slices of."""
        self._encoder.own_rows()

    def commit(self) -> SegmentFacts:
        """Finish the file and give it its name, durably, in every log dir."""
        facts = self._encoder.close()
        for file in self._files:
            file.commit()
        return facts

    def abort(self) -> None:
        """Give the file up, in every log dir; nothing is left of it."""
        self._encoder.abort()
        for file in self._files:
            file.abort()
