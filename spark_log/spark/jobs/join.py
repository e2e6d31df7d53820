"""`jobs/join.py` joins a topic with another one, with a table, or with files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from spark_log.cluster.names import validate_user_topic
from spark_log.errors import SparkLogError
from spark_log.spark.jobs.options.arguments import parse_pairs, usage_error
from spark_log.spark.jobs.options.command import Group, Job, only_with, option_name
from spark_log.spark.jobs.options.job_arguments import JoinArguments, Kind, OneSided, OtherStream, WithStatic, WithTable
from spark_log.spark.jobs.options.stream_options import (
    ONE_OUTPUT,
    OUTPUT,
    RUN,
    InputOptions,
    OutputOptions,
    StreamRunOptions,
    check_interval,
)

if TYPE_CHECKING:
    from spark_log.spark.streams.joins import Bounds

EXAMPLES = """\
JOBS=$(spark-log path jobs)
spark-submit $JOBS/join.py \\
    --left-subscribe flights --left-event-time time_hour \\
    --left-value-schema 'origin STRING, tailnum STRING, time_hour TIMESTAMP' \\
    --left-watermark '2 hours' \\
    --right-subscribe weather --right-event-time time_hour \\
    --right-value-schema 'origin STRING, time_hour TIMESTAMP, wind DOUBLE' \\
    --right-watermark '2 hours' --on origin --on time_hour \\
    --table planes --table-value-schema 'seats INT' --table-on tailnum \\
    --to-topic enriched --checkpoint /data/checkpoints/enriched
spark-submit $JOBS/join.py … --right-subscribe payments … \\
    --on id=order_id --before '0 seconds' --after '1 hour'
spark-submit $JOBS/join.py … --static /data/airports \\
    --static-format parquet --static-on origin=faa
spark-submit $JOBS/join.py --config join.toml --trigger available-now"""


@dataclass(frozen=True)
class _StreamJoinOptions:
    on: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Equal on both sides, or LEFT=RIGHT names; repeatable.")
    ] = None
    before: Annotated[
        str | None,
        typer.Option(metavar="INTERVAL", help="The right event time is at most this long before the left one."),
    ] = None
    after: Annotated[
        str | None, typer.Option(metavar="INTERVAL", help="The right event time is at most this long after the left.")
    ] = None
    how: Annotated[Kind | None, typer.Option(metavar="KIND", help="inner, left, right or full. [default: inner]")] = (
        None
    )


@dataclass(frozen=True)
class _TableOptions:
    table: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Its rows come as one column, a struct of this name.")
    ] = None
    table_value_schema: Annotated[str | None, typer.Option(metavar="DDL", help="Of the values, JSON.")] = None
    table_on: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The left column that is the key of the table.")
    ] = None
    table_how: Annotated[OneSided | None, typer.Option(metavar="KIND", help="inner or left. [default: left]")] = None


@dataclass(frozen=True)
class _StaticOptions:
    static: Annotated[str | None, typer.Option(metavar="PATH", help="Files or a Delta table.")] = None
    static_format: Annotated[
        Literal["parquet", "csv", "json", "delta"] | None,
        typer.Option(metavar="FORMAT", help="parquet, csv, json or delta. [default: parquet]"),
    ] = None
    static_schema: Annotated[
        str | None, typer.Option(metavar="DDL", help="[default: the schema that Spark infers]")
    ] = None
    static_on: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="As --on; repeatable.")] = None
    static_how: Annotated[OneSided | None, typer.Option(metavar="KIND", help="inner or left. [default: left]")] = None


def _build(
    left: InputOptions,
    right: InputOptions,
    joined: _StreamJoinOptions,
    table: _TableOptions,
    static: _StaticOptions,
    out: OutputOptions,
    run: StreamRunOptions,
) -> JoinArguments:
    letters = out.dead_letter_topic is not None
    with_stream = _stream_join(left, right, joined, run, letters)
    with_static, with_table = _static_join(static), _table_join(table)
    if with_stream is None and with_static is None and with_table is None:
        raise usage_error("--right-subscribe, --table or --static", "at least one is needed")
    stream = out.stream(run, "append", () if with_stream is None else tuple(with_stream.on))
    if stream.output_mode != "append":
        raise usage_error(f"--output-mode {stream.output_mode}", "joins support mode append only")
    return JoinArguments(stream, left.input(run, letters, "left-"), with_stream, with_static, with_table)


def _stream_join(
    left: InputOptions, right: InputOptions, join_options: _StreamJoinOptions, run: StreamRunOptions, letters: bool
) -> OtherStream | None:
    if right.subscribe is None:
        of_the_input = {"right_value_schema": right.value_schema, "right_watermark": right.watermark}
        only_with("--right-subscribe", {**of_the_input, **vars(join_options)})
        return None
    source = right.input(run, letters, "right-")
    on = _columns("--on", join_options.on)
    for option, interval in (("--before", join_options.before), ("--after", join_options.after)):
        if interval is not None:
            check_interval(option, interval)
    if join_options.before is None and join_options.after is None and on.get(left.event_time) != right.event_time:
        raise usage_error(
            "--before, --after", "one is needed unless the event times are among --on: state would grow forever"
        )
    for option, watermark in (("--left-watermark", left.watermark), ("--right-watermark", right.watermark)):
        if watermark is None:
            raise usage_error(option, "needed to join streams: without it state grows forever")
    return OtherStream(source, on, _bounds(join_options), join_options.how or "inner")


def _bounds(join_options: _StreamJoinOptions) -> "Bounds | None":
    from spark_log.spark.streams.joins import Bounds

    if join_options.before is None and join_options.after is None:
        return None
    return Bounds(join_options.before or "0 seconds", join_options.after or "0 seconds")


def _table_join(table_options: _TableOptions) -> WithTable | None:
    if table_options.table is None:
        only_with("--table", vars(table_options))
        return None
    try:
        validate_user_topic(table_options.table, "read as a table", "--table")
    except SparkLogError as error:
        raise typer.BadParameter(str(error)) from None
    schema, on = table_options.table_value_schema, table_options.table_on
    if schema is None or on is None:
        raise usage_error(option_name("table_value_schema" if schema is None else "table_on"), "needed with --table")
    return WithTable(table_options.table, schema, on, table_options.table_how or "left")


def _static_join(static_options: _StaticOptions) -> WithStatic | None:
    if static_options.static is None:
        only_with("--static", vars(static_options))
        return None
    on = _columns("--static-on", static_options.static_on)
    format_, how = static_options.static_format or "parquet", static_options.static_how or "left"
    return WithStatic(static_options.static, format_, static_options.static_schema, on, how)


def _columns(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Return left column -> right column. Raises a usage error without columns."""
    if not texts:
        raise usage_error(option, "needed: the columns that must be equal")
    return parse_pairs([text if "=" in text else f"{text}={text}" for text in texts], option)


JOB = Job(
    "join",
    "Join a topic with another one, with a table (a compacted topic), or with files.",
    EXAMPLES,
    (
        Group(InputOptions, "Left side", "left-", required=("subscribe", "value_schema")),
        Group(InputOptions, "Right side: another stream", "right-"),
        Group(_StreamJoinOptions, "Join of the streams"),
        Group(_TableOptions, "Table: a compacted topic, current in every batch"),
        Group(_StaticOptions, "Static side: read once, when the job starts"),
        OUTPUT,
        RUN,
    ),
    _build,
    (ONE_OUTPUT,),
)
main = JOB.main("spark_log.spark.jobs.queries.join_query:run")
