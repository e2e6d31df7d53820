"""The micro-batch of the foreachBatch in this thread, and its files in the checkpoint of its query.

Uses objects of Spark's JVM, so it works in classic sessions only (not in Spark Connect).
"""

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from spark_log.errors import InvalidOptionError

_QUERY_ID = "sql.streaming.queryId"
"""Spark's local property with the query's id, which the checkpoint keeps: it is the same after a restart."""
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch. The query id is the same after a restart, the batch id is the same when the batch is replayed."""

    query_id: str
    batch_id: int


def current_batch(spark: SparkSession) -> MicroBatch | None:
    """The micro-batch of the foreachBatch in this thread; None outside of foreachBatch."""
    query_id = spark.sparkContext.getLocalProperty(_QUERY_ID)
    batch_id = spark.sparkContext.getLocalProperty(_BATCH_ID)
    return MicroBatch(query_id, int(batch_id)) if query_id is not None and batch_id is not None else None


def this_batch(spark: SparkSession) -> MicroBatch:
    """As `current_batch`; InvalidOptionError outside of foreachBatch."""
    batch = current_batch(spark)
    if batch is None:
        raise InvalidOptionError(
            "no micro-batch in this thread: call it inside foreachBatch, in the thread that runs it"
        )
    return batch


class Checkpoint:
    """The checkpoint of the query that runs `batch`; each start has a new `run_id`. Files are written as Spark writes
    its own: atomically, on any file system.
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
        """The batch's entry, which Spark writes before it runs the batch; InvalidOptionError if there is none."""
        text = self.read("offsets")
        if text is None:
            raise InvalidOptionError(
                f"checkpoint: no entry for batch {self._batch.batch_id} in the offset log: a query whose progress is"
                " tracked asynchronously (asyncProgressTrackingEnabled) cannot write exactly once"
            )
        return text

    def read(self, *folder: str) -> str | None:
        """The batch's file in a folder of the checkpoint; None if there is none."""
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
