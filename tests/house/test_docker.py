"""The image and the compose file are well-formed. There may be no Docker here, so nothing is built."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft201909Validator
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for

from tests.support import compose_schema

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = REPOSITORY / "docker" / "Dockerfile"


@pytest.fixture
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker" / "compose.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> Validator:
    schema = compose_schema.fetch(tmp_path_factory.mktemp("compose-schema"))
    return validator_for(schema, default=Draft201909Validator)(schema)


def test_compose_file_follows_the_compose_specification(validator: Validator, compose: dict[str, Any]) -> None:
    validator.validate(compose)


def test_the_schema_refuses_what_is_not_compose(validator: Validator, compose: dict[str, Any]) -> None:
    compose["services"]["postgres"]["helthcheck"] = {}
    assert not validator.is_valid(compose)


def test_what_a_service_waits_for_has_a_health_check(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            assert how["condition"] == "service_healthy", (name, needed)
            assert "test" in services[needed]["healthcheck"], needed


def test_volumes_of_services_are_declared(compose: dict[str, Any]) -> None:
    used = {mount.split(":")[0] for service in compose["services"].values() for mount in service.get("volumes", [])}
    assert used == set(compose["volumes"])


def test_dockerfile_passes_hadolint() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_dockerfile_copies_only_what_the_build_context_holds() -> None:
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for line in DOCKERFILE.read_text().splitlines()
        if line.startswith("COPY ")
        for source in shlex.split(line)[1:-1]
    }
    assert copied == allowed
