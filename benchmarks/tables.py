"""How fresh Delta tables are beside many idle topics, and what they cost. `make bench-tables`.

A cluster has --topics topics with a record each, which their Delta tables list. While all are idle, the CPU time of a
coordinator process is measured for --idle-seconds (0: not at all), and the same with its table loop all but switched
off. Then a client sends one record after the other and waits for each, for --gets-seconds to a topic with a Delta table
and as long to one without, in turns of 5 s.
Then --active topics get four records a second each, from one Producer, for --seconds: ten times a second the age of the
oldest record is sampled that the Delta table of each of them lacks. The same is measured for --tenth-seconds (0: not at
all) with a coordinator that reserves a tenth of delta.max.lag.ms for a publication, as earlier versions did.
The bars: half of the samples are at most 2 s, 95 % at most 4 s, all at most 5 s (delta.max.lag.ms); the median is at
most 0.85 of that with a reserve of a tenth; the loop takes at most 1 % of a core while all are idle, and makes an
acknowledgement at most 5 % later.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.kafka_report import ON_POSTGRESQL, OURS, Bar, Row, parser, part_of, write_rows
from benchmarks.machine import cpu_s, describe_machine
from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topics
from spark_log.maintenance import run_tasks
from spark_log.maintenance.coordinator.coordinator import coordinator_status
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.lag_measurement import delta_lags

RATE = 4
SHARES = {"p50": 0.5, "p95": 0.95, "max": 1.0}
BARS_S = {"p50": 2.0, "p95": 4.0, "max": 5.0}
TENTH_BAR = 0.85
IDLE_BAR_PERCENT = 1.0
GETS_BAR = 1.05
_TURN_S = 5
_SETTLE_S = 20
"""A coordinator that has become active runs all its tasks once."""
_FIRST_ROUNDS_S = 10
"""The first round of each topic in a process opens its table."""


@dataclass
class Measured:
    """The results of one store, in seconds. `cpu_shares` are those of a core that a coordinator takes. `lags_s` has for
    each sample the ages of the oldest records that the tables lack; `tenth_lags_s` is the same with a reserve of a
    tenth.
    """

    cpu_shares: dict[str, float] = field(default_factory=dict)
    with_table_s: list[float] = field(default_factory=list)
    without_table_s: list[float] = field(default_factory=list)
    lags_s: list[list[float]] = field(default_factory=list)
    tenth_lags_s: list[list[float]] = field(default_factory=list)


def main() -> None:
    options = parser(__doc__, rounds=None)
    options.add_argument("--topics", type=int, default=1_000)
    options.add_argument("--active", type=int, default=20)
    options.add_argument("--seconds", type=int, default=120)
    options.add_argument("--tenth-seconds", type=int, default=60, help="0: not at all")
    options.add_argument("--idle-seconds", type=int, default=60, help="0: not at all")
    options.add_argument("--gets-seconds", type=int, default=40, help="0: not at all")
    arguments = options.parse_args()
    console = Console()
    measured: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        for who, address in ((OURS, f"{name}/cluster"), (ON_POSTGRESQL, arguments.postgresql)):
            if address:
                log_dir = f"{name}/log-dir" if who == ON_POSTGRESQL else None
                with Cluster.init(address, log_dir=log_dir) as cluster:
                    measured[who] = _measure(cluster, Path(name), arguments)
                console.print(_table(who, arguments, measured[who]))
    write_rows(list(_rows(arguments, measured)), arguments.json)
    console.print(f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}")


def _rows(arguments: argparse.Namespace, measured: Mapping[str, Measured]) -> Iterator[Row]:
    """Yield the rows of the proof page."""
    records = f"{RATE} records/s each"
    of_tables = {who: [lag_s for lags_s in each.lags_s for lag_s in lags_s] for who, each in measured.items()}
    what = f"age of the oldest record that its Delta table lacks, each of {arguments.active} topics, with {records}"
    bars = [Bar(who, *bar) for who, lags_s in of_tables.items() for bar in _age_bars(lags_s)]
    yield age_row(what, of_tables, bars)
    yield oldest_row(arguments.active, {who: list(map(max, each.lags_s)) for who, each in measured.items()})
    if arguments.gets_seconds:
        p50_s: dict[str, float] = {}
        for who, each in measured.items():
            p50_s |= {who: statistics.median(each.with_table_s), without(who): statistics.median(each.without_table_s)}
        shown = {who: f"p50 {1000 * seconds:.2f} ms" for who, seconds in p50_s.items()}
        row = Row("send().get() to a topic with a Delta table, beside a coordinator", shown, p50_s)
        for who in measured:
            row = row.with_limit(who, GETS_BAR, without(who))
        yield row


def without(who: str) -> str:
    return f"{who}, without a table"


def oldest_row(topics: int, ages_s: Mapping[str, Sequence[float]]) -> Row:
    """Return samples of the age of the oldest record of all topics that its table lacks as a row."""
    what = f"age of the oldest record of all {topics} topics, with {RATE} records/s each, that its Delta table lacks"
    return age_row(what, ages_s)


def age_row(what: str, ages_s: Mapping[str, Sequence[float]], bars: Sequence[Bar] = ()) -> Row:
    shown = {who: _shown(seconds) for who, seconds in ages_s.items()}
    return Row(what, shown, {who: part_of(seconds, SHARES["p50"]) for who, seconds in ages_s.items()}, list(bars))


def _shown(ages_s: Sequence[float]) -> str:
    return ", ".join(f"{name} {part_of(ages_s, share):.2f} s" for name, share in SHARES.items())


def _age_bars(ages_s: Sequence[float]) -> list[tuple[str, bool]]:
    return [(f"{name} <= {BARS_S[name]:g} s", part_of(ages_s, share) <= BARS_S[name]) for name, share in SHARES.items()]


def _measure(cluster: Cluster, folder: Path, arguments: argparse.Namespace) -> Measured:
    measured = Measured()
    topics = [f"topic-{number}" for number in range(arguments.topics)]
    for topic in topics:
        create_topic(cluster, topic)
    with Producer(cluster=str(cluster.store.address), linger_ms=100) as producer:
        for topic in topics:
            producer.send(topic, b"first")
    for _ in run_tasks(cluster, ["seal"], now=True):
        pass
    if arguments.idle_seconds:
        with _coordinator(cluster, folder, "--setting", "table.loop.poll.ms=3600000") as process:
            measured.cpu_shares["idle, without the table loop"] = _cpu_share(process.pid, arguments.idle_seconds)
    active = topics[: arguments.active]
    with _coordinator(cluster, folder) as process:
        if arguments.idle_seconds:
            measured.cpu_shares["idle"] = _cpu_share(process.pid, arguments.idle_seconds)
        _measure_gets(cluster, arguments.gets_seconds, measured)
        measured.lags_s, measured.cpu_shares["active"] = _lags(cluster, active, process.pid, arguments.seconds)
    if arguments.tenth_seconds:
        with _coordinator(cluster, folder, module="benchmarks.tenth_reserve") as process:
            measured.tenth_lags_s, _ = _lags(cluster, active, process.pid, arguments.tenth_seconds)
    return measured


def _measure_gets(cluster: Cluster, seconds: int, measured: Measured) -> None:
    """Measure each acknowledgement from a topic with a Delta table, and from one without."""
    create_topic(cluster, "with-table")
    create_topic(cluster, "without-table", configs={"delta.max.lag.ms": "-1"})
    value = os.urandom(100)
    with Producer(cluster=str(cluster.store.address)) as producer:
        for _ in range(0, seconds, _TURN_S):
            for topic, taken_s in (("with-table", measured.with_table_s), ("without-table", measured.without_table_s)):
                until_s = time.perf_counter() + _TURN_S
                while (began_s := time.perf_counter()) < until_s:
                    producer.send(topic, value).get()
                    taken_s.append(time.perf_counter() - began_s)


def _lags(cluster: Cluster, topics: list[str], coordinator_pid: int, seconds: int) -> tuple[list[list[float]], float]:
    """Send to the topics. Return samples of the lags of the tables that lack a record, in seconds, and the share of a
    core that the coordinator takes.
    """
    stop = threading.Event()
    samples_s: list[list[float]] = []
    sender = threading.Thread(target=_send, args=(str(cluster.store.address), topics, stop))
    sampler = threading.Thread(target=_sample, args=(cluster, topics, samples_s, stop))
    sender.start()
    try:
        time.sleep(_FIRST_ROUNDS_S)
        sampler.start()
        share = _cpu_share(coordinator_pid, seconds)
    finally:
        stop.set()
    sender.join()
    sampler.join()
    return samples_s, share


@contextmanager
def _coordinator(
    cluster: Cluster, folder: Path, *options: str, module: str = "spark_log"
) -> Iterator["subprocess.Popen[bytes]"]:
    """A coordinator process that is active, and has run all its tasks once."""
    command = [sys.executable, "-m", module, "coordinator", "--cluster", str(cluster.store.address), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=(folder / "errors").open("a"))
    try:
        while coordinator_status(cluster).left_ms <= 0:
            assert process.poll() is None, f"the coordinator has ended: see {folder / 'errors'}"
            time.sleep(0.1)
        time.sleep(_SETTLE_S)
        yield process
    finally:
        process.terminate()
        process.wait()


def _cpu_share(pid: int, seconds: int) -> float:
    before, began_s = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - began_s)


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


def _table(who: str, arguments: argparse.Namespace, measured: Measured) -> Table:
    table = Table(title=f"{who}: {arguments.topics:,} topics, {arguments.active} active, {RATE} records/s each")
    for column in ("what", "measured", "bar"):
        table.add_column(column)
    for name, share in measured.cpu_shares.items():
        bar = f"<= {IDLE_BAR_PERCENT} % more" if name == "idle" else ""
        table.add_row(f"CPU of the coordinator, {name}", f"{100 * share:.1f} %", bar)
    if measured.with_table_s:
        ours_s, peer_s = (statistics.median(each) for each in (measured.with_table_s, measured.without_table_s))
        shown = f"{ours_s * 1000:.2f} ms, without its table {peer_s * 1000:.2f} ms: {ours_s / peer_s:.2f}"
        table.add_row("send().get() to a topic with a table, p50", shown, f"<= {GETS_BAR} times")
    lags_s, tenth_s = ([lag for lags in each for lag in lags] for each in (measured.lags_s, measured.tenth_lags_s))
    bars = ", ".join(f"{name} <= {bar_s:g} s" for name, bar_s in BARS_S.items())
    table.add_row("age of the oldest record not in its table", _shown(lags_s), bars)
    table.add_row("the same of the oldest of all tables", _shown(list(map(max, measured.lags_s))))
    if tenth_s:
        ratio = part_of(lags_s, SHARES["p50"]) / part_of(tenth_s, SHARES["p50"])
        table.add_row("with a reserve of a tenth", f"{_shown(tenth_s)}: p50 {ratio:.2f} of it", f"<= {TENTH_BAR}")
    return table


if __name__ == "__main__":
    main()
