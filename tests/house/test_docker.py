"""The image and the compose file. Docker may be missing: commands of services run on this machine instead."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft201909Validator
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for

from tests.support.operations import compose_schema
from tests.support.postgres import PostgresServer, find_programs
from tests.support.server_processes import free_port

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = REPOSITORY / "docker" / "Dockerfile"
COMPOSE = REPOSITORY / "docker" / "compose.yaml"
GUIDE = REPOSITORY / "docs" / "guides" / "several-machines.md"


@pytest.fixture
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return loaded


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> Validator:
    schema = compose_schema(tmp_path_factory.mktemp("compose-schema"))
    return validator_for(schema, default=Draft201909Validator)(schema)


def test_compose_file_follows_the_compose_specification(validator: Validator, compose: dict[str, Any]) -> None:
    validator.validate(compose)


def test_the_schema_refuses_an_invalid_compose_file(validator: Validator, compose: dict[str, Any]) -> None:
    compose["services"]["postgres"]["helthcheck"] = {}
    assert not validator.is_valid(compose)


def test_each_awaited_service_has_a_health_check(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            assert how["condition"] == "service_healthy", (name, needed)
            assert "test" in services[needed]["healthcheck"], needed


def test_only_services_that_open_the_store_get_its_address_and_password(compose: dict[str, Any]) -> None:
    knowing = {
        name for name, service in compose["services"].items() if re.search("PASSWORD|SPARK_LOG_CLUSTER", repr(service))
    }
    assert knowing == {"postgres", "coordinator", "driver", "gateway", "console"}


def test_every_long_running_service_has_its_own_health_check(compose: dict[str, Any]) -> None:
    running = [service for service in compose["services"].values() if "profiles" not in service]
    assert len(running) == 8
    checks = [tuple(service["healthcheck"]["test"]) for service in running]
    assert len(set(checks)) == len(checks)
    assert "HEALTHCHECK" not in DOCKERFILE.read_text(), "one image, several kinds of service"


def test_commands_in_the_documentation_name_existing_services_and_programs(compose: dict[str, Any]) -> None:
    told = [line for line in GUIDE.read_text().splitlines() if line.startswith("docker compose ")]
    told += re.findall(r"^#   (docker compose .*)$", COMPOSE.read_text(), re.MULTILINE)
    assert {"up", "run", "exec"} <= {shlex.split(line)[6] for line in told}
    for line in told:
        words = shlex.split(line, comments=True)
        assert words[:6] == ["docker", "compose", "-p", "spark-log", "-f", "docker/compose.yaml"]
        if words[6] in ("run", "exec"):
            [(at, service)] = [(at, word) for at, word in enumerate(words) if word in compose["services"]]
            assert service == {"run": "driver", "exec": "coordinator"}[words[6]]
            assert Path(sys.executable).with_name(words[at + 1]).exists(), line


def test_volumes_of_services_are_declared(compose: dict[str, Any]) -> None:
    used = {mount.split(":")[0] for service in compose["services"].values() for mount in service.get("volumes", [])}
    files = {source for source in used if source.startswith("../")}
    assert used - files == set(compose["volumes"])
    assert all((COMPOSE.parent / file).exists() for file in files)


def test_dockerfile_passes_hadolint() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_dockerfile_copies_only_files_of_the_build_context() -> None:
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for line in DOCKERFILE.read_text().splitlines()
        if line.startswith("COPY ")
        for source in shlex.split(line)[1:-1]
    }
    assert copied == allowed


PASSWORD = "p@ss/w:rd %2F"


class OnThisMachine:
    """Runs commands of a service of compose.yaml with its environment, `data` for /data and `server` for postgres."""

    def __init__(self, compose: dict[str, Any], server: PostgresServer, data: Path) -> None:
        self._services = compose["services"]
        self._server = server
        self._data = data

    def environment(self, service: str) -> dict[str, str]:
        given = {
            name: re.sub(r"\$\{POSTGRES_PASSWORD:-\w+\}", PASSWORD, value).replace("@postgres/", "@127.0.0.1/")
            for name, value in self._services[service].get("environment", {}).items()
        }
        path = f"{Path(sys.executable).parent}:{find_programs()}:{os.environ['PATH']}"
        return {"PATH": path, "PGPORT": str(self._server.port), **given}

    def healthy(self, service: str) -> bool:
        kind, *command = self._services[service]["healthcheck"]["test"]
        words = ["sh", "-c", *command] if kind == "CMD-SHELL" else command
        done = subprocess.run(words, env=self.environment(service), capture_output=True, timeout=60)
        return done.returncode == 0

    @contextmanager
    def running(self, service: str) -> Iterator[subprocess.Popen[str]]:
        # a page of the documentation has the port of the metrics too, and may run at the same time
        places = {"/data/": f"{self._data}/", "9404": str(free_port())}
        words = self._services[service]["command"]
        for old, new in places.items():
            words = [word.replace(old, new) for word in words]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, env=self.environment(service), stdout=pipe, stderr=pipe, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def store_with_password() -> Iterator[PostgresServer]:
    """A PostgreSQL set up as in the image: database and user of compose.yaml, no connection without the password."""
    server = PostgresServer()
    try:
        server.start()
        server.execute("CREATE DATABASE spark_log")
        server.execute(f"ALTER USER spark_log PASSWORD '{PASSWORD}'")
        server.stop()
        (server.data / "pg_hba.conf").write_text("host all all 127.0.0.1/32 scram-sha-256\n")
        server.start()
        yield server
    finally:
        server.kill()
        server.remove()


def said_at_its_start(coordinator: subprocess.Popen[str]) -> str:
    """The coordinator's first line of output, after it has acquired the lease."""
    assert coordinator.stdout is not None
    assert coordinator.stderr is not None
    assert "It is the active coordinator.\n" in iter(coordinator.stderr.readline, "")  # its tasks may log errors first
    return coordinator.stdout.readline()


@pytest.mark.slow
def test_the_coordinator_makes_the_cluster_and_is_healthy_while_it_coordinates(
    compose: dict[str, Any], store_with_password: PostgresServer, tmp_path: Path
) -> None:
    here = OnThisMachine(compose, store_with_password, tmp_path)
    assert here.healthy("postgres")
    assert not here.healthy("coordinator"), "there is no cluster"
    with here.running("coordinator") as process:
        assert said_at_its_start(process).startswith("Created cluster")
        assert here.healthy("coordinator")
        create = ["spark-log", "topic", "create", "clicks"]
        subprocess.run(create, env=here.environment("driver"), check=True, timeout=60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    assert not here.healthy("coordinator"), "the cluster is there, and nothing coordinates it"
    (tmp_path / "segments").rename(tmp_path / "unmounted")
    with here.running("coordinator") as process:
        assert said_at_its_start(process).startswith("There is cluster")
        assert not here.healthy("coordinator"), "the log dir does not answer"
    store_with_password.stop()
    assert not here.healthy("postgres")
