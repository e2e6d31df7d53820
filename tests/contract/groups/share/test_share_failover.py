"""Unclean elections that truncate the log below what a share group has acquired: new records there are delivered."""

import pytest

from spark_log.errors import InvalidRecordStateError
from spark_log.groups.group_operations import Latest
from spark_log.groups.share import administration, dead_letters
from spark_log.groups.share.administration import alter_group_configs, reset_share_offsets
from spark_log.groups.share.dead_letters import DeadLetters
from spark_log.groups.share.looks import look
from spark_log.groups.share.polling import SharePolls
from spark_log.groups.share.reading import ShareReads
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.ids import TopicPartition
from tests.support.replicas import truncate
from tests.support.share_members import ShareMember, only_offer, overtaken_member
from tests.support.topics import append, make, stored

HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def topic(cluster, log):
    """Topic t with records old0 to old5, each in a file."""
    make(cluster, "t", inline_max_bytes="0", unclean_leader_election_enable="true")
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    for number in range(6):
        append(log, "t", f"old{number}")


def values(member, records_max=500):
    """Acquire, and return the values by offset."""
    member.acquired = member.poll(records_max)
    return {offset: value for (_, offset), value in member.values().items()}


def accept(member):
    return list(member.acknowledge(member.acquired, AcknowledgeType.ACCEPT).errors.values())


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(1, marks=pytest.mark.on_sqlite, id="below next_offset"),
        pytest.param(3, marks=pytest.mark.on_sqlite, id="up to next_offset"),
        pytest.param(6, id="beyond next_offset"),
    ],
)
@pytest.mark.parametrize("accepted", [True, pytest.param(False, marks=pytest.mark.on_sqlite)])
def test_new_records_below_the_next_offset_are_delivered(cluster, log, count, accepted):
    member, other = ShareMember(cluster), ShareMember(cluster, member="m2")
    assert len(values(member)) == 6
    if accepted:
        assert accept(member) == [None]
    truncate(cluster, "t", 3)
    append(log, "t", *(f"new{3 + n}" for n in range(count)))
    new = {3 + n: f"new{3 + n}" for n in range(count)}
    assert values(other) == new
    assert {r.deliveries for ranges in other.acquired.values() for r in ranges} == {1}
    if not accepted:
        [error] = accept(member)
        assert isinstance(error, InvalidRecordStateError), "half of its records are gone"
    assert accept(other) == [None]
    assert only_offer(cluster).next_offset == 3 + count
    assert only_offer(cluster).unfinished == (0 if accepted else 3)


def test_delayed_and_available_records_above_the_truncation_are_forgotten(cluster, log):
    member = ShareMember(cluster)
    values(member, 2)
    member.acknowledge(member.acquired, AcknowledgeType.RELEASE, delay_ms=HOUR_MS)
    values(member, 2)
    member.acknowledge(member.acquired, AcknowledgeType.RELEASE)
    truncate(cluster, "t", 1)
    append(log, "t", "new1")
    assert values(ShareMember(cluster, member="m2")) == {1: "new1"}
    assert (only_offer(cluster).delayed, only_offer(cluster).available) == (1, 0)


@pytest.mark.on_sqlite
def test_a_truncation_between_read_and_acquisition(cluster, log):
    """The records that were read before are not delivered under the offsets of the new ones."""

    def elect():
        truncate(cluster, "t", 3)
        append(log, "t", "new3")

    with overtaken_member(cluster, elect) as member:
        assert values(member) == {0: "old0", 1: "old1", 2: "old2", 3: "new3"}
    assert accept(member) == [None]
    assert only_offer(cluster).next_offset == only_offer(cluster).start_offset == 4


