"""Which records made a newer version of a table out of an older one, and when that cannot be said."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.ids import OffsetRange
from spark_log.partitions.replication import Truncation
from spark_log.streams.table_version import Mark, TableVersion


def version(topic: str = "t", /, **marks: tuple[Any, ...]) -> TableVersion:
    """Partitions p0, p1 … with (start, end, gaps), and truncations."""
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
        version(p0=(0, 12, 0, (Truncation(1, 9),)), p1=(5, 20, 3)),  # cut off, and regrown
        version("another", p0=(0, 12, 0), p1=(5, 20, 3)),  # deleted and made again
    ],
)
def test_nothing_can_be_said_once_something_was_taken_out(now: TableVersion) -> None:
    assert now.since(BASE) is None


def test_elections_that_cut_off_records_of_an_earlier_version() -> None:
    cut = version(p0=(0, 12, 0, (Truncation(1, 10),)), p1=(5, 20, 3))
    assert cut.since(BASE) == {0: OffsetRange(10, 12)}, "cut off above what was seen"
    later = version(p0=(0, 13, 0, (Truncation(1, 10),)), p1=(5, 20, 3))
    assert later.since(cut) == {0: OffsetRange(12, 13)}
    again = version(p0=(0, 13, 0, (Truncation(1, 10), Truncation(4, 11))), p1=(5, 20, 3))
    assert again.diverges_from(cut)
    assert not again.diverges_from(BASE)
    assert version(p0=(0, 9, 0), p1=(5, 20, 3)).diverges_from(BASE), "not as long any more"


def test_records() -> None:
    assert BASE.records == 10 + 12


OFFSETS = st.integers(0, 2**63 - 1)
CUTS = st.lists(st.builds(Truncation, OFFSETS, OFFSETS)).map(tuple)


@given(st.text(), st.dictionaries(st.integers(0, 1000), st.builds(Mark, OFFSETS, OFFSETS, OFFSETS, CUTS)))
def test_text_round_trip(topic: str, marks: dict[int, Mark]) -> None:
    one = TableVersion(topic, marks)
    assert TableVersion.from_text(one.as_text()) == one


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2, "topic": "t", "partitions": {}}'])
def test_text_of_another_kind(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        TableVersion.from_text(text)


def test_a_note_of_an_older_version() -> None:
    text = '{"version": 1, "topic": "t", "partitions": {"0": [0, 10, 0], "1": [5, 20, 3]}}'
    assert TableVersion.from_text(text) == BASE
    assert BASE.as_text() == text
