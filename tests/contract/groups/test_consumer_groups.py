"""Consumers in groups: sharing, listeners, commits, lost sessions, and processes killed between work and commit."""

import gc
import math
import subprocess
import threading
import time
from functools import partial
from itertools import groupby

import pytest
from kafka import AsyncConsumerRebalanceListener, ConsumerRebalanceListener
from kafka.errors import CommitFailedError, IllegalArgumentError, IllegalStateError, KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log import Consumer
from spark_log.facts.groups import describe_groups
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.groups.membership import ConsumerMembership
from spark_log.metadata.tables import group_member
from spark_log.replication.controller.topic_operations import delete_topic
from tests.support.group_members import move_session_end
from tests.support.python_process import PythonProcess, output_of
from tests.support.stores import change
from tests.support.topics import append, fill, make
from tests.support.waiting import wait_until

P0, P1, P2, P3 = (TopicPartition("t", number) for number in range(4))
SOON_S = 120.0


@pytest.fixture
def consume(consume):
    return partial(consume, enable_auto_commit=True, heartbeat_interval_ms=100)


class Told(ConsumerRebalanceListener):
    """Records its calls; `on_revoked` runs inside the callback."""

    def __init__(self, on_revoked=lambda partitions: None):
        self.events = []
        self.on_revoked = on_revoked

    def on_partitions_revoked(self, revoked):
        self.events.append(("revoked", set(revoked)))
        self.on_revoked(revoked)

    def on_partitions_assigned(self, assigned):
        self.events.append(("assigned", set(assigned)))

    def on_partitions_lost(self, lost):
        self.events.append(("lost", set(lost)))


def settle(*consumers, until=lambda: True, share=None):
    """Poll all consumers in turn until each has `share` partitions; returns the values that each got."""
    seen = [[] for _ in consumers]
    deadline = time.monotonic() + SOON_S
    while True:
        for consumer, values in zip(consumers, seen, strict=True):
            for records in consumer.poll(20).values():
                values += [record.value.decode() for record in records]
        shares = sorted(len(consumer.assignment()) for consumer in consumers)
        if (share is None or shares == sorted(share)) and until():
            return seen
        assert time.monotonic() < deadline, shares


def committed(cluster, group="g"):
    return {(name, number): offset for (name, number), offset in committed_offsets(cluster.store, group).items()}


def test_point_to_point_and_publish_subscribe(cluster, log, consume):
    make(cluster, "t", 4)
    first, second, other = consume("t"), consume("t"), consume("t", group_id="h")
    settle(first, second, other, share=[2, 2, 4])
    assert first.assignment() | second.assignment() == {P0, P1, P2, P3}
    fill(log, "t", [3] * 4)
    everything = sorted(f"{p}/{n}" for p in range(4) for n in range(3))
    seen = [[], [], []]

    def all_are_seen():
        for values, more in zip(seen, settle(first, second, other), strict=True):
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
    [seen] = settle(first, share=[4])
    assert told.events == [("assigned", {P0, P1, P2, P3})]
    late = Told()
    second = consume(max_poll_records=3)
    second.subscribe(["t"], listener=late)
    for values in settle(first, second, share=[2, 2]):
        seen += values
    [(kind, moved)] = told.events[1:]
    assert kind == "revoked" and len(moved) == 2
    assert [event for event in late.events if event[1]] == [("assigned", moved)]
    assert first.assignment() == {P0, P1, P2, P3} - moved
    deadline = time.monotonic() + SOON_S
    while len(seen) < 20 and time.monotonic() < deadline:
        for values in settle(first, second):
            seen += values
    assert sorted(seen) == sorted(f"{p}/{n}" for p in range(4) for n in range(5)), "auto-commit before giving up"
    second.close()
    assert late.events[-1] == ("revoked", moved)
    settle(first, share=[4])
    assert told.events[-1] == ("assigned", moved)


