"""`spark-log doctor`: its output for people and scripts, and its exit code."""

import json

import pytest
from typer.testing import CliRunner

from spark_log.cli.main import app
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.facts.doctor import limits
from spark_log.metadata.address import SQLITE_FILE
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.replicas import take_away, topic_on


@pytest.fixture(autouse=True)
def any_machine(monkeypatch):
    """The machine of the tests may be slow, and its disk nearly full."""
    monkeypatch.setattr(limits, "LOCAL_WRITE_MS_MAX", 60_000)
    monkeypatch.setattr(limits, "FREE_SHARE_LOW", limits.FREE_SHARE_EMPTY)


def doctor(address, *options):
    return CliRunner().invoke(app, ["doctor", "--cluster", address, *options])


def test_notes_alone_are_exit_code_0(tmp_path):
    address = str(tmp_path / "c")
    with Cluster.init(address) as cluster:
        create_topic(cluster, "t", configs={"flush.messages": "10"})
    shown = doctor(address)
    assert shown.exit_code == 0
    assert "ok       store: SQLite" in shown.stdout
    assert "note     topic settings: 1 topic (t): flush.messages is above 1" in shown.stdout
    assert "         -> spark-log topic alter t --config flush.messages=1" in shown.stdout
    assert "0 errors, 0 warnings, 2 notes" in shown.stdout.splitlines()[-1]


def test_what_needs_a_person_is_first_and_exit_code_1(tmp_path):
    address = str(tmp_path / "c")
    with Cluster.init(address) as cluster:
        add_broker(cluster, 2, [str(tmp_path / "d2")])
        topic_on(cluster, "single", [[2]])
        topic_on(cluster, "well", [[1]])
        take_away(cluster, 2)
    shown = doctor(address)
    assert shown.exit_code == 1
    assert shown.stdout.startswith("error    log dir: log dir 2 of broker 2")
    found = json.loads(doctor(address, "--json").stdout)
    assert found["counts"]["error"] == 3
    errors = [each for each in found["findings"] if each["severity"] == "error"]
    assert [each["check"] for each in errors] == ["log dir", "brokers", "partitions"]
    assert all(each["seen"] and each["remedy"] for each in errors)
    limited = json.loads(doctor(address, "--json", "--topic", "well").stdout)
    assert "partitions" not in {each["check"] for each in limited["findings"] if each["severity"] == "error"}


def test_no_cluster_is_a_finding_and_a_wrong_address_an_error(tmp_path):
    shown = doctor(str(tmp_path / "absent"))
    assert shown.exit_code == 1
    assert "error    store: the metadata store cannot be used: no cluster at" in shown.stdout
    assert doctor("host:9092").exit_code == 1


COMMANDS = (["topic", "list"], ["status"], ["produce", "t"], ["consume", "t"], ["coordinator", "--status"])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_command_without_the_database_file_says_that_the_cluster_was_there(tmp_path, command):
    """It does not advise to create another cluster in its place."""
    address = str(tmp_path / "c")
    Cluster.init(address).close()
    (tmp_path / "c" / SQLITE_FILE).unlink()
    shown = CliRunner().invoke(app, [*command, "--cluster", address], input="x\n")
    assert shown.exit_code == 1
    assert "metadata.sqlite is missing" in shown.stderr
    assert "restore it from a backup" in shown.stderr
    assert "create one with" not in shown.stderr


def test_a_command_that_meets_an_unavailable_log_dir_names_the_doctor(tmp_path):
    Cluster.init(str(tmp_path / "c")).close()
    (tmp_path / "file").touch()
    command = [
        "broker",
        "add",
        "--id",
        "2",
        "--log-dir",
        str(tmp_path / "file" / "d"),
        "--cluster",
        str(tmp_path / "c"),
    ]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 1
    assert "Not a directory" in shown.stderr
    assert shown.stderr.endswith("; `spark-log doctor` says what to do\n")
