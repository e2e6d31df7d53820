"""The Spark query of `jobs/consume.py`, which writes records of topics to a sink."""

import json
import logging
import os
from collections.abc import Mapping

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidConfigurationError, SparkLogError, redact
from spark_log.groups.committed_offsets import Commit, commit_offsets
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.partitions.lineage import UNKNOWN_EPOCH
from spark_log.spark.datasource.options.offset_json import offsets_to_dict
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.datasource.read.read_planner import ReadPlanner
from spark_log.spark.datasource.read.read_topic import read_topic
from spark_log.spark.datasource.write.topic_write import write_topic
from spark_log.spark.jobs.checks import check_new_folder, find_or_create
from spark_log.spark.jobs.options.job_arguments import Console, ConsumeArguments, Files, OtherTopic
from spark_log.spark.jobs.options.run_options import Batch
from spark_log.spark.jobs.queries.consume_columns import shaped, show_first
from spark_log.spark.jobs.queries.measurement import Measured
from spark_log.spark.jobs.queries.query_runner import Totals, offsets_around, run_to_end, triggered
from spark_log.spark.jobs.queries.stopwatch import Stopwatch
from spark_log.spark.jobs.session import end_session, jvm_start_ms, start_session
from spark_log.spark.jobs.summary import Summary, print_lines, progress_line, summary_lines

logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, int]
Commits = Mapping[TopicPartition, Commit]
Ranges = Mapping[TopicPartition, OffsetRange]


def run(arguments: ConsumeArguments) -> int:
    """Run the query; return the exit code. Raises errors of spark-log and of Spark."""
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
    """Check arguments without Spark. Return the ranges of a batch that are not empty, and what the group has read after
    it; none for a stream.
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

    Only a warning says that they are not committed, because the records are written.
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
    """Return the options for exactly these ranges, so that the summary reports the records that were read."""
    replaced = ("subscribe", "subscribepattern", "assign")
    kept = {
        name: value
        for name, value in options.items()
        if name.lower() not in replaced and not name.lower().startswith(("starting", "ending"))
    }
    assigned: dict[str, list[int]] = {}
    for topic, partition in sorted(ranges):
        assigned.setdefault(topic, []).append(partition)
    return {
        **kept,
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(offsets_to_dict({tp: found.start for tp, found in ranges.items()})),
        "endingOffsets": json.dumps(offsets_to_dict({tp: found.end for tp, found in ranges.items()})),
    }


_OF_FORMAT_ONLY = {"columns", "failondataloss", "minpartitions", "maxrecordsperpartition"}
"""The options of a batch, in small letters, that `read_topic` does not have."""


def scan_batch(spark: SparkSession, options: Mapping[str, str], ranges: Ranges) -> DataFrame | None:
    """Return the records of these ranges by Spark's own Parquet scan, without Python workers and in any order.

    Return None if `format("spark_log")` is needed: for an option, for several topics, or for files in an object store
    that Spark has no file system for.
    """
    topics = {topic for topic, _ in ranges}
    if len(topics) != 1 or not _OF_FORMAT_ONLY.isdisjoint(map(str.lower, options)):
        return None
    parsed = ReadOptions.parse(options, streaming=False, environ={})
    offsets = {partition: (offset_range.start, offset_range.end) for (_, partition), offset_range in ranges.items()}
    headers, rack = parsed.include_headers, parsed.client_rack
    try:
        return read_topic(
            spark, parsed.cluster, topics.pop(), offsets=offsets, include_headers=headers, client_rack=rack
        )
    except InvalidConfigurationError:
        return None


def _batch(
    spark: SparkSession, arguments: ConsumeArguments, ranges: Ranges, stopwatch: Stopwatch
) -> tuple[Measured, Offsets, Offsets]:
    options = _options(arguments)
    frame = spark.read.format("spark_log").options(**(_pinned(options, ranges) if ranges else options)).load()
    observation = Observation()
    match arguments.sink:
        case Console(limit):
            counted = show_first(frame, arguments, limit)
            if counted.records == limit:
                return counted, {}, {}  # Spark chooses the records that it shows
        case Files() as files:
            with stopwatch.query():
                observation = _write_files(scan_batch(spark, options, ranges), frame, arguments, files)
            counted = Measured.of(observation.get)
        case OtherTopic(topic, address):
            with stopwatch.query():
                write_topic(shaped(frame, arguments, observation), address, topic)
            counted = Measured.of(observation.get)
    before = {tp: offset_range.start for tp, offset_range in ranges.items()}
    return counted, before, {tp: offset_range.end for tp, offset_range in ranges.items()}


def _write_files(scan: DataFrame | None, frame: DataFrame, arguments: ConsumeArguments, files: Files) -> Observation:
    """Write the records of `scan`, or of `frame` if there is no scan or it finds a damaged file: `format("spark_log")`
    reads the file of another replica. Return the counts of the rows.
    """

    def write(records: DataFrame, mode: str) -> Observation:
        observation = Observation()
        shaped(records, arguments, observation).write.format(files.format).mode(mode).save(files.path)
        return observation

    if scan is None:
        return write(frame, files.mode)
    try:
        return write(scan, files.mode)
    except Exception as error:  # of PySpark or Py4J
        if "FAILED_READ_FILE" not in str(error):
            raise
        logger.warning("a file cannot be read: the records are read again, from other replicas if there are any")
        # the failed write has left no rows, but perhaps an empty folder, which was not there before
        return write(frame, "overwrite" if files.mode == "overwrite" else "append")


def _stream(spark: SparkSession, arguments: ConsumeArguments) -> Totals:
    source = spark.readStream.format("spark_log").options(**_options(arguments)).load()
    writer = triggered(_to_sink(shaped(source, arguments, None), arguments), arguments.shared)
    sink = arguments.sink
    written = [(sink.cluster, sink.topic)] if isinstance(sink, OtherTopic) else []
    shared = arguments.shared
    return run_to_end(
        spark, writer.start, lambda batch: print_lines(progress_line(batch, shared.json)), written, shared.reports_to
    )


def _to_sink(frame: DataFrame, arguments: ConsumeArguments) -> DataStreamWriter:
    writer = frame.writeStream.outputMode("append")
    match arguments.sink:
        case Console(limit):
            return writer.format("console").option("numRows", limit).option("truncate", "false")
        case Files(format_, path, _):
            return writer.format(format_).option("path", path)
        case OtherTopic(topic, address):
            return writer.format("spark_log").options(cluster=address, topic=topic)
