"""Resets and deletions of share groups, of their offsets and of their topics."""

from functools import partial

import pytest
from kafka.admin import OffsetSpec, OffsetTimestamp
from kafka.errors import NoError
from kafka.errors import NonEmptyGroupError as KafkaNonEmptyGroupError
from kafka.errors import UnknownTopicOrPartitionError as KafkaUnknownTopicOrPartitionError

from spark_log import Admin
from spark_log.clients.admin.audit import read_changes
from spark_log.errors import (
    GroupIdNotFoundError,
    IllegalArgumentError,
    NonEmptyGroupError,
    UnknownTopicOrPartitionError,
)
from spark_log.facts.groups import describe_groups, list_groups
from spark_log.facts.share_groups import describe_share_group
from spark_log.groups import group_operations
from spark_log.groups.committed_offsets import commit_offsets
from spark_log.groups.group_operations import AtTime, Earliest, Exactly, Latest, ShiftBy
from spark_log.groups.share.administration import (
    delete_share_group,
    delete_share_offsets,
    group_overrides,
    reset_each_share_offset,
    reset_share_offsets,
)
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.ids import TopicPartition
from spark_log.maintenance.removal.retention import delete_records
from spark_log.replication.controller.topic_operations import delete_topic
from tests.support.records import NOON_MS
from tests.support.share_members import ShareMember
from tests.support.topics import fill, make

GROUP = "workers"


P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def partitions(cluster):
    return {each.place: each for each in describe_share_group(cluster.store, GROUP).partitions}


def test_reset_needs_a_group_without_members(cluster, member):
    for act in (
        lambda: reset_share_offsets(cluster, GROUP, {P0: Latest()}),
        lambda: reset_share_offsets(cluster, GROUP, {P0: Latest()}, dry_run=True),
        lambda: delete_share_offsets(cluster.store, GROUP, ["t"]),
        lambda: delete_share_group(cluster.store, GROUP),
    ):
        with pytest.raises(NonEmptyGroupError):
            act()


row = partial(pytest.param, marks=pytest.mark.on_sqlite)
"""A row whose statements are those of another row."""


@pytest.mark.parametrize(
    ("to", "new"),
    [
        (Earliest(), 0), (AtTime(NOON_MS + 5_000), 5), row(Latest(), 10), row(Exactly(4), 4), row(Exactly(99), 10),
        row(ShiftBy(-2), 3), row(ShiftBy(3), 8), row(AtTime(NOON_MS + 60_000), 10),
    ],
)  # fmt: skip
def test_reset(cluster, member, to, new):
    member.acknowledge(member.poll(3), AcknowledgeType.ACCEPT)
    member.acknowledge(member.poll(2), AcknowledgeType.RELEASE, delay_ms=60_000)
    held = member.poll(2)
    member.leave()
    assert reset_share_offsets(cluster, GROUP, {P0: to}, dry_run=True) == {P0: (5, new)}
    assert partitions(cluster)[P0].start == 5
    assert reset_share_offsets(cluster, GROUP, {P0: to}) == {P0: (5, new)}
    here = partitions(cluster)[P0]
    assert (here.start, here.next, here.unfinished, here.delayed, here.lag) == (new, new, 0, 0, 10 - new)
    errors = member.acknowledge(held, AcknowledgeType.ACCEPT).errors
    assert [type(error).__name__ for error in errors.values()] == ["InvalidRecordStateError"]
    again = ShareMember(cluster, member="m2").poll()
    assert [(r.first, r.end, r.deliveries) for ranges in again.values() for r in ranges] == (
        [(new, 10, 1)] if new < 10 else []
    )


def test_reset_creates_a_group_whose_other_partitions_begin_by_its_policy(cluster, log):
    make(cluster, "t", 2)
    fill(log, "t", [10, 5])
    assert reset_share_offsets(cluster, GROUP, {P0: Exactly(4)}) == {P0: (None, 4)}
    assert {place: each.start for place, each in partitions(cluster).items()} == {P0: 4, P1: 5}
    assert describe_share_group(cluster.store, GROUP).group.state == "Empty"
    taken = ShareMember(cluster).poll()
    assert [(r.first, r.end) for ranges in taken.values() for r in ranges] == [(4, 10)]


def test_reset_that_was_previewed_is_refused_after_a_change(cluster, member):
    member.acknowledge(member.poll(3), AcknowledgeType.ACCEPT)
    member.leave()
    with pytest.raises(IllegalArgumentError, match="the group's offset is 3 now, it was 2: look again"):
        reset_share_offsets(cluster, GROUP, {P0: Exactly(0)}, expected={P0: 2})
    assert reset_share_offsets(cluster, GROUP, {P0: Exactly(0)}, expected={P0: 3}) == {P0: (3, 0)}


