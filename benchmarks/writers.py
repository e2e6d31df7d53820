"""Appends of several processes to one store: `make bench-scale`.

1 to 32 processes append records of 100 bytes, one record a transaction, each to a partition of its own, for --seconds;
with --one-partition all to the same one. They start together. Every append is durable. With --gateway they are clients
of librdkafka, each with one record in flight, of one gateway, whose CPU time is measured too. --batches N appends N
batches of one record in each transaction, over --partitions, by one process. On a SQLite cluster, and on PostgreSQL too
with --postgresql, whose CPU time an append is measured: a server with C cores takes 1,000 C / (its ms) appends a
second, and N stores N times as many, because an append costs the server of its topic only.

Rows are sent to PostgreSQL as arrays from 16 of a kind on (`row_arrays`). An append of one batch has fewer, so what it
costs more than before arrays can only be measured beside a version without them, not in one run.
"""

import argparse
import contextlib
import multiprocessing
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import confluent_kafka
import psutil
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from benchmarks.gateway import Server
from benchmarks.kafka_report import ON_POSTGRESQL, OURS, Bar, Row, parser, percentiles, write_rows
from benchmarks.machine import describe_machine
from benchmarks.replication import values
from benchmarks.setup import clusters
from benchmarks.stages import timed
from spark_log.cluster.cluster import Cluster
from spark_log.log.append import append_transaction
from spark_log.log.log import Log, Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import commit_tokens
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.server_processes import GatewayProcess

PROCESSES = (1, 2, 4, 8, 16, 32)
_WARM_UP_S = 1.0
BATCHES_BAR_MS, BATCHES_CPU_BAR_MS = 100, 70
"""Of 1,600 batches over 632 partitions on PostgreSQL."""
GATEWAY_BAR_MS = 0.35
"""CPU time of a gateway for an append of 32 clients."""
_ROUNDS = 12


def main() -> int:
    options = parser(__doc__, rounds=None)
    options.add_argument("--processes", type=int, nargs="+", default=PROCESSES)
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--one-partition", action="store_true", help="all processes append to one partition")
    options.add_argument("--gateway", action="store_true", help="append through a gateway, by clients of librdkafka")
    options.add_argument("--batches", type=int, help="append this many batches in each transaction, in one process")
    options.add_argument("--partitions", type=int, default=632, help="the partitions of --batches; default: 632")
    arguments = options.parse_args()
    if arguments.json and arguments.batches is None:
        options.error("--json needs --batches")
    report = Table(title=f"Appends of one record: {describe_machine()}", title_justify="left")
    partitions = max(arguments.processes) if arguments.batches is None else arguments.partitions
    medians: dict[str, tuple[float, float]] = {}
    stages: dict[str, dict[str, str]] = {}
    for store, address, folder in clusters(arguments):
        with Cluster.open(address) as cluster:
            create_topic(cluster, "t", partitions, configs={"inline.tail.bytes": "67108864"})
        if arguments.batches is None:
            rows = list(measure(address, folder, arguments))
        else:
            row, medians[OURS if store == "SQLite" else ON_POSTGRESQL], stages[store] = measure_batches(
                address, arguments
            )
            rows = [row]
        for row in rows:
            if not report.columns:
                for column in ("store", *row):
                    report.add_column(column)
            report.add_row(store, *row.values())
    console = Console()
    console.print(report)
    rows_of_batches = list(batch_rows(arguments, medians))
    for each in rows_of_batches:
        for bar in each.bars:
            console.print(f"{each.what}, {bar.who}: {bar}")
    for store, shown in stages.items():
        rows_of_batches.append(Row(f"where the time of this commit goes, on {store}", shown, {}))
        console.print(rows_of_batches[-1].what, shown)
    write_rows(rows_of_batches, arguments.json)
    return 0


