"""Options, new clusters and databases, records, turns and reports, for all benchmarks."""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine, seconds_of
from spark_log.cluster.cluster import Cluster
from spark_log.log.records.schema import normalise

VALUE_BYTES = 100
_NOON_MS = 1_700_000_000_000


def parser(about: str | None, rounds: int | None = 5) -> argparse.ArgumentParser:
    """Return the options that all benchmarks have; without `rounds` not that of rounds."""
    options = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds is not None:
        options.add_argument("--rounds", type=int, default=rounds, help="turns of each measurement [%(default)s]")
    options.add_argument("--folder", help="where to work [the system's temporary folder]")
    options.add_argument("--postgresql", metavar="URL", help="an empty database, where PostgreSQL is measured too")
    return options


def clusters(arguments: argparse.Namespace) -> Iterator[tuple[str, str, Path]]:
    """Yield store, address and folder of a new SQLite cluster, and of one on PostgreSQL if the arguments have its URL.
    Its folder is removed before the next one begins.
    """
    for store, url in (("SQLite", None), ("PostgreSQL", arguments.postgresql)):
        if store == "SQLite" or url:
            with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as folder:
                address = url or f"{folder}/cluster"
                Cluster.init(address, log_dir=f"{folder}/log-dir" if url else None).close()
                yield store, address, Path(folder)


def fresh_database(url: str, name: str) -> str:
    """Return the URL of a new database on the same server."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name}")
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return sa.make_url(url).set(database=name).render_as_string(hide_password=False)


def noise(count: int, random: np.random.Generator, size: int = VALUE_BYTES) -> pa.Array:
    """Return incompressible values."""
    data = pa.py_buffer(random.bytes(size * count))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), count, [None, data]).cast(pa.binary())


def keys(count: int, random: np.random.Generator, distinct: int = 1_000_000) -> pa.Array:
    return pa.array([b"key-%07d" % number for number in random.integers(0, distinct, count).tolist()], pa.binary())


def records(value: pa.Array, key: pa.Array | None = None, timestamp_ms: int = _NOON_MS) -> pa.Table:
    """Return the values, and keys if there are any, as a table of RECORD_SCHEMA."""
    columns = {"value": value} if key is None else {"key": key, "value": value}
    return normalise(pa.table(columns), timestamp_ms=timestamp_ms)


def write_input(folder: Path, count: int, files: int) -> None:
    """Write records with a key of 11 bytes and an incompressible value to Parquet files."""
    folder.mkdir()
    random = np.random.default_rng(7)
    for number in range(files):
        table = pa.table({"key": keys(count // files, random), "value": noise(count // files, random)})
        pq.write_table(table, folder / f"{number}.parquet", compression="none", use_dictionary=False)


def in_turns(measures: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Return what each measures in each round. They take turns, so that a slow moment of the machine meets all; the
    rounds of the warm-up, which come first, do not count.
    """
    measured: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(warm_up + rounds):
        for name, measure in measures.items():
            value = measure()
            if number >= warm_up:
                measured[name].append(value)
    return measured


def seconds_in_turns(
    actions: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Return the seconds of each action in each round (`in_turns`)."""
    return in_turns({name: partial(seconds_of, action) for name, action in actions.items()}, rounds, warm_up)


def medians(taken: Mapping[str, Iterable[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in taken.items()}


def print_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table, the date and the machine."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    console.print(f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}")


@dataclass(frozen=True)
class StoreRow:
    """A measurement on one store. `bar` is what it should reach, in words, if anything."""

    what: str
    store: str
    measured: str
    bar: str = ""


def report(
    title: str, arguments: argparse.Namespace, measure: Callable[[str, str, Path], Iterable[StoreRow]]
) -> list[StoreRow]:
    """Print and return the rows of `measure(store, address, folder)` for each store (`clusters`)."""
    rows: list[StoreRow] = []
    for cluster in clusters(arguments):
        for row in measure(*cluster):
            print(f"{row.what}, {row.store}: {row.measured}", file=sys.stderr, flush=True)
            rows.append(row)
    columns = ("what", "store", "measured", "bar")
    print_table(title, columns, ((row.what, row.store, row.measured, row.bar) for row in rows))
    return rows
