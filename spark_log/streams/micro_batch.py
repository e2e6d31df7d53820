"""The micro-batch whose foreachBatch this thread is in, and what is beside it in the checkpoint of its query.

Reaches into Spark's JVM, so it is for classic sessions (not Spark Connect).
"""

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from spark_log.errors import InvalidOptionError

_QUERY_ID = "sql.streaming.queryId"
"""Spark's local property with the id that the checkpoint keeps: the same after a restart, another in a new one."""
_BATCH_ID = "streaming.sql.batchId"


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


def this_batch(spark: SparkSession) -> MicroBatch:
    """InvalidOptionError outside of foreachBatch."""
    batch = current_batch(spark)
    if batch is None:
        raise InvalidOptionError("Spark names no streaming query: call it inside foreachBatch, in its own thread, only")
    return batch


class Checkpoint:
    """The checkpoint of the query that runs `batch`; `run_id` is another after each start. Files are written as Spark
    writes its own: whole or not at all, on any file system.
    """

    def __init__(self, spark: SparkSession, batch: MicroBatch) -> None:
        jvm: Any = spark._jvm
        session: Any = spark._jsparkSession
        self._batch = batch
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        running = session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(batch.query_id))
        self.run_id: str = running.runId().toString()
        self._root = self._path(running.resolvedCheckpointRoot())
        checkpointing: Any = jvm.org.apache.spark.sql.execution.streaming.checkpointing
        manager = checkpointing.CheckpointFileManager
        self._files = manager.create(self._root, session.sessionState().newHadoopConf())

    def offset_log(self) -> str:
        """The batch's entry, which Spark has written before it runs the batch; InvalidOptionError where it has not."""
        text = self.read("offsets")
        if text is None:
            raise InvalidOptionError(
                f"checkpoint: no entry for batch {self._batch.batch_id} in the offset log: a query whose progress is"
                " tracked asynchronously (asyncProgressTrackingEnabled) cannot write a batch once"
            )
        return text

    def read(self, *folder: str) -> str | None:
        """The batch's file in a folder of the checkpoint."""
        path = self._file(folder, self._batch.batch_id)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, text: str, *folder: str) -> None:
        """Write the batch's file, in place of an earlier one."""
        path = self._file(folder, self._batch.batch_id)
        self._files.mkdirs(path.getParent())
        stream = self._files.createAtomic(path, True)
        stream.write(bytearray(text.encode()))
        stream.close()

    def forget(self, batch_id: int, *folder: str) -> None:
        """Delete an older batch's file."""
        self._files.delete(self._file(folder, batch_id))

    def _file(self, folder: tuple[str, ...], batch_id: int) -> Any:
        return self._path(self._root, "/".join((*folder, str(batch_id))))
