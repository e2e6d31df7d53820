"""The harness for tests that need executors in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.standalone_spark import StandaloneSpark
from tests.support.subprocess_python import run_python

JOB = """
import os, sys
from pathlib import Path
from tests.support.spark import session

spark = session(sys.argv[1], Path(sys.argv[2]))
rows = spark.range(0, 100, 1, 4).rdd.mapPartitions(lambda rows: [(os.getpid(), sum(row.id for row in rows))]).collect()
assert os.getpid() not in {pid for pid, _ in rows}
executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
print("sum", sum(total for _, total in rows), "executors", len(executors) - 1)
spark.stop()
"""


HEALTH_CHECK = Path(__file__).resolve().parents[2] / "scripts" / "spark_health.py"


def health(url: str) -> tuple[int, str]:
    """Exit code and error of the health check in docker/compose.yaml."""
    done = subprocess.run([sys.executable, str(HEALTH_CHECK), url], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_job_runs_on_two_healthy_workers_and_all_processes_end(tmp_path: Path) -> None:
    with StandaloneSpark(tmp_path, workers=2) as cluster:
        pids = [daemon.pid for daemon in cluster.daemons]
        done = run_python(JOB, cluster.master_url, str(tmp_path / "warehouse"))
        assert "sum 4950 executors 2" in done, done
        assert [health(daemon.web_ui()) for daemon in cluster.daemons] == [(0, "")] * 3
        worker = cluster.workers[0].web_ui()
        cluster.daemons[0].kill()
        exit_code, said = health(worker)
        assert exit_code == 1
        assert "Connection refused" in said
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
