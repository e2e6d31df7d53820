"""kafka-python's assignors and custom ones, called with our own description of a group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_log.errors import AssignorFailedError, InconsistentGroupProtocolError, InvalidConfigurationError
from spark_log.groups.assignors import (
    Candidate,
    assign,
    assign_as_leader,
    choose_assignor,
    is_custom,
    known_assignors,
    resolve_assignors,
)
from spark_log.ids import TopicPartition

KNOWN = known_assignors()


class Custom(AbstractPartitionAssignor):
    """Returns a prepared answer."""

    name = "custom"

    def __init__(self, answer=None):
        self.answer = answer

    def assign(self, cluster, members):
        self.asked = cluster, members
        return self.answer(cluster, members)

    def metadata(self, topics):
        return ConsumerProtocolSubscription(version=0, topics=sorted(topics), user_data=b"mine")

    def on_assignment(self, assignment, generation):
        pass


def gives(**partitions):
    """A prepared answer with (topic, numbers) pairs by member."""
    return lambda _cluster, _members: {m: ConsumerProtocolAssignment(0, pairs, b"") for m, pairs in partitions.items()}


def members(*names, topics=("t",), **facts):
    return [Candidate(name, frozenset(topics), **facts) for name in names]


def numbers(assignment):
    return {member: sorted(p.partition for p in partitions) for member, partitions in assignment.items()}


@given(
    name=st.sampled_from(sorted(KNOWN)),
    counts=st.dictionaries(st.sampled_from("tuv"), st.integers(1, 6)),
    subscriptions=st.lists(st.sets(st.sampled_from("tuvw")), min_size=1, max_size=6),
    static=st.sets(st.integers(0, 5)),
    prior=st.randoms(use_true_random=False),
)
def test_every_subscribed_partition_is_assigned_to_one_subscriber(name, counts, subscriptions, static, prior):
    everything = [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count + 1)]
    owner = {p: prior.randrange(len(subscriptions) + 1) for p in everything}
    candidates = [
        Candidate(
            f"m{i}",
            frozenset(topics),
            f"i{i}" if i in static else None,
            frozenset(p for p in everything if owner[p] == i),
        )
        for i, topics in enumerate(subscriptions)
    ]
    result = assign(KNOWN[name], candidates, counts)
    assert result.keys() == {c.member_id for c in candidates}
    wanted = [p for p in everything if p.partition < counts[p.topic] and any(p.topic in s for s in subscriptions)]
    assert sorted(p for partitions in result.values() for p in partitions) == sorted(wanted)


def test_named_assignors_assign_as_in_kafka():
    assert numbers(assign(KNOWN["range"], members("a", "b"), {"t": 5})) == {"a": [0, 1, 2], "b": [3, 4]}
    assert numbers(assign(KNOWN["roundrobin"], members("a", "b"), {"t": 5})) == {"a": [0, 2, 4], "b": [1, 3]}
    assert numbers(assign(KNOWN["range"], members("a", "b", "c"), {"t": 2})) == {"a": [0], "b": [1], "c": []}


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_sticky_assignors_move_few_partitions_and_return_the_final_assignment(name):
    before = [
        Candidate("a", frozenset("t"), owned=frozenset(TopicPartition("t", n) for n in range(6))),
        Candidate("b", frozenset("t")),
    ]
    after = numbers(assign(KNOWN[name], before, {"t": 6}))
    assert sorted(map(len, after.values())) == [3, 3], "also the cooperative one, which first leaves out what moves"
    assert sorted(after["a"] + after["b"]) == list(range(6))


def test_static_members_come_first_in_the_order():
    candidates = [
        Candidate("z", frozenset("t"), "one"),
        Candidate("a", frozenset("t")),
        Candidate("b", frozenset("t"), "two"),
    ]
    assert numbers(assign(KNOWN["range"], candidates, {"t": 3})) == {"z": [0], "b": [1], "a": [2]}


def says(member_id, *topics, instance_id=None):
    message = ConsumerProtocolSubscription(version=0, topics=sorted(topics), user_data=b"data")
    return member_id, instance_id, message.encode()


def decoded(assignments):
    return {key: ConsumerProtocolAssignment.decode(data).partitions() for key, data in assignments.items()}


def test_leader_gives_the_assignor_the_arguments_of_kafka():
    custom = Custom(gives(a=[("t", [0, 1])]))
    assert decoded(assign_as_leader(custom, [says("a", "t", instance_id="one"), says("b")], {"t": 2})) == {
        "a": [("t", 0), ("t", 1)]
    }
    cluster, (first, second) = custom.asked
    assert (cluster.topics(), cluster.partitions_for_topic("t"), cluster.partitions_for_topic("no")) == (
        {"t"},
        {0, 1},
        None,
    )
    assert (first.member_id, first.group_instance_id, first.metadata.topics) == ("a", "one", ["t"])
    assert first.metadata.user_data == b"data"
    assert (second.member_id, second.metadata.topics) == ("b", [])
    assert is_custom(custom)
    assert not any(map(is_custom, KNOWN.values()))


def raises(_cluster, _members):
    raise KeyError("oh")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (raises, r"'custom' failed: KeyError\('oh'\)"),
        (lambda *_: None, "'custom' failed"),
        (lambda *_: {"a": 5}, "'custom' failed"),
        (gives(a=[("t", [0, 0])]), "gives a t-0, and a too"),
        (gives(a=[("t", [0])], b=[("t", [0])]), "gives b t-0, and a too"),
        (gives(a=[("t", [2])]), "t-2, which does not exist"),
        (gives(a=[("t", [-1])]), "t--1, which does not exist"),
        (gives(a=[("u", [0])]), "u-0, which does not exist"),
        (gives(a=[("w", [0])]), "w-0, which it is not subscribed to"),
        (gives(ghost=[]), "ghost partitions, but it is not a member"),
    ],
)
def test_invalid_answer_is_refused_with_the_name_of_the_assignor(answer, message):
    with pytest.raises(AssignorFailedError, match=message):
        assign_as_leader(Custom(answer), [says("a", "t"), says("b", "t")], {"t": 2, "w": 1})


def test_subscription_that_cannot_be_decoded_is_reported():
    with pytest.raises(AssignorFailedError, match="'custom' failed"):
        assign_as_leader(Custom(gives()), [("a", None, b"\0")], {"t": 1})


def test_custom_assignor_may_leave_partitions_unassigned():
    assert decoded(assign_as_leader(Custom(gives(a=[("t", [0])])), [says("a", "t")], {"t": 2})) == {"a": [("t", 0)]}


def test_assignors_are_resolved_from_classes_instances_names_and_paths():
    custom = Custom()
    resolved = resolve_assignors((RangePartitionAssignor, custom, "sticky", f"{__name__}.Other"))
    assert list(resolved) == ["range", "custom", "sticky", "other"]
    assert resolved["custom"] is custom
    assert type(resolve_assignors([CooperativeStickyAssignor])["cooperative-sticky"]) is CooperativeStickyAssignor


class Other(Custom):
    name = "other"


@pytest.mark.parametrize(
    "bad", [["no.such.Thing"], ["nonsense"], ["os.path.nothing"], [int], [], ["range", "range"], [""]]
)
def test_invalid_assignors_are_refused(bad):
    with pytest.raises(InvalidConfigurationError, match="assignors"):
        resolve_assignors(bad)


@pytest.mark.parametrize(
    ("lists", "chosen"),
    [
        ([["range"]], "range"),
        ([["range", "sticky"], ["range", "sticky"]], "range"),
        ([["range", "sticky"], ["sticky", "roundrobin"]], "sticky"),
        ([["range", "sticky"], ["sticky", "range"], ["sticky", "range"]], "sticky"),
    ],
)
def test_assignor_of_a_group_is_supported_by_all_members(lists, chosen):
    assert choose_assignor(lists) == chosen


def test_members_without_a_common_assignor_are_refused():
    with pytest.raises(InconsistentGroupProtocolError, match="range / sticky"):
        choose_assignor([["range"], ["sticky"]])
