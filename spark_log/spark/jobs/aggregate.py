"""`jobs/aggregate.py` writes running aggregates by group to a topic, a Delta table or the console."""

from dataclasses import dataclass
from typing import Annotated

import typer

from spark_log.errors import SparkLogError
from spark_log.spark.jobs.options.arguments import usage_error
from spark_log.spark.jobs.options.command import Group, Job
from spark_log.spark.jobs.options.stream_options import (
    INPUT,
    ONE_OUTPUT,
    OUTPUT,
    RUN,
    Input,
    InputOptions,
    OutputOptions,
    StreamArguments,
    StreamRunOptions,
)

EXAMPLES = """\
JOBS=$(spark-log path jobs)
spark-submit $JOBS/aggregate.py --subscribe flights \\
    --value-schema 'carrier STRING, dep_delay DOUBLE' --group-by carrier \\
    --aggregate count --aggregate 'mean(dep_delay) as mean_delay' \\
    --to-topic delays --checkpoint /data/checkpoints/delays
spark-submit $JOBS/aggregate.py --config delays.toml \\
    --trigger available-now"""


@dataclass(frozen=True)
class AggregateArguments:
    stream: StreamArguments
    input: Input
    group_by: tuple[str, ...]
    aggregates: tuple[str, ...]


@dataclass(frozen=True)
class AggregateOptions:
    aggregate: Annotated[
        list[str],
        typer.Option(metavar="CALL", help="count, or a call such as 'mean(dep_delay) as mean_delay'; repeatable."),
    ]
    group_by: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Repeatable.")] = None

    def checked(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns to group by, and the aggregates. Raises a usage error for an invalid aggregate."""
        from spark_log.spark.streams.aggregation import parse_aggregate

        for text in self.aggregate:
            try:
                parse_aggregate(text)
            except SparkLogError as error:
                raise usage_error("--aggregate", str(error)) from None
        return tuple(self.group_by or ()), tuple(self.aggregate)


def _build(
    source: InputOptions, given: AggregateOptions, out: OutputOptions, run: StreamRunOptions
) -> AggregateArguments:
    group_by, aggregates = given.checked()
    stream = out.stream(run, "update", group_by)
    if stream.output_mode == "append":
        raise usage_error(
            "--output-mode append",
            "a running aggregate is never final: use update or complete, or jobs/window.py",
        )
    return AggregateArguments(stream, source.input(run, out.dead_letter_topic is not None), group_by, aggregates)


AGGREGATES = Group(AggregateOptions, "Aggregates")
JOB = Job(
    "aggregate",
    "Running aggregates by group, updated as records arrive.",
    EXAMPLES,
    (INPUT, AGGREGATES, OUTPUT, RUN),
    _build,
    (ONE_OUTPUT,),
)
main = JOB.main("spark_log.spark.jobs.aggregate:run")


def run(arguments: AggregateArguments) -> int:
    """Run the query. Return the exit code. Raises errors of spark-log and of Spark."""
    from spark_log.spark.jobs.queries.stream_query import run_stream_job
    from spark_log.spark.streams.aggregation import running

    return run_stream_job(
        JOB.name,
        arguments.stream,
        [arguments.input],
        lambda frame: running(frame, *arguments.group_by, aggregates=arguments.aggregates),
        arguments.group_by,
    )
