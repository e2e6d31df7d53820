"""The rules of the stream jobs' arguments, from the command line and from a TOML file, without Spark."""

import shlex
from pathlib import Path

import pytest

from spark_log.spark.jobs import aggregate, window
from spark_log.spark.jobs.aggregate import AggregateArguments
from spark_log.spark.jobs.options.run_options import AvailableNow, Every
from spark_log.spark.jobs.window import WindowArguments
from spark_log.spark.streams.formats.codecs import Avro, Json, Protobuf
from spark_log.spark.streams.outputs import ConsoleOutput, DeltaOutput, TopicOutput
from spark_log.spark.streams.windows import Session, Sliding, Tumbling
from tests.jobs.conftest import Refused

INPUT = "--subscribe t --value-schema 'k STRING, x DOUBLE, at TIMESTAMP' --checkpoint c"
WINDOW = f"{INPUT} --window '1 hour' --watermark '0 seconds' --aggregate count"


def windows(line: str) -> WindowArguments:
    return window.JOB.parse(shlex.split(line))


def aggregates(line: str) -> AggregateArguments:
    return aggregate.JOB.parse(shlex.split(line))


def test_windows_with_default_output() -> None:
    given = windows(f"{WINDOW} --group-by k --event-time at")
    assert given.window == Tumbling("1 hour")
    assert (given.group_by, given.aggregates) == (("k",), ("count",))
    assert (given.input.event_time, given.input.watermark) == ("at", "0 seconds")
    assert given.input.options == {"cluster": "/data/log", "subscribe": "t", "startingOffsets": "earliest"}
    assert given.input.codec == Json("k STRING, x DOUBLE, at TIMESTAMP")
    assert (given.stream.output, given.stream.output_mode) == (ConsoleOutput(20), "append")
    assert given.stream.shared.run == Every(0)
    assert given.stream.shared.checkpoint == "c"


def test_kinds_of_windows_and_outputs() -> None:
    assert windows(f"{WINDOW} --slide '10 minutes'").window == Sliding("1 hour", "10 minutes")
    session = f"{INPUT} --session-gap '5 minutes' --watermark '1 hour' --group-by k --aggregate 'max(x) as top'"
    assert windows(session).window == Session("5 minutes")
    assert windows(f"{WINDOW} --to-topic out --to-cluster /other").stream.output == TopicOutput("/other", "out")
    assert windows(f"{WINDOW} --to-delta d").stream.output == DeltaOutput("d")
    upserts = windows(f"{WINDOW} --to-delta d --output-mode update --group-by k").stream.output
    assert upserts == DeltaOutput("d", ("window_start", "k"))


def test_value_formats_become_codecs() -> None:
    assert windows(f"{WINDOW} --value-format avro --value-schema '{{}}'").input.codec == Avro("{}")
    protobuf = windows(f"{WINDOW} --value-format protobuf --value-schema d.bin --value-message a.B").input.codec
    assert protobuf == Protobuf("a.B", "d.bin")


def test_running_aggregates_are_updates_by_group() -> None:
    given = aggregates(f"{INPUT} --group-by k --aggregate count --aggregate 'mean(x) as m' --to-delta d --trigger 5s")
    assert given.stream.output == DeltaOutput("d", ("k",))
    assert (given.stream.output_mode, given.aggregates) == ("update", ("count", "mean(x) as m"))
    assert given.stream.shared.run == Every(5_000)


def test_input_options() -> None:
    given = windows(
        f"{WINDOW} --max-offsets-per-trigger 100 --group-id g --dead-letter-topic bad --trigger available-now"
    )
    assert given.input.options == {
        "cluster": "/data/log",
        "subscribe": "t",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "100",
        "group.id": "g",
        "includeHeaders": "true",
    }
    assert given.stream.dead_letter_topic == "bad"
    assert given.stream.shared.run == AvailableNow()


