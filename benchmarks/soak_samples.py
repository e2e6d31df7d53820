"""Samples of the soak: where they come from, and the verdict on each series."""

import csv
import os
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.metadata import tables
from spark_log.metadata.address import SQLITE_FILE


@dataclass(frozen=True)
class Kind:
    """The limits of growth: a series grows if its last quarter is larger than `ratio` x the second quarter, and by more
    than `slack`.
    """

    unit: str
    ratio: float
    slack: float


MEMORY = Kind("MB", 1.1, 4)
COUNT = Kind("", 1.1, 20)
SIZE = Kind("MB", 1.1, 0.5)
LATENCY = Kind("ms", 1.5, 2)


@dataclass(frozen=True)
class Judged:
    """A series: its medians in the four quarters of the run."""

    name: str
    kind: Kind
    quarters: tuple[float, float, float, float]

    @property
    def grows(self) -> bool:
        _, second, _, last = self.quarters
        return last > self.kind.ratio * second and last - second > self.kind.slack

    def shown(self) -> tuple[str, ...]:
        _, second, _, last = self.quarters
        growth = f"{last / second:.2f} x" if second else "-"
        values = (f"{value:,.1f}" if self.kind.unit else f"{value:,.0f}" for value in self.quarters)
        unit = f", {self.kind.unit}" if self.kind.unit else ""
        return f"{self.name}{unit}", *values, growth, "GROWS" if self.grows else "flat"


class Samples:
    """All values, by series and minute of the run."""

    def __init__(self) -> None:
        self.kinds: dict[str, Kind] = {}
        self.values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, series: str, kind: Kind, minute: int, value: float) -> None:
        self.kinds.setdefault(series, kind)
        self.values[series][minute].append(value)

    def add_latencies(self, series: str, minute: int, values: list[float]) -> None:
        """A minute of a process; a series of a few large numbers a minute has no p99."""
        if series.startswith("JVM"):
            self.add(series, MEMORY, minute, statistics.median(values))
            return
        ordered = sorted(values)
        self.add(f"latency: {series}, p50", LATENCY, minute, statistics.median(ordered))
        if len(ordered) >= 30:
            self.add(f"latency: {series}, p99", LATENCY, minute, ordered[int(len(ordered) * 0.99)])

    def by_minute(self, series: str) -> dict[int, float]:
        return {minute: statistics.median(found) for minute, found in sorted(self.values[series].items())}

    def judge(self) -> Iterator[Judged]:
        """The series that have values in each quarter, by name."""
        end = 1 + max(minute for found in self.values.values() for minute in found)
        for name in sorted(self.values):
            quarters: list[list[float]] = [[], [], [], []]
            for minute, value in self.by_minute(name).items():
                quarters[min(3, 4 * minute // end)].append(value)
            if all(quarters):
                first, second, third, last = map(statistics.median, quarters)
                yield Judged(name, self.kinds[name], (first, second, third, last))

    def save(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("series", "minute", "value"))
            for name in sorted(self.values):
                writer.writerows((name, minute, f"{value:.3f}") for minute, value in self.by_minute(name).items())


def sample_process(samples: Samples, minute: int, role: str, pid: int) -> None:
    """Memory, open files and threads of a process and all its children; a JVM is a series of its own."""
    totals: dict[str, tuple[float, int, int]] = {role: (0.0, 0, 0)}
    for each in _descendants(pid):
        try:
            comm = Path(f"/proc/{each}/comm").read_text().strip()
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
            megabytes = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1000
            files, threads = len(os.listdir(f"/proc/{each}/fd")), len(os.listdir(f"/proc/{each}/task"))
        except (OSError, StopIteration):  # it has ended
            continue
        series = f"{role} (JVM)" if comm == "java" else role
        before = totals.get(series, (0.0, 0, 0))
        totals[series] = before[0] + megabytes, before[1] + files, before[2] + threads
    for series, (megabytes, files, threads) in totals.items():
        samples.add(f"memory: {series}", MEMORY, minute, megabytes)
        samples.add(f"open files: {series}", COUNT, minute, files)
        samples.add(f"threads: {series}", COUNT, minute, threads)


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:  # grows while it is walked
        try:
            for thread in os.listdir(f"/proc/{parent}/task"):
                found += map(int, Path(f"/proc/{parent}/task/{thread}/children").read_text().split())
        except OSError:
            continue
    return found


def sample_folder(samples: Samples, minute: int, folder: Path) -> None:
    """Files and bytes by kind. A kind is the folder that holds them, whichever topic it belongs to."""
    counts: dict[str, int] = dict.fromkeys(("segments", "Delta logs", "Spark checkpoint"), 0)
    sizes: dict[str, int] = dict.fromkeys(counts, 0)
    for where, _, names in os.walk(folder):
        kind = next((kind for part, kind in _KINDS.items() if part in where), None)
        if kind is None:
            continue
        for name in names:
            try:
                sizes[kind] += os.stat(os.path.join(where, name)).st_size
                counts[kind] += 1
            except FileNotFoundError:
                continue
    for kind in counts:
        samples.add(f"files: {kind}", COUNT, minute, counts[kind])
        samples.add(f"bytes: {kind}", SIZE, minute, sizes[kind] / 1e6)


_KINDS = {"/_segments": "segments", "/_delta_log": "Delta logs", "/checkpoint": "Spark checkpoint"}


def sample_store(samples: Samples, minute: int, cluster: Cluster) -> None:
    """Size of the store, and the rows of each table."""
    folder = cluster.store.address.folder
    with cluster.store.snapshot() as connection:
        if folder is None:
            size = connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one()
        else:
            files = (folder / f"{SQLITE_FILE}{suffix}" for suffix in ("", "-wal"))
            size = sum(file.stat().st_size for file in files if file.exists())
        samples.add("store: size", SIZE, minute, size / 1e6)
        for table in tables.metadata.sorted_tables:
            count = connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            if count:
                samples.add(f"rows: {table.name}", COUNT, minute, count)
