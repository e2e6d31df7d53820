"""Topic names: Kafka's rules, held against the table of bad input."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.cluster.names import (
    INTERNAL_TOPICS,
    collision_key,
    is_internal,
    validate_topic_name,
    validate_user_topic,
)
from spark_log.errors import InvalidTopicError, PolicyViolationError

BAD = [
    *("", ".", "..", "../x", "a/b", "/abs", "a\\b", "a\x00b", "a" * 250, "é", "topic\n", "\ntopic", "%2e%2e", "a b"),
    *("*", "{a,b}", "k=v", "'a'", '"a"', "`a`", "a:b", "٣", "\ud800", "a;drop table topic", None, 5, True, b"t", ["t"]),
]


@pytest.mark.parametrize("name", BAD, ids=repr)
def test_bad_names_are_refused_by_field_and_value(name: object) -> None:
    with pytest.raises(InvalidTopicError, match="column 'topic'") as raised:
        validate_topic_name(name, "column 'topic'")
    shown = repr(name[:50])[:-1] if isinstance(name, str) else repr(name)
    assert shown in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "a" * 249, "...", "-", "_", "0", "__consumer_offsets", ".hidden"])
def test_legal_names(name: str) -> None:
    assert validate_topic_name(name) == name


@given(st.text(max_size=260))
def test_rule_is_kafkas(name: str) -> None:
    legal = re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) is not None and name not in (".", "..")
    try:
        assert validate_topic_name(name) == name
        assert legal
    except InvalidTopicError:
        assert not legal


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_internal_topics_are_not_for_users(topic: str) -> None:
    assert is_internal(topic)
    with pytest.raises(PolicyViolationError, match=f"Cannot write to topic '{topic}'"):
        validate_user_topic(topic, "write to")


def test_user_topics() -> None:
    assert validate_user_topic("__mine", "create") == "__mine"
    with pytest.raises(InvalidTopicError):
        validate_user_topic("a/b", "create")


def test_collisions() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c") != collision_key("a-b_c")
    assert collision_key("ab") not in {collision_key("a.b"), collision_key("a_b")}