@pytest.mark.on_sqlite
def test_an_election_between_a_look_and_a_read(cluster, log, monkeypatch):
    """Another process has followed the election already: the read ends at the new high watermark."""
    reads, other = ShareReads(cluster), ShareMember(cluster, member="m2")
    other.poll(5)
    read, elections = reads.readable, [lambda: truncate(cluster, "t", 3)]

    def elected(*arguments):
        while elections:
            elections.pop()()
            assert other.poll() == {}
        return read(*arguments)

    monkeypatch.setattr(reads, "readable", elected)
    member = ShareMember(cluster, polls=SharePolls(cluster, reads))
    assert values(member) == {} and not elections
    append(log, "t", *(f"new{n}" for n in range(3, 9)))
    assert values(member) == {n: f"new{n}" for n in range(3, 9)}


@pytest.mark.on_sqlite
def test_two_elections_between_two_polls(cluster, log):
    """The first one cuts deeper than the second: the records between them are new, too."""
    member = ShareMember(cluster)
    values(member)
    assert accept(member) == [None]
    truncate(cluster, "t", 1)
    for number in range(1, 5):
        append(log, "t", f"middle{number}")
    truncate(cluster, "t", 3)
    append(log, "t", "new3")
    assert values(member) == {1: "middle1", 2: "middle2", 3: "new3"}


@pytest.mark.parametrize("is_new", [True, False], ids=["a new group", "a group with state"])
def test_an_election_after_a_reset_has_read_the_positions(cluster, log, monkeypatch, is_new):
    """The group begins at the truncation, because the records that the reset has skipped are gone."""
    if not is_new:
        member = ShareMember(cluster)
        values(member, 2)
        member.leave()
    read = administration.read_limits

    def elected(*arguments):
        limits = read(*arguments)
        truncate(cluster, "t", 3)
        return limits

    monkeypatch.setattr(administration, "read_limits", elected)
    reset_share_offsets(cluster, "workers", {TopicPartition("t", 0): Latest()})
    append(log, "t", *(f"new{n}" for n in range(3, 8)))
    assert values(ShareMember(cluster)) == {n: f"new{n}" for n in range(3, 8)}


@pytest.fixture
def rejected(cluster):
    """All records of topic t are rejected, and have no letters yet."""
    make(cluster, "dlq.t", errors_deadletterqueue_group_enable="true")
    letters = {"errors.deadletterqueue.topic.name": "dlq.t", "errors.deadletterqueue.copy.record.enable": "true"}
    alter_group_configs(cluster.store, "workers", letters)
    member = ShareMember(cluster)
    values(member)
    member.acknowledge(member.acquired, AcknowledgeType.REJECT)
    assert only_offer(cluster).archiving == 6
    return member


def election(cluster, log):
    truncate(cluster, "t", 3)
    append(log, "t", "new3", "new4")


def write_letters(cluster, log):
    [key] = look(cluster.store, "workers").offers
    DeadLetters(lambda: log).write("workers", key)


def test_new_records_at_the_offsets_of_rejected_ones_have_no_letters(cluster, log, rejected):
    election(cluster, log)
    write_letters(cluster, log)
    assert stored(cluster, "dlq.t") == {0: ["old0", "old1", "old2"]}
    assert values(rejected) == {3: "new3", 4: "new4"}


@pytest.mark.on_sqlite
@pytest.mark.parametrize("again", [False, True], ids=["new records", "new records that are rejected too"])
def test_an_election_while_letters_are_written(cluster, log, monkeypatch, rejected, again):
    write, elections = dead_letters._letters, [election]

    def elected(*arguments):
        letters = write(*arguments)
        if elections:
            elections.pop()(cluster, log)
            if again:
                assert values(rejected) == {3: "new3", 4: "new4"}
                append(log, "t", "new5")
                rejected.acknowledge(rejected.acquired, AcknowledgeType.REJECT)
                values(rejected)
                rejected.acknowledge(rejected.acquired, AcknowledgeType.REJECT)
                assert only_offer(cluster).archiving == 6
        return letters

    monkeypatch.setattr(dead_letters, "_letters", elected)
    write_letters(cluster, log)
    new = ["new3", "new4", "new5"] if again else []
    assert stored(cluster, "dlq.t") == {0: ["old0", "old1", "old2", *new]}
    assert values(rejected) == ({} if again else {3: "new3", 4: "new4"})
