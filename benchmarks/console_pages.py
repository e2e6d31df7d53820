"""How fast the console's pages and scrapes are on large clusters: `make bench-console`.

Two clusters on each store: 1,000 topics with a partition each, and 10,000 partitions in 100 topics with 100 groups that
have committed an offset of each partition. Each round asks every page once, when the console's snapshot has expired, so
that the time of a page has its share of reading the cluster.

Bars: p95 of a page < 300 ms with 1,000 topics and < 1 s with 10,000 partitions; a scrape < 1 s; memory <= 300 MB;
producers beside pages and scrapes >= 0.98 of their rate without.
"""

import argparse
import contextlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from urllib.request import urlopen

import httpx2
import sqlalchemy as sa

from benchmarks import setup
from benchmarks.machine import cpu_s, describe_machine, memory_mb, seconds_of
from benchmarks.scale_rows import add_segments, analyze
from benchmarks.setup import fresh_database
from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic

SEGMENTS = 3
GROUPS = 100
BARS_MS = {"1,000 topics": 300.0, "10,000 partitions": 1_000.0}
EXPIRED_S = 2.1
"""The console reads the cluster anew for a request after this time."""

PAGES = (
    "/", "/topics", "/topics?sort=-bytes&page=2", "/topics/topic-0", "/topics/topic-0/configs/retention.ms", "/groups",
    "/groups/group-0", "/groups/group-0/reset?to=earliest", "/transactions", "/brokers", "/maintenance", "/queries",
    "/audit", "/topics/topic-0/throughput",
)  # fmt: skip


def fill(cluster: Cluster, topics: int, partitions: int) -> None:
    """Topics `topic-<n>` with SEGMENTS segments in each partition, and groups with an offset of each."""
    made = [create_topic(cluster, f"topic-{number}", partitions) for number in range(topics)]
    for topic in made:
        assert topic is not None
        add_segments(cluster, topic, SEGMENTS)
    all_partitions = [(topic.topic_id, number) for topic in made if topic for number in range(partitions)]
    each = len(all_partitions) // GROUPS
    offset = {"committed_offset": 500, "leader_epoch": -1, "commit_metadata": b"", "committed_ms": 0, "position": 0}

    def insert(connection: sa.Connection) -> None:
        groups = [{"group_id": f"group-{n}", "generation": 0, "assignor": ""} for n in range(GROUPS)]
        connection.execute(t.consumer_group.insert(), groups)
        rows = [
            {"group_id": f"group-{at // each}", "topic_id": topic_id, "partition": number, **offset}
            for at, (topic_id, number) in enumerate(all_partitions)
        ]
        connection.execute(t.group_offset.insert(), rows)

    cluster.store.transact(insert)
    analyze(cluster)


class ConsoleProcess:
    """`spark-log console` as a process of its own, and a client with a session."""

    def __init__(self, address: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.metrics_port = free.getsockname()[1]
        command = [sys.executable, "-m", "spark_log", "console", "--cluster", address, "--port", "0",
                   "--metrics-port", str(self.metrics_port)]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        found = None
        while found is None:
            found = re.search(r"(http://\S+?)/\?token=\S+", self._process.stdout.readline())
        self.client = httpx2.Client(base_url=found[1], timeout=60)
        threading.Thread(target=self._process.stdout.read, daemon=True).start()
        self.client.get(found[0])

    def get(self, path: str) -> None:
        answer = self.client.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:500])

    def scrape(self) -> None:
        with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=60) as answer:
            assert b"kafka_topic_partition_current_offset" in answer.read()

    def memory_mb(self) -> float:
        return memory_mb(self._process.pid, "VmHWM")

    def cpu_s(self) -> float:
        return cpu_s(self._process.pid)

    def close(self) -> None:
        self.client.close()
        self._process.terminate()
        self._process.wait(30)


@contextlib.contextmanager
def console_of(address: str) -> Iterator[ConsoleProcess]:
    console = ConsoleProcess(address)
    try:
        yield console
    finally:
        console.close()


