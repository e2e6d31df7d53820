"""Running aggregates by group, into a topic, a Delta table or the console. `spark-submit jobs/aggregate.py --help` has
the arguments."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_log.errors import SparkLogError
from spark_log.jobs.failures import guarded
from spark_log.jobs.stream_arguments import Input, StreamArguments, StreamParser
from spark_log.jobs.stream_job import run_stream_job
from spark_log.streams.aggregation import parse_aggregate, running

EXAMPLES = """\
  spark-submit jobs/aggregate.py --subscribe flights --value-schema 'carrier STRING, dep_delay DOUBLE' \\
      --group-by carrier --aggregate count --aggregate 'mean(dep_delay) as mean_delay' \\
      --to-topic delays --checkpoint /data/checkpoints/delays
  spark-submit jobs/aggregate.py --config delays.toml --trigger available-now"""


@dataclass(frozen=True)
class AggregateArguments:
    stream: StreamArguments
    input: Input
    group_by: tuple[str, ...]
    aggregates: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """The job; returns its exit code."""
    given = parse(sys.argv[1:] if arguments is None else arguments, os.environ)
    return guarded("aggregate", lambda: run(given))


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> AggregateArguments:
    """SystemExit(2) with a message on stderr for wrong usage."""
    parser = StreamParser("jobs/aggregate.py", "Running aggregates by group, kept up as records come.", EXAMPLES)
    parser.add_input()
    add_aggregates(parser)
    parser.add_stream()
    given = parser.read(arguments)
    group_by, aggregates = tuple(given.group_by or ()), checked_aggregates(parser, given.aggregate)
    stream = parser.stream(given, environ, "update", group_by)
    if stream.output_mode == "append":
        parser.error("--output-mode append: a running aggregate is never final: update or complete, or jobs/window.py")
    return AggregateArguments(stream, parser.input(given, environ), group_by, aggregates)


def add_aggregates(parser: StreamParser) -> None:
    group = parser.add_argument_group("what is computed")
    group.add_argument("--group-by", metavar="COLUMN", action="append", help="repeat for more")
    group.add_argument(
        "--aggregate",
        metavar="CALL",
        action="append",
        required=True,
        help="count, or as 'mean(dep_delay) as mean_delay'; repeat for more",
    )


def checked_aggregates(parser: StreamParser, texts: Sequence[str]) -> tuple[str, ...]:
    """The texts; usage error for one that is no aggregate."""
    for text in texts:
        try:
            parse_aggregate(text)
        except SparkLogError as error:
            parser.error(f"--aggregate: {error}")
    return tuple(texts)


def run(given: AggregateArguments) -> int:
    """Raises errors of ours and of Spark's."""
    return run_stream_job(
        "aggregate",
        given.stream,
        [given.input],
        lambda frame: running(frame, *given.group_by, aggregates=given.aggregates),
        given.group_by,
    )
