"""Polls of share groups in one process: when they look at the store again, and how long they wait."""

import pytest

from spark_log.errors import StorageUnavailableError
from spark_log.groups.share import looks as share_looks
from spark_log.groups.share import polling, reading, rows
from spark_log.groups.share.acquisition_rules import Request
from spark_log.groups.share.polling import SharePolls
from spark_log.groups.share.reading import ShareReads
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.groups.share.service import run_polls
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.share_members import ShareMember
from tests.support.waiting import LIMIT_S, wait_until


@pytest.fixture(autouse=True)
def from_the_beginning(cluster):
    configs = {"share.auto.offset.reset": "earliest"}
    cluster.store.transact(lambda connection: rows.save_configs(connection, "workers", configs))


LATER_MS = 600_000
"""Longer than a test: records come due because it says so."""


def let_delayed_records_be_due(cluster):
    due_ms = cluster.store.now().wall_ms
    cluster.store.transact(lambda connection: connection.execute(t.share_delayed.update().values(due_ms=due_ms)))


@pytest.fixture
def send(cluster, produce):
    producer = produce()
    create_topic(cluster, "first", configs={"delta.max.lag.ms": "-1"})  # no thread commits a seal meanwhile
    producer.send("first", b"the next sends take no longer than others").get()
    return lambda value, topic="t", partition=0, **more: producer.send(
        topic, value.encode(), partition=partition, **more
    ).get()


@pytest.mark.on_sqlite
def test_polls_at_the_same_time_do_not_remember_a_look_longer(cluster, send):
    """Records of a partition that was empty at the first look are found, while others are polled without a pause."""
    create_topic(cluster, "t", 2)
    for number in range(200):
        send(str(number))
    nested: list[bool] = []

    def run(poll):
        if not nested:  # another member polls between the look of this one and its transaction
            nested.append(True)
            polls.attempt("workers", Request("m2", 1, whole_batches=False), member.assigned, {})
            nested.clear()
        return run_polls(cluster.store, [poll])[0]

    polls = SharePolls(cluster, ShareReads(cluster), run)
    member = ShareMember(cluster, polls=polls)
    member.poll(1)
    send("other", partition=1)

    def next_offsets():
        offers = share_looks.look(cluster.store, "workers").offers
        return {key[1]: offer.next_offset for key, offer in offers.items()}

    wait_until(lambda: member.poll(1) and next_offsets()[1] == 1, pause_s=0.02)
    assert next_offsets()[0] < 200, "the others were not at their end"


def test_members_without_records_share_a_look(cluster, send, looks, monkeypatch):
    monkeypatch.setattr(share_looks, "_SHARED_S", LIMIT_S)
    create_topic(cluster, "t")
    polls = SharePolls(cluster, ShareReads(cluster))
    members = [ShareMember(cluster, member=f"m{number}", polls=polls) for number in range(10)]
    looks.clear()
    assert [member.poll() for member in members] == [{}] * 10
    assert len(looks) == 1 or not cluster.store.changes.exact
    send("x")
    assert members[0].poll()


def test_due_records_of_other_topics_do_not_wake_a_member(cluster, send, looks):
    create_topic(cluster, "t")
    create_topic(cluster, "late")
    other, member = ShareMember(cluster, ("late",), member="other"), ShareMember(cluster, ("t",))
    due_ms = cluster.store.now().wall_ms + LATER_MS
    send("x", topic="late", deliver_at_ms=due_ms)
    assert other.poll() == {}
    let_delayed_records_be_due(cluster)
    looks.clear()
    assert member.poll(timeout_s=1.0) == {}
    assert len(looks) < 10


@pytest.mark.on_sqlite
def test_due_records_without_room_do_not_wake_a_member(cluster, send, looks):
    configs = {"share.auto.offset.reset": "earliest", "share.partition.max.record.locks": "100"}
    cluster.store.transact(lambda connection: rows.save_configs(connection, "workers", configs))
    create_topic(cluster, "t")
    member = ShareMember(cluster)
    due_ms = cluster.store.now().wall_ms + LATER_MS
    send("x", deliver_at_ms=due_ms)
    assert member.poll() == {}
    for number in range(100):
        send(str(number))
    taken = 0
    while taken < 100:
        taken += sum(r.length for ranges in member.poll(timeout_s=5.0).values() for r in ranges)
    let_delayed_records_be_due(cluster)
    looks.clear()
    assert member.poll(timeout_s=1.0) == {}
    assert len(looks) < 10


