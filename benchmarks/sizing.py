"""CPU, memory and write-ahead log of the services of a cluster: `python -m benchmarks.sizing`.

- CPU, of one gateway, the coordinator and the metadata store, for records of 1,000 bytes in batches of a client of
  librdkafka: per MB produced, until the Delta table has it, and per MB fetched; and for appends of one record each.
- Memory (PSS) of a gateway, a coordinator and a console, on a cluster of few and of many partitions.

PostgreSQL has to run on this machine: its CPU time is that of all processes of its server. SQLite's is in the
gateway's.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import confluent_kafka
import psycopg
import sqlalchemy as sa

from benchmarks import machine
from benchmarks.setup import clusters, parser, print_table
from benchmarks.writers import run_clients
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topics
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.server_processes import GatewayProcess, free_port

RECORD_BYTES = 1_000
PARTITIONS = CLIENTS = 32
FEW, MANY = 100, 10_000
_SETTLED_S = 20
"""The time after which an idle service has run its periodic tasks, but for the hourly ones."""
Row = tuple[str, str]


def main() -> None:
    options = parser(__doc__, rounds=None)
    options.add_argument("--megabytes", type=int, default=400, help="what is produced and fetched [%(default)s]")
    options.add_argument("--seconds", type=float, default=10.0, help="of the appends of one record [%(default)s]")
    arguments = options.parse_args()
    found: dict[str, dict[str, str]] = {}
    for store, address, folder in clusters(arguments):
        with Cluster.open(address) as cluster:
            create_topic(cluster, "t", PARTITIONS)
            create_topic(cluster, "files", PARTITIONS, configs={"inline.max.bytes": "65536"})
        rows = [*_load(address, folder, arguments)]
        for partitions in (FEW, MANY):
            with Cluster.open(address) as cluster:
                create_topic(cluster, f"wide-{partitions}", partitions)
            rows += _memory(address, folder, partitions)
        found[store] = dict(rows)
    lines = ([what, *(of_store.get(what, "") for of_store in found.values())] for what in found["SQLite"])
    print_table("Services", ("what", *found), lines)


class PostgreSQL:
    """The server of a URL: CPU seconds of its processes, the ended ones too, and the bytes of its write-ahead log."""

    def __init__(self, url: str) -> None:
        address = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._session = psycopg.connect(address, autocommit=True)
        fields = Path(f"/proc/{self._session.info.backend_pid}/stat").read_text().rpartition(")")[2].split()
        self._postmaster = int(fields[1])

    def cpu_s(self) -> float:
        children = Path(f"/proc/{self._postmaster}/task/{self._postmaster}/children").read_text().split()
        return machine.cpu_s(self._postmaster, ended=True) + sum(machine.cpu_s(int(child)) for child in children)

    def wal_bytes(self) -> int:
        row = self._session.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')").fetchone()
        assert row is not None
        return int(row[0])


def _load(address: str, folder: Path, arguments: argparse.Namespace) -> Iterator[Row]:
    """The cost of records for a gateway, the coordinator and PostgreSQL."""
    server = PostgreSQL(address) if address.startswith("postgresql") else None
    with _services(folder, address, {"coordinator": ["coordinator"]}) as pids:

        def used() -> dict[str, float]:
            cpu_s = {"coordinator": machine.cpu_s(pids["coordinator"])}
            return cpu_s | ({"PostgreSQL": server.cpu_s(), "WAL": server.wal_bytes() / 1e3} if server else {})

        def shown(before: dict[str, float], after: dict[str, float], amount: float) -> str:
            """CPU in ms and WAL in kB for each of an amount of work."""
            spent = {name: (total - before[name]) / amount for name, total in after.items()}
            wal = f"; WAL {spent.pop('WAL'):.1f} kB" if server else ""
            return ", ".join(f"{name} {1000 * cpu_s:.2f} ms" for name, cpu_s in spent.items()) + wal

        with GatewayProcess(folder, address) as gateway:

            def cost(work: Callable[[], float]) -> str:
                """Of work that returns how many megabytes it has carried, until all records are in files."""
                before = {"gateway": machine.cpu_s(gateway.pid)} | used()
                megabytes = work()
                _until_sealed(address)
                return shown(before, {"gateway": machine.cpu_s(gateway.pid)} | used(), megabytes)

            cost(lambda: produce(gateway.address, 20, 5))
            for linger_ms, topic in ((5, "t"), (100, "t"), (1_000, "files")):
                what = f"a MB produced, linger.ms={linger_ms}"
                if topic == "files":
                    what += ", inline.max.bytes=65536"
                send = partial(produce, gateway.address, arguments.megabytes, linger_ms, topic)
                yield what, cost(send)
            yield "a MB fetched", cost(lambda: fetch(gateway.address, arguments.megabytes))
        before = used()
        latencies_s, gateway_s = run_clients(address, folder, list(range(CLIENTS)), arguments.seconds)
        others = shown(before, used(), len(latencies_s))
        rate = len(latencies_s) / arguments.seconds
        of_gateway = f"gateway {1000 * gateway_s / len(latencies_s):.2f} ms"
        yield f"an append of one record, {CLIENTS} clients", f"{of_gateway}, {others}; {rate:,.0f} a second"


def _until_sealed(address: str) -> None:
    with Cluster.open(address) as cluster:
        topics = cluster.store.read(find_topics)
        ids = [topics[name].topic_id for name in ("t", "files")]
        unsealed = sa.select(sa.func.sum(t.partition.c.tail_bytes)).where(t.partition.c.topic_id.in_(ids))
        while cluster.store.read(lambda connection: connection.execute(unsealed).scalar_one()):
            time.sleep(0.2)


@contextmanager
def _services(folder: Path, address: str, commands: dict[str, list[str]]) -> Iterator[dict[str, int]]:
    """Processes of `spark-log`, each in an interpreter of its own; their process ids."""
    with ExitStack() as stack:
        pids = {}
        for name, command in commands.items():
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            words = [sys.executable, "-m", "spark_log", *command, "--cluster", address]
            process = stack.enter_context(subprocess.Popen(words, stdout=log, stderr=log))
            stack.callback(process.terminate)
            pids[name] = process.pid
        yield pids


def produce(address: str, megabytes: float, linger_ms: int, topic: str = "t") -> float:
    """Send incompressible records to all partitions in turn; returns the megabytes."""
    client = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": linger_ms})
    data = os.urandom(1_000_000)
    for number in range(int(megabytes * 1_000_000 / RECORD_BYTES)):
        at = number * 997 % (len(data) - RECORD_BYTES)
        while True:
            try:
                client.produce(topic, data[at : at + RECORD_BYTES], partition=number % PARTITIONS)
                break
            except BufferError:
                client.poll(0.05)
    assert client.flush(120) == 0
    return megabytes


def fetch(address: str, megabytes: float) -> float:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "sizing", "enable.auto.commit": False}
    )
    beginning = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition("t", number, beginning) for number in range(PARTITIONS)])
    seen = 0
    while seen < megabytes * 1_000_000:
        seen += sum(len(message.value() or b"") for message in consumer.consume(1_000, 10))
    consumer.close()
    return seen / 1_000_000


def _memory(address: str, folder: Path, partitions: int) -> Iterator[Row]:
    """The memory of idle services, each in an interpreter of its own."""
    port = free_port()
    commands = {
        "gateway": ["gateway", "--listen", f"127.0.0.1:{port}"],
        "coordinator": ["coordinator"],
        "console": ["console", "--port", str(free_port()), "--no-periodic-tasks"],
    }
    with _services(folder, address, commands) as pids:
        time.sleep(_SETTLED_S)
        client = confluent_kafka.Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "sizing"})
        assert len(client.list_topics(timeout=60).topics[f"wide-{partitions}"].partitions) == partitions
        client.close()
        before = {name: machine.cpu_s(pid) for name, pid in pids.items()}
        time.sleep(_SETTLED_S)
        for name, pid in pids.items():
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kilobytes = next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
            percent = 100 * (machine.cpu_s(pid) - before[name]) / _SETTLED_S
            what = f"{name}, topic of {partitions:,} partitions, idle"
            yield what, f"{kilobytes / 1024:.0f} MB, {percent:.1f} % of a core"


if __name__ == "__main__":
    main()
