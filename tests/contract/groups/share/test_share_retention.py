"""Retention passes what a share group has not finished: such records are dropped and counted, and no read fails."""

import pytest

from spark_log.groups.share import rows
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.looks import look
from spark_log.groups.share.polling import SharePolls
from spark_log.groups.share.reading import ShareReads
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.groups.share.service import end_idle_locks, run_polls
from spark_log.ids import TopicPartition
from spark_log.maintenance.removal.retention import apply_retention, delete_records
from spark_log.metadata import tables as t
from tests.support.share_members import ShareMember, offsets_of
from tests.support.stores import rows_of
from tests.support.topics import append, fill, make

COUNT = 10
HOUR_MS = 3_600_000


@pytest.fixture
def topic(cluster, log):
    """Topic t with COUNT records, each in a file."""
    made = make(cluster, "t", inline_max_bytes="0", segment_ms="1")
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    fill(log, "t", [COUNT])
    return made


def remove_below(cluster, offset):
    delete_records(cluster, {TopicPartition("t", 0): offset})


def row(cluster):
    [key] = look(cluster.store, "workers").offers

    def read(connection):
        now = cluster.store.clock(connection)
        return rows.row_of(rows.ask_row(connection, "workers", key, lock=False), "workers", key, now)

    return cluster.store.read(read)


def part(acquired, first, end):
    """The acquired records of these offsets."""
    return {
        key: [r._replace(first=max(first, r.first), end=min(end, r.end)) for r in ranges]
        for key, ranges in acquired.items()
    }


def errors(result):
    return set(result.errors.values())


def test_ranges_and_delayed_records_are_dropped_and_counted(cluster, topic):
    member = ShareMember(cluster)
    acquired = member.poll(8)
    member.acknowledge(part(acquired, 0, 2), AcknowledgeType.RELEASE)  # Available
    member.acknowledge(part(acquired, 2, 4), AcknowledgeType.RELEASE, delay_ms=HOUR_MS)
    member.acknowledge(part(acquired, 4, 5), AcknowledgeType.ACCEPT)
    remove_below(cluster, 6)  # within the range that is Acquired
    assert offsets_of(ShareMember(cluster, member="m2").poll()) == [8, 9]
    after = row(cluster)
    assert (after.expired, after.window.start, after.window.delayed) == (5, 6, 0)
    assert rows_of(cluster, t.share_delayed)["share_delayed"] == []
    assert errors(member.acknowledge(part(acquired, 5, 8), AcknowledgeType.ACCEPT)) == {None}, "5 is gone, 6 and 7 not"
    assert row(cluster).window.start == 8


def test_records_beyond_all_that_was_acquired_are_not_waited_for(cluster, topic):
    member = ShareMember(cluster)
    acquired = member.poll(2)
    remove_below(cluster, 7)
    assert offsets_of(ShareMember(cluster, member="m2").poll()) == [7, 8, 9]
    assert row(cluster).expired == 2
    assert errors(member.acknowledge(acquired, AcknowledgeType.ACCEPT)) == {None}


@pytest.mark.parametrize(
    "state",
    [pytest.param("new", marks=pytest.mark.on_sqlite), pytest.param("released", marks=pytest.mark.on_sqlite), "due"],
)
@pytest.mark.parametrize("when", ["before the read", "after the read"])
def test_records_are_removed_during_a_poll(cluster, topic, monkeypatch, state, when):
    """Either the poll delivers them, or they are expired: none is lost silently, and no read fails."""
    first = ShareMember(cluster, member="m1")
    acquired = {} if state == "new" else first.poll(5)
    first.acknowledge(acquired, AcknowledgeType.RELEASE, delay_ms=1 if state == "due" else 0)
    while state == "due" and not all(
        offer.due_ms <= cluster.store.now().wall_ms for offer in look(cluster.store, "workers").offers.values()
    ):
        pass
    removed = []

    def remove():
        if not removed:
            removed.append(6)
            remove_below(cluster, 6)

    def run(poll):
        if when == "after the read":
            remove()
        return run_polls(cluster.store, [poll])[0]

    reads = ShareReads(cluster)
    readable = reads.readable

    def read_late(*arguments):
        if when == "before the read":
            remove()
        return readable(*arguments)

    monkeypatch.setattr(reads, "readable", read_late)
    member = ShareMember(cluster, member="m2", polls=SharePolls(cluster, reads, run))
    acquired = member.poll()
    assert removed and offsets_of(acquired) == [6, 7, 8, 9]
    assert sorted(member.values()) == [(0, offset) for offset in offsets_of(acquired)]
    assert row(cluster).expired == (0 if state == "new" else 5)
    assert errors(member.acknowledge(acquired, AcknowledgeType.ACCEPT)) == {None}
    assert row(cluster).window.start == COUNT


