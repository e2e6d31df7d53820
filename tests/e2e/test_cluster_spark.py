"""The connector on a real Spark cluster with its metadata in PostgreSQL; and the health check of Master and Workers.

The executors' Python has no database driver and no SQLAlchemy, alembic, deltalake or kafka: importing one is an error
there. So the tests show that executors never access the metadata store.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.metadata import tables
from tests.support.python_process import REPOSITORY
from tests.support.spark import StandaloneSpark
from tests.support.topics import make, stored

ROWS = 4_000

JOB = """
import os, sys, time
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from tests.support.spark import session

master, address, folder = sys.argv[1:]
spark = session(master, Path(folder) / "warehouse", spark_cores_max="2", spark_executor_memory="512m")
rows = spark.range(0, 4_000, 1, 4).selectExpr("CAST(id AS string) AS value", "CAST(id % 40 AS string) AS key")


def written(frame, topic):
    frame.write.format("spark_log").option("cluster", address).option("topic", topic).mode("append").save()


def imported(batches):
    for name in ("sqlalchemy", "psycopg"):
        try:
            __import__(name)
            yield pa.record_batch({"name": [name]})
        except ImportError:
            pass


assert rows.mapInArrow(imported, "name string").count() == 0, "executors can import what they must not need"

written(rows, "batch")
frame = spark.read.format("spark_log").options(cluster=address, subscribe="batch", minPartitions="8").load()
assert frame.rdd.getNumPartitions() >= 8
assert frame.selectExpr("count(*)", "count(DISTINCT value)").collect()[0][:] == (4_000, 4_000)
print("read", flush=True)

stream = spark.readStream.format("spark_log").options(cluster=address, subscribe="batch")
stream = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger="2500").load()
query = stream.select("key", "value", "partition").writeStream.format("spark_log")
query = query.options(cluster=address, topic="stream", checkpointLocation=folder + "/checkpoint")
query.trigger(availableNow=True).start().awaitTermination()
print("copied", flush=True)
print("executors", len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1, flush=True)


def attempt_fails(batches):
    context = TaskContext.get()
    for batch in batches:
        half = batch.num_rows // 2
        yield batch.slice(0, half)
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            raise ValueError("the first attempt of task 1")
        if context.partitionId() == 3 and context.attemptNumber() == 0:
            parent = os.getppid()
            Path(folder, "writing.tmp").write_text(os.getcwd())
            Path(folder, "writing.tmp").rename(Path(folder, "writing"))
            while os.getppid() == parent:  # until the worker under it is killed
                time.sleep(0.05)
        yield batch.slice(half)


written(rows.mapInArrow(attempt_fails, rows.schema), "survived")
print("survived", flush=True)
spark.stop()
"""


HEALTH_CHECK = REPOSITORY / "scripts" / "spark_health.py"


def health(url: str) -> tuple[int, str]:
    """Exit code and error of the health check in docker/compose.yaml."""
    done = subprocess.run([sys.executable, str(HEALTH_CHECK), url], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def poisoned(folder: Path) -> str:
    """A folder for PYTHONPATH in which the libraries of the driver cannot be imported."""
    for name in ("sqlalchemy", "psycopg", "alembic", "deltalake", "kafka"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise ImportError('an executor imports {name}')\n")
    return str(folder)


@pytest.mark.slow
def test_write_read_copy_and_the_loss_of_a_worker(postgres_url: str, tmp_path: Path) -> None:
    with Cluster.init(postgres_url, log_dir=str(tmp_path / "log-dir")) as cluster:
        for name in ("batch", "stream", "survived"):
            make(cluster, name, 3, inline_max_bytes="4000")
        path = poisoned(tmp_path / "poisoned")
        with (
            StandaloneSpark(tmp_path, workers=2, PYTHONPATH=path) as spark,
            (tmp_path / "driver.log").open("wb") as log,
        ):
            assert [health(daemon.web_ui()) for daemon in spark.daemons] == [(0, "")] * 3
            command = [sys.executable, "-c", JOB, spark.master_url, postgres_url, str(tmp_path)]
            driver = subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ}, stdout=log, stderr=log)
            try:
                while driver.poll() is None and not (tmp_path / "writing").exists():
                    time.sleep(0.1)
                assert (tmp_path / "writing").exists(), (tmp_path / "driver.log").read_text()[-6000:]
                assert stored(cluster, "survived") == {}  # partly written, nothing visible
                name = Path((tmp_path / "writing").read_text()).relative_to(tmp_path).parts[0]
                [worker] = [daemon for daemon in spark.workers if daemon.name == name]
                worker.kill()
                assert driver.wait(timeout=240) == 0, (tmp_path / "driver.log").read_text()[-6000:]
                assert "executors 2\n" in (tmp_path / "driver.log").read_text()
            finally:
                if driver.poll() is None:
                    driver.kill()
                    driver.wait()
            [alive] = [daemon.web_ui() for daemon in spark.workers if daemon is not worker]
            spark.daemons[0].kill()
            exit_code, said = health(alive)
            assert (exit_code, "Connection refused" in said) == (1, True), said
        for daemon in spark.daemons:
            with pytest.raises(ProcessLookupError):
                os.kill(daemon.pid, 0)
        for topic in ("batch", "survived"):
            found = stored(cluster, topic)
            assert sorted(int(value) for values in found.values() for value in values) == list(range(ROWS)), topic
            for values in found.values():  # order within each task
                for task in range(4):
                    mine = [int(value) for value in values if int(value) * 4 // ROWS == task]
                    assert mine == sorted(mine)
        assert stored(cluster, "stream") == stored(cluster, "batch")
        assert cluster.store.read(lambda c: c.execute(tables.write_id.select()).all()) == []
