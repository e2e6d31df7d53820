"""The pool of SQLite connections: none stays open, and no thread counts as busy, where a fork cannot see it."""

import sqlite3
import threading

import pytest
import sqlalchemy as sa

from spark_log.metadata.connections import sqlite_connections


@pytest.fixture
def engine(tmp_path):
    path = tmp_path / "file.sqlite"
    sqlite3.connect(path).close()

    def connect():
        return sqlite_connections.connect(path, "rw", 5)

    engine = sa.create_engine(
        "sqlite://", creator=connect, poolclass=sqlite_connections.Pool, pool_size=1, max_overflow=0
    )
    yield engine
    engine.dispose()


def test_a_connection_that_comes_back_to_a_disposed_pool_is_closed(engine):
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        engine.dispose()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        driver.execute("SELECT 1")
    assert sqlite_connections._gate._inside == {}


def test_a_thread_that_waits_for_the_last_connection_is_counted_once(engine, monkeypatch):
    pool = engine.pool
    count = pool._inc_overflow
    held = []

    def lose_the_race():
        """Another thread takes the last place first, and gives its connection back a little later."""
        monkeypatch.setattr(pool, "_inc_overflow", count)
        other = threading.Thread(target=lambda: held.append(engine.connect()))
        other.start()
        other.join()
        threading.Timer(0.05, lambda: held.pop().close()).start()
        return count()

    monkeypatch.setattr(pool, "_inc_overflow", lose_the_race)
    with engine.connect():
        pass
    assert not held
    assert sqlite_connections._gate._inside == {}