@pytest.mark.parametrize("beyond", [False, True], ids=["among them", "beyond the start"])
@pytest.mark.parametrize("process", [pytest.param("same", marks=pytest.mark.on_sqlite), "another"])
def test_due_records_below_the_log_start_are_expired(cluster, topic, beyond, process):
    """The group's start is above delayed records. So retention may remove them and leave the start as it is."""
    member = ShareMember(cluster)
    acquired = member.poll(6)
    member.acknowledge(part(acquired, 0, 4), AcknowledgeType.RELEASE, delay_ms=1)
    member.acknowledge(part(acquired, 4, 6), AcknowledgeType.ACCEPT)
    remove_below(cluster, 8 if beyond else 2)
    if process == "another":
        member = ShareMember(cluster)
    delivered = []
    for _ in range(20):  # the second one finds all of them, unless the clock has gone on meanwhile
        delivered += offsets_of(member.poll(timeout_s=0.01))
    assert row(cluster).window.delayed == 0
    assert delivered == ([8, 9] if beyond else [2, 3, 6, 7, 8, 9])
    assert row(cluster).expired == (4 if beyond else 2)
    assert member.result().wait_ms != 0, "the next poll does not expect records that are gone"


@pytest.mark.parametrize("polled", [False, True], ids=["no member polls", "a member polls"])
def test_delayed_records_that_retention_removes_make_room_for_others(cluster, log, topic, polled):
    """All records below the start are delayed, as many as the group may have. The log begins at the start."""
    alter_group_configs(cluster.store, "workers", {"share.partition.max.delayed.records": str(COUNT)})
    member = ShareMember(cluster)
    member.acknowledge(member.poll(), AcknowledgeType.RELEASE, delay_ms=HOUR_MS)
    append(log, topic, "waits", "waits too")
    assert member.poll() == {}, "no more records can be delayed"
    remove_below(cluster, COUNT)
    if not polled:
        assert end_idle_locks(cluster.store) == 1
        assert row(cluster).window.delayed == 0
        assert end_idle_locks(cluster.store) == 0
    assert offsets_of(member.poll()) == [COUNT, COUNT + 1]
    assert (row(cluster).expired, row(cluster).window.delayed) == (COUNT, 0)
    assert rows_of(cluster, t.share_delayed)["share_delayed"] == []


def test_retention_by_time_with_a_group_that_nobody_polls(cluster, log, topic):
    """Two of the records are young, and one of them is Acquired."""
    append(log, topic, "young", "younger", timestamp_ms=cluster.store.now().wall_ms)
    member = ShareMember(cluster)
    acquired = member.poll(COUNT + 1)
    member.acknowledge(part(acquired, 0, 3), AcknowledgeType.RELEASE, delay_ms=HOUR_MS)
    apply_retention(cluster, topic)
    assert end_idle_locks(cluster.store) == 1
    after = row(cluster)
    assert (after.expired, after.window.start, after.window.delayed) == (COUNT, COUNT, 0)
    assert end_idle_locks(cluster.store) == 0
    assert errors(member.acknowledge(part(acquired, COUNT, COUNT + 1), AcknowledgeType.ACCEPT)) == {None}
    assert offsets_of(ShareMember(cluster, member="m2").poll()) == [COUNT + 1]
