"""Names of topics, groups, transactional ids, users and hosts that a client may not describe are in no response."""

import uuid
from contextlib import suppress

import confluent_kafka as rdkafka
import pytest
from kafka.protocol.admin import (
    CreateTopicsRequest,
    DescribeGroupsRequest,
    DescribeTopicPartitionsRequest,
)
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_log.cluster.quotas.quota_rows import write_quotas
from spark_log.cluster.quotas.rules import entity_of
from spark_log.cluster.security.acl_rules import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from spark_log.cluster.security.acls import add_acls, remove_acls
from spark_log.cluster.topics import find_topics
from spark_log.gateway.server import APIS
from spark_log.groups.committed_offsets import Commit, commit_offsets
from spark_log.ids import TopicPartition
from tests.support.classic_members import ClassicMember, WorkerMember
from tests.support.consumer_members import ConsumerMember
from tests.support.gateway_wire import request_about
from tests.support.security import ACL_OPTIONS, acl, client, connect, put_users
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make

pytestmark = pytest.mark.on_sqlite

OWN = "own"
HIDDEN_TOPICS = ("A-hidden", "own-hidden", "z-hidden")
GROUPS = ("own-consumer", "own-classic", "own-workers")
"""A group of each kind; members with more rights have subscribed to hidden topics."""
HIDDEN_HOST = "203.0.113.77"
CHANGING = ("Delete", "Init", "EndTxn", "OffsetDelete")
"""APIs, by the beginning of their names, that are called last: they remove the facts that others would tell."""


@pytest.fixture
def gateway(cluster, cluster_address, tmp_path):
    for name in (OWN, *HIDDEN_TOPICS, "secret_topic"):
        make(cluster, name, 2)
    put_users(cluster, ["admin", "anna", "hidden-user"])
    everything = [
        (ResourceType.TOPIC, OWN), (ResourceType.TRANSACTIONAL_ID, OWN),
        *((ResourceType.GROUP, group) for group in (OWN, *GROUPS)),
    ]  # fmt: skip
    add_acls(cluster.store, [
        *(acl("anna", Operation.ALL, kind, name) for kind, name in everything),
        acl("anna", Operation.CREATE, ResourceType.TOPIC, "secret.topic"),
        acl("hidden-user", Operation.READ, ResourceType.TOPIC, "A-hidden"),
        Acl(ResourceType.GROUP, "hidden-group", PatternType.LITERAL, "User:hidden-user", HIDDEN_HOST, Operation.READ,
            Permission.ALLOW),
    ])  # fmt: skip
    write_quotas(cluster.store, [
        (entity_of([("user", "hidden-user")]), {"producer_byte_rate": 1e6}),
        (entity_of([("ip", HIDDEN_HOST)]), {"connection_creation_rate": 10.0}),
    ])  # fmt: skip
    for group in (OWN, "hidden-group"):
        commit_offsets(cluster.store, group, {TopicPartition(name, 0): Commit(0, "", -1) for name in (OWN, "A-hidden")})
    with GatewayProcess(tmp_path, cluster_address, *ACL_OPTIONS) as gateway:
        yield gateway
        assert "Traceback" not in gateway.output, gateway.output[-4000:]