CONFIG = """
subscribe = "t"
value-schema = "k STRING, at TIMESTAMP"
checkpoint = "from-file"
window = "1 hour"
watermark = "1 minute"
group-by = ["k", "other"]
aggregate = ["count", "max(at) as last"]
to-delta = "table"
max-offsets-per-trigger = 5
json = true
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(CONFIG)
    return path


def test_a_file_holds_arguments_by_their_names(config: Path) -> None:
    given = windows(f"--config {config}")
    assert (given.group_by, given.aggregates) == (("k", "other"), ("count", "max(at) as last"))
    assert given.stream.output == DeltaOutput("table")
    assert given.input.options["maxOffsetsPerTrigger"] == "5"
    assert (given.stream.shared.json, given.stream.shared.checkpoint) == (True, "from-file")


def test_the_command_line_wins_over_the_file(config: Path) -> None:
    line = f"--config={config} --checkpoint=mine --group-by z --to-topic out --session-gap '1 hour'"
    given = windows(line)
    assert given.stream.shared.checkpoint == "mine"
    assert given.group_by == ("z",), "a list is replaced, not added to"
    assert given.stream.output == TopicOutput("/data/log", "out"), "another output takes the place of the file's"
    assert given.window == Session("1 hour")


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("sub = 't'", "unknown key 'sub'"),
        ("config = 'other.toml'", "unknown key 'config'"),
        ("help = true", "unknown key 'help'"),
        ("json = 'yes'", "json = 'yes': expected true or false"),
        ("window = true", "window = True: expected a text or a number"),
        ("subscribe = ['a', 'b']", "subscribe = ['a', 'b']: expected a text or a number"),
        ("aggregate = [1.5]", "aggregate = [1.5]: expected a text, a number or a list"),
        ("window = {size = '1 hour'}", "window = {'size': '1 hour'}: expected"),
        (CONFIG.replace("trigger = 5", "trigger = 0"), "greater than or equal to 1"),
        ("a = ", "Invalid value"),
        ("window = '1 hour'\nwindow = '2 hours'", "Cannot overwrite"),
    ],
)
def test_wrong_config_file_is_refused(toml: str, said: str, tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "job.toml"
    path.write_text(toml)
    assert said in refused(windows, f"--config {path}")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--config nowhere.toml", "nowhere.toml"),
        ("", "--subscribe"),
        (f"{INPUT} --aggregate count", "--window or --session-gap: one is needed"),
        (f"{WINDOW} --session-gap '1 hour'", "not allowed with"),
        (f"{INPUT} --window '1 hour' --aggregate count", "--watermark: needed"),
        (f"{INPUT} --window hourly --watermark '1 hour' --aggregate count", "--window: size 'hourly'"),
        (f"{INPUT} --window '0 hours' --watermark '1 hour' --aggregate count", "more than zero"),
        (
            f"{INPUT} --window '1 hour' --watermark soon --aggregate count",
            "--watermark: expected an interval such as '10 minutes', got 'soon'",
        ),
        (f"{WINDOW} --slide '2 hours'", "slide '2 hours' is larger than size '1 hour'"),
        (f"{INPUT} --session-gap '1 hour' --watermark '1 hour' --aggregate count", "--group-by: needed"),
        (f"{INPUT} --session-gap '1 hour' --output-mode update --group-by k --aggregate count", "take rows back"),
        (f"{INPUT} --session-gap '1 hour' --slide '1 hour' --aggregate count", "--slide: only with --window"),
        (f"{WINDOW} --aggregate 'x'", "--aggregate: aggregate 'x'"),
        (f"{WINDOW} --to-topic a --to-delta b", "not allowed with"),
        (f"{WINDOW} --key k", "--key: only with --to-topic"),
        (f"{WINDOW} --to-topic 'a b'", "not a legal topic name"),
        (f"{WINDOW} --dead-letter-topic __consumer_offsets", "internal"),
        (f"{WINDOW} --starting-offsets sometime", "Expected e.g."),
        (f"{WINDOW} --starting-offsets committed", "needs option 'group.id'"),
        (f"{WINDOW} --trigger often", "expected available-now or an interval"),
        (f"{WINDOW} --value-format xml", "'xml' is not one of"),
        (f"{WINDOW} --value-message M", "--value-message: needed with --value-format protobuf, and only there"),
        (f"{WINDOW} --value-format protobuf", "--value-message: needed"),
        (f"{WINDOW} --check d", "No such option: --check"),
    ],
)
def test_wrong_usage_names_the_argument(line: str, said: str, refused: Refused) -> None:
    assert said in refused(windows, line)


def test_append_mode_is_refused_for_running_aggregates(refused: Refused) -> None:
    assert "never final" in refused(aggregates, f"{INPUT} --aggregate count --output-mode append")


def test_repr_shows_no_password() -> None:
    url = "postgresql+psycopg://ada:secret@host/db"
    given = windows(f"{WINDOW} --to-topic out --cluster {url}")
    assert "secret" not in repr(given.input) + repr(given.stream.output)
