"""The frame of the console: pages and API of real clusters, and the token that begins a session."""

import re
import signal
import socket
import subprocess
from threading import Event
from urllib.parse import urljoin, urlsplit

import httpx2
import pytest

from spark_log.cluster.brokers import BrokerSession
from spark_log.cluster.cluster import Cluster
from spark_log.console.access.access_file import read_access_file
from spark_log.console.pages import overview
from spark_log.console.routes import View
from spark_log.facts.metrics.history import DAY_MS
from spark_log.facts.metrics.measurement import task_records
from spark_log.facts.metrics.recorded_topics import METRICS
from spark_log.facts.metrics.task_runs import TaskRun
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.coordinator.coordinator import controller_status, coordinator_status
from spark_log.maintenance.recorded_appends import append_records
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.console import running_console
from tests.support.python_process import PythonProcess
from tests.support.topics import fill
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.on_sqlite


@pytest.fixture
def console(cluster):
    with running_console(cluster) as console:
        yield console


def test_the_overview_and_its_json_show_the_same_facts(three_brokers, tmp_path):
    create_topic(three_brokers, "t", 2, 3)
    with running_console(three_brokers) as console:
        facts = console.facts("/")
        assert (facts["topics"], facts["brokers_alive"], facts["under_replicated"]) == (1, 3, 0)
        assert facts["problems"] == [], "embedded brokers need no coordinator"
        assert "The cluster is healthy." in console.page("/")
        assert 'class="bad"' not in console.page("/maintenance").partition("<h2>")[0]
        BrokerSession(three_brokers.store, 3, 60_000).register()  # a process serves it
        wait_until(lambda: "There is no active coordinator" in "".join(console.facts("/")["problems"]))
        assert "no active coordinator" in console.page("/")
        assert "run <code>spark-log coordinator</code>" in console.page("/maintenance")


def test_the_overview_shows_failed_maintenance_and_throughput_to_those_who_see_all_topics(cluster, tmp_path):
    now_ms = cluster.store.now().wall_ms
    runs = [
        TaskRun("merge", "coordinator", now_ms - 1000, 0.5, "log dir of topic <b>secret</b>: read-only", ""),
        TaskRun("old", "coordinator", now_ms - 2 * DAY_MS, 0.5, "two days ago", ""),
    ]
    append_records(cluster, METRICS, task_records(runs, 0))
    with running_console(cluster) as console:
        (failed,) = console.facts("/")["failed_tasks"]
        assert (failed["task"], failed["error"]) == ("merge", runs[0].error)
        assert "&lt;b&gt;secret&lt;/b&gt;" in console.page("/")
        assert console.facts("/throughput")["unit"] == "records/s"
    (tmp_path / "access.toml").write_text('[groups."*"]\ntopics = ["a-*"]\n')
    with running_console(cluster, access=read_access_file(str(tmp_path / "access.toml"))) as console:
        (failed,) = console.facts("/")["failed_tasks"]
        assert (failed["task"], failed["error"]) == ("merge", None)
        assert "secret" not in console.page("/")
        assert console.page("/throughput", 404)


def test_a_token_works_once_and_its_session_is_a_strict_cookie(console):
    with console.stranger() as stranger:
        assert stranger.get("/").status_code == stranger.get("/api/v1/").status_code == 401
        assert stranger.get(console.printed[0]).status_code == 401, "its session is that of another browser"
        first = stranger.get(console.printed[1])
        assert (first.status_code, first.headers["location"]) == (303, "/")
        assert all(word in first.headers["set-cookie"] for word in ("HttpOnly", "SameSite=strict"))
        assert stranger.get("/").status_code == 200
        assert stranger.post("/logout").status_code == 200
        assert stranger.get("/").status_code == 401
    assert console.client.get("/").status_code == 200, "another session lives on"


@pytest.fixture
def route(monkeypatch):
    """A function that adds a page at /test-view; it runs what it is given."""

    def add(facts):
        views = (*overview.VIEWS, View("/test-view", "overview.html", facts))
        monkeypatch.setattr(overview, "VIEWS", views)

    return add


def test_an_error_of_the_console_is_logged_and_shows_no_details(cluster, route, caplog):
    def fail(_call):
        raise ZeroDivisionError("secret")

    route(fail)
    with running_console(cluster) as console:
        assert "secret" not in console.page("/test-view", 500)
        assert console.facts("/test-view", 500) == {"error": "An error of the console: ZeroDivisionError"}
    assert "GET /test-view failed" in caplog.text