def test_a_listener_may_commit_partitions_that_are_being_revoked(cluster, log, consume):
    make(cluster, "t", 2)
    fill(log, "t", [2, 2])
    first = consume(enable_auto_commit=False)
    first.subscribe(["t"], listener=Told(on_revoked=lambda _: first.commit()))
    settle(first, share=[2], until=lambda: first.position(P0) == first.position(P1) == 2)
    assert committed(cluster) == {}
    settle(first, consume("t", enable_auto_commit=False), share=[1, 1])
    assert committed(cluster) == {P0: 2, P1: 2}


@pytest.mark.on_sqlite
def test_a_failing_listener_is_reported_and_the_group_continues(cluster, log, consume):
    make(cluster, "t", 2)

    def fail(_):
        raise ZeroDivisionError("listener")

    first = consume()
    first.subscribe(["t"], listener=Told(on_revoked=fail))
    settle(first, share=[2])
    second = consume("t")
    with pytest.raises(KafkaError) as raised:
        settle(first, second, share=[1, 1])
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    settle(first, second, share=[1, 1])
    first.subscribe(["t"], listener=None)


@pytest.mark.on_sqlite
def test_coroutines_as_listeners(cluster, consume):
    make(cluster, "t", 1)
    told = []

    class Listener(AsyncConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked):
            told.append(("revoked", revoked))

        async def on_partitions_assigned(self, assigned):
            told.append(("assigned", assigned))

    consumer = consume()
    consumer.subscribe(["t"], listener=Listener())
    settle(consumer, share=[1])
    consumer.unsubscribe()
    assert told == [("assigned", {P0}), ("revoked", {P0})]
    assert consumer.assignment() == set() and consumer.subscription() is None


def test_commits_positions_and_the_first_position_of_the_next_consumer(cluster, log, consume):
    make(cluster, "t", 1)
    fill(log, "t", [10])
    consumer = consume("t", enable_auto_commit=False, max_poll_records=4)
    settle(consumer, until=lambda: (consumer.assignment() and consumer.position(P0)) == 4)
    assert consumer.committed(P0) is None
    consumer.commit()
    assert consumer.committed(P0) == 4
    consumer.commit({P0: OffsetAndMetadata(6, "here", 3)})
    assert consumer.committed(P0, metadata=True) == OffsetAndMetadata(6, "here", 3)
    for wrong in (-1, 1.5, None, True):
        with pytest.raises(IllegalArgumentError):
            consumer.commit({P0: OffsetAndMetadata(wrong, "", -1)})
    with pytest.raises(TypeError):
        consumer.commit({P0: 3})
    consumer.close()
    after = consume("t")
    [[first, *_]] = settle(after, until=lambda: (after.assignment() and after.position(P0)) == 10)
    assert first == "0/6"


@pytest.mark.on_sqlite
def test_callbacks_of_background_commits_run_inside_poll(cluster, log, consume):
    make(cluster, "t", 1)
    fill(log, "t", [2])
    consumer = consume("t", enable_auto_commit=False)
    settle(consumer, until=lambda: (consumer.assignment() and consumer.position(P0)) == 2)
    told = []

    def callback(offsets, outcome):
        told.append((offsets, outcome, threading.get_ident()))

    offsets = {P0: OffsetAndMetadata(1, "", -1)}
    for number in range(3):
        future = consumer.commit_async(offsets, callback)
        wait_until(lambda future=future: future.is_done)
        assert len(told) == number
        consumer.poll(0)
        assert told == [(offsets, None, threading.get_ident())] * (number + 1)
    assert consumer.committed(P0) == 1


def members(cluster, group="g"):
    [described] = describe_groups(cluster.store, [group])
    return described.members


@pytest.mark.on_sqlite
def test_a_commit_callback_may_close_the_consumer(cluster, log, consume):
    fill(log, make(cluster, "t", 1), [2])
    consumer = consume("t")
    settle(consumer, share=[1])
    commit = consumer.commit_async(callback=lambda *_: consumer.close())
    wait_until(lambda: commit.is_done)
    assert consumer.poll(0) == {}
    assert members(cluster) == () and consumer.assignment() == set()
    with pytest.raises(IllegalStateError, match="closed"):
        consumer.poll(0)


