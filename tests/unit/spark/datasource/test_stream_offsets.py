"""The offset in a checkpoint of a streaming query."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import InvalidOptionError
from spark_log.ids import TopicId, TopicPartition
from spark_log.spark.datasource.checkpoint.stream_offsets import OUR_KEYS, Positions, StreamOffset

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)

NAMES = st.sampled_from(["t", "a.b", "_x", "__consumer_offsets"])
OFFSETS = st.dictionaries(st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1))
IDS = st.dictionaries(NAMES, st.builds(TopicId, st.integers(1, 2**31)))


POSITIONS = st.builds(Positions, OFFSETS, IDS, OFFSETS)


def through_checkpoint(offset: StreamOffset) -> StreamOffset:
    return StreamOffset.from_json(json.loads(json.dumps(offset.to_json())))


@given(POSITIONS, st.booleans(), st.none() | st.uuids().map(str))
def test_offset_round_trips_through_json(positions: Positions, initial: bool, cluster_id: str | None) -> None:
    before = StreamOffset(positions, initial=initial, cluster_id=cluster_id)
    assert through_checkpoint(before) == before


@given(POSITIONS, POSITIONS)
def test_end_of_batch_0_keeps_its_start(start: Positions, end: Positions) -> None:
    begin = StreamOffset(start, initial=True, cluster_id="c")
    found = through_checkpoint(through_checkpoint(begin).followed_by(end))
    assert (found.start, found.positions, found.initial) == (start, end, False)
    later = found.followed_by(start)
    assert (later.start, later.cluster_id) == (None, "c")


def test_json_extends_that_of_the_kafka_source() -> None:
    shown = StreamOffset(Positions({T1: 7, T0: 5}, {"t": TopicId(3)}, {T0: 2, T1: 0})).to_json()
    assert json.dumps(shown) == '{"t": {"0": 5, "1": 7}, "@topics": {"t": 3}, "@epochs": {"t": {"0": 2, "1": 0}}}'
    assert StreamOffset(Positions({}, {})).to_json() == {}


def test_checkpoint_of_an_older_version_is_read() -> None:
    shown = {"t": {"0": 5}, "@topics": {"t": 3}, "@start": {"t": {"0": 1}}, "@start-topics": {"t": 3}, "@cluster": "c"}
    found = StreamOffset.from_json(shown)
    assert found == StreamOffset(
        Positions({T0: 5}, {"t": TopicId(3)}), Positions({T0: 1}, {"t": TopicId(3)}), cluster_id="c"
    )
    assert found.to_json() == shown
    assert StreamOffset.from_json({"t": {"0": 5}}) == StreamOffset(Positions({T0: 5}, {}))


def test_equal_offsets_have_equal_json() -> None:
    """Spark compares the JSON of two offsets to detect new records."""
    one = StreamOffset(Positions({T0: 1, T1: 2}, {"t": TopicId(1), "u": TopicId(2)}, {T0: 1, T1: 2})).to_json()
    other = StreamOffset(Positions({T1: 2, T0: 1}, {"u": TopicId(2), "t": TopicId(1)}, {T1: 2, T0: 1})).to_json()
    assert json.dumps(one) == json.dumps(other)


def test_json_keys_are_illegal_topic_names() -> None:
    from spark_log.cluster.names import is_legal

    assert not any(is_legal(key) for key in OUR_KEYS)


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
def test_foreign_checkpoint_is_refused(shown: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError):
        StreamOffset.from_json(shown)


def test_error_names_the_key_of_a_newer_checkpoint() -> None:
    with pytest.raises(InvalidOptionError, match="'@next', which a newer spark-log may have written"):
        StreamOffset.from_json({"t": {"0": 1}, "@next": 1})
