"""The command line in a cluster of several stores."""

import json

import pytest
from typer.testing import CliRunner

from spark_log import Producer
from spark_log.cli.main import app
from spark_log.cluster.settings import alter_settings
from spark_log.errors import TransactionAbortableError, TransactionCommitPendingError
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.transactions import transaction_parts
from tests.support.producing import change
from tests.support.stores import rows_of
from tests.support.waiting import LIMIT_S


@pytest.fixture
def run(stores):
    """A function that runs a command on the cluster, and returns its result."""
    return lambda *arguments: CliRunner().invoke(app, [*arguments, "--cluster", stores.store.address.with_password])


@pytest.fixture
def facts(run):
    """A function that runs a command with --json, and returns what it prints."""

    def read(*arguments):
        result = run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return read


@pytest.fixture
def transaction(stores):
    """A producer with an open transaction in topic near at home and in far of the data store."""
    alter_settings(stores, {"transaction.cross.store": "allow"})
    create_topic(stores, "near", store="home")
    create_topic(stores, "far", store="east")
    with Producer(cluster=stores.store.address.with_password, transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for topic in ("near", "far"):
            producer.send(topic, b"x").get(LIMIT_S)
        yield producer


def test_the_parts_of_a_transaction_are_shown(stores, transaction, run, facts, monkeypatch):
    [listed] = facts("transaction", "list")
    assert (listed["state"], listed["stores"], listed["unfinished"], listed["batches"]) == (
        "Ongoing", ["east"], False, 2
    )  # fmt: skip
    assert "│ east" in run("transaction", "list").output

    def killed(*_, **__):
        raise TransactionCommitPendingError("the process was killed")

    with monkeypatch.context() as patch:
        patch.setattr(transaction_parts, "complete", killed)
        with pytest.raises(TransactionCommitPendingError):
            transaction.commit_transaction()
    [listed] = facts("transaction", "list")
    assert (listed["state"], listed["stores"], listed["unfinished"], listed["batches"]) == (
        "CompleteCommit", ["east"], True, 1
    )  # fmt: skip
    assert "not in east" in run("transaction", "list").output
    assert "not in east" in run("transaction", "describe", "t").output
    assert [each["topic"] for each in facts("transaction", "describe", "t")["pending"]] == ["far"]

    def problems():
        findings = json.loads(run("doctor", "--json").stdout)["findings"]
        return [each["seen"] for each in findings if each["check"] == "transactions" and each["severity"] != "ok"]

    assert problems() == []
    change(stores, t.transaction.update().values(began_ms=t.transaction.c.began_ms - 200_000))
    [problem] = problems()
    assert "the transaction of 't' has been committed for at least" in problem and "store east" in problem
    transaction.commit_transaction()
    [listed] = facts("transaction", "list")
    assert (listed["stores"], listed["unfinished"], listed["batches"]) == ([], False, 0)
    assert problems() == []


def test_an_aborted_transaction_leaves_no_part(stores, transaction, run):
    aborted = run("transaction", "abort", "t", "--yes")
    assert aborted.output == "Aborted the transaction of t: 2 records dropped.\n"
    [part] = rows_of(stores, t.transaction_part)["transaction_part"]
    assert "'aborted'" in part
    assert rows_of(stores, t.transaction_segment) == {"transaction_segment": []}
    with pytest.raises(TransactionAbortableError):
        transaction.commit_transaction()
    transaction.abort_transaction()
