"""Descriptions, lag and configs of share groups, their tasks, and their borders to the other types of groups."""

from dataclasses import replace
from functools import partial
from json import JSONDecodeError
from types import SimpleNamespace

import pytest
from kafka import OffsetAndMetadata
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType
from kafka.errors import GroupIdNotFoundError as KafkaGroupIdNotFoundError

from spark_log import Admin
from spark_log.clients.admin.share_groups import SharePartitionOffset
from spark_log.cluster.lease import unfenced
from spark_log.cluster.settings import alter_settings
from spark_log.errors import (
    GroupIdNotFoundError,
    InconsistentGroupProtocolError,
    InvalidConfigurationError,
    UnknownMemberIdError,
)
from spark_log.facts.groups import describe_groups, group_lag, list_groups
from spark_log.facts.share_groups import describe_share_group, peek_share_group
from spark_log.groups import group_operations
from spark_log.groups.classic.group import Joining
from spark_log.groups.classic.service import join_classic
from spark_log.groups.committed_offsets import commit_offsets
from spark_log.groups.consumer.reconciliation import reconcile_group, stale_groups
from spark_log.groups.group_operations import Earliest, Latest
from spark_log.groups.offset_expiry import expire_offsets
from spark_log.groups.share.administration import (
    alter_group_configs,
    delete_share_group,
    delete_share_offsets,
    group_overrides,
    reset_share_offsets,
)
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.groups.share.service import end_idle_locks
from spark_log.ids import TopicPartition
from spark_log.maintenance.coordinator.periodic_tasks import GROUP_TASKS
from spark_log.maintenance.removal.retention import delete_records
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import SHARE_PARTITION
from tests.support.group_members import Reader
from tests.support.share_members import ShareMember, move_lock_ends
from tests.support.stores import change
from tests.support.topics import fill, make, stored

GROUP = "workers"


P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


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


row = partial(pytest.param, marks=pytest.mark.on_sqlite)
"""A row whose statements are those of another row."""


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
