"""Small durable inserts beside DuckLake with its catalog in PostgreSQL: a part of `make proof`.

Each insert has a batch of 10 rows (a number, a time and a text of 100 bytes), is one transaction, and is committed
before the next one, by one client. DuckLake keeps small inserts as rows of its catalog ("inlining"), as spark-log keeps
them as blobs; it is measured with inlining, which is its default, and without it, where each insert is a Parquet file.
spark-log appends the rows as records with the text as value and the number as key.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

import duckdb
import pyarrow as pa
import sqlalchemy as sa

from benchmarks.kafka_report import OURS, Row, parser, print_rows
from benchmarks.setup import fresh_database, medians, seconds_in_turns
from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.replication.controller.topic_operations import create_topic

ROWS = 10
_WARM_UP = 20


def measure(folder: Path, arguments: argparse.Namespace) -> Iterator[Row]:
    lake = _duckdb(folder)
    inserts: dict[str, Callable[[], None]] = {
        OURS: _appends(f"{folder}/cluster", folder / "log-dir-1"),
        f"{OURS}, PostgreSQL": _appends(fresh_database(arguments.postgresql, "proof_log"), folder / "log-dir-2"),
        "DuckLake": _inserts(lake, "inlined", fresh_database(arguments.postgresql, "proof_lake_1"), folder, ""),
        "DuckLake, files": _inserts(
            lake,
            "in_files",
            fresh_database(arguments.postgresql, "proof_lake_2"),
            folder,
            ", DATA_INLINING_ROW_LIMIT 0",
        ),
    }
    middles = medians(seconds_in_turns(inserts, arguments.inserts, _WARM_UP))
    shown = {name: f"{ROWS / seconds:,.0f} rows/s; p50 {1000 * seconds:.1f} ms" for name, seconds in middles.items()}
    yield Row(f"durable inserts of {ROWS} rows, one client", shown, middles)


def _appends(address: str, log_dir: Path) -> Callable[[], None]:
    with Cluster.init(address, log_dir=str(log_dir)) as cluster:
        create_topic(cluster, "rows")
    producer = Producer(cluster=address)
    text = b"x" * 100
    keys = pa.array([b"%d" % number for number in range(ROWS)], pa.binary())
    table = pa.table({"key": keys, "value": pa.array([text] * ROWS, pa.binary())})
    return lambda: producer.send_table("rows", table).get()


def _duckdb(folder: Path) -> duckdb.DuckDBPyConnection:
    """Open DuckDB with the extensions of its wheels."""
    connection = duckdb.connect()
    connection.execute(f"SET extension_directory = '{folder}/extensions'")
    for package, name in (("postgres", "postgres_scanner"), ("ducklake", "ducklake")):
        file = files(f"duckdb_extension_{package}") / "extensions" / f"v{duckdb.__version__}"
        connection.execute(f"INSTALL '{file / f'{package}.duckdb_extension'}'")
        connection.execute(f"LOAD {name}")
    return connection


def _inserts(
    connection: duckdb.DuckDBPyConnection, name: str, catalog: str, folder: Path, options: str
) -> Callable[[], None]:
    url = sa.make_url(catalog)
    where = f"dbname={url.database} host={url.host} port={url.port} user={url.username}"
    if url.password:
        where += f" password={url.password}"
    connection.execute(f"ATTACH 'ducklake:postgres:{where}' AS {name} (DATA_PATH '{folder}/{name}'{options})")
    connection.execute(f"CREATE TABLE {name}.events (id BIGINT, made TIMESTAMP, text VARCHAR)")

    def insert() -> None:
        now = datetime.now(UTC).replace(tzinfo=None).isoformat()
        values = ", ".join(f"({number}, '{now}', '{'x' * 100}')" for number in range(ROWS))
        connection.execute(f"INSERT INTO {name}.events VALUES {values}")

    return insert


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--inserts", type=int, default=300)
    arguments = options.parse_args()
    if not arguments.postgresql:
        options.error("--postgresql is needed")
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as name:
        rows = list(measure(Path(name), arguments))
    print_rows("small inserts: spark-log beside DuckLake", rows, arguments.json)


if __name__ == "__main__":
    main()
