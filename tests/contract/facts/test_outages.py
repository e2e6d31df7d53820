"""Commands name the cause while a log dir or the metadata store cannot be used, as docs/guides/operations.md says."""

import subprocess
from contextlib import ExitStack
from functools import partial
from signal import SIGTERM

import pytest
from typer.testing import CliRunner

from spark_log import clock
from spark_log.cli.main import app
from spark_log.clients.produce import failing_appends, producer
from spark_log.cluster.cluster import Cluster
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.disk_faults import fill_disk, mounted, needs_root
from tests.support.server_processes import GatewayProcess, LoggedProcess
from tests.support.waiting import wait_until

QUICK = {"delivery_timeout_ms": 2_000, "request_timeout_ms": 1_000}
QUESTIONS = (["topic", "list"], ["status"], ["coordinator", "--status"])


def run(address, *command, stdin="late\n"):
    return CliRunner().invoke(app, [*command, "--cluster", address], input=stdin)


def consumed(address):
    shown = run(address, "consume", "t", "--from", "earliest")
    assert shown.exit_code == 0, shown.stderr
    return [line.split()[-1] for line in shown.stdout.splitlines()]


@pytest.fixture(params=["log dir", "store"])
def on_disk(request, tmp_path, monkeypatch):
    """A cluster whose log dir, or SQLite store, is alone on a small disk; its address and the disk."""
    monkeypatch.setattr(failing_appends, "FULL_DISK_RETRY_S", 0.2)
    monkeypatch.setattr(failing_appends, "WARN_AFTER_S", 0.0)
    monkeypatch.setattr(producer, "Producer", partial(producer.Producer, **QUICK))
    disk = tmp_path / "disk"
    disk.mkdir()
    folder, log_dir = (tmp_path / "c", disk / "d") if request.param == "log dir" else (disk / "c", tmp_path / "d")
    with ExitStack() as stack:
        stack.enter_context(mounted(disk, "4m"))
        with Cluster.init(str(folder), log_dir=str(log_dir)) as cluster:
            create_topic(cluster, "t", configs={"inline.max.bytes": "0"})
        shown = run(str(folder), "produce", "t", stdin="early\n")
        assert shown.exit_code == 0, shown.stderr
        before = [run(str(folder), *question).exit_code for question in QUESTIONS]
        yield request.param, str(folder), disk, before


@needs_root
def test_a_full_disk(on_disk):
    kind, address, disk, before = on_disk
    filler = fill_disk(disk)
    shown = run(address, "produce", "t")
    assert shown.exit_code == 1
    assert "late" not in shown.stdout
    assert ("No space left on device" if kind == "log dir" else "nothing was appended") in shown.stderr
    if kind == "log dir":
        assert "lower retention.ms" in shown.stderr
        assert consumed(address) == ["early"]
        assert [run(address, *question).exit_code for question in QUESTIONS] == before
    filler.unlink()
    assert run(address, "produce", "t").exit_code == 0
    assert consumed(address) == ["early", "late"]


@needs_root
def test_a_read_only_disk(on_disk):
    kind, address, disk, before = on_disk
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    if kind == "log dir":
        shown = run(address, "produce", "t")
        assert shown.exit_code == 1 and "Read-only file system" in shown.stderr
        assert consumed(address) == ["early"]
        assert [run(address, *question).exit_code for question in QUESTIONS] == before
    else:  # SQLite's readers write too
        for command in (["produce", "t"], ["consume", "t"], *QUESTIONS):
            shown = run(address, *command)
            assert shown.exit_code == 1 and "readers too must be able to write its folder" in shown.stderr
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert run(address, "produce", "t").exit_code == 0


def test_a_server_that_is_stopped(own_postgres_server, tmp_path, monkeypatch):
    monkeypatch.setitem(Cluster.open.__func__.__kwdefaults__, "read_timeout_ms", 500)
    with Cluster.init(own_postgres_server.create_database(), log_dir=str(tmp_path / "d")) as cluster:
        create_topic(cluster, "t")
        address = cluster.store.address.with_password
    own_postgres_server.kill()
    for command in (["produce", "t"], ["consume", "t"], *QUESTIONS):
        shown = run(address, *command)
        assert shown.exit_code == 1
        assert "metadata store at" in shown.stderr and "Connection refused" in shown.stderr, command
        assert "spark-log doctor" in shown.stderr


@pytest.mark.slow
def test_servers_end_although_the_store_is_away(own_postgres_server, tmp_path):
    """Within the 60 s that Kubernetes waits (terminationGracePeriodSeconds of the chart)."""
    address = own_postgres_server.create_database()
    Cluster.init(address, log_dir=str(tmp_path / "d")).close()
    coordinator = LoggedProcess(tmp_path / "coordinator.log", "coordinator", "--cluster", address)
    with GatewayProcess(tmp_path, address) as gateway:
        coordinator.start()
        wait_until(lambda: "It is the active coordinator" in coordinator.output)
        own_postgres_server.kill()
        servers = (gateway, coordinator)
        for server in servers:
            server.signal(SIGTERM)
        until_s = clock.monotonic_s() + 60
        wait_until(lambda: not any(server.running for server in servers) or clock.monotonic_s() > until_s)
        assert not [server.output for server in servers if server.running]
