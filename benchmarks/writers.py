"""Appends of several processes to one store: `make bench-scale`.

1 to 32 processes append records of 100 bytes, one record a transaction, each to a partition of its own, for --seconds.
They start together. Every append is durable. On a SQLite cluster, and on PostgreSQL too with --postgresql.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.replication import values
from spark_log.cluster.cluster import Cluster
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic

PROCESSES = (1, 2, 4, 8, 16, 32)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=PROCESSES)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--postgresql", metavar="URL", help="an empty database to measure too")
    arguments = parser.parse_args()
    report = Table(title=f"Appends of one record: {describe_machine()}", title_justify="left")
    for column in ("store", "processes", "appends/s", "of one process", "p50", "p99"):
        report.add_column(column)
    for store, url in (("SQLite", None), ("PostgreSQL", arguments.postgresql)):
        if store == "PostgreSQL" and url is None:
            continue
        with tempfile.TemporaryDirectory(prefix="spark-log-bench-") as folder:
            address = url or f"{folder}/cluster"
            with Cluster.init(address, log_dir=str(Path(folder, "log-dir"))) as cluster:
                create_topic(cluster, "t", max(arguments.processes), configs={"inline.tail.bytes": "67108864"})
                for row in measure(address, arguments.processes, arguments.seconds):
                    report.add_row(store, *row)
    Console().print(report)
    return 0


def measure(address: str, processes: list[int], seconds: float) -> Iterator[tuple[str, ...]]:
    first = 0.0
    for count in processes:
        latencies_s, rate = run(address, count, seconds)
        first = first or rate
        p50, p99 = statistics.median(latencies_s), latencies_s[int(len(latencies_s) * 0.99)]
        yield f"{count}", f"{rate:,.0f}", f"{rate / first:.2f} x", f"{1000 * p50:.1f} ms", f"{1000 * p99:.1f} ms"


def run(address: str, count: int, seconds: float) -> tuple[list[float], float]:
    """Sorted latencies of all processes in seconds, and appends a second."""
    spawn = multiprocessing.get_context("spawn")
    pipes = []
    for number in range(count):
        ours, its = spawn.Pipe()
        spawn.Process(target=append, args=(address, number, seconds, its)).start()
        pipes.append(ours)
    for pipe in pipes:
        assert pipe.recv() == "ready"
    for pipe in pipes:
        pipe.send("go")
    latencies_s = sorted(latency for pipe in pipes for latency in pipe.recv())
    return latencies_s, len(latencies_s) / seconds


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


if __name__ == "__main__":
    raise SystemExit(main())