@pytest.mark.on_sqlite
def test_close_without_an_automatic_commit_waits_for_commits_in_the_background(cluster, log, consume):
    fill(log, make(cluster, "t", 1), [2])
    consumer = consume("t", auto_commit_interval_ms=60_000)
    settle(consumer, share=[1])
    begin = threading.Event()
    consumer._background.submit(lambda: begin.wait(60))
    commit = consumer.commit_async({P0: OffsetAndMetadata(1, "", -1)})
    closing = threading.Thread(target=consumer.close, kwargs={"autocommit": False})
    closing.start()
    wait_until(lambda: consumer._background._tasks.qsize() == 2, "it waits behind the commit")
    begin.set()
    closing.join(60)
    assert commit.succeeded()
    with consume("t") as after:
        assert after.committed(P0) == 1


@pytest.mark.on_sqlite
def test_close_commits_and_leaves_the_group_although_a_commit_callback_fails(cluster, log, consume):
    fill(log, make(cluster, "t", 1), [2])
    consumer = consume("t", auto_commit_interval_ms=60_000)
    settle(consumer, share=[1])
    wait_until(lambda: consumer.position(P0) == 2 or consumer.poll(100) is None)
    commit = consumer.commit_async({P0: OffsetAndMetadata(1, "", -1)}, callback=lambda *_: 1 / 0)
    wait_until(lambda: commit.is_done)
    with pytest.raises(ZeroDivisionError):
        consumer.close()
    assert members(cluster) == ()
    with consume("t") as after:
        assert after.committed(P0) == 2


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
        settle(leaving, share=[2])
    if event == "revoked":
        other, others = consume("t"), 1
        settle(leaving, other, until=lambda: not leaving.assignment())
    else:
        if event == "lost":
            leaving._polling.group.member.leave()  # as after max_poll_interval_ms without a poll
        assert leaving.poll(0) == {}
    assert len(members(cluster)) == others and leaving.assignment() == set()


@pytest.mark.on_sqlite
def test_automatic_commits(cluster, log, consume):
    make(cluster, "t", 1)
    fill(log, "t", [3])
    consumer = consume("t", auto_commit_interval_ms=50)
    settle(consumer, until=lambda: committed(cluster) == {P0: 3})
    append(log, "t", "more")
    settle(consumer, until=lambda: consumer.position(P0) == 4)
    consumer.close()
    assert committed(cluster) == {P0: 4}


@pytest.mark.on_sqlite
def test_an_error_in_the_with_block_commits_nothing(cluster, log, cluster_address):
    make(cluster, "t", 1)
    fill(log, "t", [3])

    def work():
        with Consumer("t", cluster=cluster_address, group_id="g", auto_offset_reset="earliest") as consumer:
            next(consumer)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert committed(cluster) == {}


@pytest.mark.on_sqlite
def test_offsets_of_manually_assigned_partitions(cluster, log, consume):
    make(cluster, "t", 1)
    fill(log, "t", [5])
    consumer = consume(max_poll_records=2, enable_auto_commit=False)
    consumer.assign([P0])
    consumer.poll(60_000)
    consumer.commit()
    assert consumer.committed(P0) == 2
    consumer.close()
    again = consume()
    again.assign([P0])
    assert again.position(P0) == 2
    with pytest.raises(IllegalStateError):
        again.subscribe(["t"])


def test_a_member_that_does_not_poll_leaves_and_rejoins(cluster, log, consume):
    make(cluster, "t", 2)
    told = Told()
    idle = consume(max_poll_interval_ms=60_000, heartbeat_interval_ms=50)
    idle.subscribe(["t"], listener=told)
    settle(idle, share=[2])
    idle._polling.group._polled_s -= 61  # as if this time had passed
    other = consume("t")
    settle(other, share=[2])
    with pytest.raises(CommitFailedError):
        idle.commit({P0: OffsetAndMetadata(0, "", -1)})
    assert told.events == [("assigned", {P0, P1})]
    settle(idle, other, share=[1, 1])
    assert told.events[1] == ("lost", {P0, P1})


