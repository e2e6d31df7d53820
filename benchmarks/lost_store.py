"""Throughput of the other topics while a data store is lost: part of `make bench-moves`.

One Producer sends records to a topic of the home store and waits for each, for --seconds. Each round does that while
all stores answer, and again while the server of the data store is killed and the same Producer sends to a topic there
too. The bar of the design: the topic of the home store loses at most a tenth.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.stores import add_store
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.postgres import PostgresServer

_BAR = 0.9
_BETWEEN_S = 0.1
"""Pause between two records for the lost store."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="pairs of measurements [%(default)s]")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement [%(default)s]")
    arguments = parser.parse_args()
    home, far = PostgresServer(), PostgresServer()
    for server in (home, far):
        server.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            rounds = _measured(home, far, folder, arguments.rounds, arguments.seconds)
    finally:
        for server in (home, far):
            server.stop()
            server.remove()
    table = Table(
        title="Appends to a topic of the home store", caption=f"{describe_machine()}, {time.strftime('%Y-%m-%d')}"
    )
    for column in ("all stores answer (1/s)", "data store lost (1/s)", "ratio"):
        table.add_column(column, justify="right")
    for whole, lost in rounds:
        table.add_row(f"{whole:,.0f}", f"{lost:,.0f}", f"{lost / whole:.2f}")
    ratio = statistics.median(lost / whole for whole, lost in rounds)
    table.add_section()
    table.add_row("", "median", f"{ratio:.2f}")
    Console().print(table)
    return int(ratio < _BAR)


def _measured(
    home: PostgresServer, far: PostgresServer, folder: str, rounds: int, seconds: float
) -> list[tuple[float, float]]:
    """Return the appends per second of each round, with all stores and with the data store lost."""
    results = []
    with Cluster.init(home.create_database(), log_dir=f"{folder}/log-dir") as cluster:
        add_store(cluster, "far", far.create_database())
        create_topic(cluster, "near")
        create_topic(cluster, "there", store="far")
        with Producer(cluster=cluster.store.address.with_password) as producer:
            producer.send("there", b"x").get(60)
            _appends_a_second(producer, seconds)  # warm-up
            for _ in range(rounds):
                whole = _appends_a_second(producer, seconds)
                far.kill()
                ended = threading.Event()
                sender = threading.Thread(target=_send_to_lost, args=(producer, ended))
                sender.start()
                results.append((whole, _appends_a_second(producer, seconds)))
                ended.set()
                sender.join()
                far.start()
                producer.flush()
    return results


def _appends_a_second(producer: Producer, seconds: float) -> float:
    began_s, count = time.perf_counter(), 0
    while time.perf_counter() - began_s < seconds:
        producer.send("near", b"x" * 100).get(60)
        count += 1
    return count / (time.perf_counter() - began_s)


def _send_to_lost(producer: Producer, ended: threading.Event) -> None:
    while not ended.wait(_BETWEEN_S):
        producer.send("there", b"x" * 100)


if __name__ == "__main__":
    sys.exit(main())
