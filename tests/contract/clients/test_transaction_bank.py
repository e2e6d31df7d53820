"""Processes move money between the topics of a bank, while they are killed, stopped or fenced, or lose log dirs.

Every reader at any time sees each transfer completely or not at all, once, and with the offset of its group.
"""

import shutil

import pytest
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.config import ClusterSettings
from spark_log.facts.topics import describe_topics
from spark_log.failpoints import POINTS
from spark_log.maintenance.coordinator import periodic_tasks
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.maintenance.task_list import run_tasks
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PARTITION, TRANSACTION_SEGMENT
from tests.support.bank import BRANCHES, Auditor, group_of, legs_of, open_bank, value
from tests.support.children import Child
from tests.support.disk_faults import Unforced
from tests.support.stores import TWO_STORES, change, count_rows
from tests.support.table_checks import assert_replicas_are_whole
from tests.support.transaction_programs import at_work
from tests.support.waiting import wait_until

BUSY = ClusterSettings(
    transaction_abort_interval_ms=200,
    table_loop_poll_ms=500,
    log_merge_interval_ms=1_000,
    log_clean_up_interval_ms=1_000,
    delta_maintenance_interval_ms=2_000,
    offsets_retention_check_interval_ms=1_000,
)
"""Maintenance tasks that run continuously during the transactions."""