def open_transaction(gateway, transactional_id):
    """A transaction with records in a topic that the client may describe and in hidden ones."""
    producer = rdkafka.Producer({**client(gateway, "admin"), "transactional.id": transactional_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    for topic in (OWN, *HIDDEN_TOPICS):
        producer.produce(topic, b"v", partition=0)
    assert producer.flush(30) == 0
    return producer


def join_groups(gateway, ids):
    """A member in each group of GROUPS that has hidden topics, and in a hidden group."""
    consumer_wire, classic_wire, worker_wire = (connect(gateway, "admin") for _ in range(3))
    topics = (OWN, "A-hidden")
    for group in ("own-consumer", "hidden-group"):
        member = ConsumerMember(consumer_wire, group, ids, subscribed_topic_names=topics)
        assert member.join().error_code == 0
    classic = ClassicMember(classic_wire, "own-classic", topics)
    assert classic.join() == 0 and classic.sync() == 0
    worker = WorkerMember(worker_wire, "own-workers", kind="consumer", protocol="custom")
    worker.metadata = ConsumerProtocolSubscription(version=0, topics=list(topics), user_data=b"A-hidden").encode()
    assert worker.join() == 0
    part = ConsumerProtocolAssignment.TopicPartition
    worker.send_sync({
        worker.member_id: ConsumerProtocolAssignment(
            version=0, assigned_partitions=[part(topic=name, partitions=[0]) for name in topics], user_data=b"",
        ).encode()
    })  # fmt: skip
    assert isinstance(worker.synced(), bytes)
    return consumer_wire, classic_wire, worker_wire


def everything_of(kind, version):
    """Null where the version allows it, else empty: many APIs mean everything by that."""
    values = {}
    for field in kind._struct.untagged_fields(version):
        if field.nullable_for_version_q(version):
            values[field.name] = None
        elif field.is_array():
            values[field.name] = []
        elif field.type_str in ("string", "bytes", "records", "bool", "uuid"):
            values[field.name] = {"string": "", "bool": True, "uuid": uuid.UUID(int=0)}.get(field.type_str, b"")
        else:
            values[field.name] = 1
    return kind(**values)


def by_id(kind, version, topic_id):
    """A request that names the topic by its id alone, in all its elements."""
    request = request_about(OWN, kind, version)
    put_id(request, kind._struct, version, topic_id)
    return request


def put_id(message, struct, version, topic_id):
    fields = list(struct.untagged_fields(version))
    with_id = any(field.name == "topic_id" for field in fields)
    for field in fields:
        if field.name == "topic_id":
            message.topic_id = topic_id
        elif with_id and field.type_str == "string" and field.nullable_for_version_q(version):
            setattr(message, field.name, None)
        elif field.is_struct_array():
            for each in getattr(message, field.name) or ():
                put_id(each, field, version, topic_id)


def requests_of(api, ids):
    low = api.advertised[0] if api.served_from is None else max(api.advertised[0], api.served_from)
    for version in range(low, api.advertised[1] + 1):
        yield version, everything_of(api.request, version)
        for name in (OWN, *GROUPS):
            yield version, request_about(name, api.request, version)
        for name in HIDDEN_TOPICS:
            yield version, by_id(api.request, version, ids[name])


class Asking:
    """A connection that is opened again after a request that is not legal, which closes it."""

    def __init__(self, gateway, user):
        self.open = lambda: connect(gateway, user)
        self.connection = self.open()

    def answer(self, request, version):
        """The bytes of the response; none if the connection was closed."""
        self.connection.send(request, version)
        with suppress(AssertionError, ConnectionError):
            return self.connection.receive_bytes()
        self.connection = self.open()
        return b""


@pytest.mark.slow
def test_no_response_has_a_name_that_the_client_may_not_describe(gateway, cluster):
    topics = cluster.store.read(lambda connection: find_topics(connection, None))
    ids = {name: uuid.UUID(hex=topic.uuid) for name, topic in topics.items()}
    producers = [open_transaction(gateway, name) for name in (OWN, "hidden-transaction")]
    wires = join_groups(gateway, ids)
    told, answered = set(), set()
    anna = Asking(gateway, "anna")
    for api in sorted(APIS, key=lambda api: api.name.startswith(CHANGING)):
        for version, request in requests_of(api, ids):
            if api.name == "Produce":
                request.acks = -1
            answer = anna.answer(request, version)
            if answer:
                answered.add(api.name)
            if b"hidden" in answer or HIDDEN_HOST.encode() in answer:
                told.add((api.name, version, repr(request)[:200]))
    assert told == set()
    assert answered == {api.name for api in APIS}, "every API has answered"
    for wire in wires:
        wire.__exit__()
    del producers


def test_pages_of_topics_end_at_topics_that_the_client_may_describe(gateway, cluster):
    add_acls(cluster.store, [acl("anna", Operation.DESCRIBE, ResourceType.TOPIC, "z-hidden")])
    request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=2, cursor=None)
    with connect(gateway, "anna") as connection:
        first = connection.exchange(request, 0)
        assert [(each.name, len(each.partitions)) for each in first.topics] == [(OWN, 2)]
        assert (first.next_cursor.topic_name, first.next_cursor.partition_index) == ("z-hidden", 0)
        cursor = DescribeTopicPartitionsRequest.Cursor(topic_name="z-hidden", partition_index=0)
        request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=2, cursor=cursor)
        last = connection.exchange(request, 0)
        assert [(each.name, len(each.partitions)) for each in last.topics] == [("z-hidden", 2)]
        assert last.next_cursor is None


