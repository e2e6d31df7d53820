"""Texts that clients choose reach an operator's terminal without what it would obey."""

import json
import os
import pty
import subprocess
import sys

import confluent_kafka as rdkafka
import pytest
from typer.testing import CliRunner

from spark_log.cli.completion import _read
from spark_log.cli.main import app
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.quotas.quota_rows import write_quotas
from spark_log.cluster.quotas.rules import entity_of
from spark_log.cluster.security.acl_rules import Acl, Operation, PatternType, Permission, ResourceType
from spark_log.cluster.security.acls import add_acls
from spark_log.metadata.address import Address
from spark_log.text import printable, printable_json
from tests.support.classic_members import ClassicMember
from tests.support.gateway_wire import WireConnection
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make

HOSTILE = "\x1b]0;owned\x07\x1b[31m[red]x[/red][link=http://evil]l[/link]\x9b2J\u202e\r\nroot"
SHOWN = printable(HOSTILE)


@pytest.fixture(scope="module")
def cluster_address(tmp_path_factory):
    """A cluster that a hostile client has used."""
    folder = tmp_path_factory.mktemp("hostile")
    address = str(folder / "cluster")
    with Cluster.init(address) as cluster:
        make(cluster, "flights", 1)
        write_quotas(cluster.store, [(entity_of([("client-id", HOSTILE)]), {"producer_byte_rate": 1e9})])
        add_acls(cluster.store, [
            Acl(ResourceType.GROUP, HOSTILE, PatternType.LITERAL, f"User:{HOSTILE}", "*", Operation.READ,
                Permission.ALLOW),
        ])  # fmt: skip
        with GatewayProcess(folder, address) as gateway, WireConnection(gateway.port, client_id=HOSTILE) as wire:
            member = ClassicMember(wire, HOSTILE, ["flights"], session_timeout_ms=300_000)
            assert member.join() == 0 and member.sync() == 0
            producer = rdkafka.Producer(
                {"bootstrap.servers": gateway.address, "client.id": "c", "transactional.id": HOSTILE}
            )
            producer.init_transactions(30)
            producer.begin_transaction()
            text = HOSTILE.encode()
            producer.produce("flights", text, text, headers=[(HOSTILE, text)])
            producer.commit_transaction(30)
            yield address


def run(address, *arguments):
    done = CliRunner().invoke(app, [*arguments, "--cluster", address])
    return done.output


@pytest.mark.parametrize(
    "command",
    [
        ("group", "list"),
        ("group", "describe", HOSTILE),
        ("group", "describe", f"{HOSTILE}-unknown"),
        ("transaction", "list"),
        ("transaction", "describe", HOSTILE),
        ("topic", "producers", "flights"),
        ("quota", "list"),
        ("acl", "list"),
        ("top", "--count", "1", "--interval", "0.1"),
        ("consume", "flights"),
        ("consume", "flights", "--json"),
        ("group", "describe", HOSTILE, "--json"),
    ],
    ids=lambda command: " ".join(command[:2]) + " --json" * ("--json" in command),
)
def test_a_command_prints_only_printable_characters(cluster_address, command):
    output = run(cluster_address, *command)
    assert printable(output, keep="\n") == output
    shown = output.replace("\n", "")
    assert "root" in shown or command[:2] == ("topic", "producers")
    if "--json" not in command and command[0] != "topic":
        assert "\\x1b" in shown and "\nroot" not in output


def test_json_means_the_same(cluster_address):
    [line] = run(cluster_address, "consume", "flights", "--json").splitlines()
    record = json.loads(line)
    assert [record["key"], record["value"], record["headers"]] == [
        HOSTILE,
        HOSTILE,
        [{"key": HOSTILE, "value": HOSTILE}],
    ]
    assert json.loads(run(cluster_address, "group", "describe", HOSTILE, "--json"))["group_id"] == HOSTILE
    assert json.loads(printable_json(json.dumps("\U0001d173é\x7f", ensure_ascii=False))) == "\U0001d173é\x7f"


def test_values_are_exact_in_a_pipe_and_printable_on_a_terminal(cluster_address):
    command = [sys.executable, "-m", "spark_log", "consume", "flights", "--values", "--cluster", cluster_address]
    piped = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60).stdout
    assert piped == HOSTILE.encode() + b"\n"
    terminal, slave = pty.openpty()
    subprocess.run(command, stdout=slave, check=True, timeout=60)
    os.close(slave)
    shown = os.read(terminal, 10_000).decode().replace("\r\n", "\n")
    os.close(terminal)
    assert shown == printable(HOSTILE, keep="\n\t") + "\n"


def test_names_that_mean_something_to_a_shell_are_not_completed(cluster_address):
    query = "SELECT group_id FROM consumer_group WHERE group_id >= {mark}"
    assert _read(Address.parse(cluster_address), query, "") == []


def test_a_warning_is_one_line_without_control_characters(cluster_address):
    program = (
        "import logging, sys; from typer.testing import CliRunner; from spark_log.cli.main import app;"
        "CliRunner().invoke(app, ['path']); logging.getLogger('x').warning('client %s', sys.stdin.read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=HOSTILE.encode(), stderr=subprocess.PIPE, check=True, timeout=60
    )
    assert done.stderr.decode() == f"client {SHOWN}\n"
