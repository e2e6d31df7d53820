"""Producers in separate processes: concurrent, killed, forked, ended without close, and with a crashing store."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from types import SimpleNamespace

import pyarrow as pa
import pytest
import sqlalchemy as sa
from kafka.errors import IllegalStateError

from spark_log import Producer, clock
from spark_log.clients.produce import accumulator
from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.child_programs import producer_value
from tests.support.children import Child
from tests.support.python_process import PythonProcess, output_of
from tests.support.records import SMALL_TAILS
from tests.support.topics import contents
from tests.support.waiting import LIMIT_S

PARTITIONS = 3


def numbered_producer(address, name, count, *settings, failpoint=None):
    program = ("tests.support.child_programs", "numbered_producer")
    return Child(*program, address, "t", name, count, *settings, failpoint=failpoint)


def check(log, acked, sent):
    """`acked`: {name: acked}; `sent`: {name: how many may be stored}. Acknowledged records are at their offsets, none
    is stored twice, and all are in order.
    """
    found = contents(log, "t")
    everything = [text for values in found.values() for text in values]
    assert max(Counter(everything).values()) == 1, "nothing twice"
    allowed = {producer_value(name, number) for name, count in sent.items() for number in range(count)}
    assert set(everything) <= allowed
    for name, told in acked.items():
        for number, (partition, offset) in told.items():
            assert found[partition][offset] == producer_value(name, number)
    for values in found.values():
        for name in sent:
            numbers = [int(text.split(b"-")[1]) for text in values if text.startswith(name.encode() + b"-")]
            assert numbers == sorted(numbers), "a producer's records keep their order in a partition"
    return len(everything)


def test_four_processes_at_once(cluster, cluster_address, log):
    create_topic(cluster, "t", PARTITIONS, configs=SMALL_TAILS)
    count = 300
    crowd = {f"w{n}": numbered_producer(cluster_address, f"w{n}", count, f"linger_ms={n}") for n in range(4)}
    for process in crowd.values():
        process.finish()
    acked = {name: process.acked() for name, process in crowd.items()}
    assert {len(each) for each in acked.values()} == {count}
    total = check(log, acked, dict.fromkeys(acked, count))
    assert total == 4 * count


POINTS = ["file.temporary-written:12", "append.decided", "append.decided:4", "append.committed:4"]


# on PostgreSQL a transaction ends in another way
@pytest.mark.parametrize(
    ("cluster_address", "point"),
    [*(("sqlite", point) for point in POINTS), *(("postgres", point) for point in POINTS[2:])],
    indirect=["cluster_address"],
)
def test_a_killed_producer_loses_no_acknowledged_record(cluster, cluster_address, log, point):
    create_topic(cluster, "t", PARTITIONS, configs=SMALL_TAILS)
    killed = numbered_producer(cluster_address, "w", 2_000, failpoint=point)
    assert killed.wait() == -signal.SIGKILL, "it never came to the point"
    acked = killed.acked()
    assert len(acked) < 2_000
    assert acked or point == "append.decided"
    process = numbered_producer(cluster_address, "next", 100)
    process.finish()
    assert len(process.acked()) == 100
    check(log, {"w": acked, "next": process.acked()}, {"w": 2_000, "next": 100})


def test_postgresql_crashes_under_idempotent_producers(own_postgres_server, tmp_path):
    address = own_postgres_server.create_database()
    with Cluster.init(address, log_dir=str(tmp_path / "log-dir")) as cluster:
        create_topic(cluster, "t", PARTITIONS, configs=SMALL_TAILS)
        names = ["a", "b", "c"]
        count = 1_000
        crowd = {name: numbered_producer(address, name, count, "retry_backoff_ms=20") for name in names}
        for at in (count // 5, count // 2):
            crowd["a"].waits_for(lambda process, at=at: process.count("acked") >= at)
            own_postgres_server.kill()
            own_postgres_server.start()
        for process in crowd.values():
            process.finish()
        acked = {name: process.acked() for name, process in crowd.items()}
        assert {len(each) for each in acked.values()} == {count}
        log = ClientLog(cluster)
        total = check(log, acked, dict.fromkeys(names, count))
        assert total == 3 * count
        log.close()


def test_a_producer_used_in_a_forked_child_raises_an_error(cluster, cluster_address, log, capfd):
    producer = Producer(cluster=cluster_address, linger_ms=60_000)
    pending = producer.send("t", b"the parent's")
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        code = 1
        try:
            for call in (lambda: producer.send("t", b"v"), producer.flush, lambda: pending.get(timeout=LIMIT_S)):
                try:
                    call()
                except IllegalStateError as error:
                    assert "forked" in str(error)
                else:
                    raise AssertionError("no error")
            producer.close()
            with Producer(cluster=cluster_address) as own:
                own.send("t", b"the child's").get(timeout=LIMIT_S)
            code = 0
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, capfd.readouterr().err
    producer.close()
    assert pending.value.offset == 1
    assert contents(log, "t") == {0: [b"the child's", b"the parent's"]}


@pytest.mark.on_sqlite
def test_the_future_of_a_table_fails_in_a_forked_child(cluster, cluster_address, log, capfd):
    begun, go, outcomes = threading.Event(), threading.Event(), []
    with Producer(cluster=cluster_address) as producer:
        producer.send("t", b"first").add_callback(lambda _: (begun.set(), go.wait(60)))
        assert begun.wait(60), "now the sender is busy"
        pending = producer.send_table("t", pa.table({"value": ["table"]}))
        pending.add_both(outcomes.append)
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            code = 1
            try:
                with pytest.raises(IllegalStateError, match="forked"):
                    pending.get(timeout=LIMIT_S)
                assert pending.failed() and not outcomes, "callbacks run in the parent only"
                code = 0
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        go.set()
        assert outcomes or pending.get(timeout=60)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, capfd.readouterr().err
    assert outcomes == [pending.value]


@pytest.mark.on_sqlite
def test_an_unreferenced_producer_sends_its_buffered_records(cluster, cluster_address, log):
    producer = Producer(cluster=cluster_address, linger_ms=60_000)
    future, sender = producer.send("t", b"v"), producer._sender
    del producer
    assert not sender.is_alive() and future.value.offset == 0


@pytest.mark.on_sqlite
def test_a_producer_is_forgotten_by_its_own_sender(cluster, cluster_address, log, monkeypatch):
    """A garbage collection may run while the sender holds the lock of the buffered records."""
    producer = Producer(cluster=cluster_address, linger_ms=60_000)
    future, sender, buffered = producer.send("t", b"v"), producer._sender, producer._accumulator
    producer.myself = producer

    def collect_in_the_sender():
        if threading.current_thread() is sender:
            gc.collect()
        return clock.monotonic_s()

    del producer
    monkeypatch.setattr(accumulator, "clock", SimpleNamespace(monotonic_s=collect_in_the_sender))
    buffered.wake()
    sender.join(LIMIT_S)
    assert not sender.is_alive() and future.value.offset == 0


def test_a_producer_that_is_forgotten_inside_a_transaction_sends_its_records_afterwards(cluster, cluster_address, log):
    producers = [Producer(cluster=cluster_address, linger_ms=60_000)]
    future, sender = producers[0].send("t", b"v"), producers[0]._sender

    def forget(connection):
        connection.execute(sa.text("SELECT 1"))  # SQLite: holds the lock of the writers
        producers.clear()

    cluster.store.transact(forget)
    sender.join(LIMIT_S)
    assert not sender.is_alive() and future.get(timeout=LIMIT_S).offset == 0


ENDS_WITHOUT_CLOSE = """
import sys, threading, weakref
from spark_log import Producer

