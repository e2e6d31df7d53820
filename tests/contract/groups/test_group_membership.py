"""Members of consumer groups: their partitions, sessions, static members, and members that leave."""

from functools import partial

import pytest
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata

from spark_log.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    MetadataStoreUnavailableError,
    UnknownMemberIdError,
)
from spark_log.facts.groups import describe_groups
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.groups.consumer import rows, service
from spark_log.groups.group_operations import (
    delete_group,
    remove_from_group,
)
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.group_members import LONG_MS, Reader, move_session_end, session_until_ms, settle
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


def test_an_invalid_member_is_refused(cluster):
    with pytest.raises(InvalidGroupIdError):
        Reader(cluster, group="")
    with pytest.raises(InvalidSessionTimeoutError):
        Reader(cluster, session_ms=1)


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
