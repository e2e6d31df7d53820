"""Arguments of `jobs/join.py`. Pure but for reading --config's file."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from spark_log.cluster.names import validate_user_topic
from spark_log.errors import SparkLogError
from spark_log.jobs.arguments import pair, unique
from spark_log.jobs.stream_arguments import Input, StreamArguments, StreamParser
from spark_log.streams.joins import Bounds, Kind

EXAMPLES = """\
  spark-submit jobs/join.py --left-subscribe flights --left-watermark '2 hours' --left-event-time time_hour \\
      --left-value-schema 'origin STRING, tailnum STRING, time_hour TIMESTAMP, dep_delay DOUBLE' \\
      --right-subscribe weather --right-watermark '2 hours' --right-event-time time_hour \\
      --right-value-schema 'origin STRING, time_hour TIMESTAMP, wind_speed DOUBLE' --on origin --on time_hour \\
      --table planes --table-value-schema 'seats INT, model STRING' --table-on tailnum \\
      --to-topic enriched --checkpoint /data/checkpoints/enriched
  spark-submit jobs/join.py … --right-subscribe payments … --on id=order_id --before '0 seconds' --after '1 hour'
  spark-submit jobs/join.py … --static /data/airports --static-format parquet --static-on origin=faa
  spark-submit jobs/join.py --config join.toml --trigger available-now"""

OneSided = Literal["inner", "left"]


@dataclass(frozen=True)
class OtherStream:
    """The right side of a stream-stream join."""

    input: Input
    on: Mapping[str, str]
    """Left column -> right column."""
    within: Bounds | None
    how: Kind


@dataclass(frozen=True)
class WithTable:
    """A compacted topic of the same cluster."""

    topic: str
    value_schema: str
    on: str
    how: OneSided


@dataclass(frozen=True)
class WithStatic:
    """Files or a Delta table, read once."""

    path: str
    format: str
    schema: str | None
    on: Mapping[str, str]
    """Left column -> the static side's."""
    how: OneSided


@dataclass(frozen=True)
class JoinArguments:
    """At least one of `right`, `static` and `table`; they are joined in this order."""

    stream: StreamArguments
    left: Input
    right: OtherStream | None
    static: WithStatic | None
    table: WithTable | None


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> JoinArguments:
    """SystemExit(2) with a message on stderr for wrong usage."""
    parser = _parser()
    given = parser.read(arguments)
    right, static, table = (
        _right(parser, given, environ), _static(parser, given), _table(parser, given)
    )  # fmt: skip
    if right is None and static is None and table is None:
        parser.error("--right-subscribe, --table or --static: one at least is needed")
    keys = tuple(right.on) if right is not None else ()
    stream = parser.stream(given, environ, "append", keys)
    if stream.output_mode != "append":
        parser.error(f"--output-mode {stream.output_mode}: joins come in mode append")
    return JoinArguments(stream, parser.input(given, environ, "left-"), right, static, table)


def _parser() -> StreamParser:
    parser = StreamParser(
        "jobs/join.py", "Joins a topic with another one, with a table (a compacted topic), or with files.", EXAMPLES
    )
    parser.add_input("left-", "left side")
    parser.add_input("right-", "right side: another stream", required=False)
    joining = parser.add_argument_group("join of the streams")
    joining.add_argument(
        "--on", action="append", metavar="COLUMN", help="equal on both sides, or LEFT=RIGHT names; repeatable"
    )
    joining.add_argument("--before", metavar="INTERVAL", help="right event time is at most so long before the left one")
    joining.add_argument("--after", metavar="INTERVAL", help="… or after it")
    joining.add_argument("--how", choices=("inner", "left", "right", "full"), help="default: inner")
    table = parser.add_argument_group("table: a compacted topic, current in every batch")
    table.add_argument("--table", metavar="TOPIC", help="its rows come as one column, a struct of this name")
    table.add_argument("--table-value-schema", metavar="DDL", help="of the values, JSON")
    table.add_argument("--table-on", metavar="COLUMN", help="the left column that is the table's key")
    table.add_argument("--table-how", choices=("inner", "left"), help="default: left")
    static = parser.add_argument_group("static side: read once, when the job starts")
    static.add_argument("--static", metavar="PATH")
    static.add_argument("--static-format", choices=("parquet", "csv", "json", "delta"), help="default: parquet")
    static.add_argument("--static-schema", metavar="DDL", help="default: as Spark finds it")
    static.add_argument("--static-on", action="append", metavar="COLUMN", help="as --on")
    static.add_argument("--static-how", choices=("inner", "left"), help="default: left")
    parser.add_stream()
    return parser


def _right(parser: StreamParser, given: Namespace, environ: Mapping[str, str]) -> OtherStream | None:
    if given.right_subscribe is None:
        for name in ("right_value_schema", "right_watermark", "on", "before", "after", "how"):
            if getattr(given, name) is not None:
                parser.error(f"--{name.replace('_', '-')}: only with --right-subscribe")
        return None
    if given.right_value_schema is None:
        parser.error("--right-value-schema: needed with --right-subscribe")
    on = _on(parser, "--on", given.on)
    how: Kind = given.how or "inner"
    for name in ("before", "after"):
        if getattr(given, name) is not None:
            parser.interval(name, getattr(given, name))
    within = None
    if given.before is not None or given.after is not None:
        within = Bounds(given.before or "0 seconds", given.after or "0 seconds")
    elif on.get(given.left_event_time) != given.right_event_time:
        parser.error(
            "--before, --after: one is needed unless the event times are among --on: state would grow for ever"
        )
    for name in ("left_watermark", "right_watermark"):
        if getattr(given, name) is None:
            parser.error(f"--{name.replace('_', '-')}: needed to join streams: without it state grows for ever")
    return OtherStream(parser.input(given, environ, "right-"), on, within, how)


def _table(parser: StreamParser, given: Namespace) -> WithTable | None:
    if given.table is None:
        _refuse(parser, given, "table")
        return None
    try:
        validate_user_topic(given.table, "read as a table", "--table")
    except SparkLogError as error:
        parser.error(str(error))
    for name in ("table_value_schema", "table_on"):
        if getattr(given, name) is None:
            parser.error(f"--{name.replace('_', '-')}: needed with --table")
    how = cast(OneSided, given.table_how or "left")
    return WithTable(given.table, given.table_value_schema, given.table_on, how)


def _static(parser: StreamParser, given: Namespace) -> WithStatic | None:
    if given.static is None:
        _refuse(parser, given, "static")
        return None
    how = cast(OneSided, given.static_how or "left")
    on = _on(parser, "--static-on", given.static_on)
    return WithStatic(given.static, given.static_format or "parquet", given.static_schema, on, how)


def _refuse(parser: StreamParser, given: Namespace, side: str) -> None:
    for name, value in vars(given).items():
        if name.startswith(f"{side}_") and value is not None:
            parser.error(f"--{name.replace('_', '-')}: only with --{side}")


def _on(parser: StreamParser, option: str, texts: Sequence[str] | None) -> dict[str, str]:
    if not texts:
        parser.error(f"{option}: needed: the columns that must be equal")
    return unique(parser, [pair(text) if "=" in text else (text.strip(), text.strip()) for text in texts], option)
