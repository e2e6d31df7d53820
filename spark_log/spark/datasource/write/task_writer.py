"""Writes the rows of a task: checks, partitions and encodes them as they arrive. Executor.

Memory is bounded for any input: rows of a partition are buffered until they fill a row group, the number of open files
is limited, and when all buffered rows exceed WAITING_BYTES_MAX, those of the largest partition are written to its file.

Buffered rows are slices, and a slice keeps its whole source batch in memory. So after each WAITING_BYTES_MAX of input,
the rows that are still buffered are copied.
"""

import uuid
from collections import OrderedDict
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from spark_log import clock
from spark_log.cluster.log_dir import LogDir, LogDirInfo, open_log_dir, segment_path
from spark_log.cluster.names import validate_user_topic
from spark_log.errors import InvalidRecordError, MetadataStoreUnavailableError, UnknownTopicOrPartitionError
from spark_log.ids import LogDirId
from spark_log.log.append.encoding import SegmentFiles, blob_batch, encode_inline, prepare, segment_batch
from spark_log.log.append.partitioner import partition_of, split_by_partition
from spark_log.log.records.fingerprint import combine, fingerprint
from spark_log.log.records.schema import normalise
from spark_log.log.records.segment_write import own
from spark_log.spark.datasource.write.write_plan import TaskOutput, TopicPlan, WritePlan

WAITING_BYTES_MAX = 128 * 1024 * 1024
OPEN_FILES_MAX = 200
_NULL_KEY_RUN_RECORDS = 1_024


