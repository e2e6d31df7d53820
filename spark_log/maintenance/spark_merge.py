"""Runs merges on Spark, for clusters too large for one machine: the driver plans and swaps, tasks read and write.

A task receives a `Rewriting` and the log dirs, and returns a `Written`; neither has access to the metadata store.
"""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import open_log_dir
from spark_log.errors import SparkLogError, StorageUnavailableError, redact
from spark_log.log.segments.slices import LogDirs
from spark_log.maintenance.context import work_in_each_store
from spark_log.maintenance.report import Report
from spark_log.maintenance.rewrite.rewrite_plan import Rewriting
from spark_log.maintenance.rewrite.segment_rewrite import Write, Written, write
from spark_log.maintenance.rewrite_tasks import merge_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTITIONS_MAX = 256
"""Maximum number of partitions that are merged at the same time: for each, a thread on the driver waits for its
task.
"""


def merge_on_spark(
    spark: "SparkSession",
    cluster: "str | Cluster",
    *,
    topics: Collection[str] | None = None,
) -> Iterator[Report]:
    """Merge small segments, as many partitions at once as Spark has cores. Yields the reports of the task `merge` of
    `run_tasks`. The first error of a store is raised when all stores are done.
    """
    from spark_log.maintenance.spark_tasks import parallelism

    threads = min(parallelism(spark), _PARTITIONS_MAX)
    return work_in_each_store(
        cluster, "merge on Spark", topics, lambda context: merge_segments(context, _write_in_tasks(spark), threads),
        on_spark=True,
    )  # fmt: skip


def _write_in_tasks(spark: "SparkSession") -> Write:
    """Return `segment_rewrite.write` as a Spark job of one task; each retry writes under another name."""

    def write_in_a_task(rewriting: Rewriting, name: str, log_dirs: LogDirs) -> Written:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from spark_log.maintenance.spark_tasks import run_in_tasks

        used = {*rewriting.log_dirs.values(), *(i for piece in rewriting.slices for i in piece.log_dir_ids)}
        needed = {log_dir_id: log_dirs[log_dir_id] for log_dir_id in used & log_dirs.keys()}
        try:
            (written,) = run_in_tasks(spark, lambda job: _write_here(*job), [(rewriting, name, needed)], 1)
        except (Py4JError, PySparkException) as error:
            raise StorageUnavailableError(f"the Spark task failed: {redact(str(error))}") from error
        if isinstance(written, str):
            raise StorageUnavailableError(written)
        return written

    return write_in_a_task


def _write_here(rewriting: Rewriting, name: str, log_dirs: LogDirs) -> Written | str:
    """Write the file on an executor. A failure is returned as text: Spark would only retry after an exception, and show
    it in fifty lines.
    """
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    unique = f"{name.removesuffix('.parquet')}-{task.taskAttemptId()}.parquet"
    try:
        return write(rewriting, unique, log_dirs, open_log_dir)
    except (SparkLogError, OSError) as error:
        return redact(str(error))