def test_a_page_notices_that_the_browser_has_left(cluster, route):
    begun, noticed = Event(), Event()

    def wait(call):
        begun.set()
        if call.left.wait(LIMIT_S):
            noticed.set()

    route(wait)
    with running_console(cluster) as console:
        host, port = urlsplit(console.url).netloc.split(":")
        cookie = "; ".join(f"{name}={value}" for name, value in console.client.cookies.items())
        with socket.create_connection((host, int(port))) as browser:
            browser.sendall(f"GET /api/v1/test-view HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n".encode())
            assert begun.wait(LIMIT_S)
        assert noticed.wait(LIMIT_S)


def test_unknown_paths_are_not_found(console):
    assert "Not found" in console.page("/nowhere", 404)
    assert console.facts("/nowhere", 404) == {"error": "There is no such page."}


@pytest.mark.slow
def test_a_restarted_postgresql_is_survived(own_postgres_server, tmp_path, monkeypatch):
    for name in ("AGE_S_MAX", "READS_PER_AGE"):
        monkeypatch.setattr(f"spark_log.console.snapshots.{name}", 0.0)
    address = own_postgres_server.create_database()
    with Cluster.init(address, log_dir=str(tmp_path / "log-dir")) as cluster, running_console(cluster) as console:
        assert console.page("/")
        own_postgres_server.stop()
        with monkeypatch.context() as impatient:
            impatient.setattr("spark_log.facts.metrics.cluster_snapshot.ASK_TIMEOUT_MS", 200)
            shown = console.page("/", 503)
            assert 'http-equiv="refresh"' in shown and "spark-log doctor" in shown
            assert "error" in console.facts("/", 503)
        assert console.client.get("/health").status_code == 200, "the console itself works"
        own_postgres_server.start()
        assert console.page("/")


def test_the_command_serves_the_console_and_metrics_until_it_is_stopped(cluster_address, cluster):
    fill(log := ClientLog(cluster), create_topic(cluster, "t", 1), [10])
    log.close()
    command = ["-m", "spark_log", "console", "--cluster", cluster_address, "--port", "0", "--metrics-port", "0"]
    with PythonProcess(*command, stdout=subprocess.PIPE, text=True) as process:
        try:
            printed = [process.stdout.readline() for _ in range(3)]
            login = re.search(r"Open (http://127\.0\.0\.1:\d+/\?token=\S+)", "".join(printed))[1]
            metrics = re.search(r"Metrics at (\S+)\.\n", "".join(printed))[1]
            with httpx2.Client(follow_redirects=True, timeout=60) as client:
                assert "Overview" in client.get(login).text
                assert "kafka_brokers" in client.get(metrics).text
                assert 'spark_log_lease_held{lease="coordinator",store="home"}' in client.get(metrics).text
                own = urljoin(login, "/api/v1/throughput")
                tables = urljoin(login, "/api/v1/topics/t")
                wait_until(lambda: client.get(own).json()["times"])
                wait_until(lambda: client.get(tables).json()["tables"][0]["version"] is not None)
                assert coordinator_status(cluster).left_ms > 0
                assert client.get(metrics.replace("/metrics", "/ready")).status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()


def test_without_its_periodic_tasks_the_console_takes_no_lease(cluster_address, cluster):
    command = ["-m", "spark_log", "console", "--cluster", cluster_address, "--port", "0", "--no-periodic-tasks"]
    with PythonProcess(*command, stdout=subprocess.PIPE, text=True) as process:
        try:
            login = re.search(r"http://\S+", process.stdout.readline())[0]
            assert httpx2.get(login, follow_redirects=True, timeout=60).status_code in (200, 401)
            assert (coordinator_status(cluster).holder, controller_status(cluster).holder) == (None, None)
        finally:
            process.kill()


def test_static_files_need_no_session_and_pages_are_not_stored(console):
    with console.stranger() as stranger:
        style = stranger.get("/static/vendor/pico.min.css")
        assert style.status_code == 200 and "max-age" in style.headers["cache-control"]
        assert stranger.get("/static/../app.py").status_code in (401, 404)
    page = console.client.get("/")
    assert page.headers["cache-control"] == "no-store"
    assert "unsafe" not in page.headers["content-security-policy"]
