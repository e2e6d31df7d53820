"""The command line in a cluster of several stores."""

import json

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from spark_log import Producer
from spark_log.cli.main import app
from spark_log.cluster import each_store
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.stores import set_draining
from spark_log.cluster.topics import topics_of_store
from spark_log.errors import InvalidConfigurationError, TransactionAbortableError, TransactionCommitPendingError
from spark_log.maintenance.removal import lost_store
from spark_log.metadata import tables as t
from spark_log.replication.controller import topic_moves, topic_operations
from spark_log.replication.controller.topic_copies import follow_all
from spark_log.replication.controller.topic_moves import begin_move
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.transactions import transaction_parts
from tests.support.stores import change, rows_of
from tests.support.topics import append_to, stored
from tests.support.waiting import LIMIT_S

EAST = 1


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


def topics_of(cluster, store_id):
    """The names of the topics of a store, as home has them."""
    return {stated.topic.name for stated in cluster.store.read(lambda c: topics_of_store(c, store_id)).values()}


def raises_pending(*_, **__):
    raise TransactionCommitPendingError("the process was killed")


def test_the_parts_of_a_transaction_are_shown(stores, transaction, run, facts, monkeypatch):
    [listed] = facts("transaction", "list")
    assert (listed["state"], listed["stores"], listed["unfinished"], listed["batches"]) == (
        "Ongoing", ["east"], False, 2
    )  # fmt: skip
    assert "│ east" in run("transaction", "list").output

    with monkeypatch.context() as patch:
        patch.setattr(transaction_parts, "complete", raises_pending)
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


def test_a_topic_is_created_in_a_store_and_a_store_is_removed(stores, run, facts):
    facts("topic", "create", "t", "--store", "east")
    assert [(each["topic"], each["store"]) for each in facts("topic", "list") if each["topic"] == "t"] == [
        ("t", "east")
    ]
    unknown = run("topic", "create", "u", "--store", "west")
    assert unknown.exit_code == 1 and "the stores are: home, east" in unknown.stderr
    refused = run("store", "remove", "east", "--yes")
    assert refused.exit_code == 1 and "it has topics, for example 't'" in refused.stderr
    facts("store", "drain", "east", "--yes")
    assert run("store", "remove", "east", "--yes").output == "Removed store east.\n"
    assert [each["name"] for each in facts("store", "list")] == ["home"]
    assert [(each["topic"], each["store"]) for each in facts("topic", "list") if each["topic"] == "t"] == [
        ("t", "home")
    ]


def test_a_store_with_a_topic_that_is_being_deleted_is_not_drained(stores, run, monkeypatch):
    """As of a store that did not answer when the topic was deleted."""
    create_topic(stores, "t", store="east")
    with monkeypatch.context() as patch:
        patch.setattr(topic_operations, "follow", lambda *_: None)
        delete_topic(stores, "t")
    unfinished = (
        "spark-log: store 'east': it still has 1 topic being created or deleted: run `spark-log coordinator` while it"
        " answers\n"
    )
    for command in ("drain", "remove"):
        refused = run("store", command, "east", "--yes")
        assert (refused.exit_code, refused.output) == (1, unfinished)
    follow_all(stores)
    assert run("store", "drain", "east", "--yes").output == "Store east has no topics any more.\n"
    assert run("store", "remove", "east", "--yes").exit_code == 0


