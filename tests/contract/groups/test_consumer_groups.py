"""Consumers in groups: sharing, listeners, lost sessions, static members, and patterns."""

import asyncio
import math
import time
from functools import partial

import pytest
from kafka import AsyncConsumerRebalanceListener, ConsumerRebalanceListener
from kafka.errors import CommitFailedError, IllegalStateError, KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log.facts.groups import describe_groups
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.metadata.tables import group_member
from spark_log.replication.controller.topic_operations import delete_topic
from tests.support.group_members import Told, settle_consumers
from tests.support.topics import append, fill, make
from tests.support.waiting import LIMIT_S, wait_until

P0, P1, P2, P3 = (TopicPartition("t", number) for number in range(4))


@pytest.fixture
def consume(consume):
    return partial(consume, enable_auto_commit=True, heartbeat_interval_ms=100)


def committed(cluster, group="g"):
    return {(name, number): offset for (name, number), offset in committed_offsets(cluster.store, group).items()}


def test_point_to_point_and_publish_subscribe(cluster, log, consume):
    make(cluster, "t", 4)
    first, second, other = consume("t"), consume("t"), consume("t", group_id="h")
    settle_consumers(first, second, other, share=[2, 2, 4])
    assert first.assignment() | second.assignment() == {P0, P1, P2, P3}
    fill(log, "t", [3] * 4)
    everything = sorted(f"{p}/{n}" for p in range(4) for n in range(3))
    seen = [[], [], []]

    def all_are_seen():
        for values, more in zip(seen, settle_consumers(first, second, other), strict=True):
            values += more
        return sum(map(len, seen)) >= 24

    wait_until(all_are_seen)
    assert sorted(seen[0] + seen[1]) == everything == sorted(seen[2])
    assert len(seen[0]) == len(seen[1]) == 6


def test_only_moved_partitions_are_revoked_and_each_record_is_read_once(cluster, log, consume):
    make(cluster, "t", 4)
    fill(log, "t", [5] * 4)
    told = Told()
    first = consume(max_poll_records=3)
    first.subscribe(["t"], listener=told)
    [seen] = settle_consumers(first, share=[4])
    assert told.events == [("assigned", {P0, P1, P2, P3})]
    late = Told()
    second = consume(max_poll_records=3)
    second.subscribe(["t"], listener=late)
    for values in settle_consumers(first, second, share=[2, 2]):
        seen += values
    [(kind, moved)] = told.events[1:]
    assert kind == "revoked" and len(moved) == 2
    assert [event for event in late.events if event[1]] == [("assigned", moved)]
    assert first.assignment() == {P0, P1, P2, P3} - moved
    deadline = time.monotonic() + LIMIT_S
    while len(seen) < 20 and time.monotonic() < deadline:
        for values in settle_consumers(first, second):
            seen += values
    assert sorted(seen) == sorted(f"{p}/{n}" for p in range(4) for n in range(5)), "auto-commit before giving up"
    second.close()
    assert late.events[-1] == ("revoked", moved)
    settle_consumers(first, share=[4])
    assert told.events[-1] == ("assigned", moved)


def test_a_listener_may_commit_partitions_that_are_being_revoked(cluster, log, consume):
    make(cluster, "t", 2)
    fill(log, "t", [2, 2])
    first = consume(enable_auto_commit=False)
    first.subscribe(["t"], listener=Told(on_revoked=lambda _: first.commit()))
    settle_consumers(first, share=[2], until=lambda: first.position(P0) == first.position(P1) == 2)
    assert committed(cluster) == {}
    settle_consumers(first, consume("t", enable_auto_commit=False), share=[1, 1])
    assert committed(cluster) == {P0: 2, P1: 2}


@pytest.mark.on_sqlite
def test_a_failing_listener_is_reported_and_the_group_continues(cluster, log, consume):
    make(cluster, "t", 2)

    def fail(_):
        raise ZeroDivisionError("listener")

    first = consume()
    first.subscribe(["t"], listener=Told(on_revoked=fail))
    settle_consumers(first, share=[2])
    second = consume("t")
    with pytest.raises(KafkaError) as raised:
        settle_consumers(first, second, share=[1, 1])
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    settle_consumers(first, second, share=[1, 1])
    first.subscribe(["t"], listener=None)


