"""`spark-log quota`: what people type, and what a mistake gets."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from spark_log.cli.main import app


def run(cluster: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["quota", *arguments, "--cluster", str(cluster)])


def test_quotas_are_set_listed_and_removed(cluster: Path) -> None:
    both = ("--config", "producer_byte_rate=1000", "--config", "request_percentage=12.5")
    assert run(cluster, "set", "--user", "ann", "--client-id", "*", *both).exit_code == 0
    removed = run(cluster, "set", "--user", "ann", "--client-id", "*", "--config", "producer_byte_rate=")
    assert removed.stdout == "Quota of client-id *, user ann: producer_byte_rate=.\n"
    assert json.loads(run(cluster, "list", "--json").stdout) == [
        {"entity": {"client-id": None, "user": "ann"}, "configs": {"request_percentage": 12.5}}
    ]
    assert "client-id *, user ann" in run(cluster, "list").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "producer_byte_rate=1"], "give --user, --client-id, both, or --ip"),
        (["--ip", "x", "--config", "connection_creation_rate=1"], "expected an IP address"),
        (["--user", "a", "--config", "producer_byte_rate=fast"], "producer_byte_rate=fast: expected a number"),
        (["--user", "a", "--config", "speed=1"], "quota 'speed': expected consumer_byte_rate or producer_byte_rate or"),
    ],
)
def test_mistakes_are_explained(cluster: Path, arguments: list[str], message: str) -> None:
    result = run(cluster, "set", *arguments)
    assert result.exit_code != 0 and message in " ".join(result.output.split())