class TaskWriter:
    """Writes the files and blobs of one task attempt. `file_prefix` is unique, and begins with the write id."""

    def __init__(self, plan: WritePlan, file_prefix: str, task_number: int) -> None:
        self._plan = plan
        self._file_prefix = file_prefix
        self._round_robin = task_number
        self._files = 0
        self._log_dirs: dict[LogDirId, LogDir] = {}
        self._parts: dict[tuple[int, int], _Part] = {}
        self._open: OrderedDict[tuple[int, int], _Part] = OrderedDict()
        self._waiting_bytes = 0
        self._passed_bytes = 0
        self._output = TaskOutput(plan.write_id, store_ids=plan.store_ids)
        self._since_boot_ms = plan.boot_ms if clock.boot_id() == plan.boot_id else clock.boot_ms()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch of rows from Spark."""
        if batch.num_rows == 0:
            return
        explicit = batch.column("partition") if "partition" in batch.schema.names else None
        now_ms = self._now_ms()
        records = normalise(batch, timestamp_ms=now_ms)
        if self._plan.fingerprint:
            topics = self._plan.topic or batch.column("topic").cast(pa.string())
            part = fingerprint(records, topics, explicit)
            self._output.fingerprint = combine(self._output.fingerprint, part)
        self._output.record_count += records.num_rows
        for topic, rows, partitions in self._by_topic(batch, records, explicit):
            self._write_topic(topic, rows, partitions, now_ms)

    def finish(self) -> TaskOutput:
        """Write all buffered rows and return the output. Small parts become blobs in it, up to a limit per task."""
        inline_bytes = 0
        for part in list(self._parts.values()):
            blob = None
            if part.files is None and part.rows and inline_bytes < self._plan.inline_bytes_max:
                blob = encode_inline(part.waiting(), part.topic.encoding)
            if blob is None:
                self._close(part)
                continue
            name = uuid.uuid4().hex
            inline_bytes += len(blob.data)
            self._output.blobs[name] = blob.data
            topic = part.topic
            self._output.batches.append(blob_batch(topic.topic_id, part.partition, name, blob.facts, topic.encoding))
        written = sum(batch.record_count for batch in self._output.batches)
        if written != self._output.record_count:
            raise AssertionError(f"{self._output.record_count} records came in, {written} were written")
        return self._output

    def abort(self) -> None:
        """Delete the files of this attempt, because its commit message was never sent."""
        for part in self._parts.values():
            if part.files is not None:
                part.files.abort()
        for batch in self._output.batches:
            if not batch.inline:
                topic = next(topic for topic in self._plan.topics.values() if topic.topic_id == batch.topic_id)
                path = segment_path(topic.folder, batch.partition, batch.name)
                for broker_id, info in topic.targets[batch.partition].choose(self._plan.log_dirs).items():
                    if broker_id in batch.written_to:
                        self._log_dir(info).delete(path)

    def _by_topic(
        self, batch: pa.RecordBatch, records: pa.Table, explicit: pa.Array | None
    ) -> Iterator[tuple[TopicPlan, pa.Table, pa.Array | None]]:
        if self._plan.topic is not None:
            yield self._plan.topics[self._plan.topic], records, explicit
            return
        names = batch.column("topic")
        if names.null_count:
            raise InvalidRecordError(
                "null topic present in the data. Use the topic option for setting a default topic."
            )
        for name in pc.unique(names).to_pylist():
            topic = self._plan.topics.get(name)
            if name in self._plan.unavailable:
                raise MetadataStoreUnavailableError(
                    f"column 'topic': the metadata store of topic {name!r} did not answer; repeat the write"
                )
            if topic is None:
                validate_user_topic(name, "write to", "column 'topic'")
                raise UnknownTopicOrPartitionError(
                    f"column 'topic': {name!r}: unknown topic or partition"
                    f" (make it with `spark-log topic create {name}`)"
                )
            rows = pc.equal(names, name)
            yield topic, records.filter(rows), None if explicit is None else explicit.filter(rows)

    def _now_ms(self) -> int:
        """Return a time that is not after the store's time: the time of the plan plus the elapsed time. If the plan was
        made on another host, whose clock cannot be compared, only the time since the start of this task is added.
        """
        return self._plan.now_ms + clock.boot_ms() - self._since_boot_ms

    def _write_topic(self, topic: TopicPlan, records: pa.Table, explicit: pa.Array | None, now_ms: int) -> None:
        encoding = topic.encoding
        records = prepare(records, encoding, now_ms)
        partitions = partition_of(
            records.column("key"), explicit, topic.partition_count, self._round_robin, _NULL_KEY_RUN_RECORDS
        )
        self._round_robin += 1
        for partition, rows in split_by_partition(records, partitions):
            key = (topic.topic_id, partition)
            part = self._parts.get(key)
            if part is None:
                part = self._parts[key] = _Part(topic, partition)
            self._waiting_bytes += part.add(rows)
            if part.files is not None or part.waiting_bytes > 4 * encoding.inline_max_bytes:
                self._move_to_file(part)
        while self._waiting_bytes > WAITING_BYTES_MAX:
            self._write_out(max(self._parts.values(), key=lambda part: part.all_waiting_bytes))
        self._passed_bytes += records.nbytes
        if self._passed_bytes > WAITING_BYTES_MAX:
            self._passed_bytes = 0
            for part in self._parts.values():
                part.own_rows()

    def _move_to_file(self, part: "_Part") -> None:
        """Pass the buffered rows to the partition's file, which buffers them for its row groups."""
        if part.files is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._close(next(iter(self._open.values())))
            name = f"{self._file_prefix}-{self._files}.parquet"
            self._files += 1
            log_dirs = part.topic.targets[part.partition].choose(self._plan.log_dirs)
            path = segment_path(part.topic.folder, part.partition, name)
            part.files, part.name = SegmentFiles(log_dirs, self._log_dir, path, part.topic.encoding), name
        self._open[part.key] = part
        self._open.move_to_end(part.key)
        before = part.all_waiting_bytes
        part.files.append(part.take())
        self._waiting_bytes += part.all_waiting_bytes - before
        if part.files.writer.bytes_written >= part.topic.encoding.segment_bytes:
            self._close(part)

    def _write_out(self, part: "_Part") -> None:
        before = part.all_waiting_bytes
        if part.waiting_bytes:
            self._move_to_file(part)
        if part.files is not None:
            before = part.all_waiting_bytes
            part.files.writer.flush_rows()
            self._waiting_bytes += part.all_waiting_bytes - before

    def _close(self, part: "_Part") -> None:
        """Write the buffered rows and finish the partition's file. Later rows begin a new file."""
        if part.rows:
            self._move_to_file(part)
        if part.files is None:
            return
        self._waiting_bytes -= part.all_waiting_bytes
        files, part.files = part.files, None
        self._open.pop(part.key, None)
        try:
            facts = files.commit()
        except BaseException:
            files.abort()
            raise
        target = part.topic.targets[part.partition]
        self._output.batches.append(segment_batch(target, part.name, facts, part.topic.encoding, files.brokers))

    def _log_dir(self, info: LogDirInfo) -> LogDir:
        if info.log_dir_id not in self._log_dirs:
            self._log_dirs[info.log_dir_id] = open_log_dir(info)
        return self._log_dirs[info.log_dir_id]


class _Part:
    """The buffered rows of one partition, and its open file."""

    def __init__(self, topic: TopicPlan, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.key = (topic.topic_id, partition)
        self.rows: list[pa.Table] = []
        self.waiting_bytes = 0
        self.files: SegmentFiles | None = None
        self.name = ""

    @property
    def all_waiting_bytes(self) -> int:
        return self.waiting_bytes + (self.files.writer.bytes_waiting if self.files is not None else 0)

    def add(self, rows: pa.Table) -> int:
        size = rows.nbytes
        self.rows.append(rows)
        self.waiting_bytes += size
        return int(size)

    def waiting(self) -> pa.Table:
        return pa.concat_tables(self.rows)

    def own_rows(self) -> None:
        if self.rows:
            self.rows = [own(self.rows)]
        if self.files is not None:
            self.files.writer.own_rows()

    def take(self) -> pa.Table:
        rows = self.waiting()
        self.rows, self.waiting_bytes = [], 0
        return rows