class Clients:
    """The clients of the bank; each `Child` is the process of one."""

    def __init__(self, address):
        self.address = address
        self.started = []

    def __call__(self, name, count, *lives, pause_at=-1):
        command = ("tests.support.transaction_programs", "bank_client", self.address, name, count, pause_at)
        self.started.append(Child(*command, *(lives or ("on",))))
        return self.started[-1]

    def done(self):
        """The acknowledged transfers."""
        return {line[1] for child in self.started for line in list(child.lines) if line[0] == "done"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.started:
            child.kill()


@pytest.fixture
def clients(cluster_address):
    with Clients(cluster_address) as clients:
        yield clients


HERE = [point for point in POINTS if point.startswith(("transaction.", "append.", "file."))]
REGISTERED = "part.registered" if TWO_STORES else "transaction.registered"
LATER = [f"{REGISTERED}:4", "append.decided:3", "append.committed:2", "transaction.committed:3"]
ON_POSTGRESQL = [REGISTERED, "append.decided", "append.committed"]
"""On PostgreSQL a transaction ends in another way."""
AT_RANDOM = ["kill"] * 3
COUNT = 30


@pytest.mark.slow
def test_transfers_are_atomic_when_clients_are_killed_at_any_point(cluster, cluster_address, clients):
    """At the first pass of a failpoint, at a later pass, during other work, and at random moments."""
    open_bank(cluster, cluster_address)
    first = ON_POSTGRESQL if "://" in cluster_address else HERE
    lives = {"a": [*first, *AT_RANDOM, "on"], "b": [*LATER, *AT_RANDOM, "on"]}
    with Coordinator(cluster, settings=BUSY), Auditor(cluster, list(lives), clients.done) as auditor:
        started = [clients(name, COUNT, *lives[name]) for name in lives]
        for client in started:
            client.finish()
        assert auditor.audit().following == dict.fromkeys(lives, COUNT)
    killed = sum(client.count("lived") for client in started)
    assert killed == sum(map(len, lives.values())) - len(lives)
    assert not [line for client in started for line in client.lines if line[0] in ("fenced", "again")]
    assert len(clients.done()) >= len(lives) * COUNT - killed, "the killed ones could not report one transfer each"


def state_of(cluster, client):
    """State of the client's current or last transaction."""
    query = (
        sa.select(t.transaction.c.state)
        .join(t.producer, t.producer.c.producer_id == t.transaction.c.producer_id)
        .where(t.producer.c.transactional_id == group_of(client))
    )
    return cluster.store.read(lambda connection: connection.execute(query).scalar_one())


def let_time_out(cluster, client):
    """Its open transaction is one that has been open for longer than its client allowed."""
    query = sa.select(t.producer.c.producer_id).where(t.producer.c.transactional_id == group_of(client))
    its_own = t.transaction.c.producer_id.in_(query)
    change(cluster, t.transaction.update().where(its_own).values(until_ms=0))


FENCED = [["fenced", call, "ProducerFencedError"] for call in ("commit", "abort", "begin", "send")]


@pytest.mark.slow
def test_transfers_are_atomic_when_clients_are_stopped_with_an_open_transaction(cluster, cluster_address, clients):
    """One transaction times out, one client is fenced, and one is both; another client continues their work."""
    open_bank(cluster, cluster_address)
    with (
        Coordinator(cluster, settings=BUSY),
        Auditor(cluster, ["late", "old", "both"], clients.done) as auditor,
        at_work(cluster, cluster_address, "old") as heir_of_old,
        at_work(cluster, cluster_address, "both") as heir_of_both,
    ):
        late, both, old = stopped = [clients(name, 4, pause_at=2) for name in ("late", "both", "old")]
        for client in stopped:
            client.waits_for(lambda child: child.printed("paused"))
            client.stop(cluster.store)
        for name in ("late", "both"):
            let_time_out(cluster, name)
        wait_until(lambda: state_of(cluster, "late") == state_of(cluster, "both") == "CompleteAbort")
        assert state_of(cluster, "old") == "Ongoing"
        heirs = [heir_of_old, heir_of_both]
        for heir in heirs:
            heir.producer.init_transactions()
            heir.work(3)
            heir.begin(3)
        for client in stopped:
            client.go_on()
        for client in stopped:
            client.finish()
        assert late.printed("again", "TransactionAbortableError") and late.printed("done", "late-2")
        for zombie in (both, old):
            assert [line for line in zombie.lines if line[0] == "fenced"] == FENCED
            assert zombie.count("done") == 2
        assert state_of(cluster, "old") == state_of(cluster, "both") == "Ongoing", "its heir's is as it was"
        for heir in heirs:
            heir.producer.commit_transaction()
        assert auditor.audit().following == dict.fromkeys(["late", "old", "both"], 4)


def large(client):
    """The number of a transfer that writes a file."""
    return next(
        n for n in range(100) if any(len(value(f"{client}-{n}", leg)) > 1_000 for leg in legs_of(f"{client}-{n}"))
    )


def leader_of_pending_file(cluster, transactional_id):
    """The broker that leads the partition where the first file of an open transaction belongs."""
    query = (
        sa.select(PARTITION.leader)
        .join(
            t.transaction_segment,
            (TRANSACTION_SEGMENT.topic_id == PARTITION.topic_id)
            & (TRANSACTION_SEGMENT.partition == PARTITION.partition),
        )
        .join(t.producer, t.producer.c.producer_id == TRANSACTION_SEGMENT.producer_id)
        .where(t.producer.c.transactional_id == transactional_id, ~TRANSACTION_SEGMENT.inline)
        .order_by(TRANSACTION_SEGMENT.position)
    )
    return cluster.store.read(lambda connection: connection.execute(query).scalars().first())


def in_sync(cluster, count):
    """Whether each partition of the branches has `count` replicas in sync."""
    return all(len(p.isr) == count for topic in describe_topics(cluster, BRANCHES) for p in topic.partitions)


@pytest.mark.slow
@pytest.mark.parametrize("cluster_address", ["postgres"], indirect=True)
def test_transfers_are_atomic_when_log_dirs_are_lost_one_after_the_other(three_brokers, clients, tmp_path, monkeypatch):
    """Transactions are open meanwhile: at the commit, the log dirs of their files are missing or replaced.

    Only log dirs fail here, so one store is enough; test_transaction_replicas has both.
    """
    monkeypatch.setattr(periodic_tasks, "_INSPECT_S", 0.2)
    cluster, address = three_brokers, clients.address
    open_bank(cluster, address, replication_factor=3)
    with (
        Coordinator(cluster, settings=BUSY),
        Auditor(cluster, ["a", "b", "c"], clients.done) as auditor,
        at_work(cluster, address, "b") as b,
        at_work(cluster, address, "c") as c,
    ):
        a = clients("a", COUNT, *AT_RANDOM, "on")
        for name, client in (("b", b), ("c", c)):
            client.producer.init_transactions()
            client.work(large(name))
            client.begin(large(name))
            client.producer.flush()
        # the leader's file and its leader epoch stay the same: only the log dir's new counter shows the change
        follower = leader_of_pending_file(cluster, group_of("b")) % 3 + 1
        lose_and_get_back(cluster, a, tmp_path / f"d{follower}", new_disk=True)
        b.producer.commit_transaction()
        assert_replicas_are_whole(cluster)  # before a reader repairs a missing file, or a merge replaces it
        leader = leader_of_pending_file(cluster, group_of("c"))
        change(cluster, t.write_id.update().values(until_ms=0))  # pending files are kept without a write id
        lose_and_get_back(cluster, a, tmp_path / f"d{leader}", new_disk=False)
        list(run_tasks(cluster, ["files"]))
        c.producer.commit_transaction()
        a.finish()
        assert auditor.audit().following == {"a": COUNT, "b": large("b") + 1, "c": large("c") + 1}
    assert_replicas_are_whole(cluster)


def lose_and_get_back(cluster, client, log_dir, *, new_disk):
    """A log dir is lost while a client works, and returns unchanged or empty."""
    away = log_dir.with_name(f"{log_dir.name}-away")
    log_dir.rename(away)
    more = client.count("done") + 3
    client.waits_for(lambda child: child.count("done") >= more or child.printed("done", f"a-{COUNT - 1}"))
    wait_until(lambda: not in_sync(cluster, 3))
    shutil.rmtree(log_dir, ignore_errors=True)  # a writer may have created the folder again
    if new_disk:
        log_dir.mkdir(exist_ok=True)
    else:
        away.rename(log_dir)
    wait_until(lambda: in_sync(cluster, 3))


@pytest.mark.slow
def test_transfers_are_atomic_when_postgresql_crashes(own_postgres_server, tmp_path):
    """Registrations are not forced to disk: if a crash loses some of them, the rest must not be committed."""
    server = own_postgres_server
    address = server.create_database()
    unforced = Unforced(server)  # so that a crash does lose registrations
    with Clients(address) as clients, Cluster.init(address, log_dir=str(tmp_path / "log-dir")) as cluster:
        # a client that sealed or published its earlier transfers meanwhile would force the registrations to disk
        open_bank(cluster, address, configs={"delta.max.lag.ms": "-1"})
        client = clients("a", COUNT, pause_at=2)
        client.waits_for(lambda child: child.printed("paused"))
        unforced.cut_the_power()
        assert count_rows(cluster.store, t.transaction_segment) < len(BRANCHES)
        with Auditor(cluster, ["a"], clients.done) as auditor:
            client.say("go")
            client.waits_for(lambda child: child.printed("done", "a-5"))
            server.kill()
            server.start()
            client.finish()
            assert auditor.audit().following == {"a": COUNT}
    assert client.printed("again", "TransactionAbortableError")
