"""Notes on a micro-batch, beside the checkpoint of its query: what it used that is not in Spark's own checkpoint.

A batch that comes again after a crash finds its note, and so can use the same. Files are written as Spark writes its
own offset log: whole or not at all, on any file system.
"""

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_FOLDER = "spark-log-notes"
_KEPT = 100
"""Notes of so many batches, as Spark keeps its own (spark.sql.streaming.minBatchesToRetain)."""


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch: the id of the query is the same after a restart, and the batch id when the batch comes again."""

    query_id: str
    batch_id: int


def current_batch(spark: SparkSession) -> MicroBatch | None:
    """The micro-batch whose foreachBatch this thread is in; None outside of one."""
    query_id = spark.sparkContext.getLocalProperty(_QUERY_ID)
    batch_id = spark.sparkContext.getLocalProperty(_BATCH_ID)
    return MicroBatch(query_id, int(batch_id)) if query_id is not None and batch_id is not None else None


class Notes:
    """The notes under one name, of the query that runs `batch`."""

    def __init__(self, spark: SparkSession, batch: MicroBatch, name: str) -> None:
        self._batch = batch
        jvm: Any = spark._jvm
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        session: Any = spark._jsparkSession
        running = session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(batch.query_id))
        root = self._path(running.resolvedCheckpointRoot(), _FOLDER)
        self._folder = self._path(root, name)
        checkpointing: Any = jvm.org.apache.spark.sql.execution.streaming.checkpointing
        self._files = checkpointing.CheckpointFileManager.create(root, session.sessionState().newHadoopConf())

    def read(self) -> str | None:
        """What was noted on the batch when it ran before."""
        path = self._path(self._folder, str(self._batch.batch_id))
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, text: str) -> None:
        """Note it, in place of an earlier note on the batch; and forget batches long past."""
        self._files.mkdirs(self._folder)
        stream = self._files.createAtomic(self._path(self._folder, str(self._batch.batch_id)), True)
        stream.write(bytearray(text.encode()))
        stream.close()
        if self._batch.batch_id >= _KEPT:
            self._files.delete(self._path(self._folder, str(self._batch.batch_id - _KEPT)))
