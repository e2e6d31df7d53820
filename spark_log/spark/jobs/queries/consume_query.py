"""Runs the Spark query of `jobs/consume.py`, which writes records of topics to a sink."""

import json
import logging
import os
from collections.abc import Mapping
from typing import cast

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StringType, StructType

from spark_log.cluster.cluster import Cluster
from spark_log.errors import SparkLogError, redact
from spark_log.groups.committed_offsets import Commit, commit_offsets
from spark_log.ids import OffsetRange, TopicPartition, numbers_by_topic
from spark_log.log.partitions.lineage import UNKNOWN_EPOCH
from spark_log.spark.datasource.options.offset_json import offsets_to_dict
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.datasource.read.read_planner import ReadPlanner
from spark_log.spark.datasource.write.topic_write import write_topic
from spark_log.spark.jobs.checks import check_new_folder, find_or_create
from spark_log.spark.jobs.options.job_arguments import Console, ConsumeArguments, Files, OtherTopic
from spark_log.spark.jobs.options.run_options import Batch
from spark_log.spark.jobs.queries.measurement import Measured, bytes_of, measured
from spark_log.spark.jobs.queries.query_runner import Totals, offsets_around, run_to_end, triggered
from spark_log.spark.jobs.queries.stopwatch import Stopwatch
from spark_log.spark.jobs.session import end_session, jvm_start_ms, start_session
from spark_log.spark.jobs.summary import Summary, print_lines, summary_lines
from spark_log.spark.streams.outputs import has_delta_table

logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, int]
Commits = Mapping[TopicPartition, Commit]
Ranges = Mapping[TopicPartition, OffsetRange]

MALFORMED = "_malformed"
"""Column that --value-schema adds. It has the text of a value that is not JSON of the schema, else null."""

_BYTES = "_bytes_of_key_and_value"


def run(arguments: ConsumeArguments) -> int:
    """Run the query. Return the exit code. Raises errors of spark-log and of Spark."""
    ranges, commits = check(arguments)
    delta = isinstance(arguments.sink, Files) and arguments.sink.format == "delta"
    spark = start_session("consume", delta=delta)
    stopwatch = Stopwatch(spark, jvm_start_ms(spark))
    if isinstance(arguments.shared.run, Batch):
        counted, before, after = _batch(spark, arguments, ranges, stopwatch)
        commit_batch(arguments, commits, all_read=bool(after) or not ranges)
        stages = stopwatch.stages()
    else:
        totals = _stream(spark, arguments)
        before, after = offsets_around(totals)
        counted, stages = totals.counted, stopwatch.stages_of(totals)
    seconds = stopwatch.seconds
    summary = Summary(
        "consume", counted.records, counted.bytes, seconds, before, after, counted.malformed, stages=stages
    )
    print_lines(*summary_lines(summary, arguments.shared.json))
    end_session(spark)
    return 0


def check(arguments: ConsumeArguments) -> tuple[Ranges, Commits]:
    """Check arguments without Spark. Return the ranges of a batch that are not empty, and the end offsets to commit.
    For a stream, return none.
    """
    match arguments.sink:
        case OtherTopic(topic, address):
            with Cluster.open(address) as cluster:
                find_or_create(cluster, topic, None)
        case Files(_, path, "errorifexists"):
            check_new_folder(path, os.environ)
        case _:
            pass
    streaming = not isinstance(arguments.shared.run, Batch)
    planner = ReadPlanner(ReadOptions.parse(_options(arguments), streaming=streaming, environ={}))
    try:
        if streaming:
            planner.available()
            return {}, {}
        available, ranges = planner.batch_ranges()
        commits = {
            tp: Commit(found.end, "", available.epochs.get(tp, UNKNOWN_EPOCH), available.topics[tp.topic].topic_id)
            for tp, found in ranges.items()
        }
        return {tp: found for tp, found in ranges.items() if found.size}, commits
    finally:
        planner.close()


def commit_batch(arguments: ConsumeArguments, commits: Commits, *, all_read: bool) -> None:
    """Commit the end offsets of a batch to the group of option group.id, if it is set.

    A failed commit is only a warning, because the records are written.
    """
    group_id = ReadOptions.parse(_options(arguments), streaming=False, environ={}).group_id
    if group_id is None:
        return
    refused = "" if all_read else "the console does not show all records"
    if isinstance(arguments.sink, Files) and arguments.sink.mode == "ignore":
        refused = "--mode ignore writes nothing to a folder that exists"
    if not refused:
        try:
            with Cluster.open(arguments.shared.cluster) as cluster:
                gone = commit_offsets(cluster.store, group_id, commits)
            refused = f"deleted since: {', '.join(map(str, gone))}" if gone else ""
        except SparkLogError as error:
            refused = redact(str(error))
    if refused:
        logger.warning("group %r: end offsets are not committed: %s", group_id, refused)


def _options(arguments: ConsumeArguments) -> dict[str, str]:
    return {**arguments.options, "cluster": arguments.shared.cluster}


