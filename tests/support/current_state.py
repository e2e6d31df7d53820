"""Compares a topic's current-state table, as its readers see it, with a fold over the records of the log."""

from functools import cache
from importlib.resources import files

import duckdb
import pyarrow as pa
import sqlalchemy as sa
from deltalake import DeltaTable, QueryBuilder

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.topics import Topic
from spark_log.ids import OffsetRange
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.tables.publication_state import CURRENT, table_folder

Row = tuple[int, int, bytes, bytes]
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
def _duckdb() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    extension = files("duckdb_extension_delta") / "extensions" / f"v{duckdb.__version__}" / "delta.duckdb_extension"
    connection.execute(f"INSTALL '{extension}'")
    connection.execute("LOAD delta")
    return connection


def by_duckdb(location: str) -> list[Row]:
    return _rows(_duckdb().execute(f"SELECT * FROM delta_scan('{location}')").to_arrow_table())


def by_deltalake(location: str) -> list[Row]:
    query = QueryBuilder().register("t", DeltaTable(location)).execute("SELECT * FROM t")
    return _rows(pa.RecordBatchReader.from_stream(query).read_all())


def _rows(table: pa.Table) -> list[Row]:
    return sorted(
        (row["partition"], row["base_offset"] + row["offset_delta"], row["key"], row["value"])
        for row in table.select(["partition", "base_offset", "offset_delta", "key", "value"]).to_pylist()
    )


def in_log(cluster: Cluster, topic: Topic, ends: dict[int, int]) -> list[Row]:
    """The last record of each key of each partition among those below `ends`, without deletions."""
    log = ClientLog(cluster)
    try:
        last: dict[tuple[int, bytes], Row] = {}
        for partition, limits in log.positions(topic).items():
            for batch in log.read({partition: OffsetRange(*limits)}):
                for row in batch.to_pylist():
                    if row["offset"] < ends.get(row["partition"], 0) and row["key"] is not None:
                        values = (row["partition"], row["offset"], row["key"], row["value"])
                        last[row["partition"], row["key"]] = values
        return sorted(row for row in last.values() if row[3] is not None)
    finally:
        log.close()


def assert_current(cluster: Cluster, topic: Topic) -> list[Row]:
    """All readers see the current records below the recorded offsets. Returns them."""
    expected = in_log(cluster, topic, ends_of(cluster, topic))
    location = location_of(cluster, topic)
    for read in (by_duckdb, by_deltalake):
        rows = read(location)
        assert rows == expected, f"{read.__name__}: {set(rows) ^ set(expected)}"
    return expected
