"""An hour of everything at once: `make bench-soak`. Does anything grow that should not?

Two producers send --rate records a second each, a third process makes transactions, a group of two members reads them
(one leaves and joins again all the time), a Spark stream copies a topic to another, and a coordinator does the whole
maintenance: seal, merge, compaction, retention, clean-up, Delta tables with their logs, expiry. Retention, delete
delays and intervals are so short that each of these happens many times in the run, and what is kept is bounded. But
the versions of a Delta table are kept for a day at least (delta.log.retention.ms): Delta logs grow all the time.

Sampled: memory (PSS: resident memory, with pages that several processes share divided among them), open files and
threads of each process with its children; files and bytes by kind; size of the metadata store and rows of each table;
latencies by minute. The verdict on a series compares its median in the last quarter of the run with that in the second
quarter. Latencies suffer from other work on the machine.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import soak_processes as roles
from benchmarks.machine import describe_machine
from benchmarks.soak_samples import Samples, sample_folder, sample_process, sample_store
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.publication import publish
from tests.support.postgres import PostgresNotInstalledError, PostgresServer

SETTINGS = {
    "log.retention.check.interval.ms": "5000",
    "log.clean.up.interval.ms": "10000",
    "log.cleaner.backoff.ms": "5000",
    "table.loop.poll.ms": "2000",
    "log.merge.interval.ms": "10000",
    "delta.maintenance.interval.ms": "10000",
    "offsets.retention.check.interval.ms": "10000",
    "offsets.retention.ms": "120000",
    "producer.id.expiration.ms": "120000",
    "transactional.id.expiration.ms": "120000",
    "producer.write.id.lease.ms": "60000",
    "spark.write.id.lease.ms": "120000",
}
CONFIGS = {"delta.max.lag.ms": "5000", "file.delete.delay.ms": "30000"}
DELETED = {**CONFIGS, "retention.ms": "120000", "segment.bytes": "4000000"}
COMPACTED = {**CONFIGS, "cleanup.policy": "compact", "delete.retention.ms": "30000"}
TOPICS = {roles.EVENTS: DELETED, roles.PAIRED: DELETED, roles.COPY: DELETED, roles.STATE: COMPACTED}
ROLES: dict[str, Callable[[str, Connection, float, int], None]] = {
    "coordinator": roles.coordinate,
    "producer 1": roles.produce,
    "producer 2": roles.produce,
    "transactions": roles.transact,
    "consumer": roles.consume,
    "member that comes and goes": roles.come_and_go,
    "stream": roles.stream,
}
_SAMPLE_S = 10.0
_STOP_S = 60.0


def main() -> int:
    arguments = _arguments()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-log-soak-", dir=arguments.folder)))
        address = str(folder / "cluster")
        if arguments.postgresql:
            address = stack.enter_context(_postgresql())
        os.environ["SPARK_LOG_SOAK_FOLDER"] = str(folder)
        cluster = stack.enter_context(Cluster.init(address, log_dir=str(folder / "log-dir")))
        _prepare(cluster)
        samples = Samples()
        _run(cluster, address, folder, arguments, samples)
    title = (
        f"{arguments.minutes:g} minutes on {'PostgreSQL' if arguments.postgresql else 'SQLite'},"
        f" {datetime.now(UTC):%Y-%m-%d}, {describe_machine()}"
    )
    _print(samples, title)
    if arguments.csv:
        samples.save(Path(arguments.csv))
    if arguments.plot:
        from benchmarks.soak_plot import plot

        plot(samples, title, Path(arguments.plot))
    return 0


def _prepare(cluster: Cluster) -> None:
    alter_settings(cluster, SETTINGS)
    for name, configs in TOPICS.items():
        topic = create_topic(cluster, name, 2, configs=configs)
        assert topic is not None
        publish(cluster, topic)


def _run(cluster: Cluster, address: str, folder: Path, arguments: argparse.Namespace, samples: Samples) -> None:
    began_s = time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    running: dict[str, tuple[SpawnProcess, Connection]] = {}
    for name, role in ROLES.items():
        if name != "stream" or not arguments.without_spark:
            ours, its = spawn.Pipe()
            process = spawn.Process(target=role, args=(address, its, began_s, arguments.rate), name=name)
            process.start()
            running[name] = process, ours
    try:
        sample_number = 0
        while (passed_s := time.monotonic() - began_s) < arguments.minutes * 60:
            for name, (process, pipe) in running.items():
                assert process.is_alive(), f"{name} ended with {process.exitcode}"
                while pipe.poll():
                    series, minute, values = pipe.recv()
                    samples.add_latencies(series, minute, values)
            minute = int(passed_s / 60)
            for name, (process, _) in running.items():
                assert process.pid is not None
                sample_process(samples, minute, name, process.pid)
            if sample_number % 3 == 0:
                sample_folder(samples, minute, folder)
                sample_store(samples, minute, cluster)
            sample_number += 1
            if arguments.csv and sample_number % 6 == 0:
                samples.save(Path(arguments.csv))
            time.sleep(max(0.0, began_s + sample_number * _SAMPLE_S - time.monotonic()))
    finally:
        for _, pipe in running.values():
            pipe.send("stop")
        for name, (process, pipe) in running.items():
            until_s = time.monotonic() + _STOP_S
            while process.is_alive() and time.monotonic() < until_s:
                with suppress(EOFError, OSError):
                    while pipe.poll():
                        pipe.recv()
                process.join(0.1)
            if process.is_alive():
                print(f"{name} did not stop within {_STOP_S:g} s", file=sys.stderr)
                process.kill()


@contextmanager
def _postgresql() -> Iterator[str]:
    server = PostgresServer()
    server.start(autovacuum="on", autovacuum_naptime="10s")  # without it, the database of the tests' servers only grows
    try:
        yield server.create_database()
    finally:
        server.stop()
        server.remove()


def _print(samples: Samples, title: str) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("series", "1st quarter", "2nd", "3rd", "4th", "growth", "verdict"):
        table.add_column(column)
    for judged in samples.judge():
        table.add_row(*judged.shown())
    Console(width=140).print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=int, default=50, help="records a second of each of the two producers [50]")
    parser.add_argument("--postgresql", action="store_true", help="on a PostgreSQL of its own, not on SQLite")
    parser.add_argument("--without-spark", action="store_true", help="without the stream, hence without Java")
    parser.add_argument("--csv", metavar="FILE", help="write all samples to this file, every few minutes")
    parser.add_argument("--plot", metavar="FILE", help="draw the series to this .svg or .png (needs matplotlib)")
    parser.add_argument("--folder", help="where to work [the system's temporary folder]")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PostgresNotInstalledError as error:
        sys.exit(f"without PostgreSQL: {error}")
