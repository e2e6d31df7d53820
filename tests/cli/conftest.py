"""How the tests of the command line call it, and their clusters."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from spark_log.cli.main import app


def run(*arguments: str, stdin: str | bytes | None = None, cluster: Path | None = None) -> Result:
    environment = {"SPARK_LOG_CLUSTER": str(cluster) if cluster else "", "TERM": "dumb", "COLUMNS": "200"}
    return CliRunner().invoke(app, arguments, input=stdin, env=environment)


def ok(*arguments: str, stdin: str | bytes | None = None, cluster: Path | None = None) -> str:
    result = run(*arguments, stdin=stdin, cluster=cluster)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    ok("init", str(tmp_path / "cluster"))
    return tmp_path / "cluster"


@pytest.fixture
def events(cluster: Path) -> Path:
    """A cluster with a topic `events` of two partitions."""
    ok("topic", "create", "events", "--partitions", "2", cluster=cluster)
    return cluster


def consumed(cluster: Path, *arguments: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in ok("consume", "events", "--json", *arguments, cluster=cluster).splitlines()]