def test_a_lost_store_is_removed_with_its_topics(stores, run, facts, monkeypatch, transaction):
    """With a topic whose deletion, a move whose copy, and a commit whose part the store has never seen."""
    refused = run("store", "remove", "east", "--lost", "--yes")
    assert refused.exit_code == 1 and "store 'east': it answers" in refused.stderr
    for name, store in (("deleted", "east"), ("moving", "home")):
        create_topic(stores, name, store=store)
    monkeypatch.setenv("SPARK_LOG_STORE_EAST", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    monkeypatch.setattr(each_store, "ASK_TIMEOUT_MS", 100)
    monkeypatch.setattr(lost_store, "READ_TIMEOUT_MS", 100)
    stores.at(EAST).store.timeout_ms_max = 100
    monkeypatch.setattr(topic_operations, "follow", lambda *_: None)
    delete_topic(stores, "deleted")
    topic, move = begin_move(stores, "moving", "east")
    topic_moves._freeze(stores, topic, move)
    monkeypatch.setattr(transaction_parts, "complete", raises_pending)
    with pytest.raises(TransactionCommitPendingError):
        transaction.commit_transaction()

    asked = run("store", "remove", "east", "--lost")
    assert asked.exit_code == 1
    why, topic_line, *_ = asked.stderr.splitlines()
    assert why.startswith("Store east cannot be used: metadata store at ") and "Connection refused" in why
    assert topic_line.startswith("Topic far will be deleted, with its records")
    removed = run("store", "remove", "east", "--lost", "--yes")
    assert removed.output == "Removed store east.\nDeleted topic far.\n"
    left = {each["topic"] for each in facts("topic", "list")}
    assert left >= {"near", "moving"} and not left & {"far", "deleted"}
    assert run("store", "accept", "--yes").exit_code == 0
    assert [(each["stores"], each["unfinished"]) for each in facts("transaction", "list")] == [([], False)]
    append_to(stores, "moving", "not frozen")
    assert stored(stores, "near") == {0: ["x"]}
    assert rows_of(stores, t.retired_file)["retired_file"]


@pytest.mark.parametrize("yes", [(), ("--yes",)])
def test_a_store_that_refuses_the_client_is_not_lost(stores, run, monkeypatch, yes):
    create_topic(stores, "kept", store="east")
    url = sa.engine.make_url(stores.at(EAST).store.address.with_password).set(username="stranger")
    monkeypatch.setenv("SPARK_LOG_STORE_EAST", url.render_as_string(hide_password=False))
    refused = run("store", "remove", "east", "--lost", *yes)
    assert refused.exit_code == 1 and 'role "stranger" does not exist' in refused.stderr
    assert "will be deleted" not in refused.stderr
    assert topics_of(stores, EAST) == {"kept"}


@pytest.mark.parametrize("database", ["missing", "empty", "of another store"])
def test_a_store_without_its_database_is_lost(stores, run, monkeypatch, postgres_server, database):
    found = {
        "missing": lambda: postgres_server.url("nowhere"),
        "empty": postgres_server.create_database,
        "of another store": lambda: stores.store.address.with_password,
    }
    monkeypatch.setenv("SPARK_LOG_STORE_EAST", found[database]())
    removed = run("store", "remove", "east", "--lost", "--yes")
    assert removed.output == "Removed store east.\n"


@pytest.fixture
def lost(stores, monkeypatch):
    """The cluster after its data store was lost, with topic kept there."""
    create_topic(stores, "kept", store="east")
    stores.at(EAST).store.timeout_ms_max = 100
    monkeypatch.setenv("SPARK_LOG_STORE_EAST", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    monkeypatch.setattr(each_store, "ASK_TIMEOUT_MS", 100)
    monkeypatch.setattr(lost_store, "READ_TIMEOUT_MS", 100)
    return stores


def test_a_lost_store_that_takes_new_topics_is_refused_before_its_topics_are_deleted(lost, run):
    alter_settings(lost, {"topic.default.store": "east"})
    refused = run("store", "remove", "east", "--lost", "--yes")
    assert refused.exit_code == 1 and "topic.default.store names it" in refused.stderr
    assert topics_of(lost, EAST) == {"kept"}


def test_a_lost_store_with_a_part_of_an_open_transaction_is_refused_before_its_topics_are_deleted(
    stores, transaction, lost, run
):
    refused = run("store", "remove", "east", "--lost", "--yes")
    assert refused.exit_code == 1 and "a transaction that has not ended writes to it" in refused.stderr
    assert topics_of(stores, EAST) == {"far", "kept"}


def test_a_transaction_that_begins_while_a_lost_store_is_removed_keeps_its_topics(
    stores, transaction, lost, run, monkeypatch
):
    monkeypatch.setattr(lost_store, "_OPEN", sa.false())  # as if it began after the first look
    refused = run("store", "remove", "east", "--lost", "--yes")
    assert refused.exit_code == 1 and "a transaction that has not ended writes to it" in refused.stderr
    assert topics_of(stores, EAST) == {"far", "kept"}


def test_a_restored_data_store_is_shown_and_accepted(stores, run, facts):
    assert facts("store", "status", "--store", "east")["problem"] is None
    other_server = t.cluster.update().values(system_identifier="17", table_oid=None)
    stores.at(1).store.transact(lambda connection: connection.execute(other_server))
    shown = run("store", "status", "--store", "east")
    assert shown.exit_code == 1 and "system 17" in shown.output
    assert facts("store", "status")["problem"] is None
    refused = run("status")
    assert refused.exit_code == 1 and "spark-log: store east: " in refused.stderr
    asked = run("store", "accept", "--store", "east")
    assert asked.exit_code == 1 and "Accept it?" in asked.stderr
    assert facts("store", "accept", "--store", "east", "--yes")["before"] == "system 17, timeline 1"
    assert facts("store", "status", "--store", "east")["problem"] is None
    assert run("status").exit_code == 0


def test_the_default_store_takes_new_topics(stores, run, facts):
    def default_is(name):
        return run("cluster", "config", "--set", f"topic.default.store={name}")

    unknown = default_is("west")
    assert unknown.exit_code == 1 and "topic.default.store: store 'west': there is no such store" in unknown.stderr
    set_draining(stores, "east")
    draining = default_is("east")
    assert draining.exit_code == 1 and "topic.default.store: store 'east': it is draining" in draining.stderr
    set_draining(stores, "east", draining=False)
    assert default_is("east").exit_code == 0
    removed = run("store", "remove", "east", "--yes")
    assert removed.exit_code == 1 and "topic.default.store names it" in removed.stderr
    set_draining(stores, "east")
    alter_settings(stores, {"metrics.interval.ms": "60000"})  # another setting can be changed
    findings = json.loads(run("doctor", "--json").stdout)["findings"]
    assert any("topic.default.store is east, which is draining" in each["seen"] for each in findings)
    assert default_is("home").exit_code == 0
    assert run("store", "remove", "east", "--yes").exit_code == 0


def test_a_cluster_with_one_store_has_no_other_default(tmp_path):
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        with pytest.raises(InvalidConfigurationError, match=r"topic\.default\.store: .* no such store"):
            alter_settings(cluster, {"topic.default.store": "east"})
        alter_settings(cluster, {"topic.default.store": "home"})
