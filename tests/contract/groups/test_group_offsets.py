"""Committed offsets of consumer groups, the commands of operators for them, and their expiry."""

from dataclasses import replace
from itertools import pairwise
from json import JSONDecodeError

import pytest
import sqlalchemy as sa
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata

from spark_log.errors import (
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    IllegalArgumentError,
    IllegalGenerationError,
    NonEmptyGroupError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from spark_log.facts.groups import describe_groups, group_lag, list_groups
from spark_log.groups.assignors import known_assignors
from spark_log.groups.committed_offsets import commit_offsets, committed, committed_offsets
from spark_log.groups.consumer import service
from spark_log.groups.consumer.heartbeat import ConsumerHeartbeat
from spark_log.groups.group_operations import (
    AtTime,
    Earliest,
    Exactly,
    Latest,
    ShiftBy,
    delete_group,
    delete_offsets,
    reset_offsets,
)
from spark_log.groups.identity import Identity
from spark_log.groups.offset_expiry import count_expired_offsets, expire_offsets
from spark_log.ids import TopicPartition
from spark_log.log.append.producer_expiry import expire_producers
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import CONSUMER_GROUP, GROUP_MEMBER, GROUP_OFFSET, TOPIC
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.transactions.transaction_rows import insert_empty_transaction, write_pending_offsets
from tests.support.group_members import LONG_MS, Reader, settle
from tests.support.records import NOON_MS
from tests.support.stores import change
from tests.support.topics import append


def tp(number, topic="t"):
    return TopicPartition(topic, number)


def at(offset, metadata="", epoch=-1):
    return OffsetAndMetadata(offset, metadata, epoch)


def described(cluster, group="g"):
    (found,) = describe_groups(cluster.store, [group])
    return found


class RangeOfOurs(RangePartitionAssignor):
    name = "range-of-ours"


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
