"""Assignors of consumer groups: kafka-python's, cooperative ones, and those that fail or lose their answer."""

import pytest
from kafka.coordinator.assignors.abstract import RebalanceProtocol
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment
from kafka.structs import OffsetAndMetadata

from spark_log.errors import (
    AssignorFailedError,
    InconsistentGroupProtocolError,
    MetadataStoreUnavailableError,
)
from spark_log.facts.groups import describe_groups
from spark_log.groups import custom_assignor_membership, membership
from spark_log.groups.assignors import known_assignors
from spark_log.groups.classic.service import join_classic
from spark_log.groups.consumer import service
from spark_log.ids import TopicPartition
from spark_log.replication.controller.topic_operations import add_partitions, create_topic
from tests.support.group_members import Reader, settle


def tp(number, topic="t"):
    return TopicPartition(topic, number)


def at(offset, metadata="", epoch=-1):
    return OffsetAndMetadata(offset, metadata, epoch)


def described(cluster, group="g"):
    (found,) = describe_groups(cluster.store, [group])
    return found


@pytest.mark.on_sqlite
@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_every_assignor_of_kafka_python(cluster, assignor):
    create_topic(cluster, "t", 5)
    create_topic(cluster, "u", 2)
    readers = [Reader(cluster, topics, assignors=[assignor]) for topics in (["t"], ["t", "u"], ["t", "u"])]
    for count in (1, 2, 3):
        settle(*readers[:count])
    assert sorted(p for reader in readers for p in reader.held) == sorted([*map(tp, range(5)), tp(0, "u"), tp(1, "u")])
    assert described(cluster).assignor == assignor
    before = readers[1].held
    readers[2].member.leave()
    settle(*readers[:2])
    if "sticky" in assignor:
        assert before <= readers[1].held, "what it had stays"


class RangeOfOurs(RangePartitionAssignor):
    name = "range-of-ours"


# Assignors


class Moody(RangePartitionAssignor):
    """Fails while `works` is False."""

    name = "moody"
    works = True

    @classmethod
    def assign(cls, cluster, members):
        if not cls.works:
            raise RuntimeError("not today")
        return super().assign(cluster, members)


def test_a_failing_custom_assignor_does_not_block_its_group(cluster, monkeypatch):
    create_topic(cluster, "t", 4)
    (a,) = settle(Reader(cluster, assignors=[Moody]))
    assert (a.numbers, described(cluster).type, described(cluster).assignor) == ([0, 1, 2, 3], "classic", "moody")
    monkeypatch.setattr(Moody, "works", False)
    b = Reader(cluster, assignors=[Moody()])
    assert not b.beat().complete
    a.member.commit({tp(0): at(1)})
    assert a.beat().partitions == frozenset(), "it is not cooperative"
    with pytest.raises(AssignorFailedError, match="not today"):
        a.beat()
    assert a.numbers == []
    assert described(cluster).state == "CompletingRebalance"
    monkeypatch.setattr(Moody, "works", True)
    settle(a, b)
    assert len(a.numbers) == len(b.numbers) == 2


class Gentle(Moody):
    """Leaves a partition that moves to its owner until that has given it up."""

    name = "gentle"
    works = True

    def supported_protocols(self):
        return [RebalanceProtocol.COOPERATIVE]

    @classmethod
    def assign(cls, cluster, members):
        owned = {
            (each.topic, number): member.member_id
            for member in members
            for each in member.metadata.owned_partitions or ()
            for number in each.partitions
        }
        targets = super().assign(cluster, members)
        return {
            member_id: ConsumerProtocolAssignment(
                version=0, user_data=b"",
                assigned_partitions=[
                    (topic, [number])
                    for topic, number in assignment.partitions()
                    if owned.get((topic, number), member_id) == member_id
                ],
            )
            for member_id, assignment in targets.items()
        }  # fmt: skip


