"""Notes on a micro-batch in the checkpoint folder of its query: inputs that Spark's own checkpoint does not have.

A batch that is replayed after a crash reads its note and uses the same inputs again.
"""

from pyspark.sql import SparkSession

from spark_log.spark.streams.micro_batch import JvmCheckpoint, MicroBatch

_FOLDER = "spark-log-notes"
_KEPT = 100
"""Number of batches whose notes are kept: as many as Spark retains (spark.sql.streaming.minBatchesToRetain)."""


class Notes:
    """The notes under one name of the query that runs `batch`."""

    def __init__(self, spark: SparkSession, batch: MicroBatch, name: str) -> None:
        self._batch, self._name = batch, name
        self._checkpoint = JvmCheckpoint(spark, batch)

    def read(self) -> str | None:
        """The note that an earlier run of the batch wrote; None if there is none."""
        return self._checkpoint.read(_FOLDER, self._name)

    def write(self, text: str) -> None:
        """Write the batch's note, in place of an earlier one, and delete a note that is no longer retained."""
        self._checkpoint.write(text, _FOLDER, self._name)
        if self._batch.batch_id >= _KEPT:
            self._checkpoint.forget(self._batch.batch_id - _KEPT, _FOLDER, self._name)
