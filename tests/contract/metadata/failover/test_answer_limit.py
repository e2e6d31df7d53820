"""A connection whose server does not answer for store.answer.timeout.ms is ended; slow answers that arrive are not."""

import threading
from types import SimpleNamespace

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.metadata.connections import answer_watch


@pytest.fixture
def store(postgres_url, tmp_path):
    """A store whose time limit was read from its settings when it was opened."""
    with Cluster.init(postgres_url, log_dir=str(tmp_path / "log-dir")) as cluster:
        alter_settings(cluster, {"store.answer.timeout.ms": "1000"})
    with Cluster.open(postgres_url) as cluster:
        yield cluster.store


def run(statement):
    return lambda connection, *_: connection.exec_driver_sql(statement).all()


def test_a_slow_answer_that_arrives_is_read(store):
    rows = "SELECT repeat('x', 20000), pg_sleep(0.3) FROM generate_series(1, 7)"
    assert len(store.read(run(rows), timeout_ms=0)) == 7


@pytest.mark.slow
def test_a_silent_server_is_left_except_by_a_transaction_without_limit(store):
    with pytest.raises(MetadataStoreUnavailableError, match=r"did not answer for 1 s .*store\.answer\.timeout\.ms"):
        store.read(run("SELECT pg_sleep(60)"), timeout_ms=0)
    assert len(store.transact(run("SELECT pg_sleep(2.5)"), timeout_ms=0, unlimited=True)) == 1
    with pytest.raises(MetadataStoreUnavailableError, match="did not answer"):
        store.transact(run("SELECT pg_sleep(60)"), timeout_ms=0)


def test_the_thread_that_counts_is_started_again_if_it_has_ended(monkeypatch):
    def end_thread(_seconds):
        raise MemoryError

    started = []
    monkeypatch.setattr(answer_watch, "_thread", threading.current_thread())
    monkeypatch.setattr(answer_watch, "clock", SimpleNamespace(sleep_s=end_thread))
    with pytest.raises(MemoryError):
        answer_watch._watch()
    monkeypatch.setattr(answer_watch, "start_thread", lambda work, _: started.append(work))
    connection = SimpleNamespace(waited_s=0.0)
    answer_watch.begin(connection)
    answer_watch.end(connection)
    assert started == [answer_watch._watch]
