"""docker/compose.production.yaml: its rules, and its commands on this machine, with its secrets, TLS and users."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import psycopg
import pytest
import yaml
from jsonschema import Draft201909Validator
from jsonschema.validators import validator_for

from tests.support.operations import compose_schema
from tests.support.postgres import PostgresServer, find_programs, server_user
from tests.support.server_processes import free_port

DOCKER = Path(__file__).parents[2] / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.production.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
LONG_RUNNING = sorted(set(SERVICES) - {"init"})


def test_it_follows_the_compose_specification(tmp_path: Path) -> None:
    schema = compose_schema(tmp_path)
    validator_for(schema, default=Draft201909Validator)(schema).validate(COMPOSE)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_has_no_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert int(service["user"].partition(":")[0]) > 0
    assert {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"])
    assert service["logging"]["options"]["max-size"]
    assert all(port.startswith("127.0.0.1:") or name.startswith("gateway-") for port in service.get("ports", []))


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_a_service_starts_again_and_has_a_health_check(name: str) -> None:
    assert SERVICES[name]["restart"] == "unless-stopped"
    assert SERVICES[name]["healthcheck"]["test"]


def test_secrets_are_files() -> None:
    for service in SERVICES.values():
        names = set(service.get("environment", {}))
        assert not {name for name in names if re.search("PASSWORD|SECRET|KEY", name) and not name.endswith("_FILE")}
    assert "secrets/" in (DOCKER.parent / ".gitignore").read_text().splitlines()


def test_mounted_files_and_volumes_exist() -> None:
    sources = {mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])}
    files = {source for source in sources if source.startswith(".")}
    assert sources - files == set(COMPOSE["volumes"])
    assert all((DOCKER / file).exists() for file in files if not file.startswith("../secrets/"))


def test_prometheus_asks_all_services_with_metrics() -> None:
    settings = yaml.safe_load((DOCKER / "prometheus.yaml").read_text())
    [targets] = [each["targets"] for job in settings["scrape_configs"] for each in job["static_configs"]]
    serving = {name for name, service in SERVICES.items() if "--metrics-port=9404" in service.get("command", [])}
    assert set(targets) == {f"{name}:9404" for name in serving}


def test_commands_of_the_guide_name_services_and_programs() -> None:
    guide = (DOCKER.parent / "docs" / "guides" / "docker.md").read_text()
    commands = re.findall(r"^docker compose (.*)$", guide, re.MULTILINE)
    assert len(commands) == 5
    for words in (shlex.split(command, comments=True) for command in commands):
        assert words[:4] == ["-p", "spark-log", "-f", "docker/compose.production.yaml"]
        if words[4] != "up":
            assert words[5] in SERVICES
        if words[4] == "exec":
            assert Path(sys.executable).with_name(words[6]).exists()


class Cluster:
    """The services on this machine, as the user of the tests; `localhost` stands for the names of the services."""

    def __init__(self, folder: Path) -> None:
        self._places = {
            "/run/": f"{folder}/secrets/",
            "/data/": f"{folder}/data/",
            "/etc/postgresql/": f"{DOCKER}/",
            "${GATEWAY_HOST:?the name of this host, as Kafka clients look it up}": "localhost",
        }
        self._ports = {"9093": str(free_port())}
        self.secrets = folder / "secrets"
        self.gateway = f"localhost:{self._ports['9093']}"
        subprocess.run([DOCKER / "secrets.sh", self.secrets, "localhost"], check=True, timeout=120)
        (self.secrets / "postgres").chmod(0o755)
        self.postgres = PostgresServer()

    def start_postgres(self) -> None:
        """As the image does it: first the user with its password and the database, then the service's command."""
        password = (self.secrets / "postgres" / "password").read_text().strip()
        self.postgres.start()
        self.postgres.execute("CREATE DATABASE spark_log")
        self.postgres.execute(f"ALTER USER spark_log PASSWORD '{password}'")
        self.postgres.stop()
        user = server_user()
        for file in ("server.crt", "server.key", "pg_hba.conf"):
            source = DOCKER / file if file == "pg_hba.conf" else self.secrets / "postgres" / file
            copy = shutil.copy(source, self.postgres.data / file)
            if user is not None:
                os.chown(copy, user.pw_uid, user.pw_gid)
        settings = dict(word.split("=") for word in SERVICES["postgres"]["command"] if "=" in word)
        for name in ("ssl_cert_file", "ssl_key_file", "hba_file"):
            settings[name] = f"{self.postgres.data}/{Path(settings[name]).name}"
        self.postgres.start(**settings)

    def environment(self, service: str) -> dict[str, str]:
        given = {name: self._here(value) for name, value in SERVICES[service].get("environment", {}).items()}
        path = f"{Path(sys.executable).parent}:{find_programs()}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
        return {"PATH": path, "PGPORT": str(self.postgres.port), **kept, **given}

    def command(self, service: str, metrics_port: int = 0) -> list[str]:
        return [self._here(word).replace("9404", str(metrics_port)) for word in SERVICES[service]["command"]]

    def healthy(self, service: str, metrics_port: int) -> bool:
        _, *command = SERVICES[service]["healthcheck"]["test"]
        words = [word.replace("9404", str(metrics_port)) for word in command]
        done = subprocess.run(words, env=self.environment(service), capture_output=True, timeout=120)
        return done.returncode == 0

    def _here(self, word: str) -> str:
        for old, new in {**self._places, **self._ports, "@postgres/": "@localhost/"}.items():
            word = word.replace(old, new)
        return word


def listens(port: int) -> bool:
    """Whether something does: cheaper than a health check."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        cluster.start_postgres()
        yield cluster
    finally:
        cluster.postgres.kill()
        cluster.postgres.remove()


@pytest.mark.slow
def test_its_commands_make_a_cluster_with_tls_and_users(cluster: Cluster) -> None:
    assert cluster.healthy("postgres", 0)
    plain = f"host=localhost port={cluster.postgres.port} user=spark_log dbname=spark_log sslmode=disable"
    with pytest.raises(psycopg.OperationalError, match="no encryption"):
        psycopg.connect(plain, password=(cluster.secrets / "postgres" / "password").read_text().strip())
    environment = cluster.environment("init")
    subprocess.run(cluster.command("init"), env=environment, check=True, timeout=120)
    with ExitStack() as stack:
        ports = {"coordinator": free_port(), "gateway-1": free_port()}
        for service, port in ports.items():
            process = stack.enter_context(
                subprocess.Popen(cluster.command(service, port), env=cluster.environment(service))
            )
            stack.callback(process.send_signal, signal.SIGTERM)
        deadline_s = time.monotonic() + 120
        for service, port in ports.items():
            while not (listens(port) and cluster.healthy(service, port)):
                assert time.monotonic() < deadline_s, f"{service} is not healthy"
                time.sleep(0.1)
        create = ["spark-log", "user", "create", "admin"]
        subprocess.run(create, env=environment, input="a long password\n", text=True, check=True, timeout=120)
        client = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.gateway,
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(cluster.secrets / "ca" / "ca.crt"),
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "admin",
                "sasl.password": "a long password",
            }
        )
        client.produce("events", b"hello")
        assert client.flush(60) == 0
        del client  # its threads would try to reach the gateway that ends
    consume = ["spark-log", "consume", "events", "--from", "earliest", "--values"]
    done = subprocess.run(consume, env=environment, capture_output=True, check=True, timeout=120)
    assert done.stdout == b"hello\n"
