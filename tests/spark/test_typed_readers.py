"""Delta's readers of a typed topic while its schema changes: delta-spark, deltalake's dataset and its query engine, and
DuckDB see the same rows, and a Delta stream goes on after a restart.
"""

from importlib.resources import files

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.errors import StreamingQueryException

from spark_log.maintenance import run_tasks
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.tables import publication
from spark_log.tables.publication import delta_tables
from tests.support.schemas import SCHEMA, WIDER, document, typed
from tests.support.topics import append


@pytest.fixture
def orders(cluster, log):
    topic = typed(cluster, inline_max_bytes="0", delta_max_lag_ms="-1")
    append(log, topic, document(1, note="a"), "{bad")
    publication.publish(cluster, topic)
    return topic


def seen(spark, location, fields):
    """The rows of each reader, by offset."""
    names = ", ".join(f"record.{name} AS {name}" for name in fields)
    query = f"SELECT CAST(base_offset + offset_delta AS BIGINT) AS o, value, record_error, {names} FROM"
    by_spark = [row.asDict() for row in spark.sql(f"{query} delta.`{location}`").collect()]
    table = DeltaTable(location)
    by_engine = pa.table(QueryBuilder().register("t", table).execute(f"{query} t")).to_pylist()
    by_dataset = [
        {
            "o": row["base_offset"] + row["offset_delta"], "value": row["value"], "record_error": row["record_error"],
            **{name: row["record"] and row["record"][name] for name in fields},
        }
        for row in table.to_pyarrow_dataset().to_table().to_pylist()
    ]  # fmt: skip
    by_duckdb = duck().sql(f"{query} delta_scan('{location}')").to_arrow_table().to_pylist()
    return [sorted(rows, key=lambda row: row["o"]) for rows in (by_spark, by_engine, by_dataset, by_duckdb)]


def duck():
    """DuckDB with its Delta extension, which the package of the extension has as a file."""
    connection = duckdb.connect()
    extension = files("duckdb_extension_delta") / "extensions" / f"v{duckdb.__version__}" / "delta.duckdb_extension"
    connection.load_extension(str(extension))
    return connection


@pytest.mark.slow
@pytest.mark.delta_jars
def test_delta_readers_see_the_same_rows_before_and_after_each_change(spark, cluster, log, orders):
    [location] = delta_tables(cluster, orders).values()
    for schema, fields in ((SCHEMA, ["item", "n"]), (WIDER, ["item", "note"]), ("n BIGINT", ["item", "n", "note"])):
        topic = alter_configs(cluster, "orders", {"value.schema": schema})
        append(log, topic, document(2, note="b"))
        publication.publish(cluster, topic)
        first, *others = seen(spark, location, fields)
        assert others == [first, first, first]
        assert [row["o"] for row in first] == list(range(len(first)))
    assert [row["note"] for row in first] == [None, None, None, "b", "b"]
    list(run_tasks(cluster, ["columns"]))
    publication.publish(cluster, topic)
    first, *others = seen(spark, location, ["item", "n", "note"])
    assert others == [first, first, first]
    assert [row["note"] for row in first] == ["a", None, "b", "b", "b"]


@pytest.mark.slow
@pytest.mark.delta_jars
def test_a_delta_stream_ends_at_a_new_column_and_goes_on_after_a_restart(spark, cluster, log, orders, tmp_path):
    [location] = delta_tables(cluster, orders).values()

    def start():
        frame = spark.readStream.format("delta").load(location).select("base_offset", "offset_delta", "record.n")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.option("path", str(tmp_path / "out")).start()

    query = start()
    query.processAllAvailable()
    topic = alter_configs(cluster, "orders", {"value.schema": WIDER})
    append(log, topic, document(2, note="b"))
    publication.publish(cluster, topic)
    with pytest.raises(StreamingQueryException, match="DELTA_SCHEMA_CHANGED"):
        query.processAllAvailable()
    query = start()
    query.processAllAvailable()
    query.stop()
    assert sorted(spark.read.parquet(str(tmp_path / "out")).collect()) == [(0, 0, 1), (0, 1, None), (2, 0, 2)]
