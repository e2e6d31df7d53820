"""Runs the Spark query of `jobs/produce.py`, which writes the input's rows as records of a topic."""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.errors import InvalidConfigurationError, InvalidOptionError, SparkLogError, redact
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.maintenance.removal.expired_records import Expired, find_expired
from spark_log.spark.datasource.write.topic_write import write_topic
from spark_log.spark.jobs.checks import check_paths, end_offsets, find_or_create
from spark_log.spark.jobs.options.job_arguments import Columns, ProduceArguments
from spark_log.spark.jobs.options.run_options import Batch
from spark_log.spark.jobs.queries.measurement import Measured, bytes_of, measured
from spark_log.spark.jobs.queries.query_runner import Totals, run_to_end, triggered
from spark_log.spark.jobs.queries.stopwatch import Stopwatch
from spark_log.spark.jobs.session import end_session, jvm_start_ms, start_session
from spark_log.spark.jobs.summary import Summary, print_lines, summary_lines
from spark_log.spark.streams.formats.json_text import json_text
from spark_log.spark.streams.formats.typed_records import typed_records

logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, int]


def run(arguments: ProduceArguments) -> int:
    """Run the query. Return the exit code. Raises errors of spark-log and of Spark."""
    shared = arguments.shared
    with Cluster.open(shared.cluster) as cluster:
        check_paths(arguments.paths, os.environ)
        topic = find_or_create(cluster, arguments.topic, arguments.new_topic, "--create-topic")
        starts = end_offsets(cluster, [topic.name])
        spark = start_session(f"produce {topic.name}", delta=arguments.format == "delta")
        stopwatch = Stopwatch(spark, jvm_start_ms(spark))
        records = shape(read(spark, arguments), arguments.columns, topic)
        if isinstance(shared.run, Batch):
            counted = _write_batch(records, arguments, stopwatch)
            stages = stopwatch.stages()
        else:
            totals = _stream(spark, records, arguments)
            counted, stages = totals.counted, stopwatch.stages_of(totals)
        seconds = stopwatch.seconds
        before, after, expired = after_write(cluster, topic, starts)
    summary = Summary("produce", counted.records, counted.bytes, seconds, before, after, expired=expired, stages=stages)
    print_lines(*summary_lines(summary, shared.json))
    end_session(spark)
    return 0


def after_write(cluster: Cluster, topic: Topic, before: Offsets) -> tuple[Offsets, Offsets, Expired | None]:
    """Return the offsets before and after the write, and the written records that are older than retention.ms.

    If they cannot be read, log a warning and return nothing, because the rows are written: the summary is shorter.
    """
    try:
        after = end_offsets(cluster, [topic.name])
        written = {tp.partition: OffsetRange(before.get(tp, 0), end) for tp, end in after.items()}
        return before, after, find_expired(cluster.of(topic).store, topic, written)
    except SparkLogError as error:
        logger.warning("The rows are written, but their offsets cannot be read: %s", redact(str(error)))
        return {}, {}, None


def read(spark: SparkSession, arguments: ProduceArguments) -> DataFrame:
    """Return the input. Its schema is the given one, an inferred one (for csv with the header line) or the format's."""
    streaming = not isinstance(arguments.shared.run, Batch)
    options = dict(arguments.options)
    if arguments.format == "csv":
        options = {"header": "true", "inferSchema": "true", **options}
    schema = arguments.schema
    if streaming and schema is None and arguments.format in ("csv", "json", "parquet", "orc"):
        # a file stream does not infer a schema: use that of the existing files
        schema_now = spark.read.format(arguments.format).options(**options).load(arguments.paths[0]).schema
        return spark.readStream.format(arguments.format).options(**options).schema(schema_now).load(arguments.paths[0])
    if streaming:
        reader = spark.readStream.format(arguments.format).options(**options)
        reader = reader.schema(schema) if schema else reader
        return reader.load(*arguments.paths)
    batch = spark.read.format(arguments.format).options(**options)
    batch = batch.schema(schema) if schema else batch
    return batch.load(list(arguments.paths))


def shape(frame: DataFrame, columns: Columns, topic: Topic | None = None) -> DataFrame:
    """Return the rows that format("spark_log") writes: value, and key, timestamp, partition and headers if given.
    For a topic with typed JSON values, value is encoded by the topic's schema if all columns are its fields.
    """
    others = _others(frame, columns)
    values = None if topic is None or topic.columns is None else topic.columns.value
    if columns.value is None and topic is not None and values is not None and values.format == "json":
        with suppress(InvalidOptionError, InvalidConfigurationError):
            return typed_records(frame, topic, None, others)
    value = _text(frame, "--value", columns.value) if columns.value else json_text(frame, sf.struct("*"))
    return frame.select(value.alias("value"), *(column.alias(name) for name, column in others.items()))


def _others(frame: DataFrame, columns: Columns) -> dict[str, Column]:
    chosen: dict[str, Column] = {}
    if columns.key is not None:
        chosen["key"] = _text(frame, "--key", columns.key)
    if columns.timestamp is not None:
        chosen["timestamp"] = _timestamp(frame, columns.timestamp)
    if columns.partition is not None:
        chosen["partition"] = sf.expr(columns.partition).cast(IntegerType())
    if columns.headers:
        chosen["headers"] = sf.array(
            *(
                sf.struct(sf.lit(name).alias("key"), _text(frame, "--header", text).cast(BinaryType()).alias("value"))
                for name, text in columns.headers
            )
        )
    return chosen


def _type_of(frame: DataFrame, expression: str) -> DataType:
    return frame.select(sf.expr(expression).alias("it")).schema["it"].dataType


def _text(frame: DataFrame, option: str, expression: str) -> Column:
    """Return the expression as string or binary: structs, arrays, maps and variants as JSON, other types as text."""
    column, kind = sf.expr(expression), _type_of(frame, expression)
    if isinstance(kind, StringType | BinaryType):
        return column
    if isinstance(kind, StructType | ArrayType | MapType | VariantType):
        return json_text(frame, column)
    return column.cast(StringType())


def _timestamp(frame: DataFrame, expression: str) -> Column:
    """Return the expression as a timestamp. Raises InvalidOptionError for numbers, which could be in s, ms or µs."""
    kind = _type_of(frame, expression)
    if not isinstance(kind, TimestampType | TimestampNTZType | DateType | StringType):
        raise InvalidOptionError(
            f"--timestamp {expression!r} is {kind.simpleString()}, expected a timestamp or a text of one:"
            f" use timestamp_millis({expression}) or timestamp_seconds({expression})"
        )
    return sf.expr(expression).cast(TimestampType())


def _sizes(records: DataFrame) -> Column:
    return bytes_of(*(name for name in ("key", "value") if name in records.columns))


def _write_batch(records: DataFrame, arguments: ProduceArguments, stopwatch: Stopwatch) -> Measured:
    observation = Observation()
    observed = measured(records, _sizes(records), None, observation)
    with stopwatch.query():
        write_topic(observed, arguments.shared.cluster, arguments.topic)
    return Measured.of(observation.get)


def _stream(spark: SparkSession, records: DataFrame, arguments: ProduceArguments) -> Totals:
    observed = measured(records, _sizes(records), None, None)
    options = {"cluster": arguments.shared.cluster, "topic": arguments.topic}
    writer = observed.writeStream.format("spark_log").options(**options).outputMode("append")
    writer = triggered(writer, arguments.shared)
    written = [(arguments.shared.cluster, arguments.topic)]
    return run_to_end(spark, writer.start, arguments.shared, written)
