"""Runs the Spark query of `jobs/join.py`, which joins a topic with a stream, a table or files."""

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


def run(arguments: JoinArguments) -> int:
    """Run the query. Return the exit code. Raises errors of spark-log and of Spark."""
    cluster = arguments.stream.shared.cluster
    opened: list[Table] = []  # the first batch opens the table, because that needs a Spark session

    def build(left: DataFrame, *rights: DataFrame) -> DataFrame:
        joined = left if arguments.right is None else _with_stream(left, arguments.left, rights[0], arguments.right)
        return joined if arguments.static is None else _with_static(joined, arguments.static)

    def per_batch(batch: DataFrame) -> DataFrame:
        assert arguments.table is not None
        if not opened:
            opened.append(_table(batch, cluster, arguments.table))
        return opened[0].join(batch, arguments.table.on, how=arguments.table.how)

    if arguments.table is not None:
        with Cluster.open(cluster) as checked:
            name = arguments.table.topic
            check_compacted(checked.store.read(lambda connection: find_topic(connection, name)))
    try:
        return run_stream_job(
            "join",
            arguments.stream,
            [arguments.left] if arguments.right is None else [arguments.left, arguments.right.input],
            build,
            () if arguments.right is None else tuple(arguments.right.on),
            None if arguments.table is None else per_batch,
            delta=arguments.static is not None and arguments.static.format == "delta",
        )
    finally:
        for table in opened:
            table.close()


def _table(batch: DataFrame, cluster: str, given: WithTable) -> Table:
    return Table(batch.sparkSession, cluster, given.topic, value=Json(given.value_schema))


def _with_stream(left: DataFrame, of: Input, right: DataFrame, other_stream: OtherStream) -> DataFrame:
    """Join two streams. Columns such as `_key` are in both: those of the right stream get the prefix `_right`."""
    names = {name: f"_right{name}" for name in _OF_THE_RECORD}
    on = {ours: names.get(theirs, theirs) for ours, theirs in other_stream.on.items()}
    time = names.get(other_stream.input.event_time, other_stream.input.event_time)
    return join_streams(
        Side(left, of.event_time, of.watermark),
        Side(right.withColumnsRenamed(names), time, other_stream.input.watermark),
        on,
        within=other_stream.within,
        how=other_stream.how,
    )


def _with_static(frame: DataFrame, static_join: WithStatic) -> DataFrame:
    reader = frame.sparkSession.read.format(static_join.format)
    if static_join.format == "csv":
        reader = reader.options(header=True, inferSchema=static_join.schema is None)
    if static_join.schema is not None:
        reader = reader.schema(static_join.schema)
    static = reader.load(static_join.path).withColumnsRenamed({theirs: ours for ours, theirs in static_join.on.items()})
    return join_static(frame, static, list(static_join.on), how=static_join.how)
