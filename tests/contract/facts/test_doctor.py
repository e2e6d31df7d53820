"""`spark-log doctor` on real clusters, each with a real fault of its store or its log dirs."""

import os
import subprocess
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import sqlalchemy as sa

from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import MARKER
from spark_log.cluster.security.scram import Mechanism
from spark_log.cluster.security.users import alter_credentials, upsertion_of_password
from spark_log.errors import StorageUnavailableError
from spark_log.facts.doctor import limits
from spark_log.facts.doctor.examination import examine
from spark_log.facts.doctor.findings import Severity
from spark_log.facts.doctor.machine import read_modes
from spark_log.metadata import tables as t
from spark_log.metadata.address import SQLITE_FILE
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.disk_faults import fill_disk, mounted, needs_root
from tests.support.operations import problem, problems
from tests.support.replicas import folder_of
from tests.support.topics import append_to
from tests.support.waiting import wait_until

NOBODY = 65_534


@pytest.fixture(autouse=True)
def any_machine(monkeypatch):
    """The machine of the tests may be slow, and its disk nearly full."""
    monkeypatch.setattr(limits, "LOCAL_WRITE_MS_MAX", 60_000)
    monkeypatch.setattr(limits, "FREE_SHARE_LOW", limits.FREE_SHARE_EMPTY)


def address_of(cluster):
    return cluster.store.address.with_password


