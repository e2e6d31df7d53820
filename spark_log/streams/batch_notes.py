"""Notes on a micro-batch, beside the checkpoint of its query: what it used that is not in Spark's own checkpoint.

A batch that comes again after a crash finds its note, and so can use the same.
"""

from pyspark.sql import SparkSession

from spark_log.streams.micro_batch import Checkpoint, MicroBatch

_FOLDER = "spark-log-notes"
_KEPT = 100
"""Notes of so many batches, as Spark keeps its own (spark.sql.streaming.minBatchesToRetain)."""


class Notes:
    """The notes under one name, of the query that runs `batch`."""

    def __init__(self, spark: SparkSession, batch: MicroBatch, name: str) -> None:
        self._batch, self._name = batch, name
        self._checkpoint = Checkpoint(spark, batch)

    def read(self) -> str | None:
        """What was noted on the batch when it ran before."""
        return self._checkpoint.read(_FOLDER, self._name)

    def write(self, text: str) -> None:
        """Note it, in place of an earlier note on the batch; and forget batches long past."""
        self._checkpoint.write(text, _FOLDER, self._name)
        if self._batch.batch_id >= _KEPT:
            self._checkpoint.forget(self._batch.batch_id - _KEPT, _FOLDER, self._name)
