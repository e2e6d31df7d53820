"""Descriptions, resets, deletions and configs of share groups, and their borders to the other types of groups."""

from dataclasses import replace
from functools import partial
from json import JSONDecodeError
from types import SimpleNamespace

import pytest
from kafka import OffsetAndMetadata
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, OffsetSpec, OffsetTimestamp
from kafka.errors import GroupIdNotFoundError as KafkaGroupIdNotFoundError
from kafka.errors import NoError
from kafka.errors import NonEmptyGroupError as KafkaNonEmptyGroupError
from kafka.errors import UnknownTopicOrPartitionError as KafkaUnknownTopicOrPartitionError

from spark_log import Admin
from spark_log.clients.admin.audit import read_changes
from spark_log.clients.admin.share_groups import SharePartitionOffset
from spark_log.cluster.lease import unfenced
from spark_log.cluster.settings import alter_settings
from spark_log.errors import (
    GroupIdNotFoundError,
    IllegalArgumentError,
    InconsistentGroupProtocolError,
    InvalidConfigurationError,
    NonEmptyGroupError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from spark_log.facts.groups import describe_groups, group_lag, list_groups
from spark_log.facts.share_groups import describe_share_group, peek_share_group
from spark_log.groups import group_operations
from spark_log.groups.classic.group import Joining
from spark_log.groups.classic.service import join_classic
from spark_log.groups.committed_offsets import commit_offsets
from spark_log.groups.consumer.reconciliation import reconcile_group, stale_groups
from spark_log.groups.group_operations import AtTime, Earliest, Exactly, Latest, ShiftBy
from spark_log.groups.offset_expiry import expire_offsets
from spark_log.groups.share.administration import (
    alter_group_configs,
    delete_share_group,
    delete_share_offsets,
    group_overrides,
    reset_each_share_offset,
    reset_share_offsets,
)
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.groups.share.service import end_idle_locks
from spark_log.ids import TopicPartition
from spark_log.maintenance.coordinator.periodic_tasks import GROUP_TASKS
from spark_log.maintenance.removal.retention import delete_records
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import SHARE_PARTITION
from spark_log.replication.controller.topic_operations import delete_topic
from tests.support.group_members import Reader
from tests.support.records import NOON_MS
from tests.support.share_members import ShareMember, move_lock_ends
from tests.support.stores import change
from tests.support.topics import fill, make, stored

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = "workers"


@pytest.fixture
def member(cluster, log):
    """A member of a group that reads topic t from its start: 10 records in partition 0, none in partition 1."""
    make(cluster, "t", 2)
    alter_group_configs(cluster.store, GROUP, {"share.auto.offset.reset": "earliest"})
    fill(log, "t", [10])
    return ShareMember(cluster)


def partitions(cluster):
    return {each.place: each for each in describe_share_group(cluster.store, GROUP).partitions}


def test_a_group_is_described(cluster, member):
    first = member.poll(4)
    member.acknowledge({key: ranges[:1] for key, ranges in first.items()}, AcknowledgeType.ACCEPT)
    member.poll(3)
    described = describe_share_group(cluster.store, GROUP)
    assert (described.group.state, described.group.type, described.group.protocol_type) == ("Stable", "share", "share")
    [row] = described.group.members
    assert (row.member_id, row.client_id, row.host, row.topics) == ("m1", "client", "host", frozenset("t"))
    assert row.assignment == {P0, P1}
    here, empty = described.partitions
    assert (here.start, here.next, here.in_flight, here.available, here.delayed, here.lag) == (4, 7, 3, 0, 0, 6)
    assert (empty.start, empty.next, empty.lag) == (0, 0, 0)
    assert sum(each.lag for each in described.partitions) == 6
    assert described.config.share_auto_offset_reset == "earliest"
    member.leave()
    assert describe_share_group(cluster.store, GROUP).group.state == "Empty"


def test_lag_counts_released_and_delayed_records_but_not_archiving_ones(cluster, member):
    alter_group_configs(cluster.store, GROUP, {"errors.deadletterqueue.topic.name": "dlq.t"})
    member.acknowledge(member.poll(2), AcknowledgeType.RELEASE, delay_ms=60_000)
    member.acknowledge(member.poll(2), AcknowledgeType.REJECT)
    member.acknowledge(member.poll(2), AcknowledgeType.RELEASE)
    here = partitions(cluster)[P0]
    assert (here.start, here.next, here.in_flight) == (2, 6, 0)  # delayed records do not hold the start
    assert (here.available, here.delayed, here.archiving, here.lag) == (2, 2, 2, 8)
    [peeked, _] = peek_share_group(cluster.store, GROUP)
    assert [(each.state, each.first, each.end, each.deliveries) for each in peeked.ranges] == [
        ("delayed", 0, 1, 1),
        ("delayed", 1, 2, 1),
        ("archiving (rejected)", 2, 4, 1),
        ("available", 4, 6, 1),
    ]
    assert [each.partition.place for each in peek_share_group(cluster.store, GROUP, [P1])] == [P1]


def test_records_that_retention_removes_leave_the_lag_before_the_next_poll(cluster, member):
    member.poll(4)
    delete_records(cluster, {P0: 8})
    here = partitions(cluster)[P0]
    assert (here.log_start, here.start, here.next, here.lag) == (8, 8, 8, 2)
    assert end_idle_locks(cluster.store) == 1
    here = partitions(cluster)[P0]
    assert (here.in_flight, here.expired, here.lag) == (0, 4, 2)
    assert end_idle_locks(cluster.store) == 0


def test_the_coordinator_ends_locks_of_groups_that_are_not_polled(cluster, member):
    alter_settings(cluster, {"group.share.min.record.lock.duration.ms": "1"})
    alter_group_configs(cluster.store, GROUP, {"share.record.lock.duration.ms": "1"})
    member.poll(3)
    assert partitions(cluster)[P0].in_flight == 3
    while partitions(cluster)[P0].in_flight:
        run_task(cluster)
    here = partitions(cluster)[P0]
    assert (here.in_flight, here.available, here.lock_timeouts, here.lag) == (0, 3, 3, 10)


def run_task(cluster):
    [task] = [task for task in GROUP_TASKS if task.name == "share groups"]
    task.run(SimpleNamespace(cluster=cluster, fence=unfenced, stopping=lambda: False))


def test_a_damaged_partition_does_not_keep_locks_and_dead_letters_of_others(cluster, log, member):
    fill(log, "t", [0, 3])
    make(cluster, "dlq.t", errors_deadletterqueue_group_enable="true")
    alter_group_configs(cluster.store, GROUP, {"errors.deadletterqueue.topic.name": "dlq.t"})
    acquired = {}
    while sorted(key[1] for key in acquired) != [0, 1]:
        acquired |= member.poll(3)
    [(key, [first, *_])] = [each for each in acquired.items() if each[0][1] == 1]
    member.acknowledge({key: [first._replace(end=first.first + 1)]}, AcknowledgeType.REJECT)
    move_lock_ends(cluster, 100_000)
    change(cluster, t.share_partition.update().where(SHARE_PARTITION.partition == 0).values(members="["))
    with pytest.raises(JSONDecodeError):
        run_task(cluster)
    here = partitions(cluster)[P1]
    assert (here.in_flight, here.lock_timeouts, here.archiving, here.dead_letters) == (0, 2, 0, 1)


def test_the_coordinator_writes_dead_letters_of_groups_that_are_not_polled(cluster, member):
    alter_group_configs(cluster.store, GROUP, {"errors.deadletterqueue.topic.name": "dlq.t"})
    member.acknowledge(member.poll(2), AcknowledgeType.REJECT)
    member.leave()
    run_task(cluster)  # the topic is missing: they stay
    assert partitions(cluster)[P0].archiving == 2
    make(cluster, "dlq.t", errors_deadletterqueue_group_enable="true")
    run_task(cluster)
    here = partitions(cluster)[P0]
    assert (here.archiving, here.dead_letters, here.lag) == (0, 2, 8)
    assert stored(cluster, "dlq.t") == {0: ["0/0", "0/1"]}


def test_dead_members_are_removed_and_nothing_is_assigned(cluster, member):
    alter_settings(cluster, {"group.share.min.session.timeout.ms": "1"})
    alter_group_configs(cluster.store, GROUP, {"share.session.timeout.ms": "1"})
    ShareMember(cluster, member="m2")
    while GROUP not in stale_groups(cluster.store):
        pass
    reconcile_group(cluster.store, GROUP, {})
    [described] = describe_groups(cluster.store, [GROUP])
    assert [each.member_id for each in described.members] == ["m1"]
    assert stale_groups(cluster.store) == []
    group_operations.remove_from_group(cluster.store, GROUP, ["m1"])
    with pytest.raises(UnknownMemberIdError):
        group_operations.remove_from_group(cluster.store, GROUP, ["m1"])
    assert describe_groups(cluster.store, [GROUP])[0].state == "Empty"


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


def test_a_share_group_is_no_group_of_another_type(cluster, member):
    member.leave()
    with pytest.raises(GroupIdNotFoundError, match="Group workers is not a consumer group"):
        Reader(cluster, group=GROUP).beat()
    with pytest.raises(InconsistentGroupProtocolError):
        join_classic(cluster.store, GROUP, joining())
    with pytest.raises(GroupIdNotFoundError):
        commit_offsets(cluster.store, GROUP, {P0: OffsetAndMetadata(1, "", -1)})
    with pytest.raises(GroupIdNotFoundError):
        group_operations.reset_offsets(cluster, GROUP, {P0: Earliest()})
    with pytest.raises(GroupIdNotFoundError):
        group_operations.delete_offsets(cluster.store, GROUP, [P0])
    [listed] = list_groups(cluster.store, with_topics=True)
    assert (listed.type, listed.protocol_type, listed.state, listed.members) == ("share", "share", "Empty", 0)


def joining():
    return Joining("c-1", "c-1", None, "c", "h", "consumer", (("range", b""),), 10_000, 10_000)


def test_another_group_is_no_share_group(cluster, member):
    commit_offsets(cluster.store, "readers", {P0: 1})
    for act in (
        lambda: describe_share_group(cluster.store, "readers"),
        lambda: reset_share_offsets(cluster, "readers", {P0: Latest()}),
        lambda: reset_share_offsets(cluster, "readers", {P0: Latest()}, dry_run=True),
        lambda: delete_share_offsets(cluster.store, "readers", ["t"]),
        lambda: delete_share_group(cluster.store, "readers"),
    ):
        with pytest.raises(GroupIdNotFoundError, match="Group readers is not a share group"):
            act()


def test_the_lag_of_groups_of_all_types_is_read_alike(cluster, member):
    member.acknowledge(member.poll(4), AcknowledgeType.ACCEPT)
    assert [(each.partition, each.committed, each.log_end, each.lag) for each in group_lag(cluster, GROUP)] == [
        (0, 4, 10, 6),
        (1, 0, 0, 0),
    ]


def test_share_groups_do_not_expire(cluster, member):
    member.leave()
    commit_offsets(cluster.store, "readers", {P0: 1})
    while not expire_offsets(cluster.store, replace(cluster.store.settings, offsets_retention_ms=1)):
        pass
    assert [group.group_id for group in list_groups(cluster.store)] == [GROUP]


def test_the_state_of_a_deleted_topic_is_gone(cluster, member):
    member.poll(3)
    delete_topic(cluster, "t")
    assert partitions(cluster) == {}


def test_configs(cluster):
    changed = alter_group_configs(cluster.store, "g", {"share.delivery.count.limit": "3"})
    assert changed.share_delivery_count_limit == 3
    alter_group_configs(cluster.store, "g", {"share.auto.offset.reset": "EARLIEST"})
    assert group_overrides(cluster.store, "g") == {
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": "3",
    }
    for name, value in (
        ("share.delivery.count.limit", "many"),
        ("share.delivery.count.limit", "11"),
        ("share.auto.offset", "earliest"),
        ("unknown", None),
    ):
        with pytest.raises(InvalidConfigurationError, match=name):
            alter_group_configs(cluster.store, "g", {name: value})
    alter_group_configs(cluster.store, "g", {"share.delivery.count.limit": None}, validate_only=True)
    alter_group_configs(cluster.store, "g", {}, replace_all=True, validate_only=True)
    assert len(group_overrides(cluster.store, "g")) == 2
    alter_group_configs(cluster.store, "g", {"share.delivery.count.limit": None})
    assert group_overrides(cluster.store, "g") == {"share.auto.offset.reset": "earliest"}
    alter_group_configs(cluster.store, "g", {}, replace_all=True)
    assert group_overrides(cluster.store, "g") == {}
    assert list_groups(cluster.store) == []


@pytest.fixture
def admin(cluster_address, member):
    with Admin(cluster=cluster_address) as admin:
        yield admin


def test_admin_describes_share_groups(admin, member):
    member.poll(4)
    described = admin.describe_share_groups([GROUP, "missing"])
    assert described[GROUP] == {
        "group_id": GROUP,
        "group_state": "Stable",
        "group_epoch": member.answer.epoch,
        "assignment_epoch": member.answer.epoch,
        "assignor_name": "simple",
        "members": [
            {
                "member_id": "m1",
                "rack_id": None,
                "member_epoch": member.answer.epoch,
                "client_id": "client",
                "client_host": "host",
                "subscribed_topic_names": ["t"],
                "assignment": [{"topic": "t", "partitions": [0, 1]}],
            }
        ],
        "error": None,
    }
    assert (described["missing"]["group_state"], described["missing"]["error"]) == ("Dead", "Group missing not found.")
    listed = {"group_id": GROUP, "protocol_type": "share", "group_state": "Stable", "group_type": "share"}
    assert admin.list_groups(types_filter=["share"]) == [listed]
    assert admin.list_groups(types_filter=["consumer"]) == []
    assert admin.list_share_group_offsets(GROUP) == {
        GROUP: {P0: SharePartitionOffset(0, 0, 10), P1: SharePartitionOffset(0, 0, 0)}
    }
    unknown = TopicPartition("t", 7)
    assert admin.list_share_group_offsets({GROUP: [P1, unknown]}) == {
        GROUP: {P1: SharePartitionOffset(0, 0, 0), unknown: SharePartitionOffset(-1, None, None)}
    }
    with pytest.raises(KafkaGroupIdNotFoundError):
        admin.list_share_group_offsets("missing")


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


def test_admin_sets_group_configs(admin, cluster):
    def resource(configs=None):
        return ConfigResource(ConfigResourceType.GROUP, GROUP, configs)

    alter_settings(cluster, {"group.share.delivery.count.limit": "4"})
    admin = Admin(cluster=str(cluster.store.address))
    changes = {"share.isolation.level": "read_committed", "share.auto.offset.reset": (AlterConfigOp.DELETE, None)}
    assert admin.alter_configs([resource(changes)]) == {"group": {GROUP: "OK"}}
    assert group_overrides(cluster.store, GROUP) == {"share.isolation.level": "read_committed"}
    entries = admin.describe_configs([resource()], config_filter="all")["group"][GROUP]
    sources = {name: (entry["value"], entry["config_source"]) for name, entry in entries.items()}
    assert sources["share.isolation.level"] == ("read_committed", "DYNAMIC_GROUP_CONFIG")
    assert sources["share.delivery.count.limit"] == ("4", "DYNAMIC_DEFAULT_BROKER_CONFIG")
    assert sources["share.auto.offset.reset"] == ("latest", "DEFAULT_CONFIG")
    assert list(admin.describe_configs([resource()])["group"][GROUP]) == [
        "share.delivery.count.limit",
        "share.isolation.level",
    ]
    assert admin.list_config_resources() == {"topic": admin.list_topics(), "group": [GROUP]}
    refused = admin.alter_configs([resource({"share.delivery.count.limit": "99"})], validate_only=True)
    assert "allow 2 to 10" in refused["group"][GROUP]
    with pytest.raises(ValueError, match="Unrecognized configs"):
        admin.alter_configs([resource({"retention.ms": "1"})])
    assert admin.reset_configs([resource()]) == {"group": {GROUP: "OK"}}
    assert group_overrides(cluster.store, GROUP) == {}
    admin.close()
