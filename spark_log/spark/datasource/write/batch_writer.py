"""Writes a batch DataFrame to topics. All its records become visible, or none.

Rows for topics of several metadata stores are appended in one transaction of each store. Such a write needs txnAppId
and txnVersion, so that it can be repeated after a failure: then it appends the rows where they are missing.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from spark_log.spark.datasource.options.source_options import PendingWrite, TxnVersion, WriteOptions
from spark_log.spark.datasource.worker_errors import message_only
from spark_log.spark.datasource.worker_memory import spare_collections
from spark_log.spark.datasource.write import address_handoff
from spark_log.spark.datasource.write.task_writer import TaskWriter
from spark_log.spark.datasource.write.write_plan import TaskOutput, WritePlan


@message_only
class BatchWriter(DataSourceArrowWriter):
    """Writes a batch. The driver plans and calls `commit` or `abort`; an executor calls `write`. The writer is pickled
    with the plan, but without the store's address.
    """

    def __init__(self, options: WriteOptions) -> None:
        from spark_log.spark.datasource.write.write_commit import plan_write

        self._txn: TxnVersion | None = options.txn
        self._pending: PendingWrite | None = options.pending
        self._plan: WritePlan = plan_write(options, fingerprint=False)
        # Spark sends this object to the executors and, later, to another process of the driver for the commit
        address_handoff.leave(self._plan.write_id, options.cluster)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        from spark_log.log.append.spark_batch_rules import SparkBatch
        from spark_log.spark.datasource.write.write_commit import commit_write, register_write

        outputs = [message for message in messages if isinstance(message, TaskOutput)]
        write_id = self._plan.write_id
        address = address_handoff.take(write_id)
        if self._pending is not None:
            register_write(address, outputs, write_id, self._pending)
        else:
            batch = None
            if self._txn is not None:
                count = sum(output.record_count for output in outputs)
                target = self._plan.topic or ""
                batch = SparkBatch(f"txn:{self._txn.app_id}", target, self._txn.version, count, "", strict=False)
            commit_write(address, outputs, write_id, batch, store_ids=self._plan.store_ids)
        address_handoff.forget(write_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        from spark_log.spark.datasource.write.write_commit import abort_write

        outputs = [message for message in messages if isinstance(message, TaskOutput)]
        plan = self._plan
        abort_write(address_handoff.take(plan.write_id), outputs, plan.write_id, store_ids=plan.store_ids)
        address_handoff.forget(self._plan.write_id)

    def __getstate__(self) -> dict[str, Any]:
        return {"_plan": self._plan, "_txn": self._txn, "_pending": self._pending}


def write_task(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> TaskOutput:
    """Write one task's rows. A failed attempt deletes its files; clean-up deletes the files of a killed attempt."""
    spare_collections()
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context else 0
    writer = TaskWriter(plan, f"{plan.write_id}-{attempt}", context.partitionId() if context else 0)
    try:
        for batch in batches:
            writer.write(batch)
        output = writer.finish()
    except BaseException:
        writer.abort()
        raise
    output.query_id = context.getLocalProperty("sql.streaming.queryId") if context else None
    return output
