"""A cluster with data of every kind, as a release leaves it when its processes are killed: later releases upgrade it.

    python -m tests.support.release_cluster tests/fixtures/cluster_v2.tar.xz

writes it with the code of today. Run it before the schema of the metadata store changes.
"""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.groups.committed_offsets import commit_offsets
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.ids import TopicPartition
from spark_log.metadata import store_schema
from spark_log.metadata.address import SQLITE_FILE
from spark_log.registry.registry import Registry
from tests.support.classic_members import ClassicMember, WorkerMember, settle_workers
from tests.support.consumer_members import ConsumerMember, topic_ids
from tests.support.gateway_wire import WireConnection, WireProducer, call
from tests.support.group_members import Reader, settle
from tests.support.server_processes import GatewayProcess
from tests.support.share_members import ShareMember

SCHEMA = "id BIGINT, item STRING"
GROUPS = {"of-library": 2, "of-consumers": 1, "of-classic": 1, "of-connect": 1, "offsets-only": 0}
"""Groups, with their members."""
COMMITTED = 3
"""Offset of events-0 that each group has committed."""
JOBS = "jobs"
"""Topic of the share group of-workers. Of its ten records, 0 to 2 are accepted, 3 waits for an hour, a member that was
killed holds 4 to 7, and 8 and 9 are released.
"""
SUBJECT, AVRO = "parcels-value", '{"type": "record", "name": "parcel", "fields": [{"name": "id", "type": "long"}]}'
EVENTS, ORDERS = 2_000, 50
"""Records of partition 0 of topic events before those of transactions, and of topic orders."""

_SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python 3.11.2 has no filters."""


@dataclass(frozen=True)
class WireState:
    """A producer of a Kafka client, as far as it had come."""

    name: str
    producer_id: int
    epoch: int
    sequence: int


def write_cluster(folder: Path) -> dict[str, WireState]:
    """A cluster in `folder`/cluster; its Kafka clients. No process uses it any more, and none has ended cleanly."""
    address = str(folder / "cluster")
    with Cluster.init(address) as cluster, GatewayProcess(folder, address) as gateway:
        _topics(address)
        _groups(cluster, gateway.port)
        _share_group(address, cluster)
        _users_and_subjects(address, cluster, folder)
        clients = _clients(gateway.port)
        _open_transaction_of_our_producer(address)
        gateway.kill()
    return clients


def neutral(folder: Path) -> None:
    """Nothing in the cluster names the machine or the folder any more. Time limits begin anew, as after a reboot."""
    for log in (folder / "cluster").glob("*/*/_delta_log/*.json"):
        log.write_text(log.read_text().replace(str(folder), ""))
    with contextlib.closing(sqlite3.connect(folder / "cluster" / SQLITE_FILE)) as store:
        for [table] in store.execute(
            "SELECT m.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE c.name = 'clock_epoch'"
        ).fetchall():
            store.execute(f"UPDATE \"{table}\" SET clock_epoch = 'another machine' WHERE clock_epoch IS NOT NULL")
        store.commit()
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        store.execute("VACUUM")


def unpack(archive: Path, folder: Path) -> tuple[str, dict[str, WireState]]:
    """The address of the cluster, and its Kafka clients."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, **_SAFELY)
    clients = json.loads((folder / "clients.json").read_text())
    return str(folder / "cluster"), {name: WireState(**state) for name, state in clients.items()}


def move_to_postgres(folder: Path, url: str) -> None:
    """Give the unpacked cluster a store in an empty PostgreSQL database, of the same revision."""
    lite, postgres = sa.create_engine(f"sqlite:///{folder / 'cluster' / SQLITE_FILE}"), sa.create_engine(url)
    with lite.connect() as old, postgres.begin() as new:
        new.execution_options(no_parameters=True).exec_driver_sql((folder / "postgres.sql").read_text())
        tables = sa.MetaData()
        tables.reflect(new)
        for table in tables.sorted_tables:
            rows = old.execute(sa.select(table)).mappings().all()
            new.execute(table.delete())
            if rows:
                new.execute(table.insert(), [dict(row) for row in rows])
            for column in table.columns:
                if column.identity is not None or "nextval" in str(column.server_default):
                    name = f"pg_get_serial_sequence('\"{table.name}\"', '{column.name}')"
                    new.execute(
                        sa.text(
                            f"SELECT setval({name}, (SELECT coalesce(max({column.name}), 0) + 1 FROM {table.name}))"
                        )
                    )
        log_dir = tables.tables["log_dir"]
        new.execute(log_dir.update().values(uri=str(folder / "cluster") + "/" + log_dir.c.uri))
    lite.dispose()
    postgres.dispose()