@pytest.mark.on_sqlite
@pytest.mark.parametrize("in_a_loop", [False, True], ids=["", "in an event loop"])
def test_coroutines_as_listeners(cluster, consume, in_a_loop):
    make(cluster, "t", 1)
    told = []

    class Listener(AsyncConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked):
            told.append(("revoked", revoked))

        async def on_partitions_assigned(self, assigned):
            await asyncio.sleep(0)
            told.append(("assigned", assigned))
            consumer.commit()
            consumer.seek(P0, 0)
            assert consumer.position(P0) == 0

    consumer = consume()
    consumer.subscribe(["t"], listener=Listener())

    async def poll():
        poll_and_unsubscribe()
        await asyncio.sleep(0)

    def poll_and_unsubscribe():
        settle_consumers(consumer, share=[1])
        consumer.unsubscribe()

    if in_a_loop:
        asyncio.run(poll())
    else:
        poll_and_unsubscribe()
    assert told == [("assigned", {P0}), ("revoked", {P0})]
    assert consumer.assignment() == set() and consumer.subscription() is None


@pytest.mark.on_sqlite
def test_a_coroutine_as_listener_may_close_the_consumer_of_a_program_in_an_event_loop(cluster, consume):
    make(cluster, "t", 1)

    class Closing(AsyncConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked):
            pass

        async def on_partitions_assigned(self, assigned):
            consumer.close()

    consumer = consume()
    consumer.subscribe(["t"], listener=Closing())

    async def poll():
        assert consumer.poll(1000 * LIMIT_S) == {}

    asyncio.run(poll())
    assert consumer._closed


def members(cluster, group="g"):
    [described] = describe_groups(cluster.store, [group])
    return described.members


@pytest.mark.on_sqlite
def test_the_listener_that_close_calls_may_ask_for_positions(cluster, log, consume):
    """A program that keeps its positions itself stores them when its partitions are revoked."""
    fill(log, make(cluster, "t", 1), [2])
    stored = {}

    class Storing(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned):
            pass

        def on_partitions_revoked(self, revoked):
            stored.update({partition: consumer.position(partition) for partition in revoked})
            assert consumer.poll(0) == {}
            assert next(consumer, None) is None

    consumer = consume()
    consumer.subscribe(["t"], listener=Storing())
    settle_consumers(consumer, share=[1], until=lambda: consumer.assignment() and consumer.position(P0) == 2)
    consumer.close()
    assert stored == {P0: 2}
    with pytest.raises(IllegalStateError, match="closed"):
        consumer.position(P0)


@pytest.mark.on_sqlite
def test_a_member_that_has_joined_again_after_a_slow_listener_may_commit(cluster, log, consume):
    fill(log, make(cluster, "t", 2), [1, 1])
    slow, other = consume(enable_auto_commit=False), consume()

    def outlast_the_interval(_partitions):
        group = slow._polling.group
        group._polled_s -= 1_000_000
        group.keep_alive()

    slow.subscribe(["t"], listener=Told(outlast_the_interval))
    settle_consumers(slow, share=[2])
    other.subscribe(["t"])
    settle_consumers(slow, other, share=[1, 1])
    slow._polling.group.keep_alive()
    slow.commit()


@pytest.mark.on_sqlite
@pytest.mark.parametrize("ends", ["close", "unsubscribe"])
def test_a_listener_that_always_unsubscribes_is_called_once(ends, cluster, consume):
    make(cluster, "t", 1)
    told = Told(lambda _partitions: consumer.unsubscribe())
    consumer = consume()
    consumer.subscribe(["t"], listener=told)
    settle_consumers(consumer, share=[1])
    getattr(consumer, ends)()
    assert told.events == [("assigned", {P0}), ("revoked", {P0})]
    assert consumer.assignment() == set() == set(members(cluster))


@pytest.mark.on_sqlite
@pytest.mark.parametrize("ends", ["close", "unsubscribe"])
@pytest.mark.parametrize("event", ["assigned", "revoked", "lost"])
def test_a_listener_may_close_or_unsubscribe_the_consumer(event, ends, cluster, log, consume):
    fill(log, make(cluster, "t", 2), [1, 1])
    leaving = consume()

    class Ending(ConsumerRebalanceListener):
        calls = 0

        def on_partitions_assigned(self, assigned):
            self.end_at("assigned")

        def on_partitions_revoked(self, revoked):
            self.end_at("revoked")

        def on_partitions_lost(self, lost):
            self.end_at("lost")

        def end_at(self, now):
            self.calls += now == event
            if now == event and (ends == "close" or self.calls == 1):  # `close` calls it too, which has no effect
                getattr(leaving, ends)()

    leaving.subscribe(["t"], listener=Ending())
    others = 0
    if event != "assigned":
        settle_consumers(leaving, share=[2])
    if event == "revoked":
        other, others = consume("t"), 1
        settle_consumers(leaving, other, until=lambda: not leaving.assignment())
    else:
        if event == "lost":
            leaving._polling.group.member.leave()  # as after max_poll_interval_ms without a poll
        assert leaving.poll(0) == {}
    assert len(members(cluster)) == others and leaving.assignment() == set()


