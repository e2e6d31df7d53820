"""`jobs/window.py` writes aggregates by event-time window and group to a topic, a Delta table or the console."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from spark_log.errors import SparkLogError
from spark_log.spark.jobs.aggregate import AGGREGATES, AggregateOptions
from spark_log.spark.jobs.options.arguments import usage_error
from spark_log.spark.jobs.options.command import Group, Job, OneOf
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

if TYPE_CHECKING:
    from spark_log.spark.streams.windows import Window

EXAMPLES = """\
JOBS=$(spark-log path jobs)
spark-submit $JOBS/window.py --subscribe flights \\
    --value-schema 'origin STRING, time_hour TIMESTAMP, dep_delay DOUBLE' \\
    --event-time time_hour --watermark '2 hours' --window '1 hour' \\
    --group-by origin --aggregate count \\
    --aggregate 'mean(dep_delay) as mean_delay' \\
    --to-topic delays --checkpoint /data/checkpoints/delays
spark-submit $JOBS/window.py … --window '1 hour' --slide '10 minutes'
spark-submit $JOBS/window.py … --session-gap '30 minutes'
spark-submit $JOBS/window.py --config delays.toml --trigger available-now"""


@dataclass(frozen=True)
class WindowArguments:
    stream: StreamArguments
    input: Input
    window: "Window"
    group_by: tuple[str, ...]
    aggregates: tuple[str, ...]


@dataclass(frozen=True)
class _WindowOptions:
    window: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Windows of this size, side by side, such as '1 hour'.")
    ] = None
    session_gap: Annotated[
        str | None,
        typer.Option(metavar="GAP", help="Windows that end when nothing arrives for this long, such as '30 minutes'."),
    ] = None
    slide: Annotated[str | None, typer.Option(metavar="STEP", help="With --window: one begins every STEP.")] = None

    def parsed(self) -> "Window":
        """Return the chosen kind of window. Raises a usage error if it is invalid."""
        from spark_log.spark.streams.windows import Session, Sliding, Tumbling

        try:
            if self.window is not None:
                return Tumbling(self.window) if self.slide is None else Sliding(self.window, self.slide)
            if self.slide is not None:
                raise usage_error("--slide", "only with --window")
            assert self.session_gap is not None, "one of both is required"
            return Session(self.session_gap)
        except SparkLogError as error:
            raise usage_error("--session-gap" if self.window is None else "--window", str(error)) from None


def _build(
    source: InputOptions, given: _WindowOptions, computed: AggregateOptions, out: OutputOptions, run: StreamRunOptions
) -> WindowArguments:
    from spark_log.spark.streams.windows import START, Session

    window = given.parsed()
    group_by, aggregates = computed.checked()
    stream = out.stream(run, "append", (START, *group_by))
    input_ = source.input(run, out.dead_letter_topic is not None)
    if input_.watermark is None and stream.output_mode == "append":
        raise usage_error("--watermark", "needed with --output-mode append: without it no window is ever final")
    if isinstance(window, Session):
        if stream.output_mode == "update":
            raise usage_error("--output-mode update", "not with --session-gap: sessions that merge take rows back")
        if not group_by:
            raise usage_error("--group-by", "needed with --session-gap: each group has its own sessions")
    return WindowArguments(stream, input_, window, group_by, aggregates)


JOB = Job(
    "window",
    "Aggregates by window of event time and group.",
    EXAMPLES,
    (INPUT, Group(_WindowOptions, "Windows"), AGGREGATES, OUTPUT, RUN),
    _build,
    (ONE_OUTPUT, OneOf(("window", "session_gap"), required=True)),
)
main = JOB.main("spark_log.spark.jobs.window:run")


def run(arguments: WindowArguments) -> int:
    """Run the query. Return the exit code. Raises errors of spark-log and of Spark."""
    from spark_log.spark.jobs.queries.stream_query import run_stream_job
    from spark_log.spark.streams.windows import START, windowed

    source = arguments.input
    return run_stream_job(
        JOB.name,
        arguments.stream,
        [source],
        lambda frame: windowed(
            frame,
            source.event_time,
            arguments.window,
            *arguments.group_by,
            aggregates=arguments.aggregates,
            watermark=source.watermark,
        ),
        (START, *arguments.group_by),
    )
