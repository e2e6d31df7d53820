"""A wait for a change of the store ends soon after a commit of another thread or process, on every store."""

import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.log.log import Records
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.python_process import PythonProcess
from tests.support.records import table
from tests.support.waiting import LIMIT_S, wait_until

APPEND = """
import sys
from spark_log.cluster.cluster import Cluster
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from tests.support.records import table
with Cluster.open(sys.argv[1]) as cluster:
    log = ClientLog(cluster)
    topic = log.find_topic("t")
    sys.stdin.readline()
    log.append(topic, [Records(0, table("v"))])
    print("appended", flush=True)
    sys.stdin.readline()
"""


def test_an_append_of_another_process_ends_a_wait(cluster, cluster_address):
    create_topic(cluster, "t", 1)
    changes = cluster.store.changes
    pipe = subprocess.PIPE
    other = PythonProcess("-c", APPEND, cluster_address, stdin=pipe, stdout=pipe, text=True)
    settle(changes)
    seen = changes.current()
    other.stdin.write("go\n")
    other.stdin.flush()
    assert other.stdout.readline() == "appended\n"
    assert changes.wait(seen, LIMIT_S)
    other.communicate("end\n", timeout=30)
    assert other.returncode == 0


def test_a_commit_before_the_wait_ends_it_at_once(cluster, log):
    topic = create_topic(cluster, "t", 1)
    settle(cluster.store.changes)
    seen = cluster.store.changes.current()
    log.append(topic, [Records(0, table("v"))])
    assert cluster.store.changes.wait(seen, LIMIT_S)


def test_a_change_wakes_every_waiting_thread(cluster, log):
    topic = create_topic(cluster, "t", 1)
    changes = cluster.store.changes
    settle(changes)
    seen = changes.current()
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(changes.wait, seen, LIMIT_S) for _ in range(4)]
        log.append(topic, [Records(0, table("v"))])
    assert [each.result() for each in waiting] == [True] * 4


def test_a_wait_without_a_change_ends_at_its_timeout(cluster):
    settle(cluster.store.changes)
    seen = cluster.store.changes.current()
    began = time.monotonic()
    assert not cluster.store.changes.wait(seen, 0.3)
    assert time.monotonic() - began >= 0.3


def test_closing_the_store_ends_all_waits(postgres_url, tmp_path):
    cluster = Cluster.init(postgres_url, log_dir=str(tmp_path / "log-dir"))
    settle(cluster.store.changes)
    seen = cluster.store.changes.current()
    waiting = threading.Thread(target=cluster.store.changes.wait, args=(seen, 10 * LIMIT_S))
    waiting.start()
    cluster.close()
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()


def settle(changes):
    """Wait until the listener is connected: before that, waits are short and return True without a change."""
    wait_until(lambda: not changes.wait(changes.current(), 0.2))


def test_an_error_of_sqlite_is_one_of_the_store_and_the_next_call_connects_again(tmp_path):
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        changes = cluster.store.changes
        seen = changes.current()
        changes._connection.close()
        with pytest.raises(MetadataStoreUnavailableError):
            changes.current()
        assert changes.current() != seen, "a commit may have been missed"
