"""Which records made a newer version of a table out of an older one, and when that cannot be said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.ids import OffsetRange
from spark_log.streams.table_version import Mark, TableVersion


def version(topic: str = "t", /, **marks: tuple[int, int, int]) -> TableVersion:
    """Partitions p0, p1 … with (start, end, gaps)."""
    return TableVersion(topic, {int(name[1:]): Mark(*mark) for name, mark in marks.items()})


BASE = version(p0=(0, 10, 0), p1=(5, 20, 3))


def test_what_is_new_is_what_was_appended() -> None:
    assert BASE.since(BASE) == {}
    assert version(p0=(0, 12, 0), p1=(5, 20, 3)).since(BASE) == {0: OffsetRange(10, 12)}


def test_a_new_partition_is_new_from_its_start() -> None:
    assert version(p0=(0, 10, 0), p1=(5, 20, 3), p2=(0, 4, 0)).since(BASE) == {2: OffsetRange(0, 4)}
    assert version(p0=(0, 10, 0), p1=(5, 20, 3), p2=(1, 4, 0)).since(BASE) is None


@pytest.mark.parametrize(
    "now",
    [
        version(p0=(0, 12, 1), p1=(5, 20, 3)),  # compacted
        version(p0=(1, 12, 0), p1=(5, 20, 3)),  # expired
        version(p0=(0, 9, 0), p1=(5, 20, 3)),  # cut off, or an older version
        version(p1=(5, 20, 3)),
        version("another", p0=(0, 12, 0), p1=(5, 20, 3)),  # deleted and made again
    ],
)
def test_nothing_can_be_said_once_something_was_taken_out(now: TableVersion) -> None:
    assert now.since(BASE) is None


def test_records() -> None:
    assert BASE.records == 10 + 12


@given(
    st.text(),
    st.dictionaries(st.integers(0, 1000), st.tuples(*[st.integers(0, 2**63 - 1)] * 3).map(lambda mark: Mark(*mark))),
)
def test_text_round_trip(topic: str, marks: dict[int, Mark]) -> None:
    one = TableVersion(topic, marks)
    assert TableVersion.from_text(one.as_text()) == one


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2, "topic": "t", "partitions": {}}'])
def test_text_of_another_kind(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        TableVersion.from_text(text)
