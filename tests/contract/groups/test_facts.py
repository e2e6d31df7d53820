"""Every place that shows a cluster says the same of it."""

import json
from contextlib import ExitStack

import pytest
from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from prometheus_client.exposition import generate_latest
from typer.testing import CliRunner

from spark_log import Admin
from spark_log.cli.main import app
from spark_log.facts.metrics.exporter import ClusterCollector, registry_of
from spark_log.groups.committed_offsets import commit_offsets
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.ids import TopicPartition
from tests.support.classic_members import ClassicMember, WorkerMember
from tests.support.console import running_console
from tests.support.consumer_members import ConsumerMember, topic_ids
from tests.support.gateway_wire import WireConnection
from tests.support.group_members import Reader, settle
from tests.support.operations import samples
from tests.support.server_processes import GatewayProcess
from tests.support.share_members import ShareMember
from tests.support.topics import fill, make

MEMBERS = {
    "of-library": 2,
    "of-consumers": 1,
    "of-classic": 1,
    "of-leader": 1,
    "of-connect": 1,
    "of-share": 2,
    "offsets-only": 0,
}


@pytest.fixture
def groups(cluster, cluster_address, tmp_path):
    """The port of a gateway, beside a group of each kind with so many members."""
    make(cluster, "t", 2)
    with ExitStack() as stack:
        gateway = stack.enter_context(GatewayProcess(tmp_path, cluster_address))

        def wire():
            return stack.enter_context(WireConnection(gateway.port))

        settle(*(Reader(cluster, group="of-library") for _ in range(2)))
        ConsumerMember(wire(), "of-consumers", topic_ids(wire(), "t"), subscribed_topic_names=["t"]).join()
        ClassicMember(wire(), "of-classic", ["t"]).join()
        WorkerMember(wire(), "of-leader", kind="consumer", protocol="mine").join()
        WorkerMember(wire(), "of-connect").join()
        for member in ("m1", "m2"):
            ShareMember(cluster, group="of-share", member=member)
        commit_offsets(cluster.store, "offsets-only", {TopicPartition("t", 0): 0})
        yield gateway.port


def of_cli(cluster_address):
    listed = CliRunner().invoke(app, ["group", "list", "--json", "--cluster", cluster_address])
    return {group["group_id"]: group["members"] for group in json.loads(listed.stdout)}


def of_metrics(cluster):
    found = samples(generate_latest(registry_of(ClusterCollector(cluster, lambda: True))).decode())
    return {
        dict(labels)["consumergroup"]: int(value)
        for (name, labels), value in found.items()
        if name == "kafka_consumergroup_members"
    }


def of_console(cluster):
    with running_console(cluster) as console:
        listed = {row["group"]: row["members"] for row in console.facts("/groups")["listing"]["rows"]}
        assert {group: len(console.facts(f"/groups/{group}")["members"]) for group in listed} == listed
        return listed


def of_admin(cluster_address):
    with Admin(cluster=cluster_address) as admin:
        described = admin.describe_groups([group["group_id"] for group in admin.list_groups()])
        return {group: len(found["members"]) for group, found in described.items()}


def of_gateway(port):
    with WireConnection(port) as wire:
        listed = [each.group_id for each in wire.exchange(ListGroupsRequest(), 4).groups]
        found = wire.exchange(DescribeGroupsRequest(groups=listed), 5).groups
        return {each.group_id: len(each.members) for each in found}


@pytest.mark.on_sqlite
def test_lag_and_type_of_a_share_group(cluster, cluster_address, log):
    make(cluster, "t", 2)
    fill(log, "t", [10])
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    member = ShareMember(cluster)
    member.acknowledge(member.poll(4), AcknowledgeType.ACCEPT)
    member.poll(3)
    [listed] = json.loads(CliRunner().invoke(app, ["group", "list", "--json", "--cluster", cluster_address]).stdout)
    assert (listed["type"], listed["protocol_type"], listed["state"], listed["lag"]) == ("share", "share", "Stable", 6)
    found = samples(generate_latest(registry_of(ClusterCollector(cluster, lambda: True))).decode())
    lags = [value for (name, _), value in found.items() if name == "spark_log_share_group_lag"]
    assert sorted(lags) == [0, 6]
    with running_console(cluster) as console:
        [row] = console.facts("/groups")["listing"]["rows"]
        page = console.facts("/groups/workers")
    assert (row["lag"], page["lag"], page["type"], page["state"]) == (6, 6, "share", "Stable")
    with Admin(cluster=cluster_address) as admin:
        assert [group["group_type"] for group in admin.list_groups()] == ["share"]
        assert sum(offset.lag for offset in admin.list_share_group_offsets("workers")["workers"].values()) == 6


def test_members_of_groups_of_each_kind(groups, cluster, cluster_address):
    assert of_cli(cluster_address) == MEMBERS
    assert of_metrics(cluster) == MEMBERS
    assert of_console(cluster) == MEMBERS
    assert of_admin(cluster_address) == MEMBERS
    assert of_gateway(groups) == MEMBERS
