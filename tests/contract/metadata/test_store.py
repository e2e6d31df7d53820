"""The metadata store when processes stop, connections fail and transactions meet; and its clock."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.topics import find_topics
from spark_log.errors import (
    MetadataStoreError,
    MetadataStoreUnavailableError,
    SparkLogError,
    UnsupportedStoreError,
    UnsupportedVersionError,
)
from spark_log.metadata import store_schema
from spark_log.metadata import tables as t
from spark_log.metadata.address import SQLITE_FILE, refuse_network_file_system
from spark_log.metadata.connections import write_ahead_log
from spark_log.metadata.insert import insert_or_replace
from spark_log.metadata.prepared import Prepared, in_list, in_pairs
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.postgres_proxy import PostgresProxy
from tests.support.python_process import PythonProcess, output_of
from tests.support.stores import rows_of
from tests.support.waiting import Worker


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
def test_a_process_does_not_go_on_with_a_sqlite_file_that_is_not_there_any_more(tmp_path, how):
    """Its changes would be lost, and it would delete the files of the cluster that has been restored there."""
    folder = tmp_path / "cluster"
    with Cluster.init(str(folder)) as cluster:
        assert rows_of(cluster, t.topic)
        shutil.copytree(folder, tmp_path / "copy")
        (folder / SQLITE_FILE).rename(tmp_path / "elsewhere")
        if how == "deleted":
            shutil.rmtree(folder)
        if how == "replaced":
            shutil.copy(tmp_path / "copy" / SQLITE_FILE, folder)
        for run in (lambda: create_topic(cluster, "t"), lambda: cluster.store.read(find_topics)):
            with pytest.raises(MetadataStoreError, match="moved, deleted or replaced"):
                run()
    with Cluster.open(str(tmp_path / "copy")) as restored:
        create_topic(restored, "t")


def test_settings_of_the_role_and_the_database_do_not_apply(postgres_cluster):
    settings = {"default_transaction_isolation": "serializable", "statement_timeout": "1ms"}
    with postgres_cluster.store.engine.begin() as connection:
        database = connection.exec_driver_sql("SELECT current_database()").scalar_one()
        for name, value in settings.items():
            connection.exec_driver_sql(f"ALTER DATABASE {database} SET {name} = '{value}'")
    with Cluster.open(postgres_cluster.store.address.with_password) as cluster, cluster.store.engine.begin() as again:
        found = {name: again.exec_driver_sql(f"SHOW {name}").scalar_one() for name in settings}
    assert found == {"default_transaction_isolation": "read committed", "statement_timeout": "0"}


def test_a_deadlock_costs_a_retry(postgres_cluster):
    store, both = postgres_cluster.store, threading.Barrier(2)
    topic = create_topic(postgres_cluster, "t", 2)

    def work(order):
        attempts = itertools.count()

        def body(connection):
            attempt = next(attempts)
            for number in order:
                here = (t.partition.c.topic_id == topic.topic_id) & (t.partition.c.partition == number)
                connection.execute(t.partition.update().where(here).values(change=t.partition.c.change + 1))
                if attempt == 0 and number == order[0]:
                    both.wait(timeout=60)
            return attempt

        return store.transact(body)

    with ThreadPoolExecutor(2) as pool:
        attempts = list(pool.map(work, ((0, 1), (1, 0))))
    assert max(attempts) >= 1, "the second attempt may meet the other's first once more"
    changes = store.read(lambda c: c.execute(sa.select(t.partition.c.change)).scalars().all())
    assert changes == [2, 2]


def test_postgresql_has_statistics_of_a_new_large_topic_at_once(postgres_cluster):
    """With the statistics of the small cluster, publication of the large topic would take seconds per append."""
    create_topic(postgres_cluster, "small")
    postgres_cluster.store.transact(lambda connection: connection.execute(sa.text("ANALYZE")))
    create_topic(postgres_cluster, "large", 1_000)
    rows = sa.text("SELECT reltuples FROM pg_class WHERE oid IN ('partition'::regclass, 'replica'::regclass)")
    assert postgres_cluster.store.read(lambda c: c.execute(rows).scalars().all()) == [1_001, 1_001]


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_timeout_names_the_process_that_holds_the_lock(cluster, cluster_address):
    """The holder may be stopped. Waiting calls name it in their errors, and block no later call after that."""
    there, go_on = threading.Event(), threading.Event()
    name = sa.text("UPDATE cluster SET cluster_id = :name")

    def stopped(connection):
        connection.execute(name, {"name": "one"})
        there.set()
        go_on.wait(timeout=60)

    with Cluster.open(cluster_address) as one:
        holder = threading.Thread(target=lambda: one.store.transact(stopped))
        holder.start()
        there.wait(timeout=60)
        held = rf"was held by process {os.getpid()} for [\d.]+ s; if that process is stopped"
        for timeout_ms in (100, 0):
            with pytest.raises(MetadataStoreUnavailableError, match=held):
                cluster.store.transact(lambda connection: None, timeout_ms=timeout_ms)
        assert sum(thread.name == "spark-log-writer-queue" for thread in threading.enumerate()) == 1, "not one a try"
        waiting = threading.Thread(target=lambda: cluster.store.transact(lambda connection: go_on.wait(60)))
        waiting.start()
        with pytest.raises(
            MetadataStoreUnavailableError, match="the lock that writers"
        ):  # the waiting thread of this store is first in the queue
            cluster.store.transact(lambda connection: None, timeout_ms=100)
        go_on.set()
        for thread in (holder, waiting):
            thread.join(timeout=60)
        cluster.store.transact(lambda connection: connection.execute(name, {"name": "two"}), timeout_ms=10_000)
        one.store.transact(lambda connection: connection.execute(name, {"name": "three"}), timeout_ms=10_000)


@pytest.mark.parametrize("kind", ["nfs4", "9p", "virtiofs", "vboxsf", "fuse.juicefs", "fuse.gcsfuse"])
def test_sqlite_is_refused_on_a_network_file_system(kind, tmp_path):
    mounts = f"/dev/root / ext4 rw 0 0\nshare {tmp_path} {kind} rw 0 0\n"
    with pytest.raises(UnsupportedStoreError, match=f"network file system .{kind} at"):
        refuse_network_file_system(tmp_path / "cluster", mounts)


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_overlapping_readers_do_not_let_the_write_ahead_log_grow_for_ever(cluster, cluster_address, monkeypatch):
    monkeypatch.setattr(write_ahead_log, "BYTES_MAX", 500_000)
    monkeypatch.setattr(write_ahead_log, "_AGAIN_AFTER_S", 0.0)  # a reader may be stopped for long on a busy machine
    log = Path(f"{cluster_address}/metadata.sqlite-wal")
    cluster.store.transact(lambda c: c.exec_driver_sql("CREATE TABLE filler AS SELECT zeroblob(50000) AS data"))

    def read(stop):
        while not stop.is_set():
            with cluster.store.snapshot() as connection:
                connection.exec_driver_sql("SELECT count(*) FROM filler").all()
                stop.wait(0.01)

    readers = [Worker(read) for _ in range(3)]
    longest = 0
    try:
        for _ in range(1_000):
            cluster.store.transact(lambda c: c.exec_driver_sql("UPDATE filler SET data = ?", (os.urandom(50_000),)))
            longest = max(longest, log.stat().st_size)
            if log.stat().st_size < longest:
                break
    finally:
        for reader in readers:
            reader.finish()
    assert log.stat().st_size < longest, "it was never cut"


FORK_IN_THE_MIDST = """
import os, signal, sys
from spark_log import Cluster

