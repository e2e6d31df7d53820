"""Aggregates by window of event time and group, into a topic, a Delta table or the console. `spark-submit
jobs/window.py --help` has the arguments."""

import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_log.errors import SparkLogError
from spark_log.jobs.aggregate import add_aggregates, checked_aggregates
from spark_log.jobs.failures import guarded
from spark_log.jobs.stream_arguments import Input, StreamArguments, StreamParser
from spark_log.jobs.stream_job import run_stream_job
from spark_log.streams.windows import START, Session, Sliding, Tumbling, Window, windowed

EXAMPLES = """\
  spark-submit jobs/window.py --subscribe flights \\
      --value-schema 'origin STRING, time_hour TIMESTAMP, dep_delay DOUBLE' --event-time time_hour \\
      --watermark '2 hours' --window '1 hour' --group-by origin --aggregate count \\
      --aggregate 'mean(dep_delay) as mean_delay' --to-topic delays --checkpoint /data/checkpoints/delays
  spark-submit jobs/window.py … --window '1 hour' --slide '10 minutes'
  spark-submit jobs/window.py … --session-gap '30 minutes'
  spark-submit jobs/window.py --config delays.toml --trigger available-now"""


@dataclass(frozen=True)
class WindowArguments:
    stream: StreamArguments
    input: Input
    window: Window
    group_by: tuple[str, ...]
    aggregates: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """The job; returns its exit code."""
    given = parse(sys.argv[1:] if arguments is None else arguments, os.environ)
    return guarded("window", lambda: run(given))


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> WindowArguments:
    """SystemExit(2) with a message on stderr for wrong usage."""
    parser = StreamParser("jobs/window.py", "Aggregates by window of event time and group.", EXAMPLES)
    parser.add_input()
    group = parser.add_argument_group("windows")
    one = group.add_mutually_exclusive_group(required=True)
    one.add_argument("--window", metavar="SIZE", help="side by side, as '1 hour'")
    one.add_argument("--session-gap", metavar="GAP", help="until nothing comes for so long, as '30 minutes'")
    group.add_argument("--slide", metavar="STEP", help="with --window: one begins every STEP")
    add_aggregates(parser)
    parser.add_stream()
    given = parser.read(arguments)
    window = _window(parser, given)
    group_by, aggregates = tuple(given.group_by or ()), checked_aggregates(parser, given.aggregate)
    stream, source = parser.stream(given, environ, "append", (START, *group_by)), parser.input(given, environ)
    if source.watermark is None and stream.output_mode == "append":
        parser.error("--watermark: needed with --output-mode append: without it no window is ever final")
    if isinstance(window, Session):
        if stream.output_mode == "update":
            parser.error("--output-mode update: not with --session-gap: sessions that merge take rows back")
        if not group_by:
            parser.error("--group-by: needed with --session-gap: each group has sessions of its own")
    return WindowArguments(stream, source, window, group_by, aggregates)


def _window(parser: StreamParser, given: Namespace) -> Window:
    try:
        if given.session_gap is not None:
            if given.slide is not None:
                parser.error("--slide: only with --window")
            return Session(given.session_gap)
        return Tumbling(given.window) if given.slide is None else Sliding(given.window, given.slide)
    except SparkLogError as error:
        parser.error(f"--window: {error}" if given.session_gap is None else f"--session-gap: {error}")


def run(given: WindowArguments) -> int:
    """Raises errors of ours and of Spark's."""
    source = given.input
    return run_stream_job(
        "window",
        given.stream,
        [source],
        lambda frame: windowed(
            frame,
            source.event_time,
            given.window,
            *given.group_by,
            aggregates=given.aggregates,
            watermark=source.watermark,
        ),
        (START, *given.group_by),
    )