def batch_rows(arguments: argparse.Namespace, medians: dict[str, tuple[float, float]]) -> Iterator[Row]:
    """Yield the rows of the proof page from the medians of latency and client's CPU, in seconds."""
    if not medians:
        return
    what = f"commit of {arguments.batches:,} batches over {arguments.partitions:,} partitions, with their data"
    for kind, number, bar_ms in (("", 0, BATCHES_BAR_MS), (": CPU time of the client", 1, BATCHES_CPU_BAR_MS)):
        amounts = {who: seconds[number] for who, seconds in medians.items()}
        shown = {who: f"p50 {1000 * seconds:.0f} ms" for who, seconds in amounts.items()}
        bars = []
        if (arguments.batches, arguments.partitions) == (1_600, 632) and ON_POSTGRESQL in amounts:
            bars = [Bar(ON_POSTGRESQL, f"p50 <= {bar_ms} ms", 1000 * amounts[ON_POSTGRESQL] <= bar_ms)]
        yield Row(what + kind, shown, amounts, bars)


def measure(address: str, folder: Path, arguments: argparse.Namespace) -> Iterator[dict[str, str]]:
    first = 0.0
    for count in arguments.processes:
        partitions = [0 if arguments.one_partition else number for number in range(count)]
        cpu_s = None
        server_before_s = postgresql_cpu_s(address)
        if arguments.gateway:
            latencies_s, cpu_s = run_clients(address, folder, partitions, arguments.seconds)
        else:
            latencies_s = run_processes(address, partitions, arguments.seconds)
        rate = len(latencies_s) / arguments.seconds
        first = first or rate
        row = {"processes": f"{count}", "appends/s": f"{rate:,.0f}", "of one process": f"{rate / first:.2f} x"}
        row["latency"] = percentiles(latencies_s)
        if cpu_s is not None:
            bar = f" (bar <= {GATEWAY_BAR_MS} ms)" if count == 32 else ""
            row["gateway's CPU an append"] = f"{1000 * cpu_s / len(latencies_s):.2f} ms{bar}"
        server_s = postgresql_cpu_s(address) - server_before_s
        row["PostgreSQL's CPU an append"] = f"{1000 * server_s / len(latencies_s):.2f} ms" if server_s else ""
        yield row


def postgresql_cpu_s(address: str) -> float:
    """Return the CPU seconds of the PostgreSQL server on this machine and of its processes; 0 for a SQLite cluster."""
    if "://" not in address:
        return 0.0
    engine = sa.create_engine(address)
    with engine.connect() as connection:
        server = psutil.Process(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()).parent()
        assert server is not None
        own = server.cpu_times()
        running = [child.cpu_times() for child in server.children()]
    engine.dispose()
    ended_s = own.children_user + own.children_system
    return float(ended_s + sum(times.user + times.system for times in (own, *running)))


# Processes that append themselves ------------------------------------------------------------------------------------


def run_processes(address: str, partitions: list[int], seconds: float) -> list[float]:
    """Return the latencies of all processes, in seconds."""
    spawn = multiprocessing.get_context("spawn")
    pipes = []
    for partition in partitions:
        ours, its = spawn.Pipe()
        spawn.Process(target=append, args=(address, partition, seconds, its)).start()
        pipes.append(ours)
    for pipe in pipes:
        assert pipe.recv() == "ready"
    for pipe in pipes:
        pipe.send("go")
    return [latency for pipe in pipes for latency in pipe.recv()]


def append(address: str, partition: int, seconds: float, pipe: Connection) -> None:
    """In a process of its own: append to one partition until the time is over."""
    with Cluster.open(address) as cluster:
        log = ClientLog(cluster)
        topic = log.find_topic("t")
        records = [Records(partition, values(1))]
        log.append(topic, records)
        latencies_s: list[float] = []
        pipe.send("ready")
        pipe.recv()
        end_s = time.perf_counter() + seconds
        while (began_s := time.perf_counter()) < end_s:
            log.append(topic, records)
            latencies_s.append(time.perf_counter() - began_s)
        pipe.send(latencies_s)
        pipe.close()
        os._exit(0)  # without sealing the tail


# Clients of a gateway ------------------------------------------------------------------------------------------------


