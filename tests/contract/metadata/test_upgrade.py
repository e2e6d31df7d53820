"""A cluster of an earlier release, with live data of every kind, is opened by this one."""

from pathlib import Path

import pytest
from kafka.structs import OffsetAndMetadata

from spark_log import Admin, Producer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.quotas.quota_rows import read_quotas
from spark_log.cluster.security.users import list_credentials
from spark_log.facts.transactions import list_transactions
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.groups.share.rows import read_configs
from spark_log.ids import TopicPartition
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata.store_schema import revision_of
from spark_log.metadata.tables import SCHEMA_REVISION, metadata
from spark_log.registry.registry import Registry
from spark_log.replication.controller.topic_operations import alter_configs
from tests.support import release_cluster
from tests.support.gateway_wire import WireConnection, WireProducer, call
from tests.support.group_members import Reader, settle
from tests.support.release_cluster import AVRO, COMMITTED, EVENTS, GROUPS, JOBS, ORDERS, SCHEMA, SUBJECT
from tests.support.server_processes import GatewayProcess
from tests.support.share_members import ShareMember
from tests.support.table_checks import assert_delta_is_the_log, commits
from tests.support.topics import append, stored

FIXTURES = Path(__file__).parents[2] / "fixtures"
ARCHIVES = sorted(archive.name.partition(".")[0] for archive in FIXTURES.glob("cluster_*.tar.xz"))
DUPLICATE_CODES = (0, 46)
REJOIN = {"cluster_v2": {"of-library", "of-classic"}, "cluster_v3": {"of-library", "of-classic"}, "cluster_v7": set()}
"""Groups by release, whose members join again after the upgrade."""
WITH_QUEUES = [release for release in ARCHIVES if release not in ("cluster_v2", "cluster_v3")]
"""Releases that have share groups; their archives also have a user and a subject of the schema registry."""
EARLIER = [f"event {number}" for number in range(EVENTS)]
LIVE = ["committed", "0", "1", "2", "ours"]


@pytest.fixture(params=["sqlite", "postgres"])
def store(request):
    return request.param


@pytest.fixture(params=ARCHIVES)
def release(request):
    return request.param


@pytest.fixture
def upgraded(request, release, store, tmp_path):
    """The address of the cluster, and its Kafka clients as far as they had come."""
    address, states = release_cluster.unpack(FIXTURES / f"{release}.tar.xz", tmp_path)
    if store == "postgres":
        server = request.getfixturevalue("postgres_server")
        address = server.create_database()
        release_cluster.move_to_postgres(tmp_path, address)
    clients = {
        name: WireProducer.resumed(name, state.producer_id, state.epoch, state.sequence)
        for name, state in states.items()
    }
    with Cluster.open(address) as cluster:
        cluster.store.transact(lambda connection: begin_limits_anew(cluster.store, connection))
        yield cluster, clients


def begin_limits_anew(store, connection):
    """As if the processes had been killed a moment ago: sessions, transactions and leases have not ended."""
    now = store.clock(connection)
    for table in metadata.tables.values():
        limits = {
            each.name: now.lease_ms + 600_000 for each in table.columns if each.name in ("until_ms", "deadline_ms")
        }
        if limits and "clock_epoch" in table.columns:
            connection.execute(table.update().values(clock_epoch=now.clock_epoch, **limits))


def states(cluster):
    return {each.transactional_id: each.state for each in list_transactions(cluster)}


def test_data_of_every_kind_is_as_before(upgraded, release):
    cluster, _ = upgraded
    assert cluster.store.read(revision_of) == SCHEMA_REVISION
    assert stored(cluster, "events")[0] == EARLIER + LIVE
    assert stored(cluster, "events")[1] == ["ours" * 100_000]
    assert len(stored(cluster, "orders")[0]) == ORDERS
    with Admin(cluster=str(cluster.store.address)) as admin:
        groups = admin.describe_groups(list(GROUPS))
        expected = {group: 0 if group in REJOIN[release] else count for group, count in GROUPS.items()}
        assert {group: len(each["members"]) for group, each in groups.items()} == expected
        assert states(cluster) == {"done": "CompleteCommit", "half": "Ongoing", "ours": "Ongoing"}
    for group in GROUPS:
        offsets = committed_offsets(cluster.store, group)
        assert offsets[TopicPartition("events", 0)] == COMMITTED
    assert len(read_quotas(cluster.store)) == 1
    if release in WITH_QUEUES:
        share_groups_users_and_subjects_are_as_before(cluster)
    groups_whose_members_join_again_keep_their_offsets(cluster, release)


