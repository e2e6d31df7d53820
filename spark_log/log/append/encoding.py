"""Encodes a table of records as a batch that can be appended: a blob if it is small, otherwise a segment file. This
also runs on executors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_log.cluster.files.new_file import NewFile
from spark_log.cluster.log_dir import LogDir, LogDirInfo
from spark_log.errors import (
    InvalidRecordError,
    LogDirMismatchError,
    NotLeaderForPartitionError,
    SparkLogError,
    StorageUnavailableError,
)
from spark_log.ids import LogDirId
from spark_log.log.append.rules import Batch
from spark_log.log.append.sequence_rules import ProducerSequence
from spark_log.log.columns.decoded import Decoder
from spark_log.log.columns.decoding import decoder
from spark_log.log.columns.expansion import slices
from spark_log.log.columns.resets import of_present_schema
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.log.records import inline
from spark_log.log.records.record_limits import RecordLimits, check, truncate_to_milliseconds
from spark_log.log.records.schema import TimestampType, stamp
from spark_log.log.records.segment_write import SegmentFacts, SegmentWriter

if TYPE_CHECKING:
    from spark_log.cluster.topics import Topic  # not at run time: executors do not import SQLAlchemy

LOG_DIR_FAILURES = (StorageUnavailableError, LogDirMismatchError)
"""The errors of a log dir that is full, unavailable, read-only or swapped."""


@dataclass(frozen=True)
class Encoding:
    """The configs of a topic that a writer needs to check and store its records."""

    codec: str
    level: int | None
    timestamp_type: TimestampType
    inline_max_bytes: int
    segment_bytes: int
    limits: RecordLimits
    columns: TopicColumns | None = None
    """The typed columns that are written to segment files."""
    rejecting: tuple[str, ...] = ()
    """The parts ("key", "value") with bad.records=reject: a record that cannot be decoded is refused."""

    @property
    def rejects_bad_records(self) -> bool:
        return bool(self.rejecting)

    @classmethod
    def of(cls, topic: "Topic", producer_codec: str | None = None) -> "Encoding":
        """Return the encoding of a topic. `producer_codec` applies if the topic does not set compression.type."""
        config = topic.config
        given = None if "compression.type" in topic.overrides else producer_codec
        codec = given or config.compression_type
        levels = {"zstd": config.compression_zstd_level, "gzip": config.compression_gzip_level}
        typed = [] if topic.columns is None else [part for part, _ in topic.columns.parts]
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
            topic.columns,
            tuple(part.source for part in typed if config.part(part.source).bad_records == "reject"),
        )


@dataclass(frozen=True)
class Target:
    """The log dirs, by broker, for a new file of a partition: the leader's and, with acks=all, those of the ISR."""

    topic_id: int
    folder: str
    partition: int
    leader_epoch: int
    log_dirs: Mapping[int, LogDirId]

    def choose(self, infos: Mapping[LogDirId, LogDirInfo]) -> dict[int, LogDirInfo]:
        """Return the log dirs to write to, by broker. Raises NotLeaderForPartitionError if the partition is offline."""
        if not self.log_dirs:
            raise NotLeaderForPartitionError(f"partition {self.partition} has no leader: no in-sync replica is alive")
        return {broker_id: infos[log_dir_id] for broker_id, log_dir_id in self.log_dirs.items()}