def run_clients(address: str, folder: Path, partitions: list[int], seconds: float) -> tuple[list[float], float]:
    """Return the latencies of all clients, and the CPU time of the gateway meanwhile, in seconds."""
    with GatewayProcess(folder, address) as gateway:
        server = Server("gateway", gateway.address, gateway.pid)
        begin_s = time.perf_counter() + _WARM_UP_S + 0.05 * len(partitions)
        end_s = begin_s + seconds
        latencies_s: list[float] = []
        threads = [
            threading.Thread(target=produce, args=(gateway.address, partition, begin_s, end_s, latencies_s))
            for partition in partitions
        ]
        for thread in threads:
            thread.start()
        time.sleep(max(0.0, begin_s - time.perf_counter()))
        before_s = server.cpu_s()
        for thread in threads:
            thread.join()
        return latencies_s, server.cpu_s() - before_s


def produce(address: str, partition: int, begin_s: float, end_s: float, latencies_s: list[float]) -> None:
    """Produce one record after the other; add the latencies of those from `begin_s` to `end_s` to the list."""
    client = confluent_kafka.Producer(
        {"bootstrap.servers": address, "linger.ms": 0, "acks": "all", "max.in.flight.requests.per.connection": 1}
    )
    while (sent_s := time.perf_counter()) < end_s:
        client.produce("t", b"v" * 100, partition=partition)
        assert client.flush(60) == 0
        if sent_s >= begin_s:
            latencies_s.append(time.perf_counter() - sent_s)


# Large transactions --------------------------------------------------------------------------------------------------


_STAGES: tuple[tuple[Any, str], ...] = (
    (Log, "write_each"),
    (append_transaction, "_lock"),
    (append_transaction, "_assign"),
    (append_transaction, "_write"),
    (append_transaction, "_advance"),
    (commit_tokens, "commit"),
    (sa.engine.RootTransaction, "commit"),
)


def measure_batches(
    address: str, arguments: argparse.Namespace
) -> tuple[dict[str, str], tuple[float, float], dict[str, str]]:
    """Return the row of the report, the medians of latency and of this process' CPU time, in seconds, and the medians
    of the stages as text.
    """
    latencies_s, cpu_s = [], []
    times_us: dict[str, list[float]] = defaultdict(list)
    with Cluster.open(address) as cluster, contextlib.ExitStack() as timers:
        log = ClientLog(cluster)
        topic = log.find_topic("t")
        for owner, name in _STAGES:  # six calls a commit: some microseconds
            timers.enter_context(mock.patch.object(owner, name, timed(owner, name, times_us)))
        for number in range(_ROUNDS + 2):
            records = [Records(each % arguments.partitions, values(1)) for each in range(arguments.batches)]
            began_s, cpu_before_s = time.perf_counter(), time.process_time()
            log.append_each([(topic, each) for each in records])
            if number >= 2:
                latencies_s.append(time.perf_counter() - began_s)
                cpu_s.append(time.process_time() - cpu_before_s)
        row = {"batches": f"{arguments.batches:,}", "partitions": f"{arguments.partitions:,}"}
        row["latency"] = percentiles(latencies_s)
        row["client's CPU"] = f"{1000 * statistics.median(cpu_s):.1f} ms"
        log.stop_sealing()
        log.close()
    whole_us = 1e6 * statistics.median(latencies_s)
    spent = defaultdict(float, {name: statistics.median(times[-_ROUNDS:]) for name, times in times_us.items() if times})
    commit = spent["commit_tokens.commit"] or spent["RootTransaction.commit"]
    us = {
        "encode the blobs": spent["Log.write_each"],
        "lock and read the partitions": spent["append_transaction._lock"],
        "rules: offsets, high watermarks": spent["append_transaction._assign"],
        "rows, sent here on SQLite": spent["append_transaction._write"] + spent["append_transaction._advance"],
        "COMMIT with its flush, and with the rows on PostgreSQL": commit,
    }
    us["everything else"] = whole_us - sum(us.values())
    stages = {what: f"{each / 1000:.0f} ms ({each / whole_us:.0%})" for what, each in us.items()}
    return row, (statistics.median(latencies_s), statistics.median(cpu_s)), stages


if __name__ == "__main__":
    raise SystemExit(main())