def share_groups_users_and_subjects_are_as_before(cluster):
    member = ShareMember(cluster, topics=[JOBS], group="of-workers", member="m3")
    [ranges] = member.poll().values()
    counts = {offset: each.deliveries for each in ranges for offset in range(each.first, each.end)}
    assert counts == dict.fromkeys(range(3, 10), 2), "not the accepted ones; the one that waited is due by now"
    configs = cluster.store.read(lambda connection: read_configs(connection, "of-workers"))
    assert configs == {"share.auto.offset.reset": "earliest"}
    assert {each.user for each in list_credentials(cluster.store)} == {"ann"}
    assert Registry(cluster).lookup(SUBJECT, AVRO).version == 1


def groups_whose_members_join_again_keep_their_offsets(cluster, release):
    topic_partitions = {TopicPartition("events", 0), TopicPartition("events", 1)}
    for group in REJOIN[release]:
        [reader] = settle(Reader(cluster, topics=["events"], group=group))
        assert reader.held == topic_partitions
        reader.member.commit({TopicPartition("events", 1): OffsetAndMetadata(1, "", -1)})
        assert committed_offsets(cluster.store, group) == {
            TopicPartition("events", 0): COMMITTED,
            TopicPartition("events", 1): 1,
        }


def test_clients_go_on_where_they_were(upgraded, tmp_path):
    """Those of Kafka at a gateway; our producer aborts what it had open."""
    cluster, clients = upgraded
    with GatewayProcess(tmp_path, str(cluster.store.address)) as gateway, WireConnection(gateway.port) as wire:
        again = WireProducer.resumed("", clients["idempotent"].producer_id, clients["idempotent"].epoch, 2)
        assert again.send(wire, "events", b"2", flag=0, transactional=False).error_code in DUPLICATE_CODES
        assert clients["idempotent"].send(wire, "events", b"3", flag=0, transactional=False).error_code == 0
        half, done = clients["half"], clients["done"]
        assert half.send(wire, "events", b"more").error_code == 0
        assert call(wire, half.end(commit=True)) == 0
        assert call(wire, done.add_partitions("events")) == 0
        assert done.send(wire, "events", b"next").error_code == 0
        assert call(wire, done.end(commit=True)) == 0
    assert stored(cluster, "events")[0] == [*EARLIER, *LIVE, "3", "pending", "more", "next"]
    assert committed_offsets(cluster.store, "offsets-only")[TopicPartition("events", 0)] == COMMITTED + 1
    with Producer(cluster=str(cluster.store.address), transactional_id="ours") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("events", b"after", partition=0)
        producer.commit_transaction()
    assert stored(cluster, "events")[0] == [*EARLIER, *LIVE, "3", "pending", "more", "next", "after"]


@pytest.mark.delta
def test_delta_tables_are_continued(upgraded):
    """A stream of a table, which began before the upgrade, reads each record once, also of files that are written again
    before new ones are listed.
    """
    cluster, _ = upgraded
    log = ClientLog(cluster)
    topics = [log.find_topic(name) for name in ("events", "orders")]
    before = [last_version(cluster, topic) for topic in topics]
    assert min(before) > 0
    alter_configs(cluster, "orders", {"value.schema": f"{SCHEMA}, note STRING"})
    [report] = run_tasks(cluster, ["columns"])
    assert report.before.files > 0
    for topic in topics:
        append(log, topic, "after the upgrade")
    log.close()
    for task in ("seal", "merge", "delta"):
        list(run_tasks(cluster, [task], now=True))
    for topic, version in zip(topics, before, strict=True):
        assert last_version(cluster, topic) > version
    assert_delta_is_the_log(cluster)


def last_version(cluster, topic):
    """The version of the topic's Delta table; -1 if there is none."""
    [log_dir] = [LogDir(info.uri) for info in cluster.log_dirs().values()]
    return max((version for version, _ in commits(log_dir, topic)), default=-1)