def test_members_with_a_cooperative_assignor_keep_what_does_not_move(cluster):
    create_topic(cluster, "t", 4)
    a, b = settle(Reader(cluster, assignors=[Gentle]))[0], Reader(cluster, assignors=[Gentle])
    had = []
    while not (b.beat().complete and b.numbers):
        a.beat()
        had.append(len(a.numbers))
    assert min(had) == 2 == len(b.numbers)
    settle(a, b)
    add_partitions(cluster, "t", 6)
    assert a.member.keep_alive() or b.member.keep_alive(), "their leader sees new partitions"
    settle(a, b)
    assert len(a.numbers) == len(b.numbers) == 3
    b.member.leave()
    settle(a)
    assert a.numbers == list(range(6))


def test_a_static_leader_that_starts_again_sees_new_partitions(cluster):
    create_topic(cluster, "t", 2)
    settle(Reader(cluster, instance="one", assignors=[RangeOfOurs]))
    (again,) = settle(Reader(cluster, instance="one", assignors=[RangeOfOurs]))
    assert (again.numbers, again.member.keep_alive()) == ([0, 1], False)
    add_partitions(cluster, "t", 3)
    assert again.member.keep_alive()
    settle(again)
    assert again.numbers == [0, 1, 2]


@pytest.mark.parametrize("instance", [None, "one"])
def test_a_join_with_a_custom_assignor_whose_answer_is_lost_leaves_no_second_member(cluster, monkeypatch, instance):
    create_topic(cluster, "t", 2)
    join = custom_assignor_membership.join_classic

    def join_without_answer(*arguments):
        join(*arguments)
        raise MetadataStoreUnavailableError("the answer is lost")

    a = Reader(cluster, instance=instance, assignors=[Moody])
    with monkeypatch.context() as patch:
        patch.setattr(custom_assignor_membership, "join_classic", join_without_answer)
        with pytest.raises(MetadataStoreUnavailableError):
            a.beat()
    a.beat()
    assert [member.member_id for member in described(cluster).members] == [a.member.member_id]
    settle(a)
    assert a.numbers == [0, 1]


@pytest.mark.parametrize("assignor", ["range", Moody])
def test_a_consumer_that_closes_after_a_join_without_an_answer_leaves_the_group(cluster, monkeypatch, assignor):
    create_topic(cluster, "t", 2)

    def away(*_):
        raise MetadataStoreUnavailableError("away")

    a = Reader(cluster, assignors=[assignor])
    with monkeypatch.context() as patch:
        patch.setattr(service, "refresh_targets", away)
        patch.setattr(custom_assignor_membership, "join_classic", lambda *given: away(join_classic(*given)))
        with pytest.raises(MetadataStoreUnavailableError):
            a.beat()
    assert len(described(cluster).members) == 1
    a.member.leave()
    assert described(cluster).members == ()


class Interrupted(RangePartitionAssignor):
    """Runs another change during its assignment."""

    def __init__(self):
        self.meanwhile = None

    def assign(self, cluster, members):
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().assign(cluster, members)


def test_a_target_that_was_overtaken_by_another_change_is_not_written(cluster, monkeypatch):
    create_topic(cluster, "t", 6)
    slow, known = Interrupted(), known_assignors()
    monkeypatch.setattr(membership, "known_assignors", lambda: {**known, "range": slow})
    a, b, c = (Reader(cluster) for _ in range(3))
    settle(a)
    targets = []

    def join():
        c.beat()
        targets.append([len(member.target) for member in described(cluster).members])

    slow.meanwhile = join
    b.beat()
    found = described(cluster)
    assert (found.generation, found.state) == (a.answer.generation + 2, "Reconciling")
    assert targets == [[2, 2, 2]] == [[len(member.target) for member in found.members]]
    settle(a, b, c)


def test_members_without_a_common_assignor(cluster):
    create_topic(cluster, "t", 2)
    (a,) = settle(Reader(cluster, assignors=["range", "sticky"]))
    with pytest.raises(InconsistentGroupProtocolError):
        Reader(cluster, assignors=["roundrobin"]).beat()
    b = Reader(cluster, assignors=["sticky", "range"])
    settle(a, b)
    assert len(described(cluster).members) == 2
