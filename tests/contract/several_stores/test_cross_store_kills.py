"""A producer is killed at each step of a transaction over three stores: it is committed in all of them, or in none."""

import pytest

from spark_log import Producer
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.stores import add_store
from spark_log.errors import TransactionCommitPendingError
from spark_log.maintenance.task_list import run_tasks
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.transactions.transaction_store import init_producer
from tests.support.python_process import killed_at
from tests.support.topics import stored

NAMES = ("near", "east", "west")
PROGRAM = """
import sys
from spark_log import Producer
address, value = sys.argv[1:]
with Producer(cluster=address, transactional_id="t") as producer:
    producer.init_transactions()
    producer.begin_transaction()
    for name in ("near", "east", "west"):
        producer.send(name, value.encode())
        producer.flush()
    producer.commit_transaction()
"""
OPEN = ["part.joined", "part.joined:2", "part.registered", "part.registered:2", "part.prepared", "part.prepared:2"]
DECIDED = ["transaction.committed", "part.decided", "part.rolled-forward", "part.rolled-forward:2"]


@pytest.fixture
def three(stores, postgres_server):
    add_store(stores, "west", postgres_server.create_prepared_database())
    alter_settings(stores, {"transaction.cross.store": "allow"})
    for name, store in zip(NAMES, ("home", "east", "west"), strict=True):
        create_topic(stores, name, store=store)
    return stores


@pytest.mark.parametrize("point", ["part.registered:2", "part.prepared:2"])
def test_a_later_transaction_without_parts_does_not_commit_those_of_a_killed_one(three, point):
    """They have to be told apart at home, which has the producer's last transaction only."""
    address = three.store.address.with_password
    killed_at(point, "-c", PROGRAM, address, "killed")
    init_producer(three, "t", 60_000)  # aborts at home only
    with Producer(cluster=address, transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("near", b"later")
        producer.commit_transaction()
    assert len(list(run_tasks(three, ["transactions"]))) == 2
    assert list(run_tasks(three, ["transactions"], dry_run=True)) == []
    assert [stored(three, name) for name in NAMES] == [{0: ["later"]}, {}, {}]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["coordinator", "next producer"])
def test_a_killed_producer(three, by):
    address = three.store.address.with_password
    expected = []
    for number, point in enumerate([*OPEN, *DECIDED]):
        killed_at(point, "-c", PROGRAM, address, number)
        if point in DECIDED:
            expected.append(f"{number}")
        if by == "coordinator":
            if point in OPEN:
                init_producer(three, "t", 60_000)  # at home only: the coordinator drops the parts
            else:
                with pytest.raises(TransactionCommitPendingError):
                    init_producer(three, "t", 60_000)
            list(run_tasks(three, ["transactions"]))
            assert list(run_tasks(three, ["transactions"], dry_run=True)) == []
        else:
            with Producer(cluster=address, transactional_id="t") as producer:
                producer.init_transactions()
        assert [stored(three, name) for name in NAMES] == [{0: expected} if expected else {}] * 3, point
