"""The process of a micro-batch is killed at every failpoint, and Spark repeats the batch: the log has it once."""

import signal
from pathlib import Path

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.failpoints import POINTS
from tests.support.python_process import run_process
from tests.support.topics import make, stored

# Runs the sink as Spark does, but without Spark: plan, two tasks, commit.
MICRO_BATCH = """
import sys
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType
from pyspark.worker_util import pickleSer
from spark_log.spark.datasource.source import SparkLogDataSource

address, batch_id = sys.argv[1:]
schema = StructType().add("value", "string").add("partition", "integer")
source = SparkLogDataSource({"cluster": address, "topic": "t"})
on_executor = pickleSer.loads(pickleSer.dumps(source.streamWriter(schema, False)))
messages = []
for task in range(2):
    context = TaskContext._getOrCreate()
    context._taskAttemptId = context._partitionId = task
    context._localProperties = {"sql.streaming.queryId": "query"}
    values = pa.array([f"{batch_id}/{task}/small", f"{batch_id}/{task}/" + "x" * 5_000])
    rows = pa.record_batch({"value": values, "partition": pa.array([0, 1], pa.int32())})
    messages.append(pickleSer.loads(pickleSer.dumps(on_executor.write(iter([rows])))))
source.streamWriter(schema, False).commit(messages, int(batch_id))
"""


def run(address: str, batch_id: int, point: str | None = None) -> int:
    done = run_process("-c", MICRO_BATCH, address, batch_id, failpoint=point)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.parametrize(
    "point", [point for point in POINTS if point.startswith(("file.", "append.", "seal.", "publish."))]
)
def test_repeated_micro_batch_is_in_the_log_once(tmp_path: Path, point: str) -> None:
    address = str(tmp_path / "cluster")
    with Cluster.init(address) as cluster:
        make(cluster, "t", 2, inline_max_bytes="1000", inline_tail_bytes="1", compression_type="none")
        whole = {0: [f"0/{task}/small" for task in range(2)], 1: [f"0/{task}/" + "x" * 5_000 for task in range(2)]}
        assert run(address, 0, point) == -signal.SIGKILL
        assert stored(cluster, "t") in ({}, whole)
        assert run(address, 0) == 0
        assert stored(cluster, "t") == whole
