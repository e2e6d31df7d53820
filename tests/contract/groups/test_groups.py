"""Consumer groups in the store: assignment, commits, and the state after members leave."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from json import JSONDecodeError
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sqlalchemy as sa
from kafka.coordinator.assignors.abstract import RebalanceProtocol
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment
from kafka.structs import OffsetAndMetadata

from spark_log.cluster.lease import unfenced
from spark_log.errors import (
    AssignorFailedError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    IllegalArgumentError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    MetadataStoreUnavailableError,
    NonEmptyGroupError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from spark_log.facts.groups import describe_groups, group_lag, list_groups
from spark_log.groups import custom_assignor_membership, membership
from spark_log.groups.assignors import known_assignors
from spark_log.groups.classic.service import join_classic
from spark_log.groups.committed_offsets import commit_offsets, committed, committed_offsets
from spark_log.groups.consumer import rows, service, topic_patterns
from spark_log.groups.consumer.heartbeat import ConsumerHeartbeat
from spark_log.groups.consumer.reconciliation import groups_of_changed_topics, reconcile_group
from spark_log.groups.group_operations import (
    AtTime,
    Earliest,
    Exactly,
    Latest,
    ShiftBy,
    delete_group,
    delete_offsets,
    remove_from_group,
    reset_offsets,
)
from spark_log.groups.identity import Identity
from spark_log.groups.offset_expiry import count_expired_offsets, expire_offsets
from spark_log.ids import TopicPartition
from spark_log.log.append.producer_expiry import expire_producers
from spark_log.maintenance.coordinator import periodic_tasks
from spark_log.metadata import tables as t
from spark_log.metadata.connections.writer_queue import is_writing
from spark_log.metadata.sql_columns import CONSUMER_GROUP, GROUP_MEMBER, GROUP_OFFSET, TOPIC
from spark_log.replication.controller.topic_operations import add_partitions, create_topic, delete_topic
from spark_log.transactions.transaction_rows import insert_empty_transaction, write_pending_offsets
from tests.support.group_members import LONG_MS, Reader, move_session_end, session_until_ms, settle
from tests.support.records import NOON_MS
from tests.support.stores import change
from tests.support.topics import append
from tests.support.waiting import Worker, wait_until


def tp(number, topic="t"):
    return TopicPartition(topic, number)


def at(offset, metadata="", epoch=-1):
    return OffsetAndMetadata(offset, metadata, epoch)


def described(cluster, group="g"):
    (found,) = describe_groups(cluster.store, [group])
    return found


def silence(cluster, reader):
    """End the session of a reader now."""
    move_session_end(cluster.store, reader.member.member_id, 0)


# Sharing


def test_members_share_and_take_over(cluster):
    create_topic(cluster, "t", 4)
    a, b = Reader(cluster), Reader(cluster)
    assert a.beat().complete, "alone, it has everything with its first heartbeat"
    assert a.numbers == [0, 1, 2, 3]
    settle(a, b)
    assert {*a.numbers, *b.numbers} == {0, 1, 2, 3}
    assert (len(a.numbers), len(b.numbers)) == (2, 2)
    a.member.leave()
    settle(b)
    assert b.numbers == [0, 1, 2, 3]
    assert a.member.member_id == "" and a.member.generation == -1


def test_a_partition_is_assigned_after_its_owner_has_revoked_it(cluster):
    create_topic(cluster, "t", 2)
    a, b = settle(Reader(cluster))[0], Reader(cluster)
    assert b.beat().partitions == frozenset()
    assert not b.answer.complete
    told = a.member.heartbeat(["t"], a.held)
    assert len(told.partitions) == 1 and not told.complete
    for _ in range(3):
        assert b.beat().partitions == frozenset(), "a revocation request is not a revocation"
        a.member.heartbeat(["t"], a.held)
    assert a.member.keep_alive(), "there is something to do"
    a.member.commit({p: at(7) for p in a.held}), "a partition that is being revoked can still be committed"
    a.held = told.partitions
    assert a.beat().complete
    assert b.beat().complete
    assert b.numbers and not set(a.numbers) & set(b.numbers)
    with pytest.raises(IllegalGenerationError, match="belongs to"):
        a.member.commit({p: at(9) for p in b.held})
    assert set(committed_offsets(cluster.store, "g").values()) == {7}


def test_more_members_than_partitions(cluster):
    create_topic(cluster, "t", 2)
    readers = settle(*(Reader(cluster) for _ in range(4)))
    assert sorted(len(reader.numbers) for reader in readers) == [0, 0, 1, 1]
    assert described(cluster).state == "Stable"
    owner = next(reader for reader in readers if reader.numbers == [0])
    owner.member.leave()
    rest = settle(*(reader for reader in readers if reader is not owner))
    assert sorted(number for reader in rest for number in reader.numbers) == [0, 1]


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


def test_created_enlarged_and_deleted_topics_are_reassigned(cluster):
    create_topic(cluster, "t", 1)
    a, b = settle(Reader(cluster, ["t", "u"]), Reader(cluster, ["t", "u"]))
    create_topic(cluster, "u", 2)
    assert a.member.keep_alive()
    settle(a, b)
    assert sorted(a.held | b.held) == [tp(0), tp(0, "u"), tp(1, "u")]
    add_partitions(cluster, "t", 4)
    settle(a, b)
    assert len(a.held | b.held) == 6
    delete_topic(cluster, "u")
    settle(a, b)
    assert sorted(a.held | b.held) == [tp(n) for n in range(4)]


def test_a_changed_subscription_is_reassigned(cluster):
    create_topic(cluster, "t", 2)
    create_topic(cluster, "u", 2)
    a, b = settle(Reader(cluster), Reader(cluster))
    a.topics = ["u"]
    settle(a, b)
    assert (a.held, b.held) == ({tp(0, "u"), tp(1, "u")}, {tp(0), tp(1)})
    a.topics = []
    settle(a, b)
    assert a.held == frozenset()


def test_concurrent_members(cluster):
    create_topic(cluster, "t", 8)
    readers = [Reader(cluster, assignors=["cooperative-sticky"]) for _ in range(5)]

    def work(reader, stop):
        while not stop.is_set():
            seen = cluster.store.changes.current()
            if reader.beat().complete:
                cluster.store.changes.wait(seen, 0.05)

    workers = [Worker(partial(work, reader)) for reader in readers]

    def stable():
        for worker in workers:
            worker.check()
        group = described(cluster)
        return group.state == "Stable" and len(group.members) == 5

    wait_until(stable)
    for worker in workers:
        worker.finish()
    settle(*readers)
    assert sorted(p for reader in readers for p in reader.held) == [tp(n) for n in range(8)]


# Sessions


class RangeOfOurs(RangePartitionAssignor):
    name = "range-of-ours"


def test_a_silent_member_is_replaced_and_may_not_commit(cluster):
    create_topic(cluster, "t", 4)
    a, b = settle(Reader(cluster), Reader(cluster))
    a.member.commit({p: at(3) for p in a.held})
    silence(cluster, a)

    def taken_over():
        b.beat()
        return b.numbers == [0, 1, 2, 3]

    wait_until(taken_over)
    with pytest.raises(UnknownMemberIdError):
        a.member.commit({p: at(8) for p in a.held})
    assert set(committed_offsets(cluster.store, "g").values()) == {3}
    assert a.member.keep_alive(), "call heartbeat: it will say it"
    with pytest.raises(UnknownMemberIdError):
        a.beat()
    a.held = frozenset()
    settle(a, b)
    assert len(a.numbers) == len(b.numbers) == 2


def test_an_expired_session_is_refused_before_the_member_is_removed(cluster):
    create_topic(cluster, "t", 2)
    (a,) = settle(Reader(cluster))
    silence(cluster, a)
    assert a.member.keep_alive()
    with pytest.raises(UnknownMemberIdError):
        a.member.commit({tp(0): at(1)})
    assert committed_offsets(cluster.store, "g") == {}
    with pytest.raises(UnknownMemberIdError):
        a.beat()
    a.held = frozenset()
    settle(a)
    assert len(described(cluster).members) == 1
    assert cluster.store.read(lambda c: rows.count_members(c, "g")) == 1, "it was removed when it joined again"


def test_an_unchanged_heartbeat_is_written_once_in_a_third_of_the_session(cluster):
    create_topic(cluster, "t", 4)
    (a,) = settle(Reader(cluster))
    store, member_id = cluster.store, a.member.member_id

    def beats_until_ms():
        """The end of its session after more heartbeats; the second writes nothing."""
        assert a.beat().complete
        version = store.changes.current()
        assert a.beat().complete and not a.member.keep_alive()
        assert store.changes.current() == version or not store.changes.exact
        return session_until_ms(store, member_id)

    ends_ms = beats_until_ms()
    for share, renewed in ((0.25, False), (0.4, True)):
        moved_ms = ends_ms - int(share * LONG_MS)
        move_session_end(store, member_id, moved_ms)
        assert (beats_until_ms() > moved_ms) == renewed


@pytest.mark.parametrize("assignor", ["range", RangeOfOurs])
def test_a_session_goes_on_while_a_rebalance_does(cluster, assignor):
    create_topic(cluster, "t", 2)
    settle(Reader(cluster, assignors=[assignor]))
    waiting = Reader(cluster, assignors=[assignor])
    assert not waiting.beat().complete

    def left_ms():
        members = described(cluster).members
        return next(each.session_left_ms for each in members if each.member_id == waiting.member.member_id)

    for table in (t.group_member, t.classic_member):
        soon = table.update().where(table.c.member_id == waiting.member.member_id)
        soon = soon.values(until_ms=cluster.store.now().lease_ms + 10_000)
        cluster.store.transact(lambda connection, soon=soon: connection.execute(soon))
    assert left_ms() <= 10_000
    assert waiting.member.keep_alive(), "its assignment is not complete"
    assert left_ms() > 100_000


# Static members


def test_a_static_member_gets_its_former_partitions(cluster):
    create_topic(cluster, "t", 4)
    old, other = settle(Reader(cluster, instance="one"), Reader(cluster))
    held, generation, old_id = old.held, old.answer.generation, old.member.member_id
    old.member.leave()
    assert other.beat().complete, "nothing happened"
    new = Reader(cluster, instance="one")
    assert new.beat().partitions == held
    assert new.answer.complete
    assert new.answer.generation == other.beat().generation == generation
    assert new.member.member_id != old_id


def test_a_replaced_static_member_stays_fenced(cluster):
    create_topic(cluster, "t", 2)
    (old,) = settle(Reader(cluster, instance="one"))
    (new,) = settle(Reader(cluster, instance="one"))
    for _ in range(2):
        with pytest.raises(FencedInstanceIdError):
            old.member.commit({tp(0): at(1)})
        with pytest.raises(FencedInstanceIdError):
            old.beat()
    assert committed_offsets(cluster.store, "g") == {}
    new.member.commit({tp(0): at(2)})
    assert new.beat().complete


# Commits


def test_commits_are_read_back(cluster):
    create_topic(cluster, "t", 3)
    (a,) = settle(Reader(cluster))
    a.member.commit({tp(0): at(5, "five", 2), tp(1): at(6)})
    a.member.commit({tp(1): at(7)})
    assert committed(cluster.store, "g", None) == {tp(0): at(5, "five", 2), tp(1): at(7)}
    assert committed(cluster.store, "g", [tp(1), tp(2)]) == {tp(1): at(7)}
    assert committed(cluster.store, "other", None) == {}
    with pytest.raises(UnknownTopicOrPartitionError, match="no-0, t-3"):
        a.member.commit({tp(2): at(1), tp(3): at(1), tp(0, "no"): at(1)})
    assert committed_offsets(cluster.store, "g") == {tp(0): 5, tp(1): 7, tp(2): 1}
    with pytest.raises(IllegalArgumentError):
        a.member.commit({tp(2): at(2), tp(0): at(-1)})
    a.member.generation -= 1
    with pytest.raises(IllegalGenerationError):
        a.member.commit({tp(2): at(3)})
    with pytest.raises(UnknownMemberIdError):
        Reader(cluster).member.commit({tp(2): at(4)})
    assert committed_offsets(cluster.store, "g") == {tp(0): 5, tp(1): 7, tp(2): 1}, "nothing of these"


def test_a_commit_may_have_the_epoch_before_for_partitions_that_are_still_assigned(cluster):
    """KIP-1251: the client sends the commit before it has the answer to its heartbeat."""
    create_topic(cluster, "t", 4)
    (a,) = settle(Reader(cluster))
    before = a.member.generation
    a, b = settle(a, Reader(cluster))
    now, a.member.generation = a.member.generation, before
    a.member.commit({tp(number): at(5) for number in a.numbers})
    with pytest.raises(IllegalGenerationError, match="belongs to"):
        a.member.commit({tp(b.numbers[0]): at(6)})
    a.member.generation = now
    settle(a, b, Reader(cluster))
    assert a.member.generation > now > before
    a.member.generation = before
    with pytest.raises(IllegalGenerationError):
        a.member.commit({tp(number): at(7) for number in a.numbers})
    assert set(committed_offsets(cluster.store, "g").values()) == {5}


def test_an_empty_group_accepts_commits_without_a_member(cluster):
    create_topic(cluster, "t", 2)
    assert commit_offsets(cluster.store, "g", {tp(0): 4, tp(1): at(5, "m", 1), tp(0, "gone"): 1}) == [tp(0, "gone")]
    assert committed(cluster.store, "g") == {tp(0): at(4), tp(1): at(5, "m", 1)}
    (a,) = settle(Reader(cluster))
    with pytest.raises(UnknownMemberIdError, match=r"1 live member\(s\)"):
        commit_offsets(cluster.store, "g", {tp(0): 9})
    a.member.leave()
    commit_offsets(cluster.store, "g", {tp(0): 6})
    assert committed_offsets(cluster.store, "g") == {tp(0): 6, tp(1): 5}


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


def test_the_coordinator_reconciles_only_groups_whose_topics_have_changed(cluster, monkeypatch):
    reconciled = []

    def noted(store, group_id, *given):
        reconciled.append(group_id)
        return reconcile_group(store, group_id, *given)

    def changed_groups():
        reconciled.clear()
        periodic_tasks._follow_topic_changes(context)
        return list(reconciled)

    monkeypatch.setattr(periodic_tasks, "reconcile_group", noted)
    context = cast(Any, SimpleNamespace(cluster=cluster, fence=unfenced))
    for topic in "abc":
        create_topic(cluster, topic, 1)
        settle(Reader(cluster, [topic, "later"], group=f"of-{topic}"))
    settle(Reader(cluster, ["none"], group="of-none"))
    assert changed_groups() == []
    add_partitions(cluster, "b", 2)
    assert (changed_groups(), changed_groups()) == (["of-b"], [])
    delete_topic(cluster, "c")
    assert (changed_groups(), changed_groups()) == (["of-c"], [])
    create_topic(cluster, "c", 1)
    assert (changed_groups(), changed_groups()) == (["of-c"], [])
    create_topic(cluster, "later", 1)
    assert (changed_groups(), changed_groups()) == (["of-a", "of-b", "of-c"], [])
    for damaged, error in (("damaged", JSONDecodeError), ("[]", AttributeError)):
        change(cluster, t.consumer_group.update().where(CONSUMER_GROUP.group_id == "of-b").values(topics=damaged))
        with pytest.raises(error):
            changed_groups()
        assert reconciled == ["of-b"]


def test_the_coordinator_reads_no_topics_while_no_group_has_members(cluster, monkeypatch):
    create_topic(cluster, "t", 1)
    commit_offsets(cluster.store, "g", {tp(0): 4})
    monkeypatch.delattr(rows, "all_topic_facts")
    assert groups_of_changed_topics(cluster.store) == []


def test_a_join_that_fails_after_it_was_written_leaves_no_second_member(cluster, monkeypatch):
    create_topic(cluster, "t", 2)

    def away(*_):
        raise MetadataStoreUnavailableError("away")

    a = Reader(cluster)
    with monkeypatch.context() as patch:
        patch.setattr(service, "refresh_targets", away)
        with pytest.raises(MetadataStoreUnavailableError):
            a.beat()
    settle(a)
    assert [member.member_id for member in described(cluster).members] == [a.member.member_id]
    assert a.numbers == [0, 1]


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


def test_an_invalid_member_is_refused(cluster):
    with pytest.raises(InvalidGroupIdError):
        Reader(cluster, group="")
    with pytest.raises(InvalidSessionTimeoutError):
        Reader(cluster, session_ms=1)


# Commands of operators


def test_groups_are_described(cluster, log):
    create_topic(cluster, "t", 2)
    append(log, "t", "1", "2", "3")
    commit_offsets(cluster.store, "idle", {tp(0): 1})
    a, b = Reader(cluster, instance="one"), Reader(cluster)
    settle(a)
    b.beat()
    assert [(g.group_id, g.state, g.members, g.type) for g in list_groups(cluster.store)] == [
        ("g", "Reconciling", 2, "consumer"),
        ("idle", "Empty", 0, "consumer"),
    ]
    settle(a, b)
    found = described(cluster)
    assert (found.state, found.assignor, found.generation) == ("Stable", "range", a.answer.generation)
    one = next(member for member in found.members if member.instance_id == "one")
    assert (one.client_id, one.host, one.assignment, one.target) == ("reader", "here", a.held, a.held)
    assert 0 < one.session_left_ms <= 600_000
    assert described(cluster, "no-such").state == "Dead"
    a.member.commit({tp(0): at(1, "m")})
    assert [(x.partition, x.committed, x.log_end, x.lag, x.metadata) for x in group_lag(cluster, "g")] == [
        (0, 1, 3, 2, "m"),
        (1, None, 0, None, ""),
    ]
    assert {x.member.member_id for x in group_lag(cluster, "g")} == {a.member.member_id, b.member.member_id}
    assert [x.member for x in group_lag(cluster, "idle")] == [None]


def test_offsets_are_reset(cluster, log):
    create_topic(cluster, "t", 1)
    for n in range(5):
        append(log, "t", str(n), timestamp_ms=NOON_MS + n * 1000)
    commit_offsets(cluster.store, "g", {tp(0): 2})

    def reset(to, **options):
        return reset_offsets(cluster, "g", {tp(0): to}, **options)[tp(0)].new

    assert reset(Latest(), dry_run=True) == 5
    assert committed_offsets(cluster.store, "g") == {tp(0): 2}, "a dry run"
    assert [reset(to) for to in (ShiftBy(1), Earliest(), Latest(), AtTime(NOON_MS + 2500), AtTime(NOON_MS * 2))] == [
        3,
        0,
        5,
        3,
        5,
    ]
    assert [reset(to) for to in (ShiftBy(-99), Exactly(4), Exactly(77))] == [0, 4, 5]
    assert committed_offsets(cluster.store, "g") == {tp(0): 5}
    with pytest.raises(UnknownTopicOrPartitionError):
        reset_offsets(cluster, "g", {tp(0): Earliest(), tp(1): Earliest()})
    (a,) = settle(Reader(cluster))
    for dry_run in (True, False):
        with pytest.raises(NonEmptyGroupError):
            reset(Earliest(), dry_run=dry_run)
    assert committed_offsets(cluster.store, "g") == {tp(0): 5}
    a.member.leave()
    assert reset_offsets(cluster, "new", {tp(0): Exactly(1)}) == {tp(0): (None, 1)}
    assert committed_offsets(cluster.store, "new") == {tp(0): 1}


def test_groups_and_offsets_are_deleted(cluster):
    create_topic(cluster, "t", 2)
    create_topic(cluster, "u", 1)
    commit_offsets(cluster.store, "g", {tp(0): 1, tp(1): 1, tp(0, "u"): 1})
    (a,) = settle(Reader(cluster))
    with pytest.raises(NonEmptyGroupError):
        delete_group(cluster.store, "g")
    with pytest.raises(GroupSubscribedToTopicError, match="reading t"):
        delete_offsets(cluster.store, "g", [tp(0), tp(0, "u")])
    delete_offsets(cluster.store, "g", [tp(0, "u")])
    assert committed_offsets(cluster.store, "g") == {tp(0): 1, tp(1): 1}
    a.member.leave()
    delete_offsets(cluster.store, "g", [tp(0)])
    assert committed_offsets(cluster.store, "g") == {tp(1): 1}
    delete_group(cluster.store, "g")
    assert list_groups(cluster.store) == []
    for act in (lambda: delete_group(cluster.store, "g"), lambda: delete_offsets(cluster.store, "g", [tp(0)])):
        with pytest.raises(GroupIdNotFoundError):
            act()


@pytest.mark.parametrize("assignor", ["range", RangeOfOurs])
def test_a_member_joins_again_after_its_group_was_deleted(cluster, assignor):
    create_topic(cluster, "t", 2)
    [reader] = settle(Reader(cluster, assignors=[assignor]))
    silence(cluster, reader)
    delete_group(cluster.store, "g")
    with pytest.raises(UnknownMemberIdError):
        reader.member.commit({tp(0): at(1)})
    with pytest.raises(UnknownMemberIdError):
        reader.beat()
    reader.held = frozenset()
    settle(reader)
    assert reader.numbers == [0, 1]


def test_members_are_removed(cluster):
    create_topic(cluster, "t", 3)
    a, b, c = settle(Reader(cluster, instance="one"), Reader(cluster), Reader(cluster))
    with pytest.raises(UnknownMemberIdError, match="no-such"):
        remove_from_group(cluster.store, "g", [b.member.member_id, "no-such"])
    assert len(described(cluster).members) == 3
    remove_from_group(cluster.store, "g", [b.member.member_id], ["one"])
    settle(c)
    assert c.numbers == [0, 1, 2]
    for gone in (a, b):
        with pytest.raises(UnknownMemberIdError):
            gone.beat()


def test_offsets_expire_once_their_group_has_been_empty_for_long(cluster):
    create_topic(cluster, "t", 2)
    for group in ("old", "new", "at-work"):
        commit_offsets(cluster.store, group, {tp(0): 1, tp(1): 1})
    settle(Reader(cluster, group="at-work"))
    long_ago = cluster.store.now().wall_ms - 8 * 86_400_000

    def age(connection):
        connection.execute(t.group_offset.update().where(GROUP_OFFSET.group_id != "new").values(committed_ms=long_ago))
        connection.execute(
            t.consumer_group.update().where(CONSUMER_GROUP.group_id == "old").values(empty_since_ms=long_ago)
        )

    cluster.store.transact(age)
    assert expire_offsets(cluster.store) == 2
    assert expire_offsets(cluster.store) == 0
    assert [found.group_id for found in list_groups(cluster.store)] == ["at-work", "new"]
    assert len(committed_offsets(cluster.store, "at-work")) == 2


def put_empty_groups(cluster, count, committed_ms):
    """Insert groups without members since long ago, each with one committed offset in topic t."""
    topic_id = create_topic(cluster, "t", 1).topic_id
    ids = [f"g{number:04}" for number in range(count)]
    group = {"generation": 0, "target_generation": 0, "assignor": "", "empty_since_ms": 1}
    offset = {
        "topic_id": topic_id, "partition": 0, "committed_offset": 0, "leader_epoch": -1, "commit_metadata": b"",
        "committed_ms": committed_ms, "position": 0,
    }  # fmt: skip
    change(cluster, t.consumer_group.insert().values([{**group, "group_id": group_id} for group_id in ids]))
    change(cluster, t.group_offset.insert().values([{**offset, "group_id": group_id} for group_id in ids]))


def test_other_transactions_run_during_the_expiry_of_many_offsets(cluster):
    put_empty_groups(cluster, 1_200, committed_ms=1)
    left = []

    def fence(connection):
        left.append(connection.execute(sa.select(sa.func.count()).select_from(t.consumer_group)).scalar_one())

    assert count_expired_offsets(cluster.store, cluster.store.settings) == 1_200
    assert expire_offsets(cluster.store, fence=fence) == 1_200
    left.append(len(list_groups(cluster.store)))
    assert left[0] == 1_200 and left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) <= 500, "groups deleted in one transaction"


def test_no_transaction_locks_empty_groups_whose_offsets_do_not_expire(cluster):
    put_empty_groups(cluster, 2, committed_ms=cluster.store.now().wall_ms)
    fenced = []
    assert expire_offsets(cluster.store, fence=fenced.append) == 0
    assert fenced == []
    assert len(list_groups(cluster.store)) == 2


def test_a_group_whose_member_subscribes_to_nothing_is_not_empty(cluster):
    create_topic(cluster, "t", 1)
    commit_offsets(cluster.store, "g", {tp(0): 1})
    (reader,) = settle(Reader(cluster))
    reader.member.leave()
    long_ago = cluster.store.now().wall_ms - 8 * 86_400_000

    def age(connection):
        connection.execute(t.group_offset.update().values(committed_ms=long_ago))
        connection.execute(t.consumer_group.update().values(empty_since_ms=long_ago))

    cluster.store.transact(age)
    idle = ConsumerHeartbeat(
        Identity("g", "m", None, "client", "host", LONG_MS), "m", 0, rebalance_timeout_ms=LONG_MS, names=frozenset(),
        owned=frozenset(),
    )  # fmt: skip
    epoch = service.consumer_heartbeat(cluster.store, idle, known_assignors()).epoch
    assert expire_offsets(cluster.store) == 0
    assert committed_offsets(cluster.store, "g") == {tp(0): 1}
    assert service.consumer_heartbeat(cluster.store, replace(idle, epoch=epoch), known_assignors()).epoch == epoch


def test_no_writer_waits_while_topics_are_matched_with_a_regular_expression(cluster, monkeypatch):
    create_topic(cluster, "orders-1", 1)
    compiled, writing = topic_patterns.compile_pattern, []

    def compile_pattern(*arguments):
        writing.append(is_writing())
        return compiled(*arguments)

    monkeypatch.setattr(topic_patterns, "compile_pattern", compile_pattern)
    regex = f"orders-.*|{id(cluster)}"  # no other test has it: what it matches is remembered
    first = ConsumerHeartbeat(
        Identity("g", "m", None, "client", "host", LONG_MS), "m", 0, rebalance_timeout_ms=LONG_MS, regex=regex,
        owned=frozenset(),
    )  # fmt: skip
    answer = service.consumer_heartbeat(cluster.store, first, known_assignors())
    assert answer.partitions == {tp(0, "orders-1")}
    create_topic(cluster, "orders-2", 1)
    later = replace(first, epoch=answer.epoch, rebalance_timeout_ms=None, regex=None, owned=answer.partitions)
    answer = service.consumer_heartbeat(cluster.store, later, known_assignors())
    assert answer.partitions == {tp(0, "orders-1"), tp(0, "orders-2")}
    assert writing == [False, False]


def test_a_heartbeat_with_a_regular_expression_is_not_repeated_longer_than_others(cluster, monkeypatch):
    timeouts_ms = {}

    def unavailable(kind):
        def fail(*_, timeout_ms=None, **__):
            timeouts_ms[kind] = timeout_ms
            raise MetadataStoreUnavailableError("no answer")

        return fail

    known = known_assignors()
    monkeypatch.setattr(cluster.store, "read", unavailable("read"))
    monkeypatch.setattr(cluster.store, "transact", unavailable("transact"))
    me = Identity("g", "m", None, "client", "host", LONG_MS)
    for regex in ("orders-.*", None):
        heartbeat = ConsumerHeartbeat(me, "m", 1, names=None if regex else frozenset(), regex=regex)
        with pytest.raises(MetadataStoreUnavailableError):
            service.consumer_heartbeat(cluster.store, heartbeat, known)
    assert timeouts_ms["read"] == timeouts_ms["transact"]


@pytest.mark.parametrize("assignor", ["range", RangeOfOurs])
def test_offsets_of_topics_without_a_subscription_expire_in_a_group_with_members(cluster, assignor):
    for topic in ("t", "gone", "recent", "pending"):
        create_topic(cluster, topic, 1)
    commit_offsets(cluster.store, "g", {tp(0, topic): 1 for topic in ("t", "gone", "recent", "pending")})
    long_ago = cluster.store.now().wall_ms - 8 * 86_400_000

    def age(connection):
        topic_id = sa.select(TOPIC.topic_id).where(TOPIC.name == "recent").scalar_subquery()
        connection.execute(
            t.group_offset.update().where(GROUP_OFFSET.topic_id != topic_id).values(committed_ms=long_ago)
        )
        topic_id = connection.execute(sa.select(TOPIC.topic_id).where(TOPIC.name == "pending")).scalar_one()
        pending = {"group_id": "g", "topic_id": topic_id, "partition": 0, "committed_offset": 2, "leader_epoch": -1}
        write_pending_offsets(connection, 1, [{**pending, "commit_metadata": b""}])

    cluster.store.transact(age)
    a, b = settle(Reader(cluster, assignors=[assignor]), Reader(cluster, ["gone"], assignors=[assignor]))
    assert count_expired_offsets(cluster.store, cluster.store.settings) == expire_offsets(cluster.store) == 0
    b.member.leave()
    settle(a)
    assert count_expired_offsets(cluster.store, cluster.store.settings) == expire_offsets(cluster.store) == 1
    assert {topic for topic, _ in committed_offsets(cluster.store, "g")} == {"t", "recent", "pending"}


def test_a_damaged_group_does_not_keep_the_offsets_of_others(cluster):
    """They expire in groups with members, of topics to which none of them subscribes."""
    for topic in ("t", "gone"):
        create_topic(cluster, topic, 1)
    for group in ("bad", "good"):
        commit_offsets(cluster.store, group, {tp(0, "gone"): 1})
        settle(Reader(cluster, group=group))
    change(cluster, t.group_offset.update().values(committed_ms=cluster.store.now().wall_ms - 8 * 86_400_000))
    change(cluster, t.group_member.update().where(GROUP_MEMBER.group_id == "bad").values(subscription="{"))
    with pytest.raises(JSONDecodeError):
        expire_offsets(cluster.store)
    assert [len(committed_offsets(cluster.store, group)) for group in ("bad", "good")] == [1, 0]


def test_idle_producers_expire(cluster):
    now_ms = cluster.store.now().wall_ms
    old_ms = now_ms - 2 * 86_400_000
    producers = {
        "silent": (None, old_ms, old_ms),
        "busy": (None, old_ms, now_ms),
        "named": ("tx", old_ms, old_ms),
        "in an open transaction": ("open", old_ms, old_ms),
        "new": (None, now_ms, None),
    }

    def make(connection):
        for number, (named, used_ms, appended_ms) in enumerate(producers.values(), 1):
            row = {
                "producer_id": number,
                "transactional_id": named,
                "epoch": 0,
                "last_used_ms": used_ms,
                "transaction_timeout_ms": 0,
            }
            connection.execute(t.producer.insert(), row)
            if appended_ms is not None:
                batch = {"producer_id": number, "topic_id": 1, "partition": 0, "producer_epoch": 0, "first_sequence": 0}
                more = {"last_sequence": 0, "base_offset": 0, "end_offset": 1, "appended_ms": appended_ms}
                connection.execute(t.producer_batch.insert(), {**batch, **more})
            if named == "open":
                insert_empty_transaction(connection, number)
                connection.execute(t.transaction.update().values(state="Ongoing"))

    cluster.store.transact(make)
    assert expire_producers(cluster.store) == 1
    left = cluster.store.read(lambda c: c.execute(sa.select(t.producer.c.producer_id)).scalars().all())
    batches = cluster.store.read(lambda c: c.execute(sa.select(t.producer_batch.c.producer_id)).scalars().all())
    assert (sorted(left), sorted(batches)) == ([2, 3, 4, 5], [2, 4])
