"""Compares a topic's tables, as their readers see them, with the log: the records of its files, and in the table of
the current state a fold over them.
"""

import json
from functools import cache
from importlib.resources import files
from pathlib import Path

import duckdb
import pyarrow as pa
import sqlalchemy as sa
from deltalake import DeltaTable, QueryBuilder

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.topics import Topic
from spark_log.log.records.schema import read_schema
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.tables.publication_state import CURRENT, table_folder
from tests.support.records import ranges_of

Row = tuple[int, int, bytes | None, bytes | None]
"""Partition, offset, key and value."""


def location_of(cluster: Cluster, topic: Topic, log_dir_id: int = 1) -> str:
    """The folder of the table in a log dir."""
    infos = {int(number): info for number, info in cluster.log_dirs().items()}
    return LogDir(infos[log_dir_id].uri).location(table_folder(topic, CURRENT))


def ends_of(cluster: Cluster, topic: Topic, log_dir_id: int = 1) -> dict[int, int]:
    """The offset below which the table shows each partition, as recorded."""
    cursor = t.publication_cursor.c
    query = sa.select(cursor.partition, cursor.seen_offset).where(
        cursor.topic_id == topic.topic_id, cursor.target == CURRENT, cursor.log_dir_id == log_dir_id
    )
    return cluster.store.read(lambda connection: {number: end for number, end in connection.execute(query)})  # noqa: C416


@cache
def duckdb_connection() -> duckdb.DuckDBPyConnection:
    """A connection with the extensions of Delta and Iceberg."""
    connection = duckdb.connect()
    for name in ("avro", "delta", "iceberg"):
        folder = files(f"duckdb_extension_{name}") / "extensions" / f"v{duckdb.__version__}"
        connection.execute(f"INSTALL '{folder / f'{name}.duckdb_extension'}'")
        connection.execute(f"LOAD {name}")
    return connection


def by_duckdb(location: str, scan: str = "delta_scan") -> list[Row]:
    return _rows(duckdb_connection().execute(f"SELECT * FROM {scan}('{location}')").to_arrow_table())


def by_deltalake(location: str, storage_options: dict[str, str] | None = None) -> list[Row]:
    table = DeltaTable(location, storage_options=storage_options)
    query = QueryBuilder().register("t", table).execute("SELECT * FROM t")
    return _rows(pa.RecordBatchReader.from_stream(query).read_all())


def _rows(table: pa.Table) -> list[Row]:
    rows = (
        (row["partition"], row["base_offset"] + row["offset_delta"], row["key"], row["value"])
        for row in table.select(["partition", "base_offset", "offset_delta", "key", "value"]).to_pylist()
    )
    return sorted(rows, key=lambda row: row[:2])


def in_log(cluster: Cluster, topic: Topic, ends: dict[int, int]) -> list[Row]:
    """The current record of each key of each partition among those below `ends`, without deletions."""
    by_sequence = topic.config.table_current_order == "sequence"
    current: dict[tuple[int, bytes], tuple[Row, bool, int | None]] = {}
    for row in _read(cluster, topic):
        partition, offset, key, value = row
        if offset >= ends.get(partition, 0) or key is None:
            continue
        op, sequence = _event(value) if topic.config.value_envelope == "debezium" else ("", None)
        before = current[partition, key][2] if (partition, key) in current else None
        older = before is not None and sequence is not None and sequence < before
        if not by_sequence or (op and not older):
            current[partition, key] = row, value is None or op == "d", sequence
    return sorted((row for row, deletes, _ in current.values() if not deletes), key=lambda row: row[:2])


def _read(cluster: Cluster, topic: Topic) -> list[Row]:
    """All readable records of the log, in order."""
    log = ClientLog(cluster)
    try:
        schema = read_schema(columns=["partition", "offset", "key", "value"])
        rows = (
            (row["partition"], row["offset"], row["key"], row["value"])
            for batch in log.read(ranges_of(log, topic), schema)
            for row in batch.to_pylist()
        )
        return sorted(rows, key=lambda row: row[:2])
    finally:
        log.close()


def _event(value: bytes | None) -> tuple[str, int | None]:
    """The op and the sequence of an event of Debezium."""
    try:
        event = json.loads(value or b"")
        return (event["op"] if event["op"] in ("c", "r", "u", "d") else ""), event["source"]["lsn"]
    except (ValueError, TypeError, KeyError):
        return "", None


def in_files(cluster: Cluster, topic: Topic) -> list[Row]:
    """The records of the log that are in files."""
    query = sa.select(t.segment.c.partition, t.segment.c.base_offset, t.segment.c.end_offset).where(
        t.segment.c.topic_id == topic.topic_id, ~t.segment.c.inline
    )
    files = cluster.store.read(lambda connection: connection.execute(query).all())
    in_file = {(number, offset) for number, base, end in files for offset in range(base, end)}
    return [row for row in _read(cluster, topic) if row[:2] in in_file]


def assert_files(cluster: Cluster, topic: Topic) -> None:
    """The Delta table and the Iceberg table show the records that are in files, if the log starts with a file. There is
    no Iceberg table before the first file.
    """
    [info] = cluster.log_dirs().values()
    location, expected = LogDir(info.uri).location(topic.folder), in_files(cluster, topic)
    for scan in ("delta_scan", "iceberg_scan"):
        if scan == "iceberg_scan" and not expected and not Path(location, "metadata").exists():
            continue
        rows = by_duckdb(location, scan)
        assert rows == expected, f"{scan}: {set(rows) ^ set(expected)}"


def assert_current(cluster: Cluster, topic: Topic) -> list[Row]:
    """All readers see the current records below the recorded offsets. Returns them."""
    expected = in_log(cluster, topic, ends_of(cluster, topic))
    location = location_of(cluster, topic)
    for read in (by_duckdb, by_deltalake):
        rows = read(location)
        assert rows == expected, f"{read.__name__}: {set(rows) ^ set(expected)}"
    return expected
