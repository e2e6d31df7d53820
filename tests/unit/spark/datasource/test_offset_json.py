"""The JSON texts: accepted and refused texts, error messages, and canonical output."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import InvalidOptionError
from spark_log.ids import TopicPartition
from spark_log.spark.datasource.options.offset_json import (
    offsets_from_dict,
    offsets_to_dict,
    parse_assign,
    parse_offsets,
    parse_timestamps,
)

TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,12}", fullmatch=True)
PARTITIONS = st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(-2, 2**63 - 1), max_size=20)


def test_documented_offsets_are_parsed() -> None:
    assert parse_offsets('{"t":{"0":23,"1":-1}, "u": {"10": -2}}') == {
        TopicPartition("t", 0): 23,
        TopicPartition("t", 1): -1,
        TopicPartition("u", 10): -2,
    }
    assert parse_offsets("{}") == parse_offsets('{"t":{}}') == {}


BAD_OFFSETS = [
    *("", " ", "{", "null", "5", '"earliest"', "[]", '{"t":[0]}', '{"t":5}', '{"t":null}', "{'t':{'0':1}}"),
    *('{"t":{"0":1},}', '{"t":{"0":1}} x', '{"t":{"0":1}}{}', '{t:{"0":1}}', '\ufeff{"t":{"0":1}}'),
    *('{"t":{"0":1,"0":2}}', '{"t":{"0":1},"t":{"1":2}}', '{"t":{"0":1},"t":{"0":1}}'),
    *(
        '{"t":{"0":1.0}}',
        '{"t":{"0":1.5}}',
        '{"t":{"0":1e3}}',
        '{"t":{"0":true}}',
        '{"t":{"0":"1"}}',
        '{"t":{"0":null}}',
    ),
    *('{"t":{"0":NaN}}', '{"t":{"0":Infinity}}', '{"t":{"0":-Infinity}}', '{"t":{"0":[]}}', '{"t":{"0":{}}}'),
    *('{"t":{"0":-3}}', '{"t":{"0":9223372036854775808}}', '{"t":{"0":1e400}}', '{"t":{"0":%s}}' % ("9" * 5000)),
    *('{"t":{"-1":1}}', '{"t":{"00":1}}', '{"t":{"01":1}}', '{"t":{"+1":1}}', '{"t":{" 0":1}}', '{"t":{"":1}}'),
    *('{"t":{"a":1}}', '{"t":{"0.0":1}}', '{"t":{"2147483648":1}}', '{"t":{"٣":1}}', '{"t":{"0\\n":1}}'),
    *("[" * 100_000, '{"t":' * 100_000),
]


@pytest.mark.parametrize("text", BAD_OFFSETS, ids=lambda text: text[:40])
def test_invalid_offsets_name_the_expected_and_the_given_text(text: str) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        parse_offsets(text)
    message = str(raised.value)
    assert message.startswith('Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got ' + text[:900])
    assert len(message) < 1300


def test_special_offsets_are_refused_in_checkpoints() -> None:
    assert offsets_from_dict({"t": {"0": 0}}) == {TopicPartition("t", 0): 0}
    for offset in (-1, -2):
        with pytest.raises(InvalidOptionError, match=f"{offset} of t-0 is not a whole number >= 0"):
            offsets_from_dict({"t": {"0": offset}})


@pytest.mark.parametrize("text", ['{"t":{"0":-1}}', '{"t":{"0":-2}}', '{"t":{"0":1.0}}', "5", '{"t":[0]}'])
def test_invalid_timestamps_are_refused(text: str) -> None:
    assert parse_timestamps('{"t":{"0":1700000000000}}') == {TopicPartition("t", 0): 1_700_000_000_000}
    with pytest.raises(InvalidOptionError, match=r'Expected e.g. {"topicA": {"0": 123456789, "1": 123456789}'):
        parse_timestamps(text)


def test_assign_is_parsed_sorted_without_duplicates() -> None:
    assert parse_assign('{"b":[1,0,1],"a":[10,9]}') == (("a", 9), ("a", 10), ("b", 0), ("b", 1))


BAD_ASSIGN = [
    '{"t":0}',
    '{"t":["0"]}',
    '{"t":[-1]}',
    '{"t":[true]}',
    '{"t":[1.0]}',
    '{"t":[2147483648]}',
    '{"t":[[0]]}',
    "[",
]
BAD_ASSIGN += ['{"t":{"0":1}}', '{"t":[0],"t":[1]}', "[0]", '{"t":[null]}', "{t:[0]}"]


@pytest.mark.parametrize("text", BAD_ASSIGN)
def test_invalid_assign_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        parse_assign(text)
    assert str(raised.value).startswith('Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got ' + text)


def test_output_is_canonical() -> None:
    offsets = {TopicPartition(topic, partition): 1 for topic in "ba" for partition in (10, 9, 0)}
    assert json.dumps(offsets_to_dict(offsets)) == '{"a": {"0": 1, "9": 1, "10": 1}, "b": {"0": 1, "9": 1, "10": 1}}'
    assert offsets_to_dict({}) == {}


@given(OFFSETS)
def test_offsets_round_trip(offsets: dict[TopicPartition, int]) -> None:
    text = json.dumps(offsets_to_dict(offsets))
    assert parse_offsets(text) == offsets
    assert json.dumps(offsets_to_dict(dict(reversed(list(offsets.items()))))) == text
    assert offsets_from_dict(json.loads(text), resolved=False) == offsets


@given(st.sets(PARTITIONS))
def test_assign_round_trip(partitions: set[TopicPartition]) -> None:
    nested: dict[str, list[int]] = {}
    for topic, partition in partitions:
        nested.setdefault(topic, []).append(partition)
    assert parse_assign(json.dumps(nested)) == tuple(sorted(partitions))


@pytest.mark.parametrize(
    "nested", [None, 5, [], {"t": 5}, {"t": {0: 1}}, {5: {"0": 1}}, {"t": {"0": -1}}, {"t": {"0": True}}]
)
def test_invalid_dicts_are_refused(nested: object) -> None:
    with pytest.raises(InvalidOptionError, match=r"Expected e\.g\."):
        offsets_from_dict(nested)


def test_ten_thousand_partitions_round_trip() -> None:
    offsets = {TopicPartition(f"topic-{at % 100}", at // 100): at for at in range(10_000)}
    assert parse_offsets(json.dumps(offsets_to_dict(offsets))) == offsets
