"""What a checkpoint holds."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.datasource.stream_offsets import StreamOffset
from spark_log.errors import InvalidOptionError
from spark_log.ids import TopicId, TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)

NAMES = st.sampled_from(["t", "a.b", "_x", "__consumer_offsets"])
OFFSETS = st.dictionaries(st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1))
IDS = st.dictionaries(NAMES, st.builds(TopicId, st.integers(1, 2**31)))


def through_checkpoint(offset: StreamOffset) -> StreamOffset:
    return StreamOffset.from_json(json.loads(json.dumps(offset.to_json())))


@given(OFFSETS, IDS, st.booleans(), st.none() | st.uuids().map(str))
def test_what_goes_in_comes_out(
    offsets: dict[TopicPartition, int], ids: dict[str, TopicId], initial: bool, cluster_id: str | None
) -> None:
    before = StreamOffset(offsets, ids, initial=initial, cluster_id=cluster_id)
    assert through_checkpoint(before) == before


@given(OFFSETS, IDS, OFFSETS, IDS)
def test_the_end_of_batch_0_keeps_its_start(
    start: dict[TopicPartition, int], start_ids: dict[str, TopicId], end: dict[TopicPartition, int], ids: dict[str, Any]
) -> None:
    begin = StreamOffset(start, start_ids, initial=True, cluster_id="c")
    first = through_checkpoint(begin).followed_by(end, ids)
    found = through_checkpoint(first)
    assert (found.start, found.start_topic_ids, found.offsets, found.initial) == (start, start_ids, end, False)
    later = found.followed_by(start, ids)
    assert (later.start, later.start_topic_ids, later.cluster_id) == (None, None, "c")


def test_it_shows_as_in_kafkas_source() -> None:
    shown = StreamOffset({T1: 7, T0: 5}, {"t": TopicId(3)}).to_json()
    assert json.dumps(shown) == '{"t": {"0": 5, "1": 7}, "@topics": {"t": 3}}'
    assert StreamOffset({}, {}).to_json() == {}


def test_equal_offsets_are_equal_texts() -> None:
    """Spark compares the JSON of two offsets to see whether there is anything new."""
    one = StreamOffset({T0: 1, T1: 2}, {"t": TopicId(1), "u": TopicId(2)}).to_json()
    other = StreamOffset({T1: 2, T0: 1}, {"u": TopicId(2), "t": TopicId(1)}).to_json()
    assert json.dumps(one) == json.dumps(other)


def test_no_topic_can_be_called_like_our_keys() -> None:
    from spark_log.cluster.names import is_legal

    assert not any(is_legal(key) for key in ("@topics", "@start", "@start-topics", "@initial", "@cluster"))


@pytest.mark.parametrize(
    "shown",
    [
        {"t": {"0": -1}},
        {"t": {"0": "5"}},
        {"t": {"0": 1.5}},
        {"t": {"0": True}},
        {"t": [1]},
        {"t": {"x": 1}},
        {"t": {"0": 2**63}},
        {"t": {"0": 1}, "@start": {"t": {"0": -2}}},
        {"t": {"0": 1}, "@next": {}},
    ],
)
def test_a_checkpoint_of_something_else_is_refused(shown: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError):
        StreamOffset.from_json(shown)


def test_a_newer_checkpoint_says_so() -> None:
    with pytest.raises(InvalidOptionError, match="'@next', which a newer spark-log may have written"):
        StreamOffset.from_json({"t": {"0": 1}, "@next": 1})
