"""The records between two versions of a table, and when they cannot be computed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.ids import OffsetRange
from spark_log.log.partitions.replication_rules import Truncation
from spark_log.spark.streams.table_version import PartitionVersion, TableVersion


def version(topic: str = "t", /, **marks: tuple[Any, ...]) -> TableVersion:
    """Partitions p0, p1 … with (start, end, gaps), and truncations."""
    return TableVersion(topic, {int(name[1:]): PartitionVersion(*mark) for name, mark in marks.items()})


BASE = version(p0=(0, 10, 0), p1=(5, 20, 3))


def test_new_records_are_the_appended_ones() -> None:
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
        version(p0=(0, 9, 0), p1=(5, 20, 3)),  # truncated, or an older version
        version(p1=(5, 20, 3)),
        version(p0=(0, 12, 0, (Truncation(1, 9),)), p1=(5, 20, 3)),  # truncated, with new records
        version("another", p0=(0, 12, 0), p1=(5, 20, 3)),  # deleted and created again
    ],
)
def test_new_records_are_unknown_after_records_were_removed(now: TableVersion) -> None:
    assert now.since(BASE) is None


def test_truncations_below_and_above_an_earlier_version() -> None:
    truncated = version(p0=(0, 12, 0, (Truncation(1, 10),)), p1=(5, 20, 3))
    assert truncated.since(BASE) == {0: OffsetRange(10, 12)}, "truncated above the earlier version"
    later = version(p0=(0, 13, 0, (Truncation(1, 10),)), p1=(5, 20, 3))
    assert later.since(truncated) == {0: OffsetRange(12, 13)}
    again = version(p0=(0, 13, 0, (Truncation(1, 10), Truncation(4, 11))), p1=(5, 20, 3))
    assert again.diverges_from(truncated)
    assert not again.diverges_from(BASE)
    assert version(p0=(0, 9, 0), p1=(5, 20, 3)).diverges_from(BASE), "the log is shorter"


def test_record_count_leaves_gaps_out() -> None:
    assert BASE.records == 10 + 12


OFFSETS = st.integers(0, 2**63 - 1)
TRUNCATIONS = st.lists(st.builds(Truncation, OFFSETS, OFFSETS)).map(tuple)


@given(
    st.text(),
    st.dictionaries(st.integers(0, 1000), st.builds(PartitionVersion, OFFSETS, OFFSETS, OFFSETS, TRUNCATIONS)),
)
def test_a_version_as_text_is_read_back(topic: str, marks: dict[int, PartitionVersion]) -> None:
    one = TableVersion(topic, marks)
    assert TableVersion.from_text(one.as_text()) == one


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2, "topic": "t", "partitions": {}}'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        TableVersion.from_text(text)


def test_text_without_truncations_has_the_older_form() -> None:
    text = '{"version": 1, "topic": "t", "partitions": {"0": [0, 10, 0], "1": [5, 20, 3]}}'
    assert TableVersion.from_text(text) == BASE
    assert BASE.as_text() == text