def body(connection):
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        signal.pause()
    signal.pause()

with Cluster.open(sys.argv[1]) as cluster:
    cluster.store.transact(body)
"""


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_a_forked_child_does_not_hold_the_lock_of_its_dead_parent(cluster, cluster_address):
    process = PythonProcess("-c", FORK_IN_THE_MIDST, cluster_address, stdout=subprocess.PIPE)
    with process:
        child = int(process.stdout.readline())
        try:
            with pytest.raises(MetadataStoreUnavailableError):
                cluster.store.transact(lambda connection: None, timeout_ms=100)
            process.kill()
            cluster.store.transact(lambda connection: None, timeout_ms=30_000)
        finally:
            os.kill(child, signal.SIGKILL)
            process.kill()


OPEN_AND_CLOSE = """
import os, sys, threading, time
from spark_log import Cluster, Consumer, Producer, create_topic
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from tests.support.records import read_all, table

address, folder = sys.argv[1:]

def use(number):
    database = "://" in address
    here = address if database else f"{address}-{number}"
    if number == 0 or not database:
        Cluster.init(here, log_dir=f"{folder}/log-dir" if database else None).close()
    with Cluster.open(here) as opened:
        topic = create_topic(opened, f"t{number}", configs={"inline.max.bytes": "0"})
        log = ClientLog(opened)
        log.append(topic, [Records(0, table("a"))])
        assert len(read_all(log, topic)) == 1
        log.close()
    with Producer(cluster=here) as producer:
        producer.send(f"t{number}", b"b").get(timeout=60)
    with Consumer(f"t{number}", cluster=here, auto_offset_reset="earliest") as consumer:
        assert consumer.poll(timeout_ms=60_000)
    while any(thread.name == "spark-log-listen" for thread in threading.enumerate()):  # they end by themselves
        time.sleep(0.01)
    return len(os.listdir("/proc/self/fd"))

