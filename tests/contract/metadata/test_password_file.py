"""PGPASSWORD_FILE: the password of PostgreSQL in a file, which may change while a process runs."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidConfigurationError, MetadataStoreUnavailableError
from spark_log.metadata.connections.postgresql_connection import password_parameter
from tests.support.postgres import USER, PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL that lets no one in without the password `first`."""
    server = PostgresServer()
    try:
        server.start()
        server.execute("CREATE DATABASE secret_log")
        server.execute(f"ALTER USER {USER} PASSWORD 'first'")
        (server.data / "pg_hba.conf").write_text(
            "host postgres all 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )
        server.execute("SELECT pg_reload_conf()")
        yield server
    finally:
        server.kill()
        server.remove()


def test_a_new_password_needs_no_restart(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "password"
    secret.write_text("first\n")
    monkeypatch.setenv("PGPASSWORD_FILE", str(secret))
    address = f"postgresql+psycopg://{USER}@127.0.0.1:{server.port}/secret_log"
    with Cluster.init(address, log_dir=str(tmp_path / "segments")) as cluster:
        server.execute(f"ALTER USER {USER} PASSWORD 'second'")
        cluster.store.engine.dispose()
        with pytest.raises(MetadataStoreUnavailableError, match="password authentication failed"):
            cluster.store.transact(lambda *_: None, timeout_ms=0)  # others wait for the new password
        secret.write_text("second\n")
        assert len(cluster.log_dirs()) == 1
        cluster.store.changes.current()  # the listener has a connection of its own
    secret.write_text("third\n")
    with pytest.raises(InvalidConfigurationError, match="PGPASSWORD_FILE") as refused:
        Cluster.open(address)
    assert "third" not in str(refused.value)


def test_a_given_password_counts_before_the_file(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("of the file")
    here = {"PGPASSWORD_FILE": str(secret)}
    assert password_parameter({}, here) == {"password": "of the file"}
    assert password_parameter({"password": "of the URL"}, here) == {}
    assert password_parameter({}, {**here, "PGPASSWORD": "of the environment"}) == {}
    assert password_parameter({}, {}) == {}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(
        psycopg.OperationalError, match=f"PGPASSWORD_FILE: the file {missing} cannot be read: No such file"
    ):
        password_parameter({}, {"PGPASSWORD_FILE": str(missing)})