@pytest.mark.parametrize("commits", [True, False])
def test_a_member_whose_session_ended_loses_all_partitions(commits, cluster, log, consume):
    make(cluster, "t", 1)
    told = Told()
    frozen = consume(enable_auto_commit=False)
    frozen.subscribe(["t"], listener=told)
    settle(frozen, share=[1])
    frozen._background._heartbeat = lambda: None  # a stopped process sends no heartbeat
    cluster.store.transact(lambda connection: connection.execute(group_member.update().values(until_ms=0)))
    frozen._polling.group._alive_s = -math.inf  # and when it continues, its session has ended by its own clock too
    other = consume("t")
    settle(other, share=[1])
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
    settle(stays, static, share=[1, 1])
    mine = static.assignment()
    events = list(told.events)
    static.close()
    for _ in range(10):
        stays.poll(30)
    again = consume("t", group_instance_id="one")
    settle(stays, again, share=[1, 1])
    assert again.assignment() == mine
    assert told.events == events


@pytest.mark.on_sqlite
def test_a_pattern_follows_topics_within_the_group(cluster, log, consume):
    make(cluster, "orders-a", 1)
    consumer = consume()
    consumer.subscribe(pattern="^orders-")
    settle(consumer, share=[1])
    make(cluster, "orders-b", 2)
    settle(consumer, share=[3])
    delete_topic(cluster, "orders-a")
    settle(consumer, share=[2], until=lambda: consumer.subscription() == {"orders-b"})


@pytest.mark.on_sqlite
def test_members_beyond_the_partitions_are_idle_and_group_metadata_names_the_member(cluster, consume):
    make(cluster, "t", 1)
    members = [consume("t") for _ in range(3)]
    assert members[0].group_metadata().state == "<unjoined>"

    def stable():
        known = [member.group_metadata() for member in members]
        return {one.state for one in known} == {"<stable>"} and len({one.generation_id for one in known}) == 1

    settle(*members, share=[0, 0, 1], until=stable)
    metadata = members[0].group_metadata()
    assert metadata.group_id == "g" and metadata.member_id and metadata.generation_id > 0


def numbered_consumer(address, poll_records):
    command = ("-m", "tests.support.child_programs", "numbered_consumer", address, "t", "g", poll_records)
    pipe = subprocess.PIPE
    return PythonProcess(*command, stdin=pipe, stdout=pipe, text=True, bufsize=1)


@pytest.mark.on_sqlite
def test_a_killed_consumer_skips_nothing_and_repeats_only_uncommitted_records(cluster, log, cluster_address):
    """Killed repeatedly between processing and commit; the next consumer repeats from the last commit."""
    make(cluster, "t", 2)
    processed = {0: [], 1: []}
    last_commit = {0: 0, 1: 0}

    def start(number):
        """The consumer that is killed may read and commit everything before that: the next one has new records."""
        fill(log, "t", [12, 12], first=12 * number)
        return numbered_consumer(cluster_address, 2)

    def run(process, polls):
        """Read its output until it has processed `polls` records; its offsets must continue at the last commit."""
        here = {}
        count = 0
        for line in process.stdout:
            word, *rest = line.split()
            if word == "processed":
                partition, offset, value = int(rest[0]), int(rest[1]), rest[2]
                assert value == f"{partition}/{offset}"
                expected = here.get(partition, last_commit[partition])
                assert offset == expected, "nothing skipped, nothing repeated but what was not committed"
                here[partition] = offset + 1
                processed[partition].append(offset)
                count += 1
                if count == polls:
                    return
            elif word == "committed":
                last_commit.update(here)

    for number, polls in enumerate((5, 8)):
        process = start(number)
        run(process, polls)
        process.kill()
        for line in process.stdout.read().splitlines():  # it went on until it was killed
            word, *rest = line.split()
            if word == "processed":
                processed[int(rest[0])].append(int(rest[1]))
        process.communicate(timeout=60)
        change(cluster, group_member.update().values(until_ms=0))  # its session has ended
        last_commit = {partition: committed(cluster).get(("t", partition), 0) for partition in (0, 1)}
    process = start(2)
    run(process, 72 - sum(last_commit.values()))
    process.stdin.close()
    process.stdout.read()
    assert process.wait(SOON_S) == 0
    for offsets in processed.values():
        assert sorted(set(offsets)) == list(range(36))


