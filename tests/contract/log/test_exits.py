"""Programs that end without closing their clients: no thread runs native code while the interpreter ends."""

import pytest

from tests.support.python_process import run_python

PROGRAMS = {
    "sealing": """
import io, sys, threading
import pyarrow as pa, pyarrow.parquet as pq
from spark_log import Cluster, create_topic
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.rewrite import table_loop
from tests.support.topics import append

table = pa.table({"v": [str(n) for n in range(100_000)]})
began = threading.Event()

def seal(*arguments):
    began.set()
    for _ in range(20):
        pq.write_table(table, io.BytesIO())
    print("sealed")
    return 1

table_loop.try_seal = seal
cluster = Cluster.init(sys.argv[1])
log = ClientLog(cluster, in_thread=True)
append(log, create_topic(cluster, "t", configs={"inline.tail.bytes": "300"}), "x" * 100)
began.wait()
""",
    "a periodic task": """
import io, sys, threading
import pyarrow as pa, pyarrow.parquet as pq
from spark_log import Cluster
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.maintenance.coordinator.lease_runner import PeriodicTask

table = pa.table({"v": [str(n) for n in range(100_000)]})
began = threading.Event()

def work(*_):
    began.set()
    for _ in range(20):
        pq.write_table(table, io.BytesIO())
    print("sealed")

coordinator = Coordinator(Cluster.init(sys.argv[1]), tasks=[PeriodicTask("encode", 1, work)])
coordinator.start()
began.wait()
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_work_in_progress_is_finished_when_a_program_ends(tmp_path, name):
    assert run_python(PROGRAMS[name], str(tmp_path / "cluster")) == "sealed\n"
