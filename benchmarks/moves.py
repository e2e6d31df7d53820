"""How long appends to a topic wait while it is moved to another store: `make bench-moves`.

A topic with --rows segments (simulated rows) is moved between two databases of one PostgreSQL server, while a producer
sends one record after the other to it. The longest time between two acknowledgements is compared with the bar of the
design: 2 s, and 1 s more for each 50,000 rows.
"""

import argparse
import itertools
import sys
import tempfile
import threading
import time

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine, seconds_of
from benchmarks.scale_rows import CONFIGS, add_published_segments
from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.stores import add_store
from spark_log.cluster.topics import find_topic
from spark_log.replication.controller.topic_moves import move_topic
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.postgres import PostgresServer

_WARM_UP_S = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=(1_000, 50_000, 200_000))
    parser.add_argument("--rounds", type=int, default=3, help="moves to and fro for each size [%(default)s]")
    arguments = parser.parse_args()
    server = PostgresServer()
    server.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            results = _measured(server, folder, arguments.rows, arguments.rounds)
    finally:
        server.stop()
        server.remove()
    table = Table(
        title="Appends to a topic that is moved", caption=f"{describe_machine()}, {time.strftime('%Y-%m-%d')}"
    )
    for column in ("segment rows", "whole move (s)", "longest pause (s)", "usual pause (ms)", "bar (s)"):
        table.add_column(column, justify="right")
    missed = False
    for rows, moves in results.items():
        bar_s = 2.0 + rows / 50_000
        for whole_s, pause_s, usual_s in moves:
            missed |= pause_s > bar_s
            table.add_row(f"{rows:,}", f"{whole_s:.2f}", f"{pause_s:.2f}", f"{usual_s * 1000:.1f}", f"{bar_s:.1f}")
    Console().print(table)
    return int(missed)


def _measured(
    server: PostgresServer, folder: str, sizes: list[int], rounds: int
) -> dict[int, list[tuple[float, float, float]]]:
    """Return the seconds of each move, of the longest pause during it, and of the median pause before it, by size."""
    results: dict[int, list[tuple[float, float, float]]] = {}
    with Cluster.init(server.create_database(), log_dir=f"{folder}/log-dir") as cluster:
        add_store(cluster, "east", server.create_database())
        for rows in sizes:
            name = f"rows-{rows}"
            add_published_segments(cluster, create_topic(cluster, name, configs=CONFIGS), rows)
            for number in range(rounds):
                target = ("east", "home")[number % 2]
                results.setdefault(rows, []).append(_move(cluster, name, target))
            assert cluster.store.read(lambda connection, n=name: find_topic(connection, n))  # type: ignore[misc]
    return results


def _move(cluster: Cluster, name: str, target: str) -> tuple[float, float, float]:
    acknowledged: list[float] = []
    ended = threading.Event()

    def send() -> None:
        with Producer(cluster=cluster.store.address.with_password) as producer:
            while not ended.is_set():
                producer.send(name, b"x" * 100).get(120)
                acknowledged.append(time.perf_counter())

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(_WARM_UP_S)
    before = list(acknowledged)
    whole_s = seconds_of(lambda: move_topic(cluster, name, target))
    time.sleep(_WARM_UP_S)
    ended.set()
    thread.join()
    usual = sorted(b - a for a, b in itertools.pairwise(before))
    during = acknowledged[len(before) - 1 :]
    return whole_s, max(b - a for a, b in itertools.pairwise(during)), usual[len(usual) // 2]


if __name__ == "__main__":
    sys.exit(main())