def segment_batch(
    target: Target,
    name: str,
    facts: SegmentFacts,
    encoding: Encoding,
    brokers: frozenset[int],
    sequence: ProducerSequence | None = None,
) -> Batch:
    """Return the batch of a segment file that is in log dirs of `brokers`."""
    return Batch(
        topic_id=target.topic_id,
        partition=target.partition,
        name=name,
        inline=False,
        timestamp_type=int(encoding.timestamp_type),
        written_to=brokers,
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
    """Return the records to store. Their timestamps are in whole milliseconds, or `now_ms` for LogAppendTime.

    `now_ms` is the store's time.
    Raises the errors of `record_limits.check` for invalid records, and InvalidRecordError for a key or value that
    cannot be decoded if its bad.records is reject.
    """
    if encoding.timestamp_type is TimestampType.LOG_APPEND_TIME:
        records = stamp(records, now_ms)
    else:
        place = records.schema.get_field_index("timestamp")
        milliseconds = truncate_to_milliseconds(records.column(place))
        records = records.set_column(place, records.schema.field(place), milliseconds)
    check(records, encoding.limits, now_ms)
    for error in bad_records(records, encoding).values():
        raise error
    return records


def bad_records(records: pa.Table, encoding: Encoding) -> dict[int, InvalidRecordError]:
    """Return the errors, by row number, of the records (RECORD_SCHEMA) that bad.records=reject refuses."""
    bad: dict[int, InvalidRecordError] = {}
    for part, definition in encoding.columns.parts if encoding.columns is not None else ():
        if part.source not in encoding.rejecting:
            continue
        column = records.column(part.source).combine_chunks()
        of_part = decoder(of_present_schema(definition))
        for start, end in slices(len(column), partial(_most_values, of_part, column)):
            reasons = of_part.decode(column.slice(start, end - start)).reasons
            if reasons is None:
                continue
            rows = pc.indices_nonzero(reasons.is_valid())
            for row, reason in zip(rows.to_pylist(), reasons.take(rows).to_pylist(), strict=True):
                row += start
                bad.setdefault(row, InvalidRecordError(f"{part.source}: in row {row}: {reason}"))
    return bad


def _most_values(of_part: Decoder, column: pa.BinaryArray, start: int, end: int) -> float:
    return of_part.most_values(column.slice(start, end - start))


def encode_inline(records: pa.Table, encoding: Encoding) -> inline.InlineBlob | None:
    """Encode the records as a blob. Returns None if they are too large for one (inline.max.bytes)."""
    limit = encoding.inline_max_bytes * (2 if encoding.codec == "none" else 16)
    # the buffers are at least as large as the records, and their size is computed much faster
    if records.get_total_buffer_size() >= limit and records.nbytes >= limit:
        return None
    blob = inline.encode(records, "none" if encoding.codec == "none" else "zstd")
    return blob if len(blob.data) < encoding.inline_max_bytes else None


class SegmentFiles:
    """Writes a segment file to the log dirs of one or more brokers, with the same bytes in each.

    A failed log dir is left out as long as another one has the file: the append decides whether the ISR is complete.
    `writer` holds the rows until they are written. After `commit`, the file is in the log dirs of `brokers`, and
    `failures` has the errors of the other brokers.
    """

    def __init__(
        self, log_dirs: Mapping[int, LogDirInfo], open_: Callable[[LogDirInfo], LogDir], path: str, encoding: Encoding
    ) -> None:
        self.failures: dict[int, SparkLogError] = {}
        self._files: dict[int, NewFile] = {}
        try:
            self._create(log_dirs, open_, path)
            self.writer = SegmentWriter(self, encoding.codec, encoding.level, encoding.columns)
        except BaseException:
            for file in self._files.values():
                file.abort()
            raise

    def _create(self, log_dirs: Mapping[int, LogDirInfo], open_: Callable[[LogDirInfo], LogDir], path: str) -> None:
        for broker_id, info in log_dirs.items():
            try:
                self._files[broker_id] = open_(info).create(path)
            except LOG_DIR_FAILURES as error:
                self.failures[broker_id] = error
        self._need_one()

    @property
    def brokers(self) -> frozenset[int]:
        return frozenset(self._files)

    def write(self, data: bytes, /) -> int:
        for broker_id, file in list(self._files.items()):
            try:
                file.write(data)
            except LOG_DIR_FAILURES as error:
                file.abort()
                self._leave_out(broker_id, error)
        self._need_one()
        return len(data)

    def append(self, records: pa.Table, offset_deltas: pa.Array | None = None) -> None:
        """Add records (RECORD_SCHEMA), with `offset_deltas` or with deltas that continue without a gap."""
        self.writer.write(records, offset_deltas)

    def commit(self) -> SegmentFacts:
        """Finish the file and rename it to its final name, durably, in all log dirs in parallel."""
        facts = self.writer.close()
        running: dict[int, Callable[[], None]] = {}
        for broker_id, file in list(self._files.items()):
            try:
                running[broker_id] = file.begin_commit()
            except LOG_DIR_FAILURES as error:
                self._leave_out(broker_id, error)
        for broker_id, end in running.items():
            try:
                end()
            except LOG_DIR_FAILURES as error:
                self._leave_out(broker_id, error)
        self._need_one()
        return facts

    def abort(self) -> None:
        """Delete the unfinished file in every log dir."""
        self.writer.abort()
        for file in self._files.values():
            file.abort()

    def _leave_out(self, broker_id: int, error: SparkLogError) -> None:
        del self._files[broker_id]
        self.failures[broker_id] = error

    def _need_one(self) -> None:
        if not self._files:
            raise next(iter(self.failures.values()))
