"""Balance, and the fewest moves that it permits; in little time for large groups."""

import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.groups.assignors import Candidate, assign, known_assignors
from spark_log.groups.sticky_assignor import assign_sticky
from spark_log.ids import TopicPartition

COUNTS = st.dictionaries(st.sampled_from("tuv"), st.integers(1, 9), min_size=1)


def partitions_of(counts):
    return [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]


def owned_by(members, counts, owner):
    """Some partitions have no owner; two do not exist any more."""
    owned = {name: set() for name in members}
    for partition in [*partitions_of(counts), TopicPartition("gone", 0), TopicPartition("t", 99)]:
        number = owner.randrange(len(members) + 1)
        if number < len(members):
            owned[members[number]].add(partition)
    return {name: frozenset(partitions) for name, partitions in owned.items()}


@given(counts=COUNTS, topics=st.lists(st.sets(st.sampled_from("tuvw")), min_size=1, max_size=7), owner=st.randoms())
def test_no_move_of_a_partition_would_balance_better(counts, topics, owner):
    subscriptions = {f"m{number}": each for number, each in enumerate(topics)}
    owned = owned_by(list(subscriptions), counts, owner)
    result = assign_sticky(subscriptions, owned, counts)
    assert Counter(p for partitions in result.values() for p in partitions) == Counter(
        p for p in partitions_of(counts) if any(p.topic in each for each in topics)
    )
    for name, partitions in result.items():
        for topic in {p.topic for p in partitions}:
            others = [len(result[other]) for other, each in subscriptions.items() if topic in each]
            assert topic in subscriptions[name]
            assert len(partitions) - min(others) <= 1
    assert assign_sticky(subscriptions, result, counts) == result, "a balanced group stays as it is"


@given(counts=COUNTS, count=st.integers(1, 7), owner=st.randoms())
def test_members_with_one_subscription_give_up_only_what_is_above_their_share(counts, count, owner):
    members = [f"m{number}" for number in range(count)]
    everything = frozenset(partitions_of(counts))
    owned = {name: each & everything for name, each in owned_by(members, counts, owner).items()}
    result = assign_sticky(dict.fromkeys(members, frozenset("tuv")), owned, counts)
    share, larger = divmod(len(everything), count)
    had = sorted(map(len, owned.values()), reverse=True)
    shares = [share + 1] * larger + [share] * (count - larger)
    given_up = sum(len(owned[name] - result[name]) for name in members)
    assert sorted(map(len, result.values()), reverse=True) == shares
    assert given_up == sum(max(before - after, 0) for before, after in zip(had, shares, strict=True))


def test_each_topic_is_spread_over_the_members():
    counts = {"t": 4, "u": 4}
    alone = assign_sticky({"a": "tu"}, {}, counts)
    for result in (assign_sticky({"a": "tu", "b": "tu"}, owned, counts) for owned in ({}, alone)):
        spread = {name: Counter(p.topic for p in partitions) for name, partitions in result.items()}
        assert spread == {"a": {"t": 2, "u": 2}, "b": {"t": 2, "u": 2}}


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky", "uniform"])
def test_the_work_grows_with_the_number_of_partitions(name):
    """kafka-python's assignor takes minutes where subscriptions differ: other members wait in the same threads."""
    steps = [steps_of(name, partitions) for partitions in (100, 1_000)]
    assert steps[1] < 15 * steps[0], steps


def steps_of(name, partitions):
    """The number of executed lines of an assignment of 3 topics with so many partitions."""
    counts = dict.fromkeys("tuv", partitions)
    owned = assign_sticky(dict.fromkeys("ab", "tuv"), {}, counts)
    members = [
        Candidate(name, frozenset(topics), owned=owned.get(name, frozenset()))
        for name, topics in (("a", "tuv"), ("b", "tuv"), ("c", "tu"), ("d", "v"))
    ]
    lines, traced = 0, sys.gettrace()

    def count(_frame, event, _argument):
        nonlocal lines
        lines += event == "line"
        return count

    sys.settrace(count)
    try:
        result = assign(known_assignors()[name], members, counts)
    finally:
        sys.settrace(traced)
    assert all(abs(len(result[each]) - 3 * partitions / 4) <= 1 for each in "abcd")
    return lines