print(*[use(number) for number in range(4)])
"""


@pytest.mark.slow
def test_closed_objects_leave_no_file_open(cluster_address, tmp_path):
    """A program may open any number of clusters, producers and consumers, one after the other."""
    counts = output_of(OPEN_AND_CLOSE, cluster_address, tmp_path).split()
    assert len(set(counts[2:])) == 1, "what libraries open once, they have opened by then"


def test_a_failed_transaction_body_writes_nothing(cluster):
    before = rows_of(cluster)

    def body(connection):
        connection.execute(t.write_id.insert(), {"write_id": "w", "holder": "h", "until_ms": 0, "clock_epoch": ""})
        raise SparkLogError("no")

    with pytest.raises(SparkLogError, match=r"^no$"):
        cluster.store.transact(body)
    assert rows_of(cluster) == before


def test_the_time_of_the_store_is_its_own_and_continues(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose wall clock is wrong by a day still stamps records with PostgreSQL's time."""
    store = cluster.store
    in_transaction = store.transact(store.clock).wall_ms
    if not store.sqlite:
        monkeypatch.setattr("spark_log.clock.wall_ms", lambda: in_transaction + 86_400_000)
    first = store.now().wall_ms
    assert abs(first - in_transaction) < 60_000
    assert first <= store.now().wall_ms <= first + 60_000


def test_the_last_settings_and_the_time_of_the_store_are_used_while_it_is_down(postgres_server, postgres_url, tmp_path):
    with (
        PostgresProxy(postgres_server.port) as proxy,
        Cluster.init(proxy.address(postgres_url), log_dir=str(tmp_path / "log-dir")) as cluster,
    ):
        store = cluster.store
        settings, before = store.settings, store.now()
        alter_settings(cluster, {"plan.tasks.max": "7"})  # they are due to be read again
        proxy.refuse(10_000, "57P03")
        store.engine.dispose()
        assert store.settings == settings
        asked_ms, ahead_ms = store._ahead
        store._ahead = (max(0, asked_ms - 10_000), ahead_ms)  # so long ago that the time is due to be asked again
        assert 0 <= store.now().wall_ms - before.wall_ms < 60_000
        with pytest.raises(MetadataStoreUnavailableError, match="metadata store at"):
            store.end_silent_sessions()


