"""Addresses with several hosts: clients use the primary, whichever host that is, also while another one is frozen.
tests/unit/metadata/test_address.py has the forms of such an address.
"""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_log.cli.main import app
from spark_log.cluster.cluster import Cluster
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata.connections.postgresql_connection import WatchedConnection
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.postgres import USER
from tests.support.records import read_all, table
from tests.support.security import Authority
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def database(pair, tmp_path_factory):
    url = pair.primary.create_database()
    with Cluster.init(url, log_dir=str(tmp_path_factory.mktemp("log-dir"))) as cluster:
        create_topic(cluster, "t")
    return url.rpartition("/")[2]


def address_of(servers, database):
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql+psycopg://{USER}@{hosts}/{database}"


@pytest.mark.parametrize("first", ["primary", "standby"])
def test_clients_and_listeners_use_the_primary(pair, database, first):
    servers = [pair.primary, pair.standby] if first == "primary" else [pair.standby, pair.primary]
    with Cluster.open(address_of(servers, database)) as cluster:
        log = ClientLog(cluster)
        log.append(log.find_topic("t"), [Records(0, table("a"))])
        assert read_all(log, log.find_topic("t"))[-1][2] == "a"
        cluster.store.changes.current()  # starts the listener
        listening = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'spark-log changes'"
        wait_until(lambda: pair.primary.query(f"{listening} AND query ~ 'LISTEN|SELECT 1'") != "0")
        assert pair.standby.query(listening) == "0"
        log.close()


@pytest.fixture
def connects(monkeypatch):
    """The ports that each connection of this process tries, in their order, and its time limit for one of them."""
    tried, connect = [], WatchedConnection.connect

    def recorded(*arguments, **settings):
        tried.append((settings["port"], int(settings["connect_timeout"])))
        return connect(*arguments, **settings)

    monkeypatch.setattr(WatchedConnection, "connect", recorded)
    return tried


def test_a_frozen_host_delays_opening_by_a_few_seconds(pair, database, connects):
    pair.primary.require_standby(False)
    pair.standby.freeze()
    try:
        with Cluster.open(address_of([pair.standby, pair.primary], database)) as cluster:
            assert cluster.cluster_id
            cluster.store.engine.dispose()
            assert cluster.log_dirs()
    finally:
        pair.standby.resume()
        pair.primary.require_standby()
    frozen, primary = pair.standby.port, pair.primary.port
    assert connects[0] == (f"{frozen},{primary}", 3)
    assert len(connects) > 1 and {ports for ports, _ in connects[1:]} == {f"{primary},{frozen}"}, "as it served last"


def test_the_command_line_takes_several_hosts_and_shows_no_password(pair, database):
    address = address_of([pair.standby, pair.primary], database).replace(f"{USER}@", f"{USER}:s3cret@")
    done = CliRunner().invoke(app, ["store", "status", "--cluster", address])
    assert done.exit_code == 0, done.output
    assert f"@127.0.0.1:{pair.standby.port},127.0.0.1:{pair.primary.port}/" in done.output
    assert "s3cret" not in done.output


def use_certificate(server, issued):
    """Let the server show this certificate to new connections."""
    for source, name in zip(issued, ("server.crt", "server.key"), strict=True):
        target = server.data / name
        target.write_bytes(Path(source).read_bytes())
        shutil.chown(target, server.data.owner(), server.data.group())
        target.chmod(0o600)
    server.execute("ALTER SYSTEM SET ssl = on")
    server.execute("SELECT pg_reload_conf()")
    wait_until(lambda: server.query("SHOW ssl") == "on")


def test_each_host_is_verified(pair, database, tmp_path):
    authority, stranger = Authority(tmp_path, "ca"), Authority(tmp_path, "stranger")
    trusted, untrusted = authority.issue("server", CN="db"), stranger.issue("other", CN="db")
    address = address_of([pair.standby, pair.primary], database)
    verified = f"{address}?sslmode=verify-full&sslrootcert={authority.certificate}"
    for server in (pair.standby, pair.primary):
        use_certificate(server, trusted)
    with Cluster.open(verified) as cluster:
        encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        assert cluster.store.read(lambda connection: connection.exec_driver_sql(encrypted).scalar_one())
    use_certificate(pair.standby, untrusted)
    Cluster.open(verified).close()  # the primary is the other one
    use_certificate(pair.primary, untrusted)
    with pytest.raises(MetadataStoreUnavailableError, match=f"{pair.primary.port}.*certificate verify failed"):
        Cluster.open(verified, read_timeout_ms=500)
