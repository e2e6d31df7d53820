"""Runs the query of a stream job: checks, decodes, builds, runs it to its end or until SIGTERM, and reports."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from pyspark import SparkConf
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StringType

from spark_log.cluster.cluster import Cluster
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.datasource.read.read_planner import ReadPlanner
from spark_log.spark.jobs.checks import find_or_create
from spark_log.spark.jobs.options.run_options import AvailableNow
from spark_log.spark.jobs.options.stream_options import Input, StreamArguments
from spark_log.spark.jobs.queries.measurement import bytes_of, measured
from spark_log.spark.jobs.queries.query_runner import offsets_around, run_to_end
from spark_log.spark.jobs.queries.stopwatch import Stopwatch
from spark_log.spark.jobs.session import end_session, jvm_start_ms, start_session
from spark_log.spark.jobs.summary import Summary, print_lines, summary_lines
from spark_log.spark.streams.bad_records import dead_letters
from spark_log.spark.streams.formats import codecs
from spark_log.spark.streams.formats.json_text import json_text
from spark_log.spark.streams.outputs import AVAILABLE_NOW, DeltaOutput, Output, Route, TopicOutput, write_stream
from spark_log.spark.streams.windows import check_time

_BYTES = "_bytes_of_key_and_value"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

Build = Callable[..., DataFrame]
"""A function that takes the decoded inputs, in order, and returns the result."""
PerBatch = Callable[[DataFrame], DataFrame]
"""A function that changes the result of each micro-batch, such as a join with a table."""


def run_stream_job(
    job: str,
    arguments: StreamArguments,
    inputs: Sequence[Input],
    build: Build,
    keys: Sequence[str],
    per_batch: PerBatch | None = None,
    *,
    delta: bool = False,
) -> int:
    """Run a stream job. Return its exit code. Raises errors of spark-log and of Spark.

    `keys` are the columns that identify a row of the result. They become the key of its record in an output topic.
    `delta` means that `build` reads Delta tables.
    """
    check(arguments, inputs)
    shared = arguments.shared
    spark = start_session(job, delta=delta or isinstance(arguments.output, DeltaOutput))
    set_shuffle_partitions(spark)
    stopwatch = Stopwatch(spark, jvm_start_ms(spark))
    go_on = arguments.dead_letter_topic is not None
    decoded = [decode(source(spark, one), one, f"{number}", go_on) for number, one in enumerate(inputs)]
    result, letters = build(*(good for good, _ in decoded)), [bad for _, bad in decoded]
    frame, outputs = routed(arguments, result, letters, keys, per_batch)
    start = partial(
        write_stream,
        frame,
        outputs,
        checkpoint=cast(str, shared.checkpoint),
        trigger=AVAILABLE_NOW if isinstance(shared.run, AvailableNow) else str(shared.run),
        output_mode=arguments.output_mode,
        name=job,
    )
    written = [(output.cluster, output.topic) for output in _topics_written(arguments)]
    totals = run_to_end(spark, start, shared, written)
    before, after = offsets_around(totals)
    counted = totals.counted
    stages = stopwatch.stages_of(totals)
    summary = Summary(
        job, counted.records, counted.bytes, stopwatch.seconds, before, after, counted.malformed, totals.late,
        stages=stages,
    )  # fmt: skip
    print_lines(*summary_lines(summary, shared.json))
    end_session(spark)
    return 0


def set_shuffle_partitions(spark: SparkSession) -> None:
    """With a local master, use one shuffle partition for each core, unless the number is set. Spark's default would
    make 200 tasks and state stores for each batch.

    The checkpoint keeps the number for ever. On a cluster it must not depend on the executors that have registered.
    """
    is_local = (spark.sparkContext.master or "").startswith("local")
    if is_local and not SparkConf().contains(_SHUFFLE_PARTITIONS):
        spark.conf.set(_SHUFFLE_PARTITIONS, str(spark.sparkContext.defaultParallelism))


def check(arguments: StreamArguments, inputs: Sequence[Input]) -> None:
    """Check options, clusters and topics, as far as possible without Spark. Raises errors of spark-log."""
    for one in inputs:
        planner = ReadPlanner(ReadOptions.parse(one.options, streaming=True, environ={}))
        try:
            planner.available()
        finally:
            planner.close()
    for output in _topics_written(arguments):
        with Cluster.open(output.cluster) as cluster:
            find_or_create(cluster, output.topic, None)


def _topics_written(arguments: StreamArguments) -> list[TopicOutput]:
    written = [arguments.output] if isinstance(arguments.output, TopicOutput) else []
    if arguments.dead_letter_topic is not None:
        written.append(TopicOutput(arguments.shared.cluster, arguments.dead_letter_topic))
    return written


def source(spark: SparkSession, stream_input: Input) -> DataFrame:
    return spark.readStream.format("spark_log").options(**stream_input.options).load()


def decode(records: DataFrame, stream_input: Input, name: str, go_on: bool) -> tuple[DataFrame, DataFrame]:
    """Return valid records as columns of the schema, and dead letters. `name` is the suffix of their observation.

    A tombstone is neither valid nor a dead letter. Without `go_on` a dead letter ends the query. Raises
    InvalidOptionError if the event time is not a timestamp.
    """
    about = [column for column in records.columns if column not in ("value", "timestampType", "headers")]
    read = codecs.decode(records.withColumn(_BYTES, bytes_of("key", "value")), stream_input.codec)
    error = sf.col(codecs.ERROR)
    read = measured(read, sf.col(_BYTES), error, None, name)
    record = sf.concat_ws("", sf.lit("record "), "topic", sf.lit("-"), "partition", sf.lit("@"), "offset", sf.lit(": "))
    said = sf.concat(record, error, sf.lit(" (give a --dead-letter-topic to continue without it)"))
    fine = error.isNull() if go_on else sf.when(error.isNotNull(), sf.raise_error(said)).isNull()
    columns = [sf.col(column).alias(f"_{column}") for column in about]
    good = read.where(fine).where("value IS NOT NULL").select("value.*", *columns)
    check_time(good, stream_input.event_time)
    return good, dead_letters(read)


def routed(
    arguments: StreamArguments,
    result: DataFrame,
    letters: Sequence[DataFrame],
    keys: Sequence[str],
    per_batch: PerBatch | None = None,
) -> tuple[DataFrame, Output | Route]:
    """Return the frame of the single query that writes results and dead letters, and the output or route of its rows.

    It is a single query so that both belong to the same batch. In its frame, a row has either a result or a letter; the
    other column is null.
    """
    output, topic = arguments.output, arguments.dead_letter_topic

    def finished(rows: DataFrame) -> DataFrame:
        rows = rows if per_batch is None else per_batch(rows)
        return as_records(rows, arguments.key, keys) if isinstance(output, TopicOutput) else rows

    rows, finish = (finished(result), None) if per_batch is None else (result, finished)
    if topic is None:
        return rows, output if finish is None else (lambda batch: [(finish(batch), output)])
    bad = letters[0]
    for more in letters[1:]:
        bad = bad.unionByName(more)
    nothing = {"result": rows.schema, "letter": bad.schema}

    def side(frame: DataFrame, name: str) -> DataFrame:
        columns = {other: sf.lit(None).cast(kind) for other, kind in nothing.items()}
        return frame.select(*({**columns, name: sf.struct("*")}[other].alias(other) for other in columns))

    def parts(batch: DataFrame) -> list[tuple[DataFrame, Output]]:
        results = batch.where("result IS NOT NULL").select("result.*")
        return [
            (results if finish is None else finish(results), output),
            (batch.where("letter IS NOT NULL").select("letter.*"), TopicOutput(arguments.shared.cluster, topic)),
        ]

    return side(rows, "result").unionByName(side(bad, "letter")), parts


def as_records(result: DataFrame, key: str | None, keys: Sequence[str]) -> DataFrame:
    """Return the columns key and value. The value is all columns as JSON.

    The key is the SQL expression `key`, or else the columns `keys`: one as text, several as JSON, none as null.
    """
    chosen: Column
    if key is not None:
        kind = result.select(sf.expr(key).alias("it")).schema["it"].dataType
        chosen = sf.expr(key) if isinstance(kind, StringType | BinaryType) else sf.expr(key).cast(StringType())
    elif len(keys) == 1:
        chosen = sf.col(keys[0]).cast(StringType())
    elif keys:
        chosen = json_text(result, sf.struct(*keys), {"ignoreNullFields": "false"})
    else:
        chosen = sf.lit(None).cast(StringType())
    return result.select(chosen.alias("key"), json_text(result, sf.struct("*")).alias("value"))