def _pinned(options: Mapping[str, str], ranges: Ranges) -> dict[str, str]:
    """Return the options to read exactly these ranges, so that the summary reports the records that were read."""
    replaced = ("subscribe", "subscribepattern", "assign")
    kept = {
        name: value
        for name, value in options.items()
        if name.lower() not in replaced and not name.lower().startswith(("starting", "ending"))
    }
    return {
        **kept,
        "assign": json.dumps(numbers_by_topic(ranges)),
        "startingOffsets": json.dumps(offsets_to_dict({tp: found.start for tp, found in ranges.items()})),
        "endingOffsets": json.dumps(offsets_to_dict({tp: found.end for tp, found in ranges.items()})),
    }


def _batch(
    spark: SparkSession, arguments: ConsumeArguments, ranges: Ranges, stopwatch: Stopwatch
) -> tuple[Measured, Offsets, Offsets]:
    options = _options(arguments)
    if ranges:
        options = _pinned(options, ranges)
    frame = spark.read.format("spark_log").options(**options).load()
    if not ranges:
        frame = frame.limit(0)  # records that have arrived since `check` are for the next run
    observation = Observation()
    match arguments.sink:
        case Console(limit):
            counted = show_first(frame, arguments, limit)
            if counted.records == limit:
                return counted, {}, {}  # Spark chooses the records that it shows
        case Files("delta", path, "ignore") if has_delta_table(spark, path):
            counted = Measured()  # Delta would not read the rows, and the observation would never end
        case Files(format_, path, mode):
            with stopwatch.query():
                shaped(frame, arguments, observation).write.format(format_).mode(mode).save(path)
            counted = Measured.of(observation.get)
        case OtherTopic(topic, address):
            with stopwatch.query():
                write_topic(shaped(frame, arguments, observation), address, topic)
            counted = Measured.of(observation.get)
    before = {tp: found.start for tp, found in ranges.items()}
    return counted, before, {tp: found.end for tp, found in ranges.items()}


def _stream(spark: SparkSession, arguments: ConsumeArguments) -> Totals:
    source = spark.readStream.format("spark_log").options(**_options(arguments)).load()
    writer = triggered(_to_sink(shaped(source, arguments, None), arguments), arguments.shared)
    sink = arguments.sink
    written = [(sink.cluster, sink.topic)] if isinstance(sink, OtherTopic) else []
    return run_to_end(spark, writer.start, arguments.shared, written)


def _to_sink(frame: DataFrame, arguments: ConsumeArguments) -> DataStreamWriter:
    writer = frame.writeStream.outputMode("append")
    match arguments.sink:
        case Console(limit):
            return writer.format("console").option("numRows", limit).option("truncate", "false")
        case Files(format_, path, _):
            return writer.format(format_).option("path", path)
        case OtherTopic(topic, address):
            return writer.format("spark_log").options(cluster=address, topic=topic)


def shaped(frame: DataFrame, arguments: ConsumeArguments, observation: Observation | None) -> DataFrame:
    """Return the rows for the sink, and count them with `observation`, which is None for a stream."""
    rows = _rows(frame, arguments)
    malformed = sf.col(MALFORMED) if MALFORMED in rows.columns else None
    return measured(rows, sf.col(_BYTES), malformed, observation).drop(_BYTES)


def show_first(frame: DataFrame, arguments: ConsumeArguments, limit: int) -> Measured:
    """Print the first rows of a batch read, and return their counts.

    Spark reads one partition after the other until it has `limit` rows. With an observation it would read all
    partitions, so a second read of the same few partitions counts the rows.
    """
    rows = _rows(frame, arguments)
    malformed = sf.col(MALFORMED).isNotNull() if MALFORMED in rows.columns else sf.lit(False)
    counted = rows.select(_BYTES, malformed.alias(MALFORMED)).take(limit)
    rows.drop(_BYTES).limit(limit).show(limit, truncate=False)
    return Measured(len(counted), sum(row[_BYTES] for row in counted), sum(row[MALFORMED] for row in counted))


def _rows(frame: DataFrame, arguments: ConsumeArguments) -> DataFrame:
    """Return the rows for the sink, with a column for the bytes of each record.

    A copy to a topic has the columns of a write. With --value-schema, there are the columns of the value, and those of
    the record with a `_`: _key (as text), _topic, _partition, _offset, _timestamp, _headers. Otherwise there are all
    columns of the read; for the console, key and value are text.
    """
    frame = frame.withColumn(_BYTES, bytes_of("key", "value"))
    if isinstance(arguments.sink, OtherTopic):
        kept = ["key", "value", "headers", "timestamp", *(["partition"] if arguments.sink.keep_partitions else [])]
        return frame.select(*kept, _BYTES)
    if arguments.value_schema is not None:
        return _parsed(frame, arguments.value_schema)
    if isinstance(arguments.sink, Console):
        return frame.withColumns({name: sf.col(name).cast(StringType()) for name in ("key", "value")})
    return frame


def _parsed(frame: DataFrame, ddl: str) -> DataFrame:
    schema = cast(StructType, StructType.fromDDL(ddl)).add(MALFORMED, StringType())
    value = sf.from_json(sf.col("value").cast(StringType()), schema, {"columnNameOfCorruptRecord": MALFORMED})
    about = [name for name in frame.columns if name not in ("value", "timestampType", _BYTES)]
    record = frame.withColumns({"key": sf.col("key").cast(StringType()), "value": value})
    return record.select(*(sf.col(name).alias(f"_{name}") for name in about), "value.*", _BYTES)
