"""DuckDB reads two more tables of topic `flights`, over the same files: an Iceberg table of all flights, and a Delta
table of the current state of each key, which is the last flight of each plane. Part of `make demo`.
"""

from collections.abc import Sequence
from importlib.resources import files

import duckdb
import pandas as pd

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topic
from spark_log.tables.publication import publish, tables_of
from spark_log.tables.publication_state import CURRENT, DELTA, ICEBERG

CONFIGS = {"table.formats": "delta,iceberg", "table.current": "delta"}
"""Configs of the topic."""

_CARRIERS = "SELECT record.carrier, count(*) AS flights FROM {rows} GROUP BY ALL ORDER BY flights DESC"
_LAST = "SELECT partition, key, max(base_offset + offset_delta) AS last FROM {rows} WHERE key IS NOT NULL GROUP BY ALL"
_CURRENT = "SELECT partition, key, base_offset + offset_delta FROM {rows}"


def tables(address: str, topic: str) -> dict[str, list[str]]:
    """Return the folders of the topic's tables by format, brought up to date."""
    with Cluster.open(address) as cluster:
        found = cluster.store.read(lambda connection: find_topic(connection, topic))
        publish(cluster, found)
        folders: dict[str, list[str]] = {DELTA: [], ICEBERG: [], CURRENT: []}
        for table in tables_of(cluster, found):
            folders[table.target].append(table.log_dir.location(table.folder))
    return folders


def queries(folders: dict[str, list[str]], expected: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return what there is to say, and the differences from pandas and from the topic's Delta table."""
    database = _duckdb()
    in_iceberg, in_delta, current = (
        _union(scan, folders[target])
        for scan, target in (("iceberg_scan", ICEBERG), ("delta_scan", DELTA), ("delta_scan", CURRENT))
    )
    carriers = dict(database.execute(_CARRIERS.format(rows=in_iceberg)).fetchall())
    differences = []
    if carriers != expected.groupby("carrier").size().to_dict():
        differences.append(f"the flights by carrier of the Iceberg table differ from pandas': {carriers}")
    last, shown = _LAST.format(rows=in_delta), _CURRENT.format(rows=current)
    both = f"(({last}) EXCEPT ({shown})) UNION ALL (({shown}) EXCEPT ({last}))"
    [(wrong,)] = database.execute(f"SELECT count(*) FROM ({both})").fetchall()
    if wrong:
        differences.append(f"the current state differs from the last flight of each plane in {wrong} rows")
    [(planes,)] = database.execute(f"SELECT count(*) FROM {current}").fetchall()
    first = ", ".join(f"{carrier} {count:,}" for carrier, count in list(carriers.items())[:3])
    lines = [
        f"{_CARRIERS.format(rows='iceberg_scan(..)')}: {first}, ...",
        f"SELECT count(*) FROM delta_scan('../_current'): {planes:,} planes, each with its last flight",
    ]
    return lines, differences


def _union(scan: str, folders: Sequence[str]) -> str:
    return "(" + " UNION ALL ".join(f"SELECT * FROM {scan}('{folder}')" for folder in folders) + ")"


def _duckdb() -> duckdb.DuckDBPyConnection:
    """DuckDB with its extensions from PyPI: it would fetch them from the internet."""
    database = duckdb.connect()
    for name in ("avro", "iceberg", "delta"):
        folder = files(f"duckdb_extension_{name}") / "extensions" / f"v{duckdb.__version__}"
        database.execute(f"INSTALL '{folder / f'{name}.duckdb_extension'}'")
        database.execute(f"LOAD {name}")
    return database
