"""How fresh Delta tables are beside many idle topics, and what they cost. `make bench-tables`.

A cluster has --topics topics with a record each, which their Delta tables list. While all are idle, the CPU time of a
coordinator process is measured for --idle-seconds (0: not at all), and the same with its table loop all but switched
off. Then a client sends one record after the other and waits for each, for --gets-seconds to a topic with a Delta table
and as long to one without, in turns of 10 s.
Then --active topics get four records a second each, from one Producer, for --seconds: ten times a second the age of the
oldest record is sampled that the Delta table of each of them lacks. The bars: half of the samples are at most 2 s, 95 %
at most 4 s, all at most 5 s (delta.max.lag.ms); the loop takes at most 1 % of a core while all are idle, and makes an
acknowledgement at most 5 % later.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.kafka_report import OURS, Row
from benchmarks.machine import describe_machine
from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topics
from spark_log.maintenance import run_tasks
from spark_log.maintenance.coordinator.coordinator import coordinator_status
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.table_lag import delta_lags

RATE = 4
SHARES = {"p50": 0.5, "p95": 0.95, "max": 1.0}
BARS_S = {"p50": 2.0, "p95": 4.0, "max": 5.0}
IDLE_BAR_PERCENT = 1.0
GETS_BAR = 1.05
_TURN_S = 10
_SETTLE_S = 30
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--active", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--idle-seconds", type=int, default=60)
    parser.add_argument("--gets-seconds", type=int, default=40, help="0: not at all")
    parser.add_argument("--postgresql", help="URL of an empty database [SQLite]")
    parser.add_argument("--folder", help="where to measure [the system's temporary folder]")
    parser.add_argument("--json", help="write the ages to this file as well")
    arguments = parser.parse_args()
    console = Console()
    ages: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        for address in filter(None, (f"{name}/cluster", arguments.postgresql)):
            log_dir = None if address.startswith(name) else f"{name}/log-dir"
            with Cluster.init(address, log_dir=log_dir) as cluster:
                shares, gets_s, samples_s = _measure(cluster, Path(name), arguments)
            ages[OURS if cluster.store.sqlite else f"{OURS}, PostgreSQL"] = [max(lags_s) for lags_s in samples_s]
            console.print(
                _table(cluster, arguments, [lag_s for lags_s in samples_s for lag_s in lags_s], shares, gets_s)
            )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(age_row(arguments.active, ages))], indent=1))
    console.print(f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}")


def age_row(topics: int, ages_s: dict[str, list[float]]) -> Row:
    """Return samples of the age of the oldest record of all topics that its table lacks as a row."""
    shown = {
        who: ", ".join(f"{name} {part_of(seconds, share):.2f} s" for name, share in SHARES.items())
        for who, seconds in ages_s.items()
    }
    what = f"age of the oldest record of {topics} topics, with {RATE} records/s each, that its Delta table lacks"
    return Row(what, shown, {who: part_of(seconds, 0.5) for who, seconds in ages_s.items()})


def part_of(samples: list[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _measure(
    cluster: Cluster, folder: Path, arguments: argparse.Namespace
) -> tuple[dict[str, float], dict[str, list[float]], list[list[float]]]:
    """Return the shares of a core that a coordinator takes; the seconds of each acknowledgement, with and without a
    table; and samples of the lags of all tables that lack a record, in seconds.
    """
    topics = [f"topic-{number}" for number in range(arguments.topics)]
    for topic in topics:
        create_topic(cluster, topic)
    address = str(cluster.store.address)
    with Producer(cluster=address, linger_ms=100) as producer:
        for topic in topics:
            producer.send(topic, b"first")
    for _ in run_tasks(cluster, ["seal"], now=True):
        pass
    shares: dict[str, float] = {}
    if arguments.idle_seconds:
        with _coordinator(cluster, folder, "--setting", "table.loop.poll.ms=3600000") as process:
            shares["idle, without the table loop"] = _cpu_share(process.pid, arguments.idle_seconds)
    with _coordinator(cluster, folder) as process:
        if arguments.idle_seconds:
            shares["idle"] = _cpu_share(process.pid, arguments.idle_seconds)
        gets_s = _gets(cluster, arguments.gets_seconds)
        active = topics[: arguments.active]
        stop = threading.Event()
        sender = threading.Thread(target=_send, args=(address, active, stop))
        sender.start()
        time.sleep(10)  # the first round of each topic opens its table
        samples_s: list[list[float]] = []
        sampler = threading.Thread(target=_sample, args=(cluster, active, samples_s, stop))
        sampler.start()
        shares["active"] = _cpu_share(process.pid, arguments.seconds)
        stop.set()
        sender.join()
        sampler.join()
    return shares, gets_s, samples_s


def _gets(cluster: Cluster, seconds: int) -> dict[str, list[float]]:
    """Return the seconds of each acknowledgement from a topic with a Delta table, and from one without."""
    taken_s: dict[str, list[float]] = {"with-table": [], "without-table": []}
    create_topic(cluster, "with-table")
    create_topic(cluster, "without-table", configs={"delta.max.lag.ms": "-1"})
    value = os.urandom(100)
    with Producer(cluster=str(cluster.store.address)) as producer:
        for _ in range(0, seconds, _TURN_S):
            for topic, of_topic in taken_s.items():
                until_s = time.perf_counter() + _TURN_S
                while (began_s := time.perf_counter()) < until_s:
                    producer.send(topic, value).get()
                    of_topic.append(time.perf_counter() - began_s)
    return taken_s


@contextmanager
def _coordinator(cluster: Cluster, folder: Path, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A coordinator process that is active, and has run all its tasks once."""
    command = [sys.executable, "-m", "spark_log", "coordinator", "--cluster", str(cluster.store.address), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=(folder / "errors").open("a"))
    try:
        while coordinator_status(cluster).left_ms <= 0:
            time.sleep(0.1)
        time.sleep(_SETTLE_S)
        yield process
    finally:
        process.terminate()
        process.wait()