@pytest.mark.on_sqlite
def test_the_remaining_member_takes_over_from_a_killed_one(cluster, log, cluster_address, consume):
    make(cluster, "t", 2)
    stays = consume("t")
    settle(stays, share=[2])
    with numbered_consumer(cluster_address, 1) as process:
        settle(stays, share=[1])
        process.kill()
    [killed] = {member.member_id for member in members(cluster)} - {stays.group_metadata().member_id}
    move_session_end(cluster.store, killed, 0)
    settle(stays, share=[2])
    fill(log, "t", [2, 2])
    [seen] = settle(stays, until=lambda: all((stays.position(name) or 0) >= 2 for name in (P0, P1)))
    assert sorted(seen) == ["0/0", "0/1", "1/0", "1/1"]


def threads_of(group):
    return [thread for thread in threading.enumerate() if thread.name == f"spark-log-consumer-{group}"]


@pytest.mark.on_sqlite
def test_the_background_thread_ends_with_its_consumer(cluster, cluster_address):
    make(cluster, "t", 1)
    closed = Consumer("t", cluster=cluster_address, group_id="closed")
    dropped = Consumer("t", cluster=cluster_address, group_id="dropped")
    settle(closed, share=[1])
    settle(dropped, share=[1])
    assert len(threads_of("closed")) == len(threads_of("dropped")) == 1
    closed.close()
    assert threads_of("closed") == []
    [thread] = threads_of("dropped")
    del dropped
    gc.collect()
    thread.join(SOON_S)
    assert not thread.is_alive()


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
    [seen] = settle(consumer, until=lambda: (consumer.assignment() and consumer.position(P0)) == 5)
    assert seen == ["0/3", "0/4"]


def test_a_consumer_of_the_parent_process_is_refused_in_a_fork(tmp_path):
    program = """
import os, sys
from kafka.errors import IllegalStateError
from spark_log import Cluster, Consumer, ShareConsumer, create_topic
address = sys.argv[1]
with Cluster.init(address) as cluster:
    create_topic(cluster, "t")
consumer = Consumer("t", cluster=address, group_id="g")
while not consumer.assignment():
    consumer.poll(200)
consumer.seek(*consumer.assignment(), 0)
shares = ShareConsumer("t", cluster=address, group_id="s")
shares.poll(0)
child = os.fork()
if child == 0:
    refused = 0
    for call in (lambda: consumer.poll(0), consumer.commit, consumer.commit_async, shares.poll, shares.commit_sync):
        try:
            call()
        except IllegalStateError as error:
            refused += "another process" in str(error)
    consumer.close()
    shares.close()
    os._exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
consumer.poll(100)
consumer.close()
shares.poll(0)
shares.close()
print("fine")
"""
    assert output_of(program, tmp_path / "cluster") == "fine\n"


@pytest.mark.on_sqlite
def test_a_backlog_of_commits_delays_no_heartbeat(cluster, log, consume, monkeypatch):
    fill(log, make(cluster, "t", 1), [3])
    done, keep_alive = [], ConsumerMembership.keep_alive
    monkeypatch.setattr(ConsumerMembership, "keep_alive", lambda self: done.append("heartbeat") or keep_alive(self))
    consumer = consume("t", heartbeat_interval_ms=10, enable_auto_commit=False)
    settle(consumer, share=[1])
    write = consumer._polling.commits._write

    def write_slowly(offsets):
        done.append("commit")
        time.sleep(0.02)  # so that a heartbeat is due after each commit
        write(offsets)

    monkeypatch.setattr(consumer._polling.commits, "_write", write_slowly)
    commits = [consumer.commit_async() for _ in range(25)]
    consumer.commit()
    assert all(commit.succeeded() for commit in commits)
    in_a_row = [len(list(same)) for what, same in groupby(done) if what == "commit"]
    assert sum(in_a_row) > 20 and max(in_a_row) <= 2, done