@pytest.fixture
def reads(cluster, monkeypatch):
    """Reads of which those of the topics in `offline` fail."""
    reads = ShareReads(cluster)
    reads.offline, readable = set(), reads.readable

    def read(key, name, *more):
        if name in reads.offline:
            raise StorageUnavailableError(f"{name}: the log dir is offline")
        return readable(key, name, *more)

    monkeypatch.setattr(reads, "readable", read)
    return reads


def test_a_partition_that_cannot_be_read_does_not_stop_the_others(cluster, send, reads):
    for topic in ("t", "bad"):
        create_topic(cluster, topic)
        send("x", topic=topic)
    reads.offline.add("bad")
    member = ShareMember(cluster, ("t", "bad"), polls=SharePolls(cluster, reads))
    assert [range.first for ranges in member.poll().values() for range in ranges] == [0]
    with pytest.raises(StorageUnavailableError, match="offline"):
        member.poll()
    reads.offline.clear()
    assert member.poll()


@pytest.mark.on_sqlite
def test_only_the_first_record_of_a_poll_may_exceed_its_bytes(cluster, send):
    create_topic(cluster, "t", 4)
    for partition in range(4):
        send("x" * 1_000, partition=partition)
    polls = SharePolls(cluster, ShareReads(cluster))
    member = ShareMember(cluster, polls=polls)
    for bytes_max, count in ((10, 1), (1_500, 1), (10_000, 2)):
        result = polls.poll("workers", Request("m1", 500, bytes_max), member.assigned)
        assert [len(taken.parts) for taken in result.taken] == [1] * count


@pytest.mark.on_sqlite
def test_turns_of_members_are_not_remembered_without_end(cluster, send, monkeypatch):
    monkeypatch.setattr(polling, "_TURNS_MAX", 3)
    create_topic(cluster, "t")
    polls = SharePolls(cluster, ShareReads(cluster))
    member = ShareMember(cluster, polls=polls)
    for number in range(10):
        polls.poll("workers", Request(f"m{number}"), member.assigned)
    assert list(polls._turns) == ["m7", "m8", "m9"]


@pytest.mark.on_sqlite
def test_one_unfinished_record_does_not_keep_all_later_ones_in_memory(cluster, send, monkeypatch):
    monkeypatch.setattr(reading, "_AHEAD_BYTES", 2_000)
    monkeypatch.setattr(reading, "_PARTITION_BYTES", 10_000)
    create_topic(cluster, "t", configs={"delta.max.lag.ms": "-1"})  # a sealed tail is read as one batch
    for number in range(200):
        send(str(number) * 50)
    reads = ShareReads(cluster)
    polls = SharePolls(cluster, reads)
    holder, worker = (ShareMember(cluster, member=f"m{number}", polls=polls) for number in range(2))
    held = holder.poll(1)
    values = []
    while acquired := worker.poll(20):
        values += worker.values().values()
        worker.acknowledge(acquired, AcknowledgeType.ACCEPT)
    assert values == [str(number) * 50 for number in range(1, 200)]
    [partition] = reads._partitions.values()
    assert sum(each.bytes for each in partition.read) < 20_000
    holder.acknowledge(held, AcknowledgeType.RELEASE)
    assert worker.poll() and list(worker.values().values()) == ["0" * 50], "it is read again"


@pytest.mark.on_sqlite
def test_room_in_a_full_window_is_announced(cluster, send, monkeypatch):
    configs = {"share.auto.offset.reset": "earliest", "share.partition.max.record.locks": "100"}
    cluster.store.transact(lambda connection: rows.save_configs(connection, "workers", configs))
    create_topic(cluster, "t")
    for number in range(101):
        send(str(number))
    member, acquired = ShareMember(cluster), {}
    while sum(r.length for ranges in acquired.values() for r in ranges) < 100:
        for key, ranges in member.poll().items():
            acquired.setdefault(key, []).extend(ranges)
    announced = []
    monkeypatch.setattr(cluster.store.changes, "announce", lambda: announced.append(1))
    member.acknowledge(acquired, AcknowledgeType.ACCEPT)
    assert announced
