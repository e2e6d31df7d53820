"""Money is moved between the topics of a bank by processes that are killed, stopped, fenced and robbed of log dirs.

Whoever looks, whenever he looks, sees each transfer whole or not at all, each once, and with its group's offset.
"""

import pytest
import sqlalchemy as sa

from spark_log import coordinator
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.description import describe_topics
from spark_log.config import ClusterSettings
from spark_log.coordinator import Coordinator
from spark_log.failpoints import POINTS
from spark_log.metadata import tables as t
from tests.support.bank import BRANCHES, Auditor, group_of, legs_of, open_bank, value
from tests.support.bank_teller import at_work
from tests.support.children import Child
from tests.support.group_members import until
from tests.support.replicas import every_replica_is_whole

LONG_MS = 60_000

BUSY = ClusterSettings(
    transaction_abort_interval_ms=200,
    log_seal_interval_ms=500,
    log_merge_interval_ms=1_000,
    log_clean_up_interval_ms=1_000,
    delta_upkeep_interval_ms=2_000,
    offsets_retention_check_interval_ms=1_000,
)
"""Everything that goes on beside transactions, all the time."""


class Tellers:
    """Of a bank; each `Child` is one at work."""

    def __init__(self, address):
        self.address = address
        self.hired = []

    def __call__(self, name, count, *lives, timeout_ms=LONG_MS, pause_at=-1):
        module = "tests.support.bank_teller"
        self.hired.append(Child(module, self.address, name, count, timeout_ms, pause_at, *(lives or ("on",))))
        return self.hired[-1]

    def done(self):
        """What was acknowledged."""
        return {line[1] for child in self.hired for line in list(child.lines) if line[0] == "done"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.hired:
            child.kill()


@pytest.fixture
def tellers(cluster_address):
    with Tellers(cluster_address) as tellers:
        yield tellers


HERE = [point for point in POINTS if point.startswith(("transaction.", "append.", "file."))]
LATER = ["transaction.registered:4", "append.decided:3", "append.committed:2", "transaction.committed:3"]
ON_POSTGRESQL = ["transaction.registered", "append.decided", "append.committed"]
"""It differs in how a transaction ends."""
AT_RANDOM = ["kill"] * 3
COUNT = 30


def test_tellers_that_are_killed_everywhere(cluster, cluster_address, tellers):
    """The first time that they come to a point, later, in the midst of everything, and at any moment."""
    open_bank(cluster, cluster_address)
    first = ON_POSTGRESQL if "://" in cluster_address else HERE
    lives = {"a": [*first, *AT_RANDOM, "on"], "b": [*LATER, *AT_RANDOM, "on"]}
    with Coordinator(cluster, settings=BUSY), Auditor(cluster, list(lives), tellers.done) as auditor:
        hired = [tellers(name, COUNT, *lives[name]) for name in lives]
        for teller in hired:
            teller.finish()
        assert auditor.look().following == dict.fromkeys(lives, COUNT)
    killed = sum(teller.count("lived") for teller in hired)
    assert killed == sum(map(len, lives.values())) - len(lives)
    assert not [line for teller in hired for line in teller.lines if line[0] in ("fenced", "again")]
    assert len(tellers.done()) >= len(lives) * COUNT - killed, "but what killed ones could not tell"


def state_of(cluster, teller):
    """Of the teller's current or last transaction."""
    query = (
        sa.select(t.transaction.c.state)
        .join(t.producer, t.producer.c.producer_id == t.transaction.c.producer_id)
        .where(t.producer.c.transactional_id == group_of(teller))
    )
    return cluster.store.read(lambda connection: connection.execute(query).scalar_one())


FENCED = [["fenced", call, "ProducerFencedError"] for call in ("commit", "abort", "begin", "send")]


def test_tellers_that_are_stopped_with_a_transaction_open(cluster, cluster_address, tellers):
    """One is aborted since its time is over, one is fenced, and one is both; another goes on where they were."""
    open_bank(cluster, cluster_address)
    with (
        Coordinator(cluster, settings=BUSY),
        Auditor(cluster, ["late", "old", "both"], tellers.done) as auditor,
        at_work(cluster, cluster_address, "old", LONG_MS) as heir_of_old,
        at_work(cluster, cluster_address, "both", LONG_MS) as heir_of_both,
    ):
        late = tellers("late", 4, timeout_ms=1_000, pause_at=2)
        both = tellers("both", 4, timeout_ms=1_000, pause_at=2)
        old = tellers("old", 4, pause_at=2)
        stopped = [late, both, old]
        for teller in stopped:
            teller.waits_for(lambda child: child.heard("paused"))
            teller.stop(cluster.store)
        until(lambda: state_of(cluster, "late") == state_of(cluster, "both") == "CompleteAbort", cluster.store)
        assert state_of(cluster, "old") == "Ongoing"
        heirs = [heir_of_old, heir_of_both]
        for heir in heirs:
            heir.producer.init_transactions()
            heir.work(3)
            heir.begin(3)
        for teller in stopped:
            teller.go_on()
        for teller in stopped:
            teller.finish()
        assert late.heard("again", "TransactionAbortableError") and late.heard("done", "late-2")
        for zombie in (both, old):
            assert [line for line in zombie.lines if line[0] == "fenced"] == FENCED
            assert zombie.count("done") == 2
        assert state_of(cluster, "old") == state_of(cluster, "both") == "Ongoing", "its heir's is as it was"
        for heir in heirs:
            heir.producer.commit_transaction()
        assert auditor.look().following == dict.fromkeys(["late", "old", "both"], 4)


LARGE = next(n for n in range(2, 100) if any(len(value(f"b-{n}", leg)) > 1_000 for leg in legs_of(f"b-{n}")))
"""A transfer of b that writes a file."""


def in_sync(cluster, count):
    """Whether each partition of the branches has so many replicas in sync."""
    return all(len(p.isr) == count for topic in describe_topics(cluster, BRANCHES) for p in topic.partitions)


def test_tellers_whose_log_dirs_are_lost_one_after_the_other(three_brokers, tellers, tmp_path, monkeypatch):
    """While a transaction is open, whose file was written to log dirs that are not there any more, or are others."""
    monkeypatch.setattr(coordinator, "_INSPECT_S", 0.2)
    cluster = three_brokers
    open_bank(cluster, tellers.address, replication_factor=3)
    names = ["a", "b"]
    with Coordinator(cluster, settings=BUSY), Auditor(cluster, names, tellers.done) as auditor:
        a, b = tellers("a", 30, *AT_RANDOM, "on"), tellers("b", LARGE + 2, pause_at=LARGE)
        b.waits_for(lambda child: child.heard("paused"))
        files = sa.select(sa.func.count()).where(~t.transaction_segment.c.inline)
        assert cluster.store.read(lambda connection: connection.execute(files).scalar_one())
        for broker in (1, 3):
            here, away = tmp_path / f"d{broker}", tmp_path / f"away{broker}"
            here.rename(away)
            more = a.count("done") + 3
            a.waits_for(lambda child, more=more: child.count("done") >= more or child.heard("done", "a-29"))
            until(lambda: not in_sync(cluster, 3), cluster.store)
            if broker == 3:
                here.mkdir()  # a new disk
            else:
                away.rename(here)
            until(lambda: in_sync(cluster, 3), cluster.store)
        b.go_on()
        for teller in (a, b):
            teller.finish()
        assert auditor.look().following == {"a": 30, "b": LARGE + 2}
    assert {line[0] for line in b.lines} == {"done", "paused"}, "it had to abort nothing"
    every_replica_is_whole(cluster)


def test_tellers_whose_postgresql_crashes(own_postgres_server, tmp_path):
    """Registering is not forced to disk: of what a crash takes away the rest may not be committed."""
    server = own_postgres_server
    server.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")  # so that it does take it away
    server.execute("SELECT pg_reload_conf()")
    address = server.create_database()

    def crash():
        server.kill()
        server.start()

    with Tellers(address) as tellers, Cluster.init(address, log_dir=str(tmp_path / "log-dir")) as cluster:
        open_bank(cluster, address)
        teller = tellers("a", COUNT, pause_at=2)
        teller.waits_for(lambda child: child.heard("paused"))
        crash()
        pending = sa.select(sa.func.count()).select_from(t.transaction_segment)
        assert cluster.store.read(lambda connection: connection.execute(pending).scalar_one()) < len(BRANCHES)
        with Auditor(cluster, ["a"], tellers.done) as auditor:
            teller.say("go")
            teller.waits_for(lambda child: child.heard("done", "a-5"))
            crash()
            teller.finish()
            assert auditor.look().following == {"a": COUNT}
    assert teller.heard("again", "TransactionAbortableError")
