"""Publication of many topics in one round: shared transactions, failures of single tables, crashes, checkpoints."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from spark_log.cluster.log_dir import LogDir
from spark_log.errors import StorageUnavailableError
from spark_log.ids import LogDirId
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.rewrite import table_loop
from spark_log.maintenance.rewrite.table_loop import TableLoop
from spark_log.replication.controller.topic_operations import delete_topic
from spark_log.tables import checkpoints, topic_tables, unopened_publication
from spark_log.tables.lag_measurement import delta_lags
from spark_log.tables.publication import delta_tables, publish_all, try_publish
from spark_log.tables.publication_state import TableKey
from tests.support.python_process import run_process
from tests.support.stores import each_on_sqlite_last_on_postgres
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import append, make

pytestmark = pytest.mark.delta

FILES = {"inline_max_bytes": "0", "delta_max_lag_ms": "-1", "retention_ms": "-1"}
"""Each append writes a file."""


@pytest.fixture
def topics(cluster, log, monkeypatch):
    """Three topics with a table each, which this process has opened, and with a file that they do not list yet."""
    made = [make(cluster, name, **FILES) for name in "abc"]
    for value in ("published", "new"):
        if value == "new":
            monkeypatch.setattr("spark_log.maintenance.rewrite.table_loop.try_publish", lambda *_, **__: True)
        for topic in made:
            append(log, topic, value)
    return made


def log_folder(cluster, topic):
    (location,) = delta_tables(cluster, topic).values()
    return Path(location, "_delta_log")


def failed(published):
    return sorted(topic_id for topic_id, each in published.items() if each.error is not None)


def test_topics_share_the_transactions_of_a_round(cluster, topics, monkeypatch):
    transactions = []
    transact = cluster.store.transact
    monkeypatch.setattr(cluster.store, "transact", lambda *a, **k: (transactions.append(k), transact(*a, **k))[1])
    assert failed(publish_all(cluster, topics)) == []
    writes = [each for each in transactions if not each.get("as_primary")]
    assert len(writes) == 2, "intents, and their results"
    assert_delta_is_the_log(cluster)


@pytest.mark.on_sqlite
def test_a_table_that_cannot_be_written_delays_no_other(cluster, topics):
    bad = log_folder(cluster, topics[1])
    bad.rename(bad.with_name("away"))
    bad.write_bytes(b"not a folder")
    assert failed(publish_all(cluster, topics)) == [topics[1].topic_id]
    bad.unlink()
    bad.with_name("away").rename(bad)
    assert failed(publish_all(cluster, topics)) == []
    assert_delta_is_the_log(cluster)


@pytest.mark.on_sqlite
def test_a_log_dir_that_is_not_on_this_host_delays_no_other(cluster, topics, monkeypatch):
    """It stands for the log dir of topic b alone."""
    tables_to_publish = topic_tables.tables_to_publish
    (info,) = cluster.log_dirs().values()
    elsewhere = replace(info, log_dir_id=LogDirId(99), uri=info.uri + "-elsewhere", uuid="another")
    monkeypatch.setattr(cluster, "log_dirs", lambda: {info.log_dir_id: info, elsewhere.log_dir_id: elsewhere})
    monkeypatch.setattr(
        topic_tables,
        "tables_to_publish",
        lambda c, topic: {TableKey(topic.topic_id, 99): True} if topic.name == "b" else tables_to_publish(c, topic),
    )
    assert failed(publish_all(cluster, topics)) == [topics[1].topic_id]
    assert not try_publish(cluster, topics)
    monkeypatch.undo()
    assert try_publish(cluster, topics)
    assert_delta_is_the_log(cluster)


@pytest.mark.on_sqlite
def test_a_log_dir_that_does_not_answer_is_asked_once(cluster, topics, monkeypatch):
    """An object store that hangs takes minutes to fail: tables in other log dirs would wait for each table there."""
    asked = []

    def hang(log_dir, _uuid):
        asked.append(log_dir)
        raise StorageUnavailableError("no answer")

    monkeypatch.setattr(LogDir, "verify", hang)
    for opened_before in (True, False):
        published = publish_all(cluster, topics, eager=True)
        assert {str(each.error) for each in published.values()} == {"no answer"}
        assert len(asked) == 1, opened_before
        asked.clear()
        unopened_publication.opened.clear()


@pytest.mark.parametrize("cluster_address", ["postgres"], indirect=True)
def test_a_topic_that_is_locked_delays_no_other(cluster, topics, monkeypatch):
    """A deletion locks its topic for a long time. On SQLite no two writers run at the same time."""
    monkeypatch.setattr("spark_log.tables.publication._publish_opened", lambda *_: None)
    locking = sa.create_engine(cluster.store.address.with_password)
    with locking.begin() as other:
        other.execute(sa.text("SELECT 1 FROM topic WHERE name = 'b' FOR UPDATE"))
        publish_all(cluster, topics)
        lags = cluster.store.read(delta_lags)
    locking.dispose()
    assert {topic_id for topic_id, _ in lags} == {topics[1].topic_id}


@pytest.mark.on_sqlite
def test_an_error_of_whatever_kind_delays_no_other_topic(cluster, topics, monkeypatch):
    def crash(_cluster, table):
        raise ZeroDivisionError if table.topic.name == "b" else AssertionError("only the bad table is opened")

    bad = log_folder(cluster, topics[1]) / f"{2:020d}.json"
    monkeypatch.setattr("spark_log.tables.publication._publish_opened", crash)
    bad.write_bytes(b"foreign")
    assert failed(publish_all(cluster, topics)) == [topics[1].topic_id]


def test_a_topic_that_is_created_again_meanwhile_delays_no_other(cluster, topics, monkeypatch):
    find_changes = unopened_publication._changes

    def find_and_create_again(*arguments):
        found = find_changes(*arguments)
        delete_topic(cluster, "b")
        make(cluster, "b", **FILES)
        return found

    monkeypatch.setattr(unopened_publication, "_changes", find_and_create_again)
    assert failed(publish_all(cluster, topics)) == []
    assert_delta_is_the_log(cluster)


PUBLISH = """
import sys
from spark_log import Cluster
from spark_log.cluster.topics import find_topics
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.rewrite.table_loop import TableLoop
from spark_log.maintenance.rewrite import table_loop
from spark_log.tables.publication import publish_all
from tests.support.topics import append