def test_any_number_of_rows_can_be_inserted(cluster):
    """Stores limit the parameters of a statement: these rows have 70,000."""
    facts = {"application": "q", "target": "", "record_count": 1, "fingerprint": "", "committed_ms": 1}
    for version in (1, 2):
        rows = [{**facts, "topic_id": topic_id, "version": version} for topic_id in range(10_000)]
        cluster.store.transact(lambda connection, rows=rows: insert_or_replace(connection, t.spark_batch, rows))
    with cluster.store.snapshot() as connection:
        query = sa.select(t.spark_batch.c.version, sa.func.count()).group_by(t.spark_batch.c.version)
        assert connection.execute(query).all() == [(2, 10_000)]


def test_in_list_takes_a_list_of_any_length_and_uses_an_index(cluster):
    for name in ("a", "b", "c"):
        create_topic(cluster, name)
    statement = Prepared(sa.select(t.topic.c.name).where(in_list(t.topic.c.name, "names")).order_by(t.topic.c.name))
    with cluster.store.snapshot() as connection:
        for names in ([], ["b"], ["c", "a", "a", "no such topic"], [f"t-{number}" for number in range(20_000)] + ["b"]):
            expected = sorted({*names} & {*"abc"})
            assert [name for (name,) in statement.rows(connection, {"names": names})] == expected
            query = sa.select(t.topic.c.name).where(in_list(t.topic.c.name, names))
            assert sorted(connection.execute(query).scalars()) == expected
        if cluster.store.sqlite:
            text, _ = statement._bound(connection, [{"names": []}])
            plan = connection.connection.dbapi_connection.execute(f"EXPLAIN QUERY PLAN {text}", ["[]"]).fetchall()
            assert any("SEARCH topic USING" in str(step) for step in plan), plan


def test_in_pairs_finds_pairs_and_not_their_product_by_the_index(cluster):
    member = t.group_member
    texts = ["a", "b", '"', "\\", "ä€"]
    statement = Prepared(
        sa.select(member.c.group_id, member.c.member_id).where(in_pairs(member.c.group_id, member.c.member_id))
    )
    other = {"client": "", "subscription": "{}", "target": "[]", "until_ms": 0, "clock_epoch": "", "epoch_state": "{}"}
    rows = [
        {"group_id": one, "member_id": two, "session_timeout_ms": 1, "generation": 0, "protocol": "classic", **other}
        for one in texts
        for two in texts
    ]
    cluster.store.transact(lambda c: c.execute(t.consumer_group.insert(), [
        {"group_id": each, "generation": 0, "assignor": "", "topics": "{}"} for each in texts
    ]))  # fmt: skip
    cluster.store.transact(lambda c: c.execute(member.insert(), rows))
    pairs = [*zip(texts, reversed(texts), strict=True)]
    with cluster.store.snapshot() as connection:
        for some in ([], pairs[:1], pairs, [*pairs, ("a", "no such member")]):
            assert {*statement.rows(connection, {"pairs": json.dumps(some)})} == {*some} & {*pairs}
        if cluster.store.sqlite:
            text, _ = statement._bound(connection, [{"pairs": "[]"}])
            plan = connection.connection.dbapi_connection.execute(f"EXPLAIN QUERY PLAN {text}", ["[]"]).fetchall()
            assert any("(group_id=? AND member_id=?)" in str(step) for step in plan), plan


def test_no_cluster_is_created_in_a_postgresql_that_is_too_old(postgres_url, tmp_path, monkeypatch):
    monkeypatch.setattr(store_schema, "_POSTGRESQL_VERSION_MIN", 99)
    with pytest.raises(UnsupportedVersionError, match=r"is PostgreSQL \d+: spark-log needs 99 or later"):
        Cluster.init(postgres_url, log_dir=str(tmp_path / "log-dir"))
    assert not list(tmp_path.iterdir())