def _cpu_share(pid: int, seconds: int) -> float:
    before, began_s = _cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (_cpu_s(pid) - before) / (time.monotonic() - began_s)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:13]) / _TICKS_PER_S


def _send(address: str, topics: list[str], stop: threading.Event) -> None:
    """Each topic gets RATE records a second, each in an append of its own, at random times."""
    with Producer(cluster=address) as producer:
        while not stop.wait(random.expovariate(RATE * len(topics))):
            producer.send(random.choice(topics), os.urandom(100))


def _sample(cluster: Cluster, topics: list[str], samples_s: list[list[float]], stop: threading.Event) -> None:
    """Add the lags of those of these topics' tables that lack a record, ten times a second."""
    ids = [topic.topic_id for topic in cluster.store.read(lambda c: find_topics(c, topics)).values()]
    while not stop.wait(0.1):
        lags = cluster.store.read(lambda c: delta_lags(c, ids))
        now_ms = cluster.store.now().wall_ms
        if lags:
            samples_s.append([max(0, now_ms - lag.oldest_ms) / 1000 for lag in lags.values()])


def _table(
    cluster: Cluster,
    arguments: argparse.Namespace,
    lags_s: list[float],
    shares: dict[str, float],
    gets_s: dict[str, list[float]],
) -> Table:
    store = "SQLite" if cluster.store.sqlite else "PostgreSQL"
    table = Table(title=f"{store}: {arguments.topics:,} topics, {arguments.active} active, {RATE} records/s each")
    for column in ("what", "measured", "bar"):
        table.add_column(column)
    for name, share in shares.items():
        bar = f"<= {IDLE_BAR_PERCENT} % more" if name == "idle" else ""
        table.add_row(f"CPU of the coordinator, {name}", f"{100 * share:.1f} %", bar)
    if arguments.gets_seconds:
        ours_s, peer_s = (part_of(seconds, 0.5) for seconds in gets_s.values())
        measured = f"{ours_s * 1000:.2f} ms, without its table {peer_s * 1000:.2f} ms: {ours_s / peer_s:.2f}"
        table.add_row("send().get() to a topic with a table, p50", measured, f"<= {GETS_BAR} times")
    for name, share in SHARES.items():
        lag = f"{part_of(lags_s, share):.2f} s"
        table.add_row(f"age of the oldest record not in the table, {name}", lag, f"<= {BARS_S[name]} s")
    return table


if __name__ == "__main__":
    main()
