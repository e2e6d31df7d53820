"""Streaming queries, settings of the session, sources under other names, and what writes leave behind."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_log.cluster.cluster import Cluster
from spark_log.metadata import tables
from spark_log.spark.datasource.source import SparkLogDataSource


@contextmanager
def running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    """Stop the query at the end of the block."""
    try:
        yield query
    finally:
        query.stop()


@contextmanager
def configured(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """A setting of the session, which has its former value after the block."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


def in_parquet(frame: DataFrame, folder: Path) -> DataFrame:
    """Run a stream up to the present, from where the last run ended. Return all that its runs have written."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    with running(writer.option("path", str(folder / "out")).trigger(availableNow=True).start()) as query:
        assert query.awaitTermination(120)
    return frame.sparkSession.read.schema(frame.schema).parquet(str(folder / "out"))


def register_as(spark: SparkSession, name: str) -> str:
    """Register the source under another name, with the environment that Python processes get now. Return the name."""
    spark.dataSource.register(type("RenamedSource", (SparkLogDataSource,), {"name": classmethod(lambda _: name)}))
    return name


def left_behind(cluster: Cluster, folder: Path) -> tuple[int, int]:
    """Files that no segment names, and write ids of Spark's writes that were not released."""
    rows = cluster.store.read(lambda c: c.execute(tables.segment.select()).mappings().all())
    named = {row["name"] for row in rows}
    found = [path for path in folder.rglob("*") if "_segments" in path.parts and path.is_file()]
    query = tables.write_id.select().where(tables.write_id.c.holder.startswith("spark"))
    write_ids = cluster.store.read(lambda c: c.execute(query).all())
    return len([path for path in found if path.name not in named]), len(write_ids)
