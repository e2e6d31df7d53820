"""`jobs/consume.py` copies topics to the console, files, a Delta table or another topic."""

import re
from dataclasses import dataclass
from typing import Annotated

import typer

from spark_log.errors import SparkLogError
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.jobs.options.arguments import parse_pairs, usage_error
from spark_log.spark.jobs.options.command import Group, Job, OneOf, only_with
from spark_log.spark.jobs.options.job_arguments import Console, ConsumeArguments, Files, Mode, OtherTopic, Sink
from spark_log.spark.jobs.options.run_options import AvailableNow, Batch, RunOptions, Shared
from spark_log.text import parse_time_ms

EXAMPLES = """\
JOBS=$(spark-log path jobs)
spark-submit $JOBS/consume.py --subscribe flights --limit 10
spark-submit $JOBS/consume.py --subscribe flights --parquet out \\
    --value-schema 'carrier STRING, dep_delay DOUBLE'
spark-submit $JOBS/consume.py --subscribe flights \\
    --delta /data/lake/flights \\
    --stream --checkpoint /data/checkpoints/flights \\
    --max-offsets-per-trigger 100000 --trigger '10 seconds'
spark-submit $JOBS/consume.py --subscribe flights --to-topic copy \\
    --starting-timestamp 2013-06-01T00:00:00Z"""


@dataclass(frozen=True)
class _TopicOptions:
    subscribe: Annotated[str | None, typer.Option(metavar="TOPIC[,TOPIC]", help="These topics.")] = None
    subscribe_pattern: Annotated[str | None, typer.Option(metavar="REGEX", help="Topics whose names match.")] = None
    assign: Annotated[str | None, typer.Option(metavar="JSON", help='Partitions, such as {"flights":[0,1]}.')] = None


@dataclass(frozen=True)
class _RangeOptions:
    starting_offsets: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help='earliest, latest, or JSON: {"flights":{"0":5}} [default: earliest]'),
    ] = None
    ending_offsets: Annotated[
        str | None, typer.Option(metavar="WHERE", help="latest or JSON; batch only. [default: latest]")
    ] = None
    starting_timestamp: Annotated[str | None, typer.Option(metavar="TIME", help="ISO 8601 or milliseconds.")] = None
    ending_timestamp: Annotated[
        str | None, typer.Option(metavar="TIME", help="ISO 8601 or milliseconds; batch only.")
    ] = None
    group_id: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="Commit the end offsets as this group's, of a batch when it has ended."),
    ] = None
    max_offsets_per_trigger: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Rate limit of a stream: records of a batch.")
    ] = None
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Continue where records have been deleted (failOnDataLoss).")
    ] = False
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of format('spark_log'); repeatable.")
    ] = None


@dataclass(frozen=True)
class _ColumnOptions:
    value_schema: Annotated[
        str | None,
        typer.Option(metavar="DDL", help="Values are JSON with these columns; the record's own columns get a '_'."),
    ] = None
    headers: Annotated[bool, typer.Option("--headers", help="Add the column headers.")] = False


@dataclass(frozen=True)
class _SinkOptions:
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Rows shown on the console. [default: 20]")] = (
        None
    )
    parquet: Annotated[str | None, typer.Option(metavar="DIR", help="A folder of Parquet files.")] = None
    delta: Annotated[str | None, typer.Option(metavar="DIR", help="A Delta table.")] = None
    to_topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Another topic, which exists.")] = None
    mode: Annotated[
        Mode | None,
        typer.Option(
            metavar="MODE",
            help="Of --parquet or --delta: append, overwrite, errorifexists or ignore. [default: errorifexists in a"
            " batch, append in a stream]",
        ),
    ] = None
    to_cluster: Annotated[
        str | None, typer.Option(metavar="FOLDER-OR-URL", help="Cluster of --to-topic. [default: the same]")
    ] = None
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="With --to-topic: the same partitions, not by key.")
    ] = False


def _build(
    topics: _TopicOptions, ranges: _RangeOptions, columns: _ColumnOptions, out: _SinkOptions, run: RunOptions
) -> ConsumeArguments:
    shared = run.shared(AvailableNow())
    sink = _sink(out, shared)
    if isinstance(sink, OtherTopic) and columns.value_schema is not None:
        raise usage_error("--value-schema", "a copy to a topic keeps the values as they are")
    chosen = {
        "subscribe": topics.subscribe,
        "subscribePattern": topics.subscribe_pattern,
        "assign": topics.assign,
        "startingOffsets": ranges.starting_offsets,
        "endingOffsets": ranges.ending_offsets,
        "startingTimestamp": _time_ms("--starting-timestamp", ranges.starting_timestamp),
        "endingTimestamp": _time_ms("--ending-timestamp", ranges.ending_timestamp),
        "maxOffsetsPerTrigger": ranges.max_offsets_per_trigger,
        "group.id": ranges.group_id,
        "failOnDataLoss": "false" if ranges.allow_data_loss else None,
        "includeHeaders": "true" if columns.headers or isinstance(sink, OtherTopic) else None,
    }
    options = parse_pairs(ranges.option or (), "--option")
    options.update({name: str(value) for name, value in chosen.items() if value is not None})
    streaming = not isinstance(shared.run, Batch)
    if streaming and not any(re.match("(?i)starting", name) for name in options):
        options["startingOffsets"] = "earliest"  # a job copies or stores all records; Spark's default is latest
    if not streaming:
        only_with("--stream", {"max_offsets_per_trigger": ranges.max_offsets_per_trigger})
    try:
        ReadOptions.parse({**options, "cluster": shared.cluster}, streaming=streaming, environ={})
    except SparkLogError as error:
        raise typer.BadParameter(str(error)) from None
    return ConsumeArguments(shared, options, columns.value_schema, sink)


def _time_ms(option: str, text: str | None) -> int | None:
    if text is None or text.isdecimal():
        return None if text is None else int(text)
    try:
        return parse_time_ms(text)
    except ValueError:
        raise usage_error(option, f"expected milliseconds or 2026-01-31T12:00:00Z, got {text!r}") from None


def _sink(options: _SinkOptions, shared: Shared) -> Sink:
    batch = isinstance(shared.run, Batch)
    if options.to_topic is None:
        only_with("--to-topic", {"to_cluster": options.to_cluster, "keep_partitions": options.keep_partitions})
    if not (options.parquet or options.delta):
        only_with("--parquet or --delta", {"mode": options.mode})
    if options.mode not in (None, "append") and not batch:
        raise usage_error("--mode", "a stream appends")
    mode: Mode = options.mode or ("errorifexists" if batch else "append")
    if options.to_topic is not None:
        return OtherTopic(options.to_topic, options.to_cluster or shared.cluster, options.keep_partitions)
    if options.parquet is not None:
        return Files("parquet", options.parquet, mode)
    if options.delta is not None:
        return Files("delta", options.delta, mode)
    return Console(options.limit or 20)


JOB = Job(
    "consume",
    "Read topics into the console, files, a Delta table or another topic.",
    EXAMPLES,
    (
        Group(_TopicOptions, "Input (one of)"),
        Group(_RangeOptions, "From where to where"),
        Group(_ColumnOptions, "Columns of the result"),
        Group(_SinkOptions, "Where to (by default the console)"),
        Group(RunOptions, "Cluster and run"),
    ),
    _build,
    (
        OneOf(("subscribe", "subscribe_pattern", "assign"), required=True),
        OneOf(("limit", "parquet", "delta", "to_topic")),
    ),
)
main = JOB.main("spark_log.spark.jobs.queries.consume_query:run")
