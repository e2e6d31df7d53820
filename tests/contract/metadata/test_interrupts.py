"""A signal handler raises KeyboardInterrupt in a transaction: others write at once, while its traceback exists."""

import threading

import pytest
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.topics import find_topics
from spark_log.errors import IllegalStateError, MetadataStoreUnavailableError
from spark_log.metadata.connections.writer_queue import WriterQueue, _Waiting
from spark_log.metadata.sql_columns import CLUSTER, TOPIC
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.on_sqlite

QUERY = sa.select(CLUSTER.cluster_id)


def interrupt(*_arguments):
    raise KeyboardInterrupt


@pytest.mark.parametrize("at", ["begin", "statement"])
@pytest.mark.parametrize("durable", [True, False])
def test_a_transaction_is_rolled_back(cluster, cluster_address, at, durable):
    event = {"begin": "begin", "statement": "before_cursor_execute"}[at]

    def body(connection):
        kept = connection.execute(QUERY)
        sa.event.listen(cluster.store.engine, event, interrupt)
        connection.execute(QUERY)
        return kept

    if at == "begin":
        sa.event.listen(cluster.store.engine, event, interrupt)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        cluster.store.transact(body, durable=durable)
    sa.event.remove(cluster.store.engine, event, interrupt)
    with Cluster.open(cluster_address) as other:
        alter_settings(other, {"plan.tasks.max": "7"})
    assert interrupted.tb is not None
    assert [cluster.store.transact(synchronous, durable=durable) for durable in (True, False, True)] == [2, 1, 2]


@pytest.mark.parametrize("at", ["begin", "body"])
@pytest.mark.parametrize("call", ["read", "transact"])
def test_later_reads_do_not_see_the_snapshot_of_an_interrupted_one(cluster, cluster_address, at, call):
    for name in "ab":
        create_topic(cluster, name)

    def body(connection):
        kept = connection.execute(sa.select(TOPIC.name))
        kept.fetchone()
        interrupt()
        return kept

    if at == "begin":
        sa.event.listen(cluster.store.engine, "begin", body)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        getattr(cluster.store, call)(body)
    if at == "begin":
        sa.event.remove(cluster.store.engine, "begin", body)
    with Cluster.open(cluster_address) as other:
        create_topic(other, "c")
    assert sorted(cluster.store.read(find_topics)) == ["a", "b", "c"]
    assert interrupted.tb is not None


def synchronous(connection):
    return connection.exec_driver_sql("PRAGMA synchronous").scalar_one()


@pytest.mark.parametrize("after", ["_thread_lock", "_lock"])
def test_the_turn_to_write_ends(tmp_path, monkeypatch, after):
    queue, of_another_process = WriterQueue(tmp_path / "queue"), WriterQueue(tmp_path / "queue")

    class Interrupted:
        """Raises just after the lock was acquired."""

        def __init__(self, acquire):
            self.acquire = lambda *arguments, **named: (acquire(*arguments, **named), interrupt())

        def __getattr__(self, name):
            return getattr(lock, name)

    lock = getattr(queue, after)
    replaced = Interrupted(lock.acquire) if after == "_thread_lock" else Interrupted(lock).acquire
    monkeypatch.setattr(queue, after, replaced)
    with pytest.raises(KeyboardInterrupt) as interrupted, queue.turn(LIMIT_S):
        pass
    monkeypatch.setattr(queue, after, lock)
    turns = []

    def take():
        for each in (of_another_process, queue):
            with each.turn(LIMIT_S):
                turns.append(each)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join(3 * LIMIT_S)
    assert turns == [of_another_process, queue]
    assert interrupted.tb is not None
    for each in turns:
        each.close()


def test_a_signal_handler_cannot_write_inside_the_transaction_that_it_interrupts(cluster):
    def body(connection):
        with pytest.raises(IllegalStateError, match="signal handler"):
            cluster.store.transact(lambda inner: None)
        with pytest.raises(MetadataStoreUnavailableError), WriterQueue(cluster.store._queue._path).turn(0):
            pass  # the outer transaction still has its turn
        return connection.execute(QUERY).scalar_one()

    assert cluster.store.transact(body) == cluster.cluster_id


def test_a_turn_that_is_interrupted_before_it_waits_is_given_up(tmp_path, monkeypatch):
    queue, other = WriterQueue(tmp_path / "queue"), WriterQueue(tmp_path / "queue")
    monkeypatch.setattr(_Waiting, "is_acquired", interrupt)
    with other.turn(LIMIT_S), pytest.raises(KeyboardInterrupt), queue.turn(LIMIT_S):
        pass
    monkeypatch.undo()
    waiting = queue._waiting
    wait_until(lambda: waiting._locked)
    for each in (other, queue, other):
        with each.turn(LIMIT_S):
            pass
    for each in (queue, other):
        each.close()