def test_a_reset_counts_from_the_log_start_if_retention_has_passed_the_start(cluster, member):
    member.leave()
    delete_records(cluster, {P0: 4})
    assert reset_share_offsets(cluster, GROUP, {P0: ShiftBy(1)}, preview=True) == {P0: (4, 5)}
    assert reset_share_offsets(cluster, GROUP, {P0: Exactly(6)}, expected={P0: 4}) == {P0: (4, 6)}
    with pytest.raises(IllegalArgumentError, match="outside the log"):
        reset_share_offsets(cluster, GROUP, {P0: Exactly(3)}, expected={P0: 6})


def test_reset_of_unknown_partitions(cluster, member):
    member.leave()
    for unknown in (TopicPartition("t", 2), TopicPartition("u", 0), TopicPartition("bad/name", 0)):
        with pytest.raises(UnknownTopicOrPartitionError):
            reset_share_offsets(cluster, GROUP, {P0: Latest(), unknown: Latest()})
        errors = reset_each_share_offset(cluster, GROUP, {P1: Latest(), unknown: Latest()})
        assert errors[P1] is None
        assert isinstance(errors[unknown], UnknownTopicOrPartitionError)
    assert partitions(cluster)[P0].start == 0


def test_offsets_of_topics_are_deleted(cluster, log, member):
    make(cluster, "other")
    member.acknowledge(member.poll(3), AcknowledgeType.RELEASE, delay_ms=60_000)
    member.leave()
    errors = delete_share_offsets(cluster.store, GROUP, ["t", "other", "missing"])
    assert errors["t"] is None
    assert "no offset information" in str(errors["other"])
    assert "does not exist" in str(errors["missing"])
    assert partitions(cluster) == {}
    taken = ShareMember(cluster).poll()
    assert [(r.first, r.end, r.deliveries) for ranges in taken.values() for r in ranges] == [(0, 10, 1)]


def test_a_group_is_deleted_and_its_configs_stay(cluster, member):
    member.acknowledge(member.poll(3), AcknowledgeType.RELEASE, delay_ms=60_000)
    member.leave()
    delete_share_group(cluster.store, GROUP)
    assert list_groups(cluster.store) == []
    with pytest.raises(GroupIdNotFoundError, match="not found"):
        describe_share_group(cluster.store, GROUP)
    with pytest.raises(GroupIdNotFoundError):
        delete_share_group(cluster.store, GROUP)
    assert group_overrides(cluster.store, GROUP) == {"share.auto.offset.reset": "earliest"}
    assert partitions_of_new_member(cluster) == {P0: 0, P1: 0}


def partitions_of_new_member(cluster):
    ShareMember(cluster, member="m3")
    return {place: each.start for place, each in partitions(cluster).items()}


def test_delete_group_of_the_wire_deletes_share_groups_too(cluster, member):
    member.leave()
    group_operations.delete_group(cluster.store, GROUP)
    assert list_groups(cluster.store) == []
    commit_offsets(cluster.store, GROUP, {P0: 1})
    assert describe_groups(cluster.store, [GROUP])[0].type == "consumer"


def test_the_state_of_a_deleted_topic_is_gone(cluster, member):
    member.poll(3)
    delete_topic(cluster, "t")
    assert partitions(cluster) == {}


@pytest.fixture
def admin(cluster_address, member):
    with Admin(cluster=cluster_address) as admin:
        yield admin


def test_admin_resets_and_deletes(admin, cluster, member):
    unknown = TopicPartition("u", 0)
    [error] = admin.alter_share_group_offsets(GROUP, {P0: 3}).values()
    assert issubclass(error, KafkaNonEmptyGroupError)
    member.leave()
    assert admin.alter_share_group_offsets(GROUP, {P0: 3, unknown: 1}) == {
        P0: NoError,
        unknown: KafkaUnknownTopicOrPartitionError,
    }
    assert partitions(cluster)[P0].start == 3
    admin.alter_share_group_offsets(GROUP, {P0: OffsetTimestamp(NOON_MS + 5_000), P1: OffsetSpec.LATEST})
    assert partitions(cluster)[P0].start == 5
    errors = admin.delete_share_group_offsets(GROUP, ["t", "u"])
    assert errors == {"t": NoError, "u": KafkaUnknownTopicOrPartitionError}
    assert admin.delete_share_groups([GROUP, "missing"]) == {GROUP: "OK", "missing": "GroupIdNotFoundError"}
    changes = read_changes(cluster, target=f"group {GROUP}")
    assert [(change.action, change.outcome) for change in reversed(changes)] == [
        ("AlterShareGroupOffsets", "failed"),
        ("AlterShareGroupOffsets", "succeeded"),
        ("AlterShareGroupOffsets", "succeeded"),
        ("DeleteShareGroupOffsets", "succeeded"),
        ("DeleteGroups", "succeeded"),
    ]
