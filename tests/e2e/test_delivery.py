"""At most once, at least once, exactly once: the programs of docs/guides/delivery.md, killed during their work; and the
three classic ways to lose a message, each shown and then prevented. The first, acks=1, is in
tests/contract/replication/test_elections.py (test_truncated_records_of_acks_1_are_recorded_when_the_leader_is_lost).
"""

import signal
import subprocess

import pytest

from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.metadata import tables as t
from spark_log.tables.lag_measurement import delta_lags
from spark_log.tables.publication import publish
from tests.contract.conftest import own_postgres_server  # noqa: F401 - a fixture
from tests.support.disk_faults import Disk, Unforced, needs_a_disk
from tests.support.pages import REPOSITORY, blocks
from tests.support.python_process import PythonProcess
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import make, stored
from tests.support.waiting import wait_until

GUIDE = REPOSITORY / "docs" / "guides" / "delivery.md"
PROGRAMS = [block.code for block in blocks(GUIDE.read_text()) if block.kind == "python"]
AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE = PROGRAMS

DIES_AT_THE_SECOND = """
import os, signal

def print(*words, heard=[], say=print, **options):
    heard.append(words)
    if len(heard) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    say(*words, flush=True, **options)

"""


@pytest.fixture
def folder(tmp_path):
    """The working folder of the guide's reader: a cluster "log" with three orders."""
    with Cluster.init(str(tmp_path / "log")) as cluster, Producer(cluster=str(tmp_path / "log")) as producer:
        make(cluster, "orders")
        for name in (b"alice", b"bob", b"carol"):
            producer.send("orders", name, key=name)
    return tmp_path


def start(folder, program, failpoint=None):
    pipe = subprocess.PIPE
    return PythonProcess("-c", program, folder=folder, failpoint=failpoint, stdout=pipe, stderr=pipe, text=True)


def output_of(process, exit_code=0):
    out, err = process.communicate(timeout=120)
    assert process.returncode == exit_code, err
    return out.splitlines()


def sessions_end(folder):
    """End all sessions, as after session_timeout_ms: killed processes are no members any more."""
    with Cluster.open(str(folder / "log")) as cluster:
        cluster.store.transact(lambda connection: connection.execute(t.group_member.update().values(until_ms=0)))


def bills(folder):
    with Cluster.open(str(folder / "log")) as cluster:
        return stored(cluster, "bills")


@pytest.mark.slow
def test_at_most_once_at_least_once_exactly_once(folder):
    """Each program is killed during its work and restarted. All run at the same time, each in its own group."""
    with Cluster.open(str(folder / "log")) as cluster:
        make(cluster, "bills")
    killed = [start(folder, DIES_AT_THE_SECOND + program) for program in (AT_MOST_ONCE, AT_LEAST_ONCE)]
    killed.append(start(folder, EXACTLY_ONCE, "append.decided"))
    mails, parcels, _ = (output_of(process, -signal.SIGKILL) for process in killed)
    assert (mails, parcels, bills(folder)) == (["mail for alice"], ["parcel for alice"], {})

    sessions_end(folder)
    again = [start(folder, AT_MOST_ONCE), start(folder, AT_LEAST_ONCE)]
    last = start(folder, EXACTLY_ONCE, "transaction.committed")
    mails, parcels = (output_of(process) for process in again)
    output_of(last, -signal.SIGKILL)
    assert mails == [], "bob and carol get none: their offsets were committed before the work"
    assert parcels == ["parcel for alice", "parcel for bob", "parcel for carol"], "one more for alice"
    assert bills(folder) == {0: ["bill for alice", "bill for bob", "bill for carol"]}, (
        "once, although no result was reported"
    )

    sessions_end(folder)
    output_of(start(folder, EXACTLY_ONCE))
    assert bills(folder) == {0: ["bill for alice", "bill for bob", "bill for carol"]}


# Acknowledged before it was on disk: flush.messages


def make_both(cluster):
    make(cluster, "forced")
    make(cluster, "unforced", flush_messages="1000")


def check_what_is_left(address):
    with Cluster.open(address) as cluster:
        assert stored(cluster, "forced") == {0: ["order"]}, "flush.messages=1, the default: acknowledged is on disk"
        assert stored(cluster, "unforced") == {}, "acknowledged, and gone"
    with Producer(cluster=address) as producer:
        assert producer.send("unforced", b"next").get(timeout=60).offset == 0, "the lost record's offset"


@needs_a_disk
def test_a_power_cut_loses_unforced_appends_on_sqlite(tmp_path):
    disk = Disk.make(tmp_path / "disk", tmp_path / "mounted")
    with disk.mounted() as folder:
        with Cluster.init(str(folder / "log")) as cluster:
            make_both(cluster)
        with Producer(cluster=str(folder / "log")) as producer:
            for topic in ("forced", "unforced"):
                assert producer.send(topic, b"order").get(timeout=60).offset == 0, "acknowledged"
            left = disk.after_a_power_cut(tmp_path / "left", tmp_path / "found")
    with left.mounted() as folder:
        check_what_is_left(str(folder / "log"))


def test_a_power_cut_loses_unforced_appends_on_postgresql(own_postgres_server, tmp_path):  # noqa: F811
    url = own_postgres_server.create_database()
    with Cluster.init(url, log_dir=str(tmp_path / "log-dir")) as cluster:
        make_both(cluster)
    machine = Unforced(own_postgres_server)
    with Producer(cluster=url) as producer:
        for topic in ("forced", "unforced"):
            assert producer.send(topic, b"order").get(timeout=60).offset == 0, "acknowledged"
        machine.cut_the_power()
        check_what_is_left(url)


def test_a_power_cut_loses_no_segment_that_a_delta_table_lists(own_postgres_server, tmp_path):  # noqa: F811
    """The append was not forced to disk, but publication forces it before its Delta commit."""
    url = own_postgres_server.create_database()
    with Cluster.init(url, log_dir=str(tmp_path / "log-dir")) as cluster:
        topic = make(cluster, "unforced", flush_messages="1000", inline_max_bytes="0")
    machine = Unforced(own_postgres_server)
    with Producer(cluster=url) as producer:
        producer.send("unforced", b"order").get(timeout=60)
        with Cluster.open(url) as cluster:  # the producer publishes beside its appends
            wait_until(lambda: all(lag.sealed_ms is None for lag in cluster.store.read(delta_lags).values()))
        machine.cut_the_power()
    with Cluster.open(url) as cluster:
        publish(cluster, topic)
        assert_delta_is_the_log(cluster)
        assert stored(cluster, "unforced") == {0: ["order"]}
