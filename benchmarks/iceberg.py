"""How long a commit to a topic's Iceberg table takes as its history grows, beside pyiceberg's `add_files` on a SQL
catalog; and how fast DuckDB reads it, beside the Delta table of the same files. Part of `make bench-tables`.

Each side makes commits of one file. Ours are a minute apart by their own clock, as iceberg.max.lag.ms demands, with
snapshots of 6 hours. Medians of 20 commits are compared. The peer stops after --peer-commits: its commits take longer
and longer. DuckDB aggregates --records records in ten files of one topic, in turns.
"""

import os
import statistics
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.setup import medians, parser, seconds_in_turns
from spark_log import Cluster, create_topic
from spark_log.cluster.log_dir import LogDir
from spark_log.log.log import Records
from spark_log.log.records.schema import SEGMENT_SCHEMA, normalise
from spark_log.maintenance.client_log import ClientLog
from spark_log.tables.iceberg.metadata_files import commit, open_table
from spark_log.tables.iceberg.table import next_metadata
from spark_log.tables.publication import publish
from spark_log.tables.publication_state import PublishedFile

_MEDIAN_OF = 20
_MINUTE_MS = 60_000
_RETENTION_MS = 6 * 60 * _MINUTE_MS


def main() -> None:
    options = parser(__doc__, rounds=20)
    options.add_argument("--commits", type=int, default=2_000)
    options.add_argument("--peer-commits", type=int, default=120)
    options.add_argument("--records", type=int, default=2_000_000)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        ours = _ours(Path(name), arguments.commits)
        peer = _peer(Path(name), arguments.peer_commits)
        iceberg_s, delta_s = _reads(Path(name), arguments.records, arguments.rounds)
    table = Table(title="Iceberg commits of one file, p50")
    for column in ("commit", "spark-log", "pyiceberg", "ratio"):
        table.add_column(column)
    for at in (20, 100, arguments.commits):
        mine_ms = _median_ms(ours, at)
        theirs_ms = _median_ms(peer, at) if at <= len(peer) else None
        shown = ("", "") if theirs_ms is None else (f"{theirs_ms:.1f} ms", f"{mine_ms / theirs_ms:.2f}")
        table.add_row(f"{at:,}", f"{mine_ms:.1f} ms", *shown)
    console = Console()
    console.print(table)
    growth = _median_ms(ours, arguments.commits) / _median_ms(ours, 100)
    console.print(f"spark-log: commit {arguments.commits:,} takes {growth:.2f} times as long as commit 100")
    times = f"iceberg_scan {1000 * iceberg_s:.0f} ms, delta_scan {1000 * delta_s:.0f} ms"
    console.print(f"DuckDB: {times}, {delta_s / iceberg_s:.2f} of its rate")
    console.print(f"{datetime.now(UTC):%Y-%m-%d}, {describe_machine()}")


def _median_ms(seconds: list[float], end: int) -> float:
    return 1000 * statistics.median(seconds[max(0, end - _MEDIAN_OF) : end])


def _ours(folder: Path, commits: int) -> list[float]:
    log_dir = LogDir((folder / "log-dir").as_uri())
    (folder / "log-dir" / "topic").mkdir(parents=True)
    seconds = []
    for number in range(commits):
        file = PublishedFile(f"_segments/0/{number}.parquet", 0, number, number + 1, 1_000, 1, 1, False)
        began_s = time.perf_counter()
        table = open_table(log_dir, "topic", "benchmark")
        metadata = next_metadata(table, [file], [], {}, None, number + 1, number * _MINUTE_MS, _RETENTION_MS)
        assert commit(table, metadata)
        seconds.append(time.perf_counter() - began_s)
    return seconds


def _peer(folder: Path, commits: int) -> list[float]:
    (folder / "warehouse").mkdir()
    catalog = SqlCatalog("peer", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("n")
    rows = pa.table({name: pa.nulls(1, SEGMENT_SCHEMA.field(name).type) for name in ("timestamp", "key", "value")})
    table = catalog.create_table("n.t", schema=rows.schema)
    pq.write_table(rows, folder / "file.parquet")
    seconds = []
    for number in range(commits):
        path = folder / f"{number}.parquet"
        os.link(folder / "file.parquet", path)
        began_s = time.perf_counter()
        table.add_files([str(path)], check_duplicate_files=False)
        seconds.append(time.perf_counter() - began_s)
    return seconds


def _reads(folder: Path, records: int, rounds: int) -> tuple[float, float]:
    """Return the seconds of a query on the Iceberg table and on the Delta table of the same files."""
    configs = {"table.formats": "delta,iceberg", "inline.max.bytes": "0"}
    with Cluster.init(str(folder / "cluster")) as cluster:
        topic = create_topic(cluster, "t", 1, configs=configs)
        assert topic is not None
        log = ClientLog(cluster)
        for number in range(10):
            names = [f"value {number} of {each}".encode() for each in range(records // 10)]
            rows = pa.table({"value": pa.array(names, pa.binary())})
            log.append(topic, [Records(0, normalise(rows, timestamp_ms=_MINUTE_MS))])
        log.close()
        publish(cluster, topic)
        [info] = cluster.log_dirs().values()
        location = LogDir(info.uri).location(topic.folder)
    database = duckdb.connect()
    for name in ("avro", "iceberg", "delta"):
        extensions = files(f"duckdb_extension_{name}") / "extensions" / f"v{duckdb.__version__}"
        database.execute(f"INSTALL '{extensions / f'{name}.duckdb_extension'}'")
        database.execute(f"LOAD {name}")

    def scan(name: str) -> None:
        columns = "count(*), sum(octet_length(value)), max(timestamp), max(offset_delta)"
        [(count, *_)] = database.execute(f"SELECT {columns} FROM {name}('{location}')").fetchall()
        assert count == records // 10 * 10

    scans = ("iceberg_scan", "delta_scan")
    middle = medians(seconds_in_turns({name: partial(scan, name) for name in scans}, rounds, rounds // 4))
    return middle["iceberg_scan"], middle["delta_scan"]


if __name__ == "__main__":
    main()