def test_a_new_topic_that_collides_with_a_hidden_one_does_not_name_it(gateway):
    kind = CreateTopicsRequest.CreatableTopic
    wanted = kind(name="secret.topic", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=1000, validate_only=False)
    with connect(gateway, "anna") as connection:
        [created] = connection.exchange(request, 5).topics
        assert created.error_code == 36 and "secret_topic" not in created.error_message


def test_a_group_is_described_with_the_topics_that_the_client_may_describe(gateway, cluster):
    topics = cluster.store.read(lambda connection: find_topics(connection, None))
    wires = join_groups(gateway, {name: uuid.UUID(hex=topic.uuid) for name, topic in topics.items()})
    request = DescribeGroupsRequest(groups=["own-consumer", "own-classic", "own-workers"])
    with connect(gateway, "anna") as connection:
        groups = {each.group_id: each for each in connection.exchange(request, 5).groups}
    with connect(gateway, "admin") as connection:
        by_admin = {each.group_id: each for each in connection.exchange(request, 5).groups}
    [member], [seen_by_admin] = groups["own-consumer"].members, by_admin["own-consumer"].members
    assert topics_of(member) == ([OWN], [OWN])
    assert topics_of(seen_by_admin) == (["A-hidden", OWN], ["A-hidden", OWN])
    for name in ("own-classic", "own-workers"):
        [member], [seen_by_admin] = groups[name].members, by_admin[name].members
        assert (member.member_metadata, member.member_assignment) == (b"", b"")
        assert [sorted(found) for found in topics_of(seen_by_admin)] == [["A-hidden", OWN]] * 2
    for wire in wires:
        wire.__exit__()


def topic_ids(cluster):
    topics = cluster.store.read(lambda connection: find_topics(connection, None))
    return {name: uuid.UUID(hex=topic.uuid) for name, topic in topics.items()}


def test_members_of_a_group_get_no_partitions_of_topics_that_they_may_not_describe(gateway, cluster):
    """The server assigns, so it must not name them; a member that may describe them gets them all."""
    topics = (OWN, "A-hidden")
    with connect(gateway, "anna") as wire, connect(gateway, "admin") as other_wire:
        admin = ConsumerMember(other_wire, "own-classic", topic_ids(cluster), subscribed_topic_names=list(topics))
        assert admin.join().error_code == 0
        anna = ClassicMember(wire, "own-classic", topics)
        assert anna.join() == 0
        while anna.owned != {OWN: [0, 1]}:
            assert admin.beat(owned=True).error_code == 0
            assert anna.join() == 0 and anna.sync() == 0
            assert "A-hidden" not in anna.owned
        assert admin.owned["A-hidden"] == [0, 1]


def test_a_regular_expression_matches_the_topics_that_the_member_may_describe(gateway, cluster):
    with connect(gateway, "anna") as wire:
        member = ConsumerMember(wire, "own-consumer", topic_ids(cluster), subscribed_topic_regex=".*")
        assert member.join().error_code == 0
        assert member.told == {OWN: [0, 1]}


def test_a_right_that_ends_ends_the_assignment_at_the_next_sync(gateway, cluster):
    also = acl("anna", Operation.DESCRIBE, ResourceType.TOPIC, "A-hidden")
    add_acls(cluster.store, [also])
    with connect(gateway, "anna") as wire, connect(gateway, "admin") as other_wire:
        admin = ConsumerMember(other_wire, "own-classic", topic_ids(cluster), subscribed_topic_names=[])
        assert admin.join().error_code == 0
        anna = ClassicMember(wire, "own-classic", (OWN, "A-hidden"))
        assert anna.join() == 0 and anna.sync() == 0
        assert anna.owned == {OWN: [0, 1], "A-hidden": [0, 1]}
        remove_acls(cluster.store, [AclFilter(resource_name="A-hidden", operation=Operation.DESCRIBE)])
        while anna.sync() == 0:
            pass
        assert anna.join() == 0
        anna.settle()
        assert anna.sync() == 0
        assert anna.owned == {OWN: [0, 1]}


def topics_of(member):
    """The topics of its subscription and of its assignment."""
    said = ConsumerProtocolSubscription.decode(bytes(member.member_metadata))
    assigned = ConsumerProtocolAssignment.decode(bytes(member.member_assignment))
    return list(said.topics), [each.topic for each in assigned.assigned_partitions]
