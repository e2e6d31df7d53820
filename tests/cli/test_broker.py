"""`spark-log broker`: what people type, and what a mistake gets."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from spark_log.cli.main import app
from spark_log.cluster.brokers import list_brokers
from spark_log.cluster.cluster import Cluster, embedded_broker_row
from spark_log.cluster.log_dir import MARKER
from spark_log.ids import BrokerId
from spark_log.metadata import tables as t
from tests.support.python_process import PythonProcess, run_process


def run(cluster: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["broker", *arguments, "--cluster", str(cluster)])


def test_brokers_are_added_listed_and_removed(cluster: Path, tmp_path: Path) -> None:
    first, second = str(tmp_path / "d2"), str(tmp_path / "d3")
    added = run(cluster, "add", "--id", "2", "--rack", "b", "--log-dir", first, "--log-dir", second)
    assert added.exit_code == 0 and added.stdout == f"Added broker 2 with {first}, {second}.\n"
    found = json.loads(run(cluster, "list", "--json").stdout)["brokers"]
    assert [(broker["broker_id"], broker["rack"], broker["alive"], broker["served"]) for broker in found] == [
        (1, None, True, False),
        (2, "b", True, False),
    ]
    assert [log_dir["log_dir"] for log_dir in found[1]["log_dirs"]] == [f"file://{first}", f"file://{second}"]
    shown = run(cluster, "list").stdout
    assert "embedded" in shown and "none: the client that meets a failure holds the election" in shown
    assert run(cluster, "remove", "--id", "2").stdout == "Removed broker 2.\n"
    assert len(json.loads(run(cluster, "list", "--json").stdout)["brokers"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "--id", "1", "--log-dir", "{}/d2"], "broker_id: there is a broker 1 already"),
        (["add", "--id", "0", "--log-dir", "{}/d2"], "broker_id: expected a number from 1 to 2147483647, got 0"),
        (["add", "--id", "2", "--log-dir", "{}/cluster/broker-1/x"], "overlaps"),
        (["add", "--id", "2", "--log-dir", "{}/d2", "--log-dir", "{}/d2/"], "log_dirs: the same one twice"),
        (
            ["add", "--id", "2", "--rack", "", "--log-dir", "{}/d2"],
            "rack: expected 1 to 249 characters without NUL and lone surrogates, got ''",
        ),
        (["add", "--id", "2", "--log-dir", "nosuch://x/y"], "is not a URI that pyarrow.fs opens"),
        (["add", "--id", "2", "--log-dir", "s3://x/y//z?region=us-east-1"], "has an empty name in its path"),
        (
            ["add", "--id", "2", "--log-dir", "hdfs://127.0.0.1:1/x"],
            "log dir 'hdfs://127.0.0.1:1/x' cannot be opened: ",
        ),
        (["remove", "--id", "1"], "broker 1 is the only one of the cluster"),
        (["remove", "--id", "7"], "there is no broker 7 in this cluster; there are 1"),
        (["embed", "--id", "7"], "there is no broker 7"),
        (["start", "--id", "7"], "there is no broker 7"),
        (["start", "--id", "1", "--setting", "broker.session.timout.ms=1"], "Did you mean broker.session.timeout.ms?"),
        (["start", "--id", "1", "--setting", "broker.session.timeout.ms=soon"], "Invalid value 'soon'"),
        (["start", "--id", "1", "--setting", "auto.leader.rebalance.enable=1"], "expected true or false"),
    ],
)
def test_errors_are_one_line(cluster: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    result = run(cluster, *(text.format(tmp_path) for text in arguments))
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert message in result.stderr
    assert len(json.loads(run(cluster, "list", "--json").stdout)["brokers"]) == 1, "nothing is left behind"


def test_an_addition_that_failed_is_repeated(cluster: Path, tmp_path: Path) -> None:
    """The first log dir has a marker from before the mistake in the second one."""
    wrong = run(cluster, "add", "--id", "2", "--log-dir", str(tmp_path / "d2"), "--log-dir", str(cluster / "broker-1"))
    assert wrong.exit_code == 1 and (tmp_path / "d2" / MARKER).exists()
    right = "add", "--id", "2", "--log-dir", str(tmp_path / "d2"), "--log-dir", str(tmp_path / "d3")
    assert run(cluster, *right).exit_code == 0
    again = run(cluster, *right)
    assert again.exit_code == 1 and "broker_id: there is a broker 2 already" in again.stderr
    with Cluster.init(str(tmp_path / "other")):
        other = run(tmp_path / "other", "add", "--id", "2", "--log-dir", str(tmp_path / "d2"))
    assert other.exit_code == 1 and "d2 belongs to a cluster already" in other.stderr


@pytest.mark.parametrize("added", [0, 1])
def test_an_addition_that_was_killed_is_shown_and_continued(cluster: Path, tmp_path: Path, added: int) -> None:
    folders = [str(tmp_path / "d2"), str(tmp_path / "d3")]
    with Cluster.open(str(cluster)) as opened:
        opened.store.transact(lambda c: c.execute(t.broker.insert(), embedded_broker_row(BrokerId(2), None)))
        for folder in folders[:added]:
            opened.add_log_dir(BrokerId(2), folder)
    shown = run(cluster, "list").stdout
    examined = CliRunner().invoke(app, ["doctor", "--cluster", str(cluster)]).output
    assert ("addition interrupted" in shown) == ("broker 2 has no log dir" in examined) == (added == 0)
    given = "--id", "2", "--log-dir", folders[0]
    assert run(cluster, "add", *given, "--log-dir", folders[1], "--rack", "b").exit_code == 1
    assert run(cluster, "add", "--id", "2", "--log-dir", str(cluster / "broker-1")).exit_code == 1
    assert run(cluster, "add", *given, "--log-dir", folders[1]).exit_code == 0
    found = json.loads(run(cluster, "list", "--json").stdout)["brokers"]
    assert [each["log_dir"] for each in found[1]["log_dirs"]] == [f"file://{folder}" for folder in folders]


def test_one_process_serves_a_broker_until_sigterm(cluster: Path) -> None:
    program = "from spark_log.cli.main import app; app()"
    setting = ["--setting", "initial.broker.registration.timeout.ms=1"]
    command = ["-c", program, "broker", "start", "--id", "1", "--cluster", str(cluster), *setting]
    with PythonProcess(*command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline().startswith("Serving broker 1 of")
        second = run_process(*command)
        assert second.returncode == 1 and "broker 1 is served by" in second.stderr
        refused = run(cluster, "embed", "--id", "1")
        assert refused.exit_code == 1 and "stop it first" in refused.stderr
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=60) == 0
    with Cluster.open(str(cluster)) as opened:
        (status,) = list_brokers(opened)
        assert status.served and not status.alive, "at once, not when the lease has run out"
    assert run(cluster, "embed", "--id", "1").stdout == "Broker 1 is embedded.\n"
    with Cluster.open(str(cluster)) as opened:
        assert list_brokers(opened)[0].alive