class Object:
    pass

def make_finalizers():
    # as a thread does that imports modules of SQLAlchemy
    while True:
        weakref.finalize(owner, int)

owner = Object()
for _ in range(200_000):  # enough for a switch between threads while they are iterated over
    weakref.finalize(owner, int)
producer = Producer(cluster=sys.argv[1], linger_ms=60_000)
producer.send("t", b"v")
sys.setswitchinterval(1e-5)
threading.Thread(target=make_finalizers, daemon=True).start()
"""


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_a_program_that_ends_without_close_sends_its_buffered_records_whatever_other_threads_finalize(
    cluster, cluster_address, log
):
    """weakref.finalize calls no function at exit if its registry changes at that moment."""
    output_of(ENDS_WITHOUT_CLOSE, cluster_address)
    assert contents(log, "t") == {0: [b"v"]}


NO_THREAD_AT_EXIT = """
import atexit, sys, threading
from spark_log import Producer

def refuse_threads():
    if sys.version_info < (3, 12):  # later versions refuse them
        def refuse(*_):
            raise RuntimeError("can't create new thread at interpreter shutdown")
        threading._start_new_thread = refuse

producer = Producer(cluster=sys.argv[1], linger_ms=60_000)
for number in range(300):
    producer.send("t", b"%d" % number, partition=number % 3)
producer.send("u", b"v")
atexit.register(refuse_threads)
print("sent", flush=True)
sys.stdin.read()
"""


def test_a_program_that_ends_without_close_needs_no_new_threads(cluster, cluster_address, log):
    """It appends while another process holds the lock of the store's writers, and seals the full tails."""
    create_topic(cluster, "t", PARTITIONS, configs=SMALL_TAILS)
    create_topic(cluster, "u")
    pipe = subprocess.PIPE
    with PythonProcess("-c", NO_THREAD_AT_EXIT, cluster_address, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout.readline() == b"sent\n"

        def while_writing(connection):
            connection.execute(sa.text("SELECT 1"))  # SQLite: holds the lock of the writers
            process.stdin.close()
            process.stdin = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)

        cluster.store.transact(while_writing)
        assert process.communicate(timeout=60)[1] == b"" and process.returncode == 0
    assert sum(len(values) for values in contents(log, "t").values()) == 300
    assert contents(log, "u") == {0: [b"v"]}
