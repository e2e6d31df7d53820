"""Writes the micro-batches of a stream to topics, each exactly once."""

import logging
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from spark_log.errors import SparkLogError, redact
from spark_log.log.records.fingerprint import EMPTY, combine
from spark_log.spark.datasource.options.option_names import warn_of_misspelt_options
from spark_log.spark.datasource.options.source_options import WriteOptions
from spark_log.spark.datasource.worker_errors import hide_traceback, message_only
from spark_log.spark.datasource.write.batch_writer import write_task
from spark_log.spark.datasource.write.write_plan import TaskOutput, WritePlan

if TYPE_CHECKING:
    from spark_log.spark.datasource.checkpoint.batch_ends import BatchEnds

logger = logging.getLogger(__name__)

_warned: set[str] = set()
"""Checkpoints of which this process has warned that they cannot be read."""


@message_only
class StreamWriter(DataSourceStreamArrowWriter):
    """Plans a micro-batch, and commits or aborts it, on the driver only. Pickled for the executors, it becomes a
    `StreamTaskWriter`.

    Spark creates a new writer for each commit; the tasks' messages identify the query.
    """

    def __init__(self, options: WriteOptions, option_names: tuple[str, ...] = ()) -> None:
        """Create a writer. `option_names` are the names of all options that the user gave."""
        self._options, self._option_names = options, option_names
        self._plan: WritePlan | None = None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        raise AssertionError("executors get a StreamTaskWriter")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append the micro-batch, and commit the offsets of option group.id with it. A replay of an appended batch
        changes nothing. Raises CheckpointMismatchError for another batch with the same id.
        """
        from spark_log.log.append.spark_batch_rules import SparkBatch
        from spark_log.spark.datasource.write.write_commit import commit_write

        if batchId == 0:  # only once: Spark creates a source and a writer for each batch
            warn_of_misspelt_options(self._option_names)
        outputs = [message for message in messages if isinstance(message, TaskOutput)]
        if not outputs:
            return
        fingerprint = EMPTY
        for output in outputs:
            fingerprint = combine(fingerprint, output.fingerprint)
        count = sum(output.record_count for output in outputs)
        application = f"stream:{outputs[0].query_id}"
        target = self._options.topic or ""
        entry, ends = self._in_offset_log(outputs[0].query_id, batchId)
        batch = SparkBatch(application, target, batchId, count, f"{fingerprint:016x}", strict=True, entry=entry)
        commit_write(self._options.cluster, outputs, outputs[0].write_id, batch, ends)

    def _in_offset_log(self, query_id: str | None, batch_id: int) -> "tuple[str | None, BatchEnds | None]":
        """Return the fingerprint of the batch's entry in the offset log, or None if it cannot be read, and with
        group.id the end offsets to commit. Raises InvalidOptionError if they are needed and cannot be read.
        """
        from spark_log.log.append.spark_batch_rules import ENTRY
        from spark_log.spark.datasource.checkpoint import batch_ends
        from spark_log.spark.datasource.checkpoint.offset_log import fingerprint_of_batch

        checkpoint, group_id = self._options.checkpoint, self._options.group
        if checkpoint is None:  # a setting of Spark names it
            return None, None
        try:
            entry = batch_ends.read_entry(checkpoint, query_id, batch_id)
        except batch_ends.CheckpointUnreadable as error:
            if group_id is not None:
                raise batch_ends.unreadable_error(group_id, checkpoint, error) from error
            _warn_once(redact(checkpoint), redact(str(error)))
            return None, None
        ends = None if group_id is None else batch_ends.BatchEnds(group_id, entry)
        return f"{ENTRY}{fingerprint_of_batch(entry)[:15]}", ends

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        from spark_log.spark.datasource.write.write_commit import abort_write

        outputs = [message for message in messages if isinstance(message, TaskOutput)]
        if outputs:
            abort_write(self._options.cluster, outputs, outputs[0].write_id)

    def __reduce__(self) -> tuple[Any, ...]:
        from spark_log.spark.datasource.write.write_commit import plan_write

        if self._plan is None:  # Spark pickles the writer twice, and both copies must have the same write id
            try:
                self._plan = plan_write(self._options, fingerprint=True)
            # for an error of another class, Spark prints a traceback and shows only the class
            except SparkLogError as error:
                hide_traceback()
                raise pickle.PicklingError(f"{type(error).__module__}.{type(error).__name__}: {error}") from error
        return StreamTaskWriter, (self._plan,)


def _warn_once(checkpoint: str, why: str) -> None:
    """Log the warning once for each checkpoint and process, not in each batch."""
    if checkpoint in _warned:
        return
    _warned.add(checkpoint)
    logger.warning(
        "The checkpoint cannot be read at %r: %s. So a batch that Spark repeats must have the same rows, or the query"
        " fails. Give checkpointLocation as a URI that pyarrow opens.",
        checkpoint,
        why,
    )


@message_only
class StreamTaskWriter(DataSourceStreamArrowWriter):
    """Writes the tasks of a micro-batch, on executors only."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(self._plan, iterator)