with Cluster.open(sys.argv[1]) as cluster:
    topics = list(cluster.store.read(find_topics).values())
    for topic in topics:
        publish_all(cluster, [topic])
    table_loop.try_publish = lambda *_, **__: True
    log = ClientLog(cluster)
    for topic in topics:
        append(log, topic, "from the killed process")
    publish_all(cluster, topics)
"""


@each_on_sqlite_last_on_postgres(
    "point", [("publish.before-commit:5",), ("publish.committed:5",), ("publish.recorded:4",)]
)
def test_the_next_publication_completes_a_round_that_was_killed(cluster, cluster_address, topics, point):
    """The points are passed once for each topic that is published alone, and then in the round of all three."""
    killed = run_process("-c", PUBLISH, cluster_address, failpoint=point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert failed(publish_all(cluster, topics)) == []
    assert_delta_is_the_log(cluster)


def checkpoint_versions(cluster, topic):
    return sorted(int(path.name[:20]) for path in log_folder(cluster, topic).glob("*.checkpoint.parquet"))


@pytest.mark.on_sqlite
def test_a_checkpoint_follows_the_publication_that_makes_it_due(cluster, log, monkeypatch):
    monkeypatch.setattr(checkpoints, "CHECKPOINT_COMMITS", 12)
    monkeypatch.setattr("spark_log.maintenance.rewrite.table_loop.try_publish", lambda *_, **__: True)
    topic = make(cluster, "t", **FILES)
    for version in range(1, 24):  # version 0 created the table
        append(log, topic, f"in version {version}")
        assert try_publish(cluster, [topic])
        assert checkpoint_versions(cluster, topic) == [due for due in (11, 23) if due <= version]
    assert_delta_is_the_log(cluster)


@pytest.mark.on_sqlite
@pytest.mark.parametrize("alone", [True, False])
def test_no_append_waits_for_a_checkpoint(cluster, monkeypatch, alone):
    """It is written when the log is closed; if there is a coordinator, its task `delta` writes it."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_COMMITS", 12)
    monkeypatch.setattr(TableLoop, "_is_alone", lambda _: alone)
    topic = make(cluster, "t", **FILES)
    log = ClientLog(cluster)
    for version in range(1, 14):
        append(log, topic, f"in version {version}")
        assert checkpoint_versions(cluster, topic) == []
    log.close()
    assert checkpoint_versions(cluster, topic) == ([13] if alone else [])
    assert_delta_is_the_log(cluster)


@pytest.mark.on_sqlite
def test_a_log_that_is_not_closed_for_long_writes_checkpoints(cluster, monkeypatch):
    monkeypatch.setattr(checkpoints, "CHECKPOINT_COMMITS", 3)
    monkeypatch.setattr(checkpoints, "COMMITS_MAX", 2)
    monkeypatch.setattr(table_loop, "_DUE_PUBLICATIONS_MAX", 4)
    topic = make(cluster, "t", **FILES)
    log = ClientLog(cluster)
    for version in range(1, 8):
        append(log, topic, f"in version {version}")
    [written] = checkpoint_versions(cluster, topic)
    assert written < 8
    log.close()


@pytest.mark.on_sqlite
def test_a_checkpoint_that_cannot_be_written_fails_no_publication(cluster, monkeypatch, caplog):
    monkeypatch.setattr(checkpoints, "CHECKPOINT_COMMITS", 3)
    monkeypatch.setattr(checkpoints, "COMMITS_MAX", 2)
    topic = make(cluster, "t", **FILES)
    log = ClientLog(cluster)
    append(log, topic, "a")
    (log_folder(cluster, topic) / f"{2:020d}.checkpoint.parquet").mkdir()
    append(log, topic, "b")
    log.close()
    assert "no checkpoint of the Delta table" in caplog.text
    assert try_publish(cluster, [topic])
