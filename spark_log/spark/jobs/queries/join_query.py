"""The Spark query of `jobs/join.py`, which joins a topic with a stream, a table or files."""

from pyspark.sql import DataFrame

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topic
from spark_log.spark.jobs.options.job_arguments import JoinArguments, OtherStream, WithStatic, WithTable
from spark_log.spark.jobs.options.stream_options import Input
from spark_log.spark.jobs.queries.stream_query import run_stream_job
from spark_log.spark.streams.compacted_tables import check_compacted
from spark_log.spark.streams.formats.codecs import Json
from spark_log.spark.streams.joins import Side, join_static, join_streams
from spark_log.spark.streams.live_table import Table

_OF_THE_RECORD = ("_key", "_topic", "_partition", "_offset", "_timestamp")


def run(given: JoinArguments) -> int:
    """Run the query; return the exit code. Raises errors of spark-log and of Spark."""
    cluster = given.stream.shared.cluster
    opened: list[Table] = []  # filled by the first batch: opening the table needs a Spark session

    def build(left: DataFrame, *rights: DataFrame) -> DataFrame:
        joined = left if given.right is None else _with_stream(left, given.left, rights[0], given.right)
        return joined if given.static is None else _with_static(joined, given.static)

    def per_batch(batch: DataFrame) -> DataFrame:
        assert given.table is not None
        if not opened:
            opened.append(_table(batch, cluster, given.table))
        return opened[0].join(batch, given.table.on, how=given.table.how)

    if given.table is not None:
        with Cluster.open(cluster) as checked:
            name = given.table.topic
            check_compacted(checked.store.read(lambda connection: find_topic(connection, name)))
    try:
        return run_stream_job(
            "join",
            given.stream,
            [given.left] if given.right is None else [given.left, given.right.input],
            build,
            () if given.right is None else tuple(given.right.on),
            None if given.table is None else per_batch,
            delta=given.static is not None and given.static.format == "delta",
        )
    finally:
        for table in opened:
            table.close()


def _table(batch: DataFrame, cluster: str, given: WithTable) -> Table:
    return Table(batch.sparkSession, cluster, given.topic, value=Json(given.value_schema))


def _with_stream(left: DataFrame, of: Input, right: DataFrame, given: OtherStream) -> DataFrame:
    """Join two streams. The right side's columns of the record, which the left has too, get the prefix _right."""
    names = {name: f"_right{name}" for name in _OF_THE_RECORD}
    on = {ours: names.get(theirs, theirs) for ours, theirs in given.on.items()}
    time = names.get(given.input.event_time, given.input.event_time)
    return join_streams(
        Side(left, of.event_time, of.watermark),
        Side(right.withColumnsRenamed(names), time, given.input.watermark),
        on,
        within=given.within,
        how=given.how,
    )


def _with_static(frame: DataFrame, given: WithStatic) -> DataFrame:
    reader = frame.sparkSession.read.format(given.format)
    if given.format == "csv":
        reader = reader.options(header=True, inferSchema=given.schema is None)
    if given.schema is not None:
        reader = reader.schema(given.schema)
    static = reader.load(given.path).withColumnsRenamed({theirs: ours for ours, theirs in given.on.items()})
    return join_static(frame, static, list(given.on), how=given.how)