def measure_pages(console: ConsoleProcess, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each page in each round. The first round, which loads templates, does not count."""
    taken: dict[str, list[float]] = {path: [] for path in PAGES}
    for number in range(rounds + 1):
        for at in range(len(PAGES)):
            path = PAGES[(at + number) % len(PAGES)]  # each page is at times the one that reads the cluster
            if at % 4 == 0:
                time.sleep(EXPIRED_S)
            ms = 1_000 * seconds_of(lambda path=path: console.get(path))  # type: ignore[misc]
            if number:
                taken[path].append(ms)
    return taken


def p95(values: list[float]) -> float:
    return sorted(values)[max(0, -(-95 * len(values) // 100) - 1)]


def producing(address: str, seconds: float) -> float:
    """Records per second of a producer that waits for every acknowledgement of 5,000 records."""
    sent = 0
    with Producer(cluster=address, linger_ms=5) as producer:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for number in range(5_000):
                producer.send("topic-0", b"x" * 100, b"%d" % number)
            producer.flush()
            sent += 5_000
        return sent / (time.perf_counter() - began)


def beside(action: Callable[[], object], every_s: float, during: Callable[[], float]) -> float:
    """The result of `during`, while `action` is repeated."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every_s):
            action()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        return during()
    finally:
        ended.set()
        thread.join()


def measure_producers(console: ConsoleProcess, address: str, rounds: int, seconds: float) -> tuple[float, float]:
    """Median of the ratios of a producer's rate beside a user who opens a page every 2 s and a scrape every 15 s, and
    without; and the CPU time of the console in seconds a second of the former.
    """
    producing(address, 2)
    ratios, before_s = [], console.cpu_s()
    for number in range(rounds):
        turn = iter(range(10**9))

        def use() -> None:
            at = next(turn)  # noqa: B023
            console.get(PAGES[at % len(PAGES)])
            if at % 7 == 0:
                console.scrape()

        alone_first = producing(address, seconds) if number % 2 else 0.0
        together = beside(use, 2.0, lambda: producing(address, seconds))
        ratios.append(together / (alone_first or producing(address, seconds)))
    return statistics.median(ratios), (console.cpu_s() - before_s) / (rounds * seconds)


def run(store: str, address: str, log_dir: str | None, name: str, options: argparse.Namespace) -> None:
    topics, partitions = (1_000, 1) if name == "1,000 topics" else (100, 100)
    with Cluster.init(address, log_dir=log_dir) as cluster:
        fill(cluster, topics, partitions)
    with console_of(address) as console:
        taken = measure_pages(console, options.rounds)
        print(f"\n{store}, {name}: ms of a page, p50 and p95 of {options.rounds}; bar {BARS_MS[name]:.0f}")
        for path, values in taken.items():
            failed = "  MISSED" if p95(values) >= BARS_MS[name] else ""
            print(f"  {path:40} {statistics.median(values):7.0f} {p95(values):7.0f}{failed}")
        print(f"  scrape, first {1_000 * seconds_of(console.scrape):.0f} ms,"
              f" cached {1_000 * seconds_of(console.scrape):.0f} ms; bar 1000")  # fmt: skip
        if options.producers:
            ratio, cpu = measure_producers(console, address, options.producers, 10.0)
            print(f"  producer beside pages and scrapes: {ratio:.3f} of the rate without; bar 0.98."
                  f" The console takes {100 * cpu:.1f} % of a core")  # fmt: skip
        print(f"  memory {console.memory_mb():.0f} MB; bar 300")


def main() -> int:
    parser = setup.parser(__doc__, rounds=20)
    parser.add_argument("--producers", type=int, default=3, metavar="N", help="pairs of producers' runs [%(default)s]")
    options = parser.parse_args()
    print(describe_machine())
    for name in BARS_MS:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            run("SQLite", f"{folder}/cluster", None, name, options)
            if options.postgresql:
                address = fresh_database(options.postgresql, f"console_{name.split(',')[0]}")
                run("PostgreSQL", address, f"{folder}/log-dir", name, options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
