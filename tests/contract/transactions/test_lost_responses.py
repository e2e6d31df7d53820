"""Calls that end a transaction and are interrupted, or whose response is lost."""

import kafka.errors
import pytest
import sqlalchemy as sa
from kafka.errors import IllegalStateError
from kafka.structs import TopicPartition

from spark_log.clients.produce.future import Written
from spark_log.errors import (
    InvalidTxnStateError,
    MetadataStoreUnavailableError,
)
from spark_log.groups.committed_offsets import committed_offsets
from tests.contract.transactions.transaction_state import (
    commits,
    group,
    offsets,
)
from tests.support.topics import contents
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.usefixtures("resource_oracle")


@pytest.mark.parametrize("done", [True, False], ids=["it was done", "it was not"])
def test_a_commit_whose_response_is_lost_can_be_repeated(cluster, log, topic, begin, monkeypatch, done):
    name, mine = topic(), group()
    producer = begin()
    commit = producer._log.append_batches
    losses = []

    def losing(*arguments, **options):
        if len(losses) < 3:
            losses.append(commit(*arguments, **options) if done else None)
            raise MetadataStoreUnavailableError("the answer is lost")
        return commit(*arguments, **options)

    monkeypatch.setattr(producer._log, "append_batches", losing)
    futures = [producer.send(name, b"registered")]
    futures[0].get(timeout=LIMIT_S)
    futures.append(producer.send(name, b"with the commit"))
    producer.send_offsets_to_transaction(commits(name), mine)
    for _ in range(3):
        with pytest.raises(kafka.errors.KafkaConnectionError):
            producer.commit_transaction()
        for call in (lambda: producer.send(name, b"more"), lambda: offsets(producer, name)):
            with pytest.raises(IllegalStateError):
                call()
    written = producer.commit_transaction()
    assert sum(each.end_offset - each.base_offset for each in written) == 2
    assert [future.get().offset for future in futures] == [0, 1]
    assert contents(log, name) == {0: [b"registered", b"with the commit"]}
    assert committed_offsets(cluster.store, mine) == {TopicPartition(name, 0): 1}


@pytest.mark.on_sqlite
@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
def test_a_call_that_is_interrupted_at_its_end_leaves_nothing_for_the_next_transaction(
    log, topic, begin, monkeypatch, call
):
    name = topic()
    producer = begin()
    transaction = producer._transaction
    producer.send(name, b"first").get(timeout=LIMIT_S)

    def interrupt():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transaction, "_forget", interrupt)
        with pytest.raises(KeyboardInterrupt):
            getattr(producer, call)()
    producer.begin_transaction()
    producer.send(name, b"second")
    producer.commit_transaction()
    first = [b"first"] if call == "commit_transaction" else []
    assert contents(log, name) == {0: [*first, b"second"]}


@pytest.mark.parametrize("done", [True, False], ids=["it was done", "it was not"])
def test_abort_after_a_lost_commit_response(log, topic, begin, monkeypatch, done):
    name = topic()
    producer = begin()
    commit = producer._log.append_batches

    def losing(*arguments, **options):
        if done:
            commit(*arguments, **options)
        raise MetadataStoreUnavailableError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(producer._log, "append_batches", losing)
        producer.send(name, b"v")
        with pytest.raises(kafka.errors.KafkaConnectionError):
            producer.commit_transaction()
    if done:
        with pytest.raises(InvalidTxnStateError, match="CompleteCommit"):
            producer.abort_transaction()
    else:
        producer.abort_transaction()
    producer.begin_transaction()
    producer.send(name, b"next")
    producer.commit_transaction()
    assert contents(log, name) == {0: [b"v", b"next"] if done else [b"next"]}


@pytest.mark.parametrize("cluster_address", ["postgres"], indirect=True)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_server_connection_is_lost_during_a_commit(cluster, log, topic, begin, monkeypatch, moment):
    name, mine = topic(), group()
    producer = begin()
    producer.send(name, b"v").get(timeout=LIMIT_S)
    producer.send_offsets_to_transaction(commits(name), mine)
    dialect, losses = producer._cluster.store.engine.dialect, []
    commit = dialect.do_commit

    def do_commit(connection):
        if losses:
            return commit(connection)
        driver = connection.driver_connection
        losses.append(driver.info.backend_pid)
        if moment == "after":
            commit(connection)
        with cluster.store.engine.connect() as other:
            terminate = sa.text("SELECT pg_terminate_backend(:pid, 60000)")
            assert other.execute(terminate, {"pid": losses[0]}).scalar_one()
        driver.execute("SELECT 1")  # the response that is lost
        raise AssertionError("the connection is still there")

    monkeypatch.setattr(dialect, "do_commit", do_commit)
    assert producer.commit_transaction() == [Written(TopicPartition(name, 0), 0, 1)]
    assert len(losses) == 1 and contents(log, name) == {0: [b"v"]}
    assert committed_offsets(cluster.store, mine) == {TopicPartition(name, 0): 1}
