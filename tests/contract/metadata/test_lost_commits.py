"""Connections to PostgreSQL that are lost in a COMMIT: no acknowledged record is lost, and none is stored twice."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.errors import MetadataStoreError
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.log.append.rules import Appended
from spark_log.log.append.write_ids import register, renew
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.task_list import expire_commit_tokens
from spark_log.metadata import commit_tokens
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.postgres_proxy import PostgresProxy
from tests.support.records import read_all, table
from tests.support.share_members import ShareMember
from tests.support.stores import count_rows
from tests.support.topics import stored


@pytest.fixture
def proxied(postgres_server, postgres_url, tmp_path):
    """A cluster reached through a proxy, and the proxy."""
    Cluster.init(postgres_url, log_dir=str(tmp_path / "log-dir")).close()
    with PostgresProxy(postgres_server.port) as proxy, Cluster.open(proxy.address(postgres_url)) as cluster:
        yield cluster, proxy


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_connection_lost_in_a_commit_neither_loses_nor_repeats_records(proxied, postgres_url, moment):
    """Meanwhile another process seals the tail, so the names of the appended blobs no longer prove the commit."""
    cluster, proxy = proxied
    log, topic = ClientLog(cluster), create_topic(cluster, "t")
    log.append(topic, [Records(0, table("a"))])

    def seal():
        with Cluster.open(postgres_url) as elsewhere:
            ClientLog(elsewhere).seal(topic, [0])

    cut = proxy.cut(moment, "INSERT INTO segment", seal)
    assert log.append(topic, [Records(0, table("b"))]) == [Appended(1, 2)]
    assert cut.done.is_set()
    assert read_all(log, topic) == [(0, 0, "a"), (0, 1, "b")]
    log.close()

    cut = proxy.cut(moment, "INSERT INTO topic")
    assert create_topic(cluster, "u").name == "u", "not: it exists already"
    assert cut.done.is_set()
    cut = proxy.cut(moment, "INSERT INTO write_id")
    write_id = register(cluster.store, "a test", 1_000)
    assert cut.done.is_set()
    assert renew(cluster.store, write_id, 1_000)


def test_a_commit_that_reaches_the_server_after_the_query_is_refused(proxied):
    """The client asked, learned that the transaction was not committed, and repeated it."""
    cluster, proxy = proxied
    holders = iter(["first", "second"])

    def body(connection):
        holder = next(holders)
        connection.execute(
            t.write_id.insert(), {"write_id": holder, "holder": holder, "until_ms": 0, "clock_epoch": ""}
        )
        return holder

    cut = proxy.cut("late", "INSERT INTO write_id")
    assert cluster.store.transact(body) == "second"
    answer = cut.deliver()
    assert b"23505" in answer and b"pk_commit_token" in answer
    holding = cluster.store.read(lambda connection: connection.execute(sa.select(t.write_id.c.holder)).scalars().all())
    assert holding == ["second"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_the_query_waits_for_a_server_process_that_still_runs_the_transaction(proxied, end):
    cluster, _ = proxied
    token = commit_tokens.new_token()
    with ThreadPoolExecutor(1) as pool, cluster.store.engine.connect() as lost:
        row = {"token": token, "committed": True, "at_ms": 0}
        lost.execute(t.commit_token.insert(), row)
        question = pool.submit(commit_tokens.was_committed, cluster.store.engine, token)
        waiting = sa.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'known'")
        while not cluster.store.read(lambda connection: connection.execute(waiting).scalar_one()):
            assert not question.done()
        getattr(lost, end)()
    assert question.result() == (end == "commit")
    assert commit_tokens.was_committed(cluster.store.engine, token) == (end == "commit"), "asked again: the same"


def test_commit_tokens_do_not_accumulate(proxied):
    """A few rows for each process, none for read-only transactions, and none that is too old to be queried."""
    cluster, _ = proxied
    store = cluster.store

    def tokens():
        return store.read(lambda connection: set(connection.execute(sa.select(t.commit_token.c.token)).scalars()))

    for number in range(100):
        register(store, f"holder {number}", 1_000)
    after = tokens()
    assert len(after) <= commit_tokens._ANSWERED_MAX
    store.transact(store.clock)
    expire_commit_tokens(store)
    assert tokens() == after, "neither has written anything"
    old = t.commit_token.update().values(at_ms=t.commit_token.c.at_ms - commit_tokens.KEPT_MS - 1)
    store.transact(lambda connection: connection.execute(old))
    expire_commit_tokens(store)
    assert not tokens() & after


def test_a_token_whose_row_is_gone_is_not_deleted_again(proxied):
    """The server has lost it in a crash, or it was older than the time for which tokens are kept."""
    store = proxied[0].store
    for number in range(3):
        register(store, f"holder {number}", 1_000)
    store.transact(lambda connection: connection.execute(t.commit_token.delete()))
    for number in range(100):
        register(store, f"holder {number}", 1_000)
        assert len(store._answered) <= commit_tokens._ANSWERED_MAX
    assert count_rows(store, t.commit_token) <= commit_tokens._ANSWERED_MAX


def test_the_tokens_of_reads_as_primary_do_not_accumulate(proxied):
    """Such a transaction writes nothing but its token."""
    store = proxied[0].store
    for _ in range(3 * commit_tokens._ANSWERED_MAX):
        assert store.read_as_primary(lambda _: "an answer")
    assert count_rows(store, t.commit_token) <= commit_tokens._ANSWERED_MAX + 1


def test_a_commit_whose_outcome_is_not_known_any_more_is_not_repeated(proxied, monkeypatch):
    """The answer was lost, and the machine slept for a day before it could ask."""
    cluster, proxy = proxied
    create_topic(cluster, "t")
    monkeypatch.setattr(commit_tokens, "may_ask", lambda _: False)
    with Producer(cluster=cluster.store.address.with_password) as producer:
        cut = proxy.cut("after", "INSERT INTO segment")
        with pytest.raises(MetadataStoreError, match="no longer known"):
            producer.send("t", b"a").get(60)
        assert cut.done.is_set()
        assert producer.send("t", b"b").get(60).offset == 1
    assert stored(cluster, "t") == {0: ["a", "b"]}


def test_a_closed_store_leaves_no_tokens(proxied, postgres_url):
    store = proxied[0].store
    before = count_rows(store, t.commit_token)
    with Cluster.open(postgres_url) as cluster:
        for number in range(40):
            register(cluster.store, f"holder {number}", 1_000)
        assert count_rows(store, t.commit_token) > before
    assert count_rows(store, t.commit_token) == before


def test_after_a_crash_the_transaction_id_of_another_proves_nothing(own_postgres_server, tmp_path):
    """Unflushed transactions are lost, and their ids are assigned again."""
    server = own_postgres_server
    address = server.create_database()
    with Cluster.init(address, log_dir=str(tmp_path / "log-dir")) as cluster:
        topic = create_topic(cluster, "t")
    server.stop()
    server.start(wal_writer_delay="10s")

    def crash():
        server.kill()
        server.start()
        with Cluster.open(address) as elsewhere:
            for _ in range(20):
                register(elsewhere.store, "another", 1_000)

    with PostgresProxy(server.port) as proxy, Cluster.open(proxy.address(address)) as cluster:
        log = ClientLog(cluster)
        cut = proxy.cut("before", "INSERT INTO segment", crash)
        assert log.append(topic, [Records(0, table("a"))]) == [Appended(0, 1)]
        assert cut.done.is_set()
        assert read_all(log, topic) == [(0, 0, "a")]
        log.close()


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_an_acknowledgement_counts_once(proxied, moment):
    """Repeated blindly, it would be refused: the records are not acquired any more."""
    cluster, proxy = proxied
    log, topic = ClientLog(cluster), create_topic(cluster, "t")
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    log.append(topic, [Records(0, table(*"abcd"))])
    log.close()
    member = ShareMember(cluster)
    acquired = member.poll(3)
    cut = proxy.cut(moment, "UPDATE share_partition")
    assert set(member.acknowledge(acquired, AcknowledgeType.ACCEPT).errors.values()) == {None}
    assert cut.done.is_set()
    cut = proxy.cut(moment, "UPDATE share_partition")
    [last] = member.poll().values()
    assert cut.done.is_set()
    assert [(r.first, r.end, r.deliveries) for r in last] == [(3, 4, 1)]
    cut = proxy.cut(moment, "UPDATE share_partition")
    released = member.acknowledge(dict.fromkeys(acquired, last), AcknowledgeType.RELEASE)
    assert cut.done.is_set() and set(released.errors.values()) == {None}
    [last] = member.poll().values()
    assert [(r.first, r.end, r.deliveries) for r in last] == [(3, 4, 2)]