def _topics(address: str) -> None:
    """Files and blobs, keys and tombstones, typed values, erased records, users, ACLs and quotas."""
    run = ["topic", "create", "events", "--partitions", "2"]
    _spark_log(address, *run)
    _spark_log(address, "topic", "create", "states", "--config", "cleanup.policy=compact")
    _spark_log(
        address, "topic", "create", "orders", "--config", "value.format=json", "--config", f"value.schema={SCHEMA}"
    )
    lines = "".join(f"event {number}\n" for number in range(EVENTS))
    _spark_log(address, "produce", "events", "--partition", "0", lines=lines)
    _spark_log(address, "maintenance")
    orders = "".join(json.dumps({"id": number, "item": "tea"}) + "\n" for number in range(ORDERS))
    _spark_log(address, "produce", "orders", lines=orders)
    states = "".join(f"k{number % 5}:v{number}\n" for number in range(40)) + "k0:\n"
    _spark_log(address, "produce", "states", "--key-separator", ":", lines=states)
    _spark_log(address, "quota", "set", "--client-id", "greedy", "--config", "producer_byte_rate=1000000")
    _spark_log(address, "acl", "add", "--principal", "User:ann", "--operation", "READ", "--topic", "events")
    _spark_log(address, "cluster", "config", "--set", "transaction.max.timeout.ms=900000")


def _groups(cluster: Cluster, port: int) -> None:
    for group in GROUPS:
        commit_offsets(cluster.store, group, {TopicPartition("events", 0): COMMITTED})
    settle(*(Reader(cluster, topics=["events"], group="of-library") for _ in range(2)))
    with contextlib.ExitStack() as stack:

        def wire() -> WireConnection:
            return stack.enter_context(WireConnection(port))

        ids = topic_ids(wire(), "events")
        ConsumerMember(wire(), "of-consumers", ids, subscribed_topic_names=["events"]).join()
        classic = ClassicMember(wire(), "of-classic", ["events"])
        assert classic.join() == 0
        assert classic.sync() == 0
        settle_workers(WorkerMember(wire(), "of-connect"))


def _share_group(address: str, cluster: Cluster) -> None:
    _spark_log(address, "topic", "create", JOBS)
    _spark_log(address, "share", "config", "of-workers", "--set", "share.auto.offset.reset=earliest")
    _spark_log(address, "produce", JOBS, lines="".join(f"job {number}\n" for number in range(10)))
    member, killed = (ShareMember(cluster, [JOBS], "of-workers", name) for name in ("m1", "m2"))
    member.acknowledge(member.poll(3), AcknowledgeType.ACCEPT)
    member.acknowledge(member.poll(1), AcknowledgeType.RELEASE, delay_ms=3_600_000)
    killed.poll(4)
    member.acknowledge(member.poll(2), AcknowledgeType.RELEASE)


def _users_and_subjects(address: str, cluster: Cluster, folder: Path) -> None:
    (folder / "password").write_text("a password\n")
    _spark_log(address, "user", "create", "ann", "--password-file", str(folder / "password"))
    Registry(cluster).register(SUBJECT, AVRO)


def _clients(port: int) -> dict[str, WireState]:
    """One producer with an open transaction, with a record and an offset; one that has committed; an idempotent one."""
    with WireConnection(port) as wire:
        done = WireProducer(wire, "done")
        assert call(wire, done.add_partitions("events")) == 0
        assert done.send(wire, "events", b"committed").error_code == 0
        assert call(wire, done.end(commit=True)) == 0
        half = WireProducer(wire, "half", timeout_ms=600_000)
        assert call(wire, half.add_partitions("events")) == 0
        assert half.send(wire, "events", b"pending").error_code == 0
        assert call(wire, half.add_offsets("offsets-only")) == 0
        assert call(wire, half.commit_offset("events", COMMITTED + 1, "offsets-only")) == 0
        idempotent = WireProducer(wire, None)
        for number in range(3):
            assert idempotent.send(wire, "events", b"%d" % number, flag=0, transactional=False).error_code == 0
    return {
        name: WireState(name, each.producer_id, each.epoch, sequence)
        for name, each, sequence in [("done", done, 1), ("half", half, 1), ("idempotent", idempotent, 3)]
    }


def _open_transaction_of_our_producer(address: str) -> None:
    """In a process that is killed before the commit; and one that was committed before."""
    code = """
import os, sys
from spark_log import Producer
producer = Producer(cluster=sys.argv[1], transactional_id="ours", linger_ms=0, transaction_timeout_ms=600_000)
producer.init_transactions()
for value in (b"ours", b"ours open"):
    producer.begin_transaction()
    producer.send("events", value, partition=0)
    producer.send("events", value * 100_000, partition=1)
    producer.flush()
    if value == b"ours":
        producer.commit_transaction()
print("pending", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "pending\n"
        os.kill(process.pid, signal.SIGKILL)


def _spark_log(address: str, *arguments: str, lines: str | None = None) -> None:
    command = [sys.executable, "-c", "from spark_log.cli.main import app; app()", *arguments, "--cluster", address]
    subprocess.run(command, input=lines, text=True, check=True, stdout=subprocess.DEVNULL)


def main(archive: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clients = write_cluster(folder)
        (folder / "clients.json").write_text(json.dumps({key: asdict(state) for key, state in clients.items()}))
        neutral(folder)
        revisions = "CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY);"
        (folder / "postgres.sql").write_text(revisions + store_schema._postgresql_statements())
        with tarfile.open(archive, "w:xz") as tar:
            for part in ("cluster", "clients.json", "postgres.sql"):
                tar.add(folder / part, part)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