def test_a_member_that_does_not_poll_leaves_and_rejoins(cluster, log, consume):
    make(cluster, "t", 2)
    told = Told()
    idle = consume(max_poll_interval_ms=60_000, heartbeat_interval_ms=50)
    idle.subscribe(["t"], listener=told)
    settle_consumers(idle, share=[2])
    idle._polling.group._polled_s -= 61  # as if this time had passed
    other = consume("t")
    settle_consumers(other, share=[2])
    with pytest.raises(CommitFailedError):
        idle.commit({P0: OffsetAndMetadata(0, "", -1)})
    assert told.events == [("assigned", {P0, P1})]
    settle_consumers(idle, other, share=[1, 1])
    assert told.events[1] == ("lost", {P0, P1})


@pytest.mark.parametrize("commits", [True, False])
def test_a_member_whose_session_ended_loses_all_partitions(commits, cluster, log, consume):
    make(cluster, "t", 1)
    told = Told()
    frozen = consume(enable_auto_commit=False)
    frozen.subscribe(["t"], listener=told)
    settle_consumers(frozen, share=[1])
    frozen._background._heartbeat = lambda: None  # a stopped process sends no heartbeat
    cluster.store.transact(lambda connection: connection.execute(group_member.update().values(until_ms=0)))
    frozen._polling.group._alive_s = -math.inf  # and when it continues, its session has ended by its own clock too
    other = consume("t")
    settle_consumers(other, share=[1])
    if commits:
        with pytest.raises(CommitFailedError):
            frozen.commit({P0: OffsetAndMetadata(0, "", -1)})
    append(log, "t", "not for this one any more")
    assert frozen.poll(0) == {}
    assert told.events[:2] == [("assigned", {P0}), ("lost", {P0})]
    assert frozen.assignment() | other.assignment() == {P0}


def test_a_static_member_gets_its_partitions_again(cluster, log, consume):
    make(cluster, "t", 2)
    told = Told()
    stays = consume()
    stays.subscribe(["t"], listener=told)
    static = consume("t", group_instance_id="one")
    settle_consumers(stays, static, share=[1, 1])
    mine = static.assignment()
    events = list(told.events)
    static.close()
    for _ in range(10):
        stays.poll(30)
    again = consume("t", group_instance_id="one")
    settle_consumers(stays, again, share=[1, 1])
    assert again.assignment() == mine
    assert told.events == events


@pytest.mark.on_sqlite
def test_a_pattern_follows_topics_within_the_group(cluster, log, consume):
    make(cluster, "orders-a", 1)
    consumer = consume()
    consumer.subscribe(pattern="^orders-")
    settle_consumers(consumer, share=[1])
    make(cluster, "orders-b", 2)
    settle_consumers(consumer, share=[3])
    delete_topic(cluster, "orders-a")
    settle_consumers(consumer, share=[2], until=lambda: consumer.subscription() == {"orders-b"})


@pytest.mark.on_sqlite
def test_members_beyond_the_partitions_are_idle_and_group_metadata_names_the_member(cluster, consume):
    make(cluster, "t", 1)
    members = [consume("t") for _ in range(3)]
    assert members[0].group_metadata().state == "<unjoined>"

    def stable():
        known = [member.group_metadata() for member in members]
        return {one.state for one in known} == {"<stable>"} and len({one.generation_id for one in known}) == 1

    settle_consumers(*members, share=[0, 0, 1], until=stable)
    metadata = members[0].group_metadata()
    assert metadata.group_id == "g" and metadata.member_id and metadata.generation_id > 0


@pytest.mark.on_sqlite
def test_a_listener_may_seek_in_assigned_partitions(cluster, log, consume):
    make(cluster, "t", 1)
    fill(log, "t", [5])

    class Seeking(Told):
        def on_partitions_assigned(self, assigned):
            for partition in assigned:
                consumer.seek(partition, 3)

    consumer = consume()
    consumer.subscribe(["t"], listener=Seeking())
    [seen] = settle_consumers(consumer, until=lambda: (consumer.assignment() and consumer.position(P0)) == 5)
    assert seen == ["0/3", "0/4"]
