"""Notes on a micro-batch in the checkpoint folder of its query. A note has an input that Spark's own checkpoint lacks.

A batch that is replayed after a crash reads its note and uses the same inputs again.
"""

from pyspark.sql import SparkSession

from spark_log.spark.streams.micro_batch import JvmCheckpoint, MicroBatch

_FOLDER = "spark-log-notes"
_KEPT = 100
"""The number of batches whose notes are kept, which is Spark's default (spark.sql.streaming.minBatchesToRetain)."""


class Notes:
    """The notes about one topic of a cluster that the query which runs `batch` has written."""

    def __init__(self, spark: SparkSession, batch: MicroBatch, cluster_id: str, topic: str) -> None:
        self._batch, self._folder = batch, (_FOLDER, cluster_id, topic)
        self._checkpoint = JvmCheckpoint(spark, batch)

    def read(self) -> str | None:
        """Return the note that an earlier run of the batch wrote, or None if there is none."""
        return self._checkpoint.read(*self._folder)

    def write(self, text: str) -> None:
        """Write the batch's note, in place of an earlier one, and delete a note that is no longer retained."""
        self._checkpoint.write(text, *self._folder)
        if self._batch.batch_id >= _KEPT:
            self._checkpoint.forget(self._batch.batch_id - _KEPT, *self._folder)
