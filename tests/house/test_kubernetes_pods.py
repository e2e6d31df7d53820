"""The commands of the chart's pods run on this machine, with the chart's environment, mounted files and probes."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer

from spark_log.console.access.passwords import hash_password
from tests.support.operations import Object, find_program, objects, pods, render
from tests.support.postgres import USER, PostgresServer
from tests.support.security import Authority
from tests.support.server_processes import free_port

pytestmark = pytest.mark.skipif(
    find_program("helm") is None, reason="there is no helm: make check-kubernetes builds it"
)

PASSWORD = "p@ss/w:rd %2F"
EAST_PASSWORD = f"east {PASSWORD}"
TIME_S_MAX = 60


class OnThisMachine:
    """Runs pods of the chart with `folder` for /etc/spark-log and /data, and 127.0.0.1 for the names of pods."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.kafka_port = free_port()

    def container(self, component: str) -> Object:
        """Return the container of the component's pod. No other pod has its ports."""
        values = {
            "tls.existingSecret": "gateway",
            "gateway.port": self.kafka_port,
            "metrics.port": free_port(),
            "console.enabled": "true",
            "console.port": free_port(),
            "console.auth": "basic",
            "console.publicUrl": "https://log.example.org",
            "console.accessSecret": "console",
            "console.allow": "{produce,offsets}",
            "registry.enabled": "true",
            "registry.port": free_port(),
            "stores.east.existingSecret": "east",
        }
        text = render(*(part for name, value in values.items() for part in ("--set", f"{name}={value}")))
        for old, new in {
            "/etc/spark-log/": f"{self._folder}/",
            "/data": f"{self._folder}/data",
            "$(POD_NAME).log-spark-log-gateway-headless.logs.svc": "127.0.0.1",
        }.items():
            text = text.replace(old, new)
        [container] = dict(pods(objects(text)))[component]["containers"]
        return dict(container)

    def start(self, container: Object) -> "subprocess.Popen[str]":
        given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, **given}
        pipe = subprocess.PIPE
        return subprocess.Popen(container["args"], env=environment, stdout=pipe, stderr=pipe, text=True)

    @contextmanager
    def running(self, component: str) -> Iterator[None]:
        """Run the pod until its probes succeed, and end it with SIGTERM afterwards."""
        container = self.container(component)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        with self.start(container) as process:
            try:
                for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                    deadline = time.monotonic() + TIME_S_MAX
                    while not _succeeds(container[name], ports):
                        if process.poll() is not None or time.monotonic() > deadline:
                            process.kill()
                            pytest.fail(f"{component}, {name}: {process.communicate()}")
                        time.sleep(0.05)
                yield
                process.send_signal(signal.SIGTERM)
                assert process.wait(TIME_S_MAX) == 0
            finally:
                process.kill()


def _succeeds(probe: Object, ports: dict[str, int]) -> bool:
    kind = "httpGet" if "httpGet" in probe else "tcpSocket"
    port = ports[probe[kind]["port"]]
    try:
        if kind == "tcpSocket":
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
        else:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{probe[kind]['path']}", timeout=60).close()
    except OSError:  # URLError and HTTPError too
        return False
    return True


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def here(tmp_path: Path, authority: Authority) -> Iterator[OnThisMachine]:
    """A PostgreSQL that needs TLS and a password, and the Secrets of the chart as files."""
    secrets = {name: tmp_path / name for name in ("store", "tls", "console", "stores/east")}
    for folder in secrets.values():
        folder.mkdir(parents=True)
    server = PostgresServer()
    try:
        server.start()
        server.execute("CREATE DATABASE log")
        server.execute(f"ALTER USER {USER} PASSWORD '{PASSWORD}'")
        server.execute(f"CREATE USER east PASSWORD '{EAST_PASSWORD}'")
        server.execute("CREATE DATABASE east OWNER east")
        (server.data / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n")
        server.stop()
        issued = authority.issue("server", CN="localhost")
        owner = server.data.stat()
        for file, name in ((issued.certificate, "server.crt"), (issued.key, "server.key")):
            shutil.copy(file, server.data / name)
            os.chown(server.data / name, owner.st_uid, owner.st_gid)
            (server.data / name).chmod(0o600)
        server.start(ssl="on")
        shutil.copy(authority.certificate, secrets["store"] / "ca.crt")
        (secrets["store"] / "address").write_text(f"postgresql+psycopg://{USER}@localhost:{server.port}/log\n")
        (secrets["store"] / "password").write_text(f"{PASSWORD}\n")
        east = f"postgresql+psycopg://east:{quote(EAST_PASSWORD, safe='')}@localhost:{server.port}/east"
        (secrets["stores/east"] / "address").write_text(f"{east}\n")
        shutil.copy(issued.certificate, secrets["tls"] / "tls.crt")
        shutil.copy(issued.key, secrets["tls"] / "tls.key")
        user = f'[users.ann]\npassword = "{hash_password(PASSWORD)}"\n'
        (secrets["console"] / "access.toml").write_text(f'[groups."*"]\nrole = "viewer"\n\n{user}')
        yield OnThisMachine(tmp_path)
    finally:
        server.kill()
        server.remove()


@pytest.mark.slow
def test_pods_make_the_cluster_and_serve_it(here: OnThisMachine, authority: Authority) -> None:
    for words in ("Created cluster", "There is cluster"):  # the second time is an upgrade of the chart
        with here.start(here.container("init")) as process:
            said, errors = process.communicate(timeout=TIME_S_MAX)
        assert process.returncode == 0 and said.startswith(words), errors
    add = here.container("coordinator")
    east = next(each["value"] for each in add["env"] if each["name"] == "SPARK_LOG_STORE_EAST")
    for words in (["store", "add", "east", east], ["cluster", "config", "--set", "topic.default.store=east"]):
        with here.start({**add, "args": ["spark-log", *words]}) as process:
            said, errors = process.communicate(timeout=TIME_S_MAX)
        assert process.returncode == 0, errors
    servers = {
        "bootstrap.servers": f"127.0.0.1:{here.kafka_port}",
        "security.protocol": "SSL",
        "ssl.ca.location": authority.certificate,
    }
    with here.running("coordinator"), here.running("gateway"):
        producer = Producer(servers)
        producer.produce("events", b"hello")
        assert producer.flush(TIME_S_MAX) == 0
        consumer = Consumer({**servers, "group.id": "readers", "auto.offset.reset": "earliest"})
        consumer.subscribe(["events"])
        [message] = consumer.consume(1, timeout=TIME_S_MAX)
        consumer.close()
        assert message.value() == b"hello"
    for component in ("console", "registry"):
        with here.running(component):
            pass
