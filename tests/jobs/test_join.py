"""The rules of jobs/join.py's arguments, without Spark."""

import shlex
from pathlib import Path

import pytest

from spark_log.spark.jobs.join import JOB
from spark_log.spark.jobs.options.job_arguments import JoinArguments, OtherStream, WithStatic, WithTable
from spark_log.spark.streams.joins import Bounds
from tests.jobs.conftest import Refused

LEFT = "--left-subscribe a --left-value-schema 'k STRING, at TIMESTAMP' --checkpoint c"
RIGHT = (
    f"{LEFT} --left-watermark '1 hour' --right-subscribe b --right-value-schema 'id STRING, t TIMESTAMP'"
    " --right-watermark '1 hour' --on k=id"
)
TABLE = "--table planes --table-value-schema 'seats INT' --table-on k"


def join(line: str) -> JoinArguments:
    return JOB.parse(shlex.split(line))


def test_two_streams_within_bounds() -> None:
    given = join(f"{RIGHT} --after '1 hour' --how left --left-event-time at --right-event-time t")
    assert (given.left.event_time, given.left.watermark) == ("at", "1 hour")
    assert isinstance(given.right, OtherStream)
    assert (given.right.input.options["subscribe"], given.right.input.event_time) == ("b", "t")
    assert (given.right.on, given.right.within, given.right.how) == ({"k": "id"}, Bounds(after="1 hour"), "left")
    assert (given.table, given.static, given.stream.output_mode) == (None, None, "append")


def test_equal_event_times_need_no_bounds() -> None:
    given = join(f"{RIGHT} --left-event-time at --right-event-time t --on at=t")
    assert given.right is not None
    assert (given.right.on, given.right.within, given.right.how) == ({"k": "id", "at": "t"}, None, "inner")


def test_a_table_and_files_beside_a_stream(tmp_path: Path) -> None:
    given = join(f"{LEFT} {TABLE} --static /ref --static-format csv --static-on k --table-how inner")
    assert given.table == WithTable("planes", "seats INT", "k", "inner")
    assert given.static == WithStatic("/ref", "csv", None, {"k": "k"}, "left")
    assert given.right is None
    (tmp_path / "join.toml").write_text(
        "left-subscribe = 'a'\nleft-value-schema = 'k STRING'\ncheckpoint = 'c'\n"
        "static = '/x'\nstatic-on = ['k', 'l=m']\n"
    )
    from_file = join(f"--config {tmp_path / 'join.toml'} --static /ref")
    assert from_file.static == WithStatic("/ref", "parquet", None, {"k": "k", "l": "m"}, "left")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (LEFT, "--right-subscribe, --table or --static: at least one is needed"),
        (f"{LEFT} {TABLE} --on k", "--on: only with --right-subscribe"),
        (f"{LEFT} --static /x --table-on k --static-on k", "--table-on: only with --table"),
        (f"{LEFT} --static /x", "--static-on: needed: the columns that must be equal"),
        (f"{LEFT} --table planes --table-on k", "--table-value-schema: needed with --table"),
        (f"{LEFT} --table __consumer_offsets --table-on k --table-value-schema x", "--table"),
        (RIGHT, "--before, --after: one is needed unless the event times are among --on"),
        (f"{RIGHT} --before soon", "--before: expected an interval such as '10 minutes', got 'soon'"),
        (f"{RIGHT} --before '1 hour' --on k=x", "--on: 'k' is given twice"),
        (f"{RIGHT} --before '1 hour' --output-mode update", "--output-mode update: joins support mode append only"),
        (
            f"{LEFT} --right-subscribe b --right-value-schema x --on k --after '1 hour'",
            "--left-watermark: needed to join streams",
        ),
        (f"{LEFT} --right-subscribe b --on k", "--right-value-schema: needed with --right-subscribe"),
    ],
)
def test_wrong_usage_names_the_argument(line: str, said: str, refused: Refused) -> None:
    assert said in refused(join, line)
