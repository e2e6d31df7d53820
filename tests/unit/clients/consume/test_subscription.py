"""The state of a consumer: kinds of subscription exclude each other, positions follow the policy, and a rebalance
changes only the partitions that move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log import ids
from spark_log.clients.consume.subscription import (
    PartitionState,
    Subscription,
    checked_offsets,
    checked_position,
    move_of,
    settle,
)
from spark_log.errors import (
    IllegalArgumentError,
    IllegalStateError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from spark_log.groups.committed_offsets import Commit
from spark_log.ids import TopicId
from spark_log.log.partitions.replication_rules import Truncation
from spark_log.log.segments.plan import PartitionSnapshot
from spark_log.log.segments.slices import Positions

EPOCH = 4
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
offsets = st.integers(0, 100)
ends = st.tuples(offsets, offsets).map(lambda pair: Positions(min(pair), max(pair)))


@given(
    offset=st.none() | offsets,
    reset=st.sampled_from([None, "earliest", "latest"]),
    known_topic=st.sampled_from([None, 1, 2]),
    ends=ends,
    policy=st.sampled_from(["earliest", "latest", "none"]),
)
def test_settled_position_is_in_the_log(offset, reset, known_topic, ends, policy):
    state = PartitionState(offset=None if reset else offset, reset=reset, topic_id=known_topic)
    stays = reset is None and offset is not None and ends[0] <= offset <= ends[1] and known_topic != 2
    try:
        settle(P0, state, PartitionSnapshot(TopicId(1), ends, EPOCH), (), policy)
    except NoOffsetForPartitionError as error:
        assert policy == "none" and offset is None and reset is None and error.args == ({P0},)
        return
    except OffsetOutOfRangeError as error:
        assert policy == "none" and not stays and reset is None and error.args == ({P0: offset},)
        assert state.offset == offset
        return
    assert state.reset is None
    if stays:
        assert state.offset == offset
    else:
        assert state.offset == (ends[0] if (reset or policy) == "earliest" else ends[1])
    assert (state.topic_id, state.high_watermark, state.leader_epoch) == (1, ends[1], EPOCH)


def test_truncated_position_goes_back_to_the_first_diverging_offset():
    state = PartitionState(offset=9, leader_epoch=2, topic_id=1)
    settle(P0, state, PartitionSnapshot(TopicId(1), Positions(0, 20), EPOCH), [Truncation(3, 7)], "latest")
    assert (state.offset, state.leader_epoch) == (7, 2)


def test_truncated_position_without_a_policy_raises_and_does_not_change():
    state = PartitionState(offset=9, leader_epoch=2, topic_id=1)
    with pytest.raises(LogTruncationError) as raised:
        settle(P0, state, PartitionSnapshot(TopicId(1), Positions(0, 20), EPOCH), [Truncation(3, 7)], "none")
    assert raised.value.divergent_offsets == {P0: OffsetAndMetadata(7, "", 2)}
    assert raised.value.partition_offsets == {P0: 9} and state.offset == 9


def test_truncations_of_a_recreated_topic_do_not_apply_to_old_positions():
    state = PartitionState(offset=9, leader_epoch=0, topic_id=1)
    settle(P0, state, PartitionSnapshot(TopicId(2), Positions(0, 20), EPOCH), [Truncation(3, 7)], "earliest")
    assert (state.offset, state.topic_id, state.leader_epoch) == (0, 2, EPOCH)


partitions = st.frozensets(st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 3)))


@given(owned=partitions, assigned=partitions)
def test_move_changes_only_the_partitions_that_differ(owned, assigned):
    subscription = Subscription(kind="topics", partitions={name: PartitionState(offset=7) for name in owned})
    before = dict(subscription.partitions)
    move = move_of(owned, {ids.TopicPartition(*name) for name in assigned})
    subscription.apply(move)
    assert set(subscription.partitions) == assigned
    assert move.revoked == owned - assigned and move.added == assigned - owned
    for name in owned & assigned:
        assert subscription.partitions[name] is before[name]
    for name in move.added:
        assert type(name) is TopicPartition and subscription.partitions[name].offset is None


def test_kinds_of_subscription_exclude_each_other():
    subscription = Subscription()
    with pytest.raises(ValueError, match="topics"):
        subscription.subscribe((), None, None)
    with pytest.raises(IllegalStateError):
        subscription.subscribe(["a"], "b", None)
    assert subscription.kind == ""
    subscription.subscribe(["a"], None, None)
    for other in (lambda: subscription.subscribe((), "b.*", None), lambda: subscription.assign_from_user([P0])):
        with pytest.raises(IllegalStateError):
            other()
    subscription.unsubscribe()
    subscription.assign_from_user([P0, ids.TopicPartition("t", 1)])
    with pytest.raises(IllegalStateError):
        subscription.subscribe(["a"], None, None)
    assert set(subscription.partitions) == {P0, P1}


@pytest.mark.parametrize("topics", ["name", [7], [""], ["a/b"], [None], {"a"}])
def test_invalid_topic_names_are_refused(topics):
    with pytest.raises((TypeError, ValueError)):
        Subscription().subscribe(topics, None, None)


@pytest.mark.parametrize(
    "partition", [("t", 0), "t", TopicPartition("t", -1), TopicPartition("t", "0"), TopicPartition("a/b", 0)]
)
def test_invalid_partitions_are_refused(partition):
    with pytest.raises((TypeError, ValueError)):
        Subscription().assign_from_user([partition])


def test_listener_must_be_a_rebalance_listener():
    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked): ...
        def on_partitions_assigned(self, assigned): ...

    with pytest.raises(TypeError):
        Subscription().subscribe(["a"], None, print)
    Subscription().subscribe(["a"], None, Listener())


def test_pattern_matches_from_the_beginning_and_excludes_internal_topics():
    subscription = Subscription()
    subscription.subscribe((), "^_?.*ights", None)
    names = ["flights", "more-flights", "lights", "__consumer_offsets", "other"]
    assert subscription.matching(names, True) == {"flights", "more-flights", "lights"}
    subscription.subscribe((), ".*offsets", None)
    assert subscription.matching(names, True) == set()
    assert subscription.matching(names, False) == {"__consumer_offsets"}


@pytest.mark.parametrize("offset", [-1, True, 1.0, "1", None, 2**63])
def test_invalid_offsets_are_not_committed(offset):
    with pytest.raises(IllegalArgumentError, match="offset"):
        checked_offsets({P0: OffsetAndMetadata(offset, "", -1)})


@pytest.mark.parametrize("epoch", [-2, True, 1.0, "1", b"1", 2**31])
def test_invalid_leader_epochs_are_not_committed_or_sought(epoch):
    with pytest.raises(IllegalArgumentError, match="leader epoch"):
        checked_offsets({P0: OffsetAndMetadata(1, "", epoch)})
    with pytest.raises(IllegalArgumentError, match="leader epoch"):
        checked_position(P0, OffsetAndMetadata(1, "", epoch))


@pytest.mark.parametrize("offsets", [{P0: 5}, {"t": OffsetAndMetadata(1)}, [P0], {P0: (1, "", -1)}])
def test_commit_arguments_of_other_types_are_refused(offsets):
    with pytest.raises(TypeError):
        checked_offsets(offsets)


def test_only_known_positions_are_committed():
    known = PartitionState(offset=3, leader_epoch=2, topic_id=1)
    subscription = Subscription(partitions={P0: known, P1: PartitionState(reset="latest")})
    assert subscription.consumed() == {P0: Commit(3, "", 2, topic_id=1)}
