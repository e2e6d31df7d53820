"""Passwords are found nowhere but in the file that holds them: a canary in the store's address, and one of a user."""

import contextlib
import logging
import urllib.request
from pathlib import Path

import confluent_kafka as rdkafka
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from spark_log import Admin, Consumer, Producer
from spark_log.cli.main import app
from spark_log.clients.admin.audit import record_change
from spark_log.cluster.cluster import Cluster
from spark_log.errors import SparkLogError
from spark_log.metadata import tables as t
from spark_log.metadata.address import Address
from spark_log.metadata.store import Store
from tests.support.console import running_console
from tests.support.server_processes import GatewayProcess, free_port

CANARY, USERS_CANARY = "can4ry-of-the-store", "can4ry-of-a-user"
COMMANDS = (
    "status", "topic create t --partitions 2", "topic list", "topic describe t", "broker list", "group list",
    "group describe g", "partition describe t", "store status", "cluster describe", "cluster describe --json",
    "transaction list", "maintenance", "schema show t", "path t", "user list", "acl list",
    "acl add --principal User:a --operation READ --topic t", "topic delete missing", "consume missing",
    "no-such-command",
)  # fmt: skip
PAGES = ("/", "/topics", "/topics/t", "/groups", "/brokers", "/health", "/cluster", "/audit", "/missing")


@pytest.fixture
def address_file(postgres_server, tmp_path):
    """The path of a file with the address, outside of the folder that is searched."""
    (tmp_path / "secret").mkdir()
    file = tmp_path / "secret" / "cluster"
    file.write_text(with_password(postgres_server.create_database()))
    return file


def with_password(url):
    return url.replace("@", f":{CANARY}@", 1)


def command_lines():
    """The command lines of all processes of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().decode(errors="replace"))
    return "\n".join(found)


@pytest.mark.slow
def test_passwords_are_found_nowhere(address_file, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG, "spark_log")
    monkeypatch.setenv("SPARK_LOG_CLUSTER_FILE", str(address_file))
    monkeypatch.delenv("SPARK_LOG_CLUSTER", raising=False)
    root = tmp_path / "searched"
    root.mkdir()
    texts = []

    def run(*arguments, text=None):
        done = CliRunner().invoke(app, arguments, input=text)
        texts.extend([done.output, done.stderr, repr(done.exception)])
        return done

    assert run("init", str(address_file), "--log-dir", str(root / "log")).exit_code == 0
    assert run("user", "create", "anna", text=USERS_CANARY).exit_code == 0
    for command in COMMANDS:
        run(*command.split())
    assert run("produce", "t", text="hello\n").exit_code == 0
    assert "hello" in run("consume", "t", "--from", "earliest").output
    place = address_file.read_text().rpartition("/")[0]
    with pytest.raises(SparkLogError) as raised, contextlib.closing(Store(Address.parse(f"{place}/nothing"))) as store:
        store.read(lambda connection: None, timeout_ms=100)
    texts.extend([str(raised.value), repr(raised.value)])
    for wrong in (f"{place}/nothing?sslmode=bad", f"{place}/a/b@c/d"):
        other = tmp_path / "secret" / "wrong"
        other.write_text(wrong)
        with monkeypatch.context() as impatient:
            impatient.setitem(Cluster.open.__func__.__kwdefaults__, "read_timeout_ms", 200)
            assert run("status", "--cluster", str(other)).exit_code == 1
    metrics_port = free_port()
    options = ["--sasl", "PLAIN", "--metrics-port", str(metrics_port), "--workers", "2"]
    with Cluster.open(str(address_file)) as cluster, GatewayProcess(root, str(address_file), *options) as gateway:
        client = {"bootstrap.servers": gateway.address, "security.protocol": "SASL_PLAINTEXT",
                  "sasl.mechanism": "PLAIN", "sasl.username": "anna"}  # fmt: skip
        for password in (USERS_CANARY, f"{USERS_CANARY}-wrong"):
            producer = rdkafka.Producer({**client, "sasl.password": password, "message.timeout.ms": 2_000})
            producer.produce("t", b"x")
            producer.flush(10)
        del producer  # `raised` has a reference cycle with this frame: librdkafka would connect to the end of the run
        record_change(cluster, "me", "test", str(cluster.store.address), {"url": address_file.read_text(), "password":
                      CANARY, "nested": {"sasl.jaas.config": CANARY}}, "succeeded", "test")  # fmt: skip
        clients = [Producer(), Consumer("t"), Admin()]
        texts.extend(repr(each) for each in [cluster, cluster.store, *clients, *(vars(each) for each in clients)])
        with running_console(cluster, allow=frozenset()) as console:
            texts.extend(console.client.get(page).text for page in PAGES)
        texts.append(urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics").read().decode())
        texts.append(command_lines())
        for each in clients:
            each.close()
        rows = [
            str(cluster.store.read(lambda connection, table=table: connection.execute(sa.select(table)).all()))
            for table in t.metadata.tables.values()
        ]
        texts.extend([*rows, gateway.output])
    texts.extend(
        [caplog.text, *(file.read_bytes().decode(errors="replace") for file in root.rglob("*") if file.is_file())]
    )
    assert [text[max(0, text.find("can4ry") - 200) :][:400] for text in texts if "can4ry" in text] == []
    assert len(texts) > 100
