"""Identifies the micro-batch of a foreachBatch, and reads and writes the checkpoint of its query.

In a classic session Spark's JVM knows both. Over Spark Connect, foreachBatch runs in a Python process on the server,
which knows neither. There the caller gives the batch's number and the address of the checkpoint (`BatchLocation`).
"""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_log.errors import InvalidOptionError

_QUERY_ID = "sql.streaming.queryId"
"""Spark's local property with the query's id. The id is stored in the checkpoint: it is the same after a restart."""
_BATCH_ID = "streaming.sql.batchId"

_NOTES = "spark-log-notes"
_NOTES_KEPT = 100
"""The number of batches whose notes are kept: Spark's default of spark.sql.streaming.minBatchesToRetain."""


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch. The query id stays the same after a restart, and the batch id when the batch is replayed."""

    query_id: str
    batch_id: int


class BatchLocation(NamedTuple):
    """The number of a micro-batch, and the checkpointLocation of its query. A classic session needs neither."""

    batch_id: int | None = None
    checkpoint: str | None = None


class Checkpoint(ABC):
    """The checkpoint of the query that runs `batch`. Each start of the query has a new `run_id`."""

    batch: MicroBatch
    run_id: str

    @abstractmethod
    def read(self, *folder: str) -> str | None:
        """Return the content of the batch's file in a folder of the checkpoint, or None without a file."""

    def offset_log(self) -> str:
        """Return the batch's entry in the offset log, which Spark writes before it runs the batch.

        Raises InvalidOptionError if there is none.
        """
        text = self.read("offsets")
        if text is None:
            raise InvalidOptionError(
                f"checkpoint: no entry for batch {self.batch.batch_id} in the offset log: a query whose progress is"
                " tracked asynchronously (asyncProgressTrackingEnabled) cannot write exactly once"
            )
        return text


def current_batch(spark: SparkSession) -> MicroBatch | None:
    """Return the micro-batch of the foreachBatch in this thread, or None outside of one. Needs a classic session."""
    query_id = spark.sparkContext.getLocalProperty(_QUERY_ID)
    batch_id = spark.sparkContext.getLocalProperty(_BATCH_ID)
    return MicroBatch(query_id, int(batch_id)) if query_id is not None and batch_id is not None else None


def checkpoint_of_batch(spark: SparkSession, location: BatchLocation) -> Checkpoint:
    """Return the query's checkpoint for the micro-batch of the foreachBatch in this thread.

    Raises InvalidOptionError outside of foreachBatch. Over Spark Connect, raises it if `location` is not complete, or
    if its checkpoint belongs to no query, or to one that has committed this batch.
    """
    if not isinstance(spark, SparkSession):
        return _ConnectCheckpoint(spark, location)
    batch = current_batch(spark)
    if batch is None:
        raise InvalidOptionError(
            "no micro-batch in this thread: call it inside foreachBatch, in the thread that runs it"
        )
    return JvmCheckpoint(spark, batch)


class JvmCheckpoint(Checkpoint):
    """A checkpoint of a classic session. Files are written like Spark's own: atomically, on any file system."""

    def __init__(self, spark: SparkSession, batch: MicroBatch) -> None:
        jvm: Any = spark._jvm
        session: Any = spark._jsparkSession
        self.batch = batch
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        running = session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(batch.query_id))
        self.run_id = running.runId().toString()
        self._root = self._path(running.resolvedCheckpointRoot())
        checkpointing: Any = jvm.org.apache.spark.sql.execution.streaming.checkpointing
        manager = checkpointing.CheckpointFileManager
        self._files = manager.create(self._root, session.sessionState().newHadoopConf())

    def read(self, *folder: str) -> str | None:
        path = self._file(folder, self.batch.batch_id)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, text: str, *folder: str) -> None:
        """Write the batch's file. An earlier one is replaced."""
        path = self._file(folder, self.batch.batch_id)
        self._files.mkdirs(path.getParent())
        stream = self._files.createAtomic(path, True)
        stream.write(bytearray(text.encode()))
        stream.close()

    def forget(self, batch_id: int, *folder: str) -> None:
        """Delete an older batch's file."""
        self._files.delete(self._file(folder, batch_id))

    def _file(self, folder: tuple[str, ...], batch_id: int) -> Any:
        return self._path(self._root, "/".join((*folder, str(batch_id))))


class Notes:
    """Notes on micro-batches of a query about one topic of a cluster, in the query's checkpoint folder.

    A note has an input of the batch that Spark's own checkpoint lacks, so that a replay after a crash uses it again.
    """

    def __init__(self, spark: SparkSession, batch: MicroBatch, cluster_id: str, topic: str) -> None:
        self._checkpoint, self._folder = JvmCheckpoint(spark, batch), (_NOTES, cluster_id, topic)

    def read(self) -> str | None:
        """Return the note that an earlier run of the batch wrote, or None without one."""
        return self._checkpoint.read(*self._folder)

    def write(self, text: str) -> None:
        """Write the batch's note, replace an earlier one, and delete the note that is no longer retained."""
        self._checkpoint.write(text, *self._folder)
        if self._checkpoint.batch.batch_id >= _NOTES_KEPT:
            self._checkpoint.forget(self._checkpoint.batch.batch_id - _NOTES_KEPT, *self._folder)


class _ConnectCheckpoint(Checkpoint):
    """A checkpoint of a query over Spark Connect. Spark reads the files, on any file system of the server.

    The query itself cannot be asked: in Spark 4.3 the session of its batches is a clone without queries.
    """

    run_id = uuid4().hex  # each start of a query has a new process for foreachBatch

    def __init__(self, spark: Any, location: BatchLocation) -> None:
        if location.batch_id is None or location.checkpoint is None:
            raise InvalidOptionError(
                "over Spark Connect, batch_id and checkpoint are needed: the second argument of foreachBatch's"
                " function, and the query's option checkpointLocation"
            )
        self._spark, self._root = spark, location.checkpoint.rstrip("/")
        metadata = self._text("metadata")
        if metadata is None or self._text("commits", str(location.batch_id)) is not None:
            raise InvalidOptionError(
                f"checkpoint {location.checkpoint!r}: of no query that runs batch {location.batch_id}"
            )
        self.batch = MicroBatch(json.loads(metadata)["id"], location.batch_id)

    def read(self, *folder: str) -> str | None:
        return self._text(*folder, str(self.batch.batch_id))

    def _text(self, *path: str) -> str | None:
        try:
            rows = self._spark.read.text("/".join((self._root, *path)), wholetext=True).collect()
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return None
            raise
        return str(rows[0].value) if rows else ""
