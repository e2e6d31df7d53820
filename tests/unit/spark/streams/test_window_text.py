"""Valid and invalid windows and outputs."""

import pytest

from spark_log.errors import InvalidOptionError
from spark_log.spark.streams.outputs import DeltaOutput, OutputMode, TopicOutput, check_outputs
from spark_log.spark.streams.windows import Session, Sliding, Tumbling, parse_interval


def test_intervals_are_parsed_or_named() -> None:
    assert parse_interval("x", "0 seconds") == 0
    assert parse_interval("x", "90 minutes") == 90 * 60_000
    assert parse_interval("x", "1 week") == 7 * 86_400_000
    for text in ("", "1", "hour", "-1 hours", "1.5 hours", "1 month", "1  hour", "1 hour\n", "1 hour 5 minutes"):
        with pytest.raises(InvalidOptionError) as error:
            parse_interval("watermark", text)
        assert f"watermark {text!r}" in str(error.value)


def test_windows_need_a_size_above_zero() -> None:
    Sliding("1 hour", "60 minutes")
    for make, said in [
        (lambda: Tumbling("0 days"), "size '0 days': expected more than zero"),
        (lambda: Session("soon"), "gap 'soon'"),
        (lambda: Sliding("1 hour", "61 minutes"), "slide '61 minutes' is larger than size '1 hour'"),
        (lambda: Sliding("1 hour", "0 minutes"), "slide '0 minutes'"),
    ]:
        with pytest.raises(InvalidOptionError, match=said):
            make()


@pytest.mark.parametrize(
    ("outputs", "mode", "said"),
    [
        ([], "append", "at least one"),
        ([TopicOutput("c", "t"), TopicOutput("c", "t")], "append", "named twice"),
        ([DeltaOutput("p"), DeltaOutput("p", ("k",))], "append", "named twice"),
        ([DeltaOutput("/p"), DeltaOutput("file:///p/")], "append", "named twice"),
        ([DeltaOutput("s3a://b/p"), DeltaOutput("s3a://b/p/")], "append", "named twice"),
        ([DeltaOutput("p")], "update", "needs keys"),
    ],
)
def test_outputs_that_cannot_be_written_exactly_once_are_refused(
    outputs: list[TopicOutput | DeltaOutput], mode: OutputMode, said: str
) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        check_outputs(outputs, mode)


def test_valid_outputs_are_accepted() -> None:
    check_outputs([TopicOutput("c", "t"), TopicOutput("d", "t"), TopicOutput("c", "u"), DeltaOutput("t")], "append")
