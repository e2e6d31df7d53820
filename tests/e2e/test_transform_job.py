"""`jobs/transform.py` as a user starts it: a user's function, a copy, kills, SIGTERM, and restarts."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_log import Consumer
from spark_log.cluster.cluster import Cluster
from spark_log.facts.groups import describe_groups
from spark_log.maintenance.client_log import ClientLog
from tests.e2e.test_jobs import command as spark_submit
from tests.e2e.test_jobs import environment
from tests.support.python_process import PythonProcess
from tests.support.topics import all_stored, append, fill, make, stored

JOB = str(Path(__file__).parents[2] / "jobs" / "transform.py")
FUNCTIONS = """
def bill(records, producer):
    for record in records:
        if record.value == b"bad":
            raise ValueError("who orders this?")
        producer.send("bills", b"paid " + record.value, partition=record.partition)
"""
BILL = [
    "--subscribe",
    "orders",
    "--function",
    "billing:bill",
    "--group-id",
    "bills",
    "--json",
    "--session-timeout-ms",
    "1000",
]
UNTIL_DONE = ["--consumer-timeout-ms", "300"]


@pytest.fixture
def cluster(tmp_path):
    """Topic "orders" with 4 records in two partitions, "bills" with as many partitions and no records; billing.py
    beside the cluster.
    """
    (tmp_path / "billing.py").write_text(FUNCTIONS)
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        log = ClientLog(cluster)
        fill(log, make(cluster, "orders", 2), [2, 2])
        make(cluster, "bills", 2)
        log.close()
        yield cluster


PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def start(cluster, *arguments, failpoint=None):
    folder = cluster.store.address.folder
    job = "import sys; from spark_log.spark.jobs.transform import main; sys.exit(main())"
    return PythonProcess("-c", job, "--cluster", folder, *arguments, folder=folder.parent, failpoint=failpoint, **PIPES)


def start_script(cluster, *arguments, command=(sys.executable, JOB)):
    folder = cluster.store.address.folder
    return subprocess.Popen([*command, *arguments], env=environment(folder), cwd=folder.parent, **PIPES)


def finish(process, exit_code=0):
    """(events, stderr) of a process that ends by itself."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == exit_code, err
    return [json.loads(line) for line in out.splitlines()], err


def test_each_order_is_billed_once_when_the_job_is_killed_between_all_steps(cluster):
    log = ClientLog(cluster)
    bills = {0: ["paid 0/0", "paid 0/1"], 1: ["paid 1/0", "paid 1/1"]}
    finish(start(cluster, *BILL, failpoint="transaction.initialized"), -signal.SIGKILL)
    assert stored(cluster, "bills") == {}
    finish(start(cluster, *BILL, failpoint="transaction.committed"), -signal.SIGKILL)
    assert stored(cluster, "bills") == bills, "committed, but not reported"
    append(log, "orders", "0/2")
    ([summary], err) = finish(start(cluster, *BILL, *UNTIL_DONE))
    assert summary["records"] == 1 and "1 record in 1 transaction" in err
    assert stored(cluster, "bills") == {0: ["paid 0/0", "paid 0/1", "paid 0/2"], 1: bills[1]}

    append(log, "orders", "0/3", "bad")
    _, err = finish(start(cluster, *BILL, *UNTIL_DONE), 1)
    assert "who orders this?" in err and "in bill" in err, "a traceback of their function"
    assert len(all_stored(cluster, "bills")) == 5, "nothing of that transaction"
    log.close()


@pytest.mark.slow
@pytest.mark.parametrize("started_by", ["python", "spark-submit"])
def test_sigterm_ends_the_job_and_its_group_membership(cluster, started_by):
    """Also under spark-submit, although the job needs no JVM: the process does not outlive the JVM."""
    make(cluster, "copy", 2, cleanup_policy="delete")
    copy = ["--subscribe-pattern", "^ord", "--to-topic", "copy", "--group-id", "copies", "--json"]
    if started_by == "spark-submit":
        process = start_script(cluster, *copy, command=spark_submit("transform"))
    else:
        process = start(cluster, *copy)
    with Consumer("copy", cluster=str(cluster.store.address), auto_offset_reset="earliest") as consumer:
        seen = []
        while len(seen) < 4:
            assert process.poll() is None, process.communicate()
            seen += [record for records in consumer.poll(500).values() for record in records]
        assert describe_groups(cluster.store, ["copies"])[0].members
        process.send_signal(signal.SIGTERM)
        if started_by == "python":
            ([summary], _) = finish(process)
            assert (summary["records"], summary["aborted"]) == (4, 0)
        else:
            process.communicate(timeout=120)
        changes = cluster.store.changes
        while describe_groups(cluster.store, ["copies"])[0].members:
            changes.wait(changes.current(), 0.05)
    assert sorted(record.value.decode() for record in seen) == ["0/0", "0/1", "1/0", "1/1"]
    assert all_stored(cluster, "copy") == ["0/0", "0/1", "1/0", "1/1"]


@pytest.mark.slow
def test_errors_are_one_line(cluster):
    for arguments, said in (
        (["--subscribe", "nowhere", *BILL[2:]], "transform: topic 'nowhere': unknown topic or partition"),
        ([*BILL[:2], "--function", "billing:pay", *BILL[4:]], "transform: --function 'billing:pay': billing has no"),
    ):
        _, err = finish(start_script(cluster, *arguments), 1)
        assert err.startswith(said) and err.count("\n") == 1