@pytest.fixture
def small(tmp_path):
    """A cluster on SQLite with topic t, whose log dir is the only folder on a small disk of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted(disk, "8m"), Cluster.init(str(tmp_path / "cluster"), log_dir=str(disk / "log-dir")) as cluster:
        create_topic(cluster, "t")
        yield cluster, disk


# A cluster that is well, and changes to the cluster by the command itself


def test_a_cluster_that_is_well_has_no_problem_and_is_not_changed(cluster):
    topic = create_topic(cluster, "t")
    append_to(cluster, topic, "a")
    [info] = cluster.log_dirs().values()
    before = sorted(cluster.log_dir(info).list_files(topic.folder))
    found = examine(address_of(cluster))
    assert [each for each in found if each.severity.needs_action] == []
    assert next(each.seen for each in found if each.check == "store").startswith(("SQLite", "PostgreSQL", "autovacuum"))
    assert {each.check for each in found if each.severity is Severity.OK} >= {
        "schema", "clock", "log dir", "permissions", "cluster settings", "partitions", "tables",
        "transactions", "groups", "share groups", "brokers", "tasks", "clean-up", "topic settings",
    }  # fmt: skip
    assert sorted(cluster.log_dir(info).list_files(topic.folder)) == before
    assert {entry.name for entry in cluster.log_dir(info).entries()} == {MARKER, topic.folder}


def test_an_unknown_topic_is_an_error_and_the_other_checks_run(cluster):
    found = problems(cluster, "absent")
    assert {check for check, _ in found} == {"cluster", "tables"}
    assert all("'absent'" in text for _, text in found)


# The metadata store


def test_a_server_that_hangs_or_is_stopped_does_not_hang_the_doctor(own_postgres_server, tmp_path):
    with Cluster.init(own_postgres_server.create_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        address = address_of(cluster)
        own_postgres_server.freeze()
        try:
            check, text = problem(address, limit_s=1.0)
        finally:
            own_postgres_server.resume()
        assert check == "store"
        assert "1 s" in text or "pg_isready" in text
    own_postgres_server.kill()
    check, text = problem(address)
    assert check == "store"
    assert "refused" in text
    assert "pg_isready" in text


def test_settings_and_connections_and_standbys_of_a_server(own_postgres_server, tmp_path):
    with Cluster.init(own_postgres_server.create_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        address = address_of(cluster)
    own_postgres_server.stop()
    own_postgres_server.start(max_connections=30, superuser_reserved_connections=0, autovacuum="on")
    with Cluster.open(address) as cluster:
        sessions = [sa.create_engine(address).connect() for _ in range(24)]
        assert "of 30 connections (max_connections) are in use" in problem(cluster)[1]
        for session in sessions:
            session.close()
            session.engine.dispose()
        clients = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        wait_until(lambda: int(own_postgres_server.query(clients)) <= 5)
        own_postgres_server.require_standby()
        try:
            check, text = problem(cluster)
            assert (check, "no synchronous standby is connected" in text) == ("store", True)
        finally:
            own_postgres_server.require_standby(False)
    own_postgres_server.execute("ALTER SYSTEM SET full_page_writes = off")
    own_postgres_server.stop()
    own_postgres_server.start(fsync="off", full_page_writes="off")
    check, text = problem(address)
    assert check == "store"
    assert "fsync is off and full_page_writes is off" in text
    assert "ALTER SYSTEM SET fsync = on" in text


def test_a_database_file_that_is_missing(tmp_path):
    address = str(tmp_path / "cluster")
    Cluster.init(address).close()
    (tmp_path / "cluster" / SQLITE_FILE).unlink()
    check, text = problem(address)
    assert check == "store"
    assert "metadata.sqlite is missing" in text and "backup" in text


def test_a_database_file_that_is_damaged(tmp_path):
    address = str(tmp_path / "cluster")
    Cluster.init(address).close()
    (tmp_path / "cluster" / SQLITE_FILE).write_bytes(b"no database" * 1000)
    check, text = problem(address)
    assert check == "store"
    assert "not a database" in text


@needs_root
def test_a_disk_of_the_store_that_is_full_or_read_only(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted(disk, "3m"):
        address = str(disk / "cluster")
        Cluster.init(address, log_dir=str(tmp_path / "log-dir")).close()
        filler = fill_disk(disk)
        found = problems(address)
        assert ("store folder", True) in [(check, "0 B free of 3.0 MiB" in text) for check, text in found]
        filler.unlink()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        check, text = problem(address)
        assert (check, "is read-only: nothing can be appended" in text) == ("store folder", True)
        with (
            Cluster.open(address) as cluster,
            pytest.raises(StorageUnavailableError, match="permissions of its folder"),
        ):
            create_topic(cluster, "t")


@needs_root
def test_files_of_another_user(tmp_path):
    """The doctor runs as a user that may read the files and not write them."""
    address = str(tmp_path / "cluster")
    Cluster.init(address).close()
    for folder in (tmp_path, *tmp_path.parents):
        folder.chmod(folder.stat().st_mode | 0o055)
    assert problems(address) == []
    (tmp_path / "cluster").chmod(0o755)
    (tmp_path / "cluster" / SQLITE_FILE).chmod(0o644)
    with ProcessPoolExecutor(1, get_context("fork"), os.setuid, (NOBODY,)) as pool:
        found = pool.submit(problems, address).result(30)
        (tmp_path / "cluster").chmod(0o700)
        barred = pool.submit(problems, address).result(30)
    assert [check for check, _ in found] == [check for check, _ in barred] == ["store", "store folder"]
    assert "cannot read and write metadata.sqlite, metadata.lock, new files in" in found[1][1]
    assert "Permission denied" in barred[0][1]
    assert "chown" in found[1][1] and "chown" in barred[0][1]


def test_a_store_of_another_revision_is_not_upgraded(cluster):
    now = sa.text("SELECT version_num FROM alembic_version")
    with cluster.store.fence.lifted():
        for number, expected in ((6, "back up the store"), (99, "install the newer spark-log")):
            change = sa.text("UPDATE alembic_version SET version_num = :revision").bindparams(revision=f"v{number}")
            oldest = t.cluster.update().values(oldest_revision=number)
            cluster.store.transact(lambda c, change=change, oldest=oldest: (c.execute(change), c.execute(oldest)))
            check, text = problem(cluster)
            assert (check, expected in text) == ("schema", True), text
        assert cluster.store.read(lambda connection: connection.execute(now).scalar_one()) == "v99"


# Log dirs


@needs_root
def test_a_full_disk(small):
    cluster, disk = small
    fill_disk(disk)
    check, text = problem(cluster)
    assert check == "log dir"
    assert "0 B free of 8.0 MiB (0%): appends fail" in text
    assert "retention.bytes" in text


@needs_root
def test_a_read_only_log_dir(small):
    cluster, disk = small
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    check, text = problem(cluster)
    assert check == "log dir"
    assert "cannot be written" in text and "Read-only file system" in text
    assert "remount,rw" in text


@needs_root
def test_deleted_files_that_are_open(small, monkeypatch):
    cluster, disk = small
    monkeypatch.setattr("spark_log.facts.doctor.limits.DELETED_BYTES_MAX", 1 << 20)
    file = disk / "log-dir" / "deleted"
    descriptors, closed = os.listdir, ["1000000"]
    monkeypatch.setattr(os, "listdir", lambda of: (closed if str(of).endswith("/fd") else []) + descriptors(of))
    with file.open("wb") as opened:
        opened.write(bytes(2 << 20))
        opened.flush()
        file.unlink()
        assert "2.0 MiB of deleted files open" in problem(cluster)[1]


@pytest.mark.on_sqlite
def test_a_log_dir_that_is_missing_or_of_another_cluster(cluster, tmp_path):
    [broker] = [info.broker_id for info in cluster.log_dirs().values()]
    folder = folder_of(cluster, broker)
    folder.rename(folder.with_name("away"))
    assert "cannot be read" in problem(cluster)[1]
    with Cluster.init(str(tmp_path / "other"), log_dir=str(folder)):
        check, text = problem(cluster)
    assert (check, "swapped" in text) == ("log dir", True)


def test_a_log_dir_that_hangs_does_not_hang_the_doctor(tmp_path):
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        add_broker(cluster, 2, [str(tmp_path / "d2")])
        marker = tmp_path / "d2" / MARKER
        marker.rename(tmp_path / "marker")
        os.mkfifo(marker)  # reading it waits, as on a mount whose server is away
        found = dict(problems(cluster, limit_s=1.0))
        assert "no answer in 1 s" in found["log dir 2"]
        with marker.open("wb"):
            pass  # ends the thread that reads


def test_secrets_that_other_users_can_read(tmp_path):
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        database = tmp_path / "cluster" / SQLITE_FILE
        for folder in (tmp_path / "cluster", *(tmp_path / "cluster").parents):
            if folder.stat().st_uid == os.geteuid():
                folder.chmod(folder.stat().st_mode | 0o001)
        database.chmod(0o644)
        assert problems(cluster) == []
        alter_credentials(cluster.store, upsertions=[upsertion_of_password("u", Mechanism.SCRAM_SHA_256, "pw" * 9)])
        assert "read the secrets" in problem(cluster)[1]
        database.chmod(0o602)
        assert "change" in problem(cluster)[1]
        database.chmod(0o600)
        assert problems(cluster) == []


def test_password_files_that_other_users_can_read(tmp_path):
    password, store = tmp_path / "password", tmp_path / "east"
    for file in (password, store):
        file.write_text("x")
        file.chmod(0o644)
    environment = {"PGPASSWORD_FILE": str(password), "SPARK_LOG_STORE_EAST": str(store), "PGPASSFILE": "/none"}
    modes = read_modes("postgresql+psycopg://log@h/log", None, [], False, environment)
    assert {mode.path for mode in modes if mode.secret} == {str(password), str(store)}
