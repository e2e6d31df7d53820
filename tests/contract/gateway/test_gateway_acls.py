"""Rights of real clients on a gateway, the parts of responses that they see, and the management of ACLs."""

import confluent_kafka as rdkafka
import kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
)
from confluent_kafka.admin import ResourceType as RdResourceType
from kafka.admin import ACLFilter, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePatternFilter
from kafka.admin import ResourceType as KafkaResourceType
from kafka.errors import ClusterAuthorizationFailedError, SecurityDisabledError
from kafka.protocol.admin import DescribeConfigsRequest, ListGroupsRequest
from kafka.protocol.consumer import FetchRequest, OffsetFetchRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer.transaction import InitProducerIdRequest
from typer.testing import CliRunner

from spark_log import Admin, Consumer
from spark_log.cli.main import app
from spark_log.clients.admin.acls import kafka_acl
from spark_log.clients.admin.audit import read_changes
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.security.acl_rules import (
    CLUSTER_NAME,
    OPERATIONS,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from spark_log.cluster.security.acls import add_acls, read_acls, remove_acls
from spark_log.errors import IllegalArgumentError
from spark_log.gateway.access.rights import CODES
from spark_log.groups.share.administration import alter_group_configs
from tests.support.gateway_wire import (
    produce_request,
    produced,
    transactional_batch,
)
from tests.support.records import topic_values
from tests.support.security import ACL_OPTIONS, PASSWORD, acl, client, connect, on_topic, put_users
from tests.support.server_processes import GatewayProcess
from tests.support.share_members import WireShareMember
from tests.support.topics import make
from tests.support.waiting import wait_until

INVALID_PRODUCER_ID_MAPPING = 49


ACCEPT, INVALID_RECORD_STATE = 1, 121


TOPIC_REFUSED, GROUP_REFUSED, CLUSTER_REFUSED, ID_REFUSED = (CODES[each] for each in (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID,
))  # fmt: skip


EVERYTHING = ACLFilter(
    None, None, ACLOperation.ANY, ACLPermissionType.ANY,
    ResourcePatternFilter(KafkaResourceType.ANY, None, ACLResourcePatternType.ANY),
)  # fmt: skip


@pytest.fixture
def gateway(cluster, cluster_address, tmp_path):
    for name in ("orders", "orders-old", "secret"):
        make(cluster, name, 1)
    put_users(cluster, ["admin", "anna", "ben"])
    with GatewayProcess(tmp_path, cluster_address, *ACL_OPTIONS) as gateway:
        yield gateway
        assert "Traceback" not in gateway.output, gateway.output[-4000:]


def kafka_admin(gateway, user):
    return kafka.KafkaAdminClient(
        bootstrap_servers=gateway.address, security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN",
        sasl_plain_username=user, sasl_plain_password=PASSWORD,
    )  # fmt: skip


def sent(settings, topic):
    """Name of the error of one record, None if it was acknowledged."""
    errors = []
    producer = rdkafka.Producer({**settings, "message.timeout.ms": 20_000})
    producer.produce(topic, b"v", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    [error] = errors
    return None if error is None else error.name()


def first(settings, topic, group):
    consumer = rdkafka.Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(30)
    consumer.close()
    return message.value() if message.error() is None else message.error().name()


@pytest.mark.on_sqlite
def test_clients_may_do_what_acls_allow(cluster, gateway):
    anna = client(gateway, "anna")
    assert AdminClient(anna).list_topics(timeout=30).topics == {}
    add_acls(cluster.store, [
        on_topic("anna", Operation.READ, "orders", pattern=PatternType.PREFIXED),
        on_topic("anna", Operation.WRITE, "orders", pattern=PatternType.PREFIXED),
        on_topic("anna", Operation.READ, "orders-old", permission=Permission.DENY),
        acl("anna", Operation.READ, ResourceType.GROUP, "g"),
    ])  # fmt: skip
    shown = AclBinding(RdResourceType.TOPIC, "shown", ResourcePatternType.LITERAL, "User:*", "*", AclOperation.DESCRIBE,
                       AclPermissionType.ALLOW)  # fmt: skip
    admin = AdminClient(client(gateway, "admin"))  # a super user; the gateway reads the ACLs again at once
    admin.create_acls([shown])[shown].result(30)
    assert set(AdminClient(anna).list_topics(timeout=30).topics) == {"orders", "orders-old"}
    assert sent(anna, "orders") is None
    assert sent(anna, "secret") == "TOPIC_AUTHORIZATION_FAILED"
    assert first(anna, "orders", "g") == b"v"
    assert first(anna, "orders-old", "g") == "TOPIC_AUTHORIZATION_FAILED"
    assert first(anna, "orders", "other") == "GROUP_AUTHORIZATION_FAILED"
    admin = AdminClient(anna)
    with pytest.raises(rdkafka.KafkaException) as refused:
        admin.create_topics([NewTopic("new", 1)])["new"].result(30)
    assert refused.value.args[0].name() == "TOPIC_AUTHORIZATION_FAILED"
    with kafka_admin(gateway, "anna") as admin, pytest.raises(ClusterAuthorizationFailedError):
        admin.describe_acls(EVERYTHING)
    bypassing = Consumer("orders", bootstrap_servers=str(cluster.store.address), auto_offset_reset="earliest",
                         consumer_timeout_ms=5_000)  # fmt: skip
    assert next(bypassing).value == b"v", "the clients of the store have all rights"
    bypassing.close()


def any_acl(**others):
    values = {"restype": RdResourceType.ANY, "name": None, "resource_pattern_type": ResourcePatternType.ANY,
              "principal": None, "host": None, "operation": AclOperation.ANY,
              "permission_type": AclPermissionType.ANY, **others}  # fmt: skip
    return AclBindingFilter(**values)


def test_acls_are_managed_by_clients_admin_and_the_command_line(cluster, cluster_address, gateway):
    admin = AdminClient(client(gateway, "admin"))
    binding = AclBinding(RdResourceType.TOPIC, "o", ResourcePatternType.PREFIXED, "User:ben", "*", AclOperation.READ,
                         AclPermissionType.ALLOW)  # fmt: skip
    admin.create_acls([binding])[binding].result(30)
    matching = any_acl(restype=RdResourceType.TOPIC, name="orders", resource_pattern_type=ResourcePatternType.MATCH)
    assert admin.describe_acls(matching).result(30) == [binding]
    wrong = AclBinding(RdResourceType.GROUP, "g", ResourcePatternType.LITERAL, "User:ben", "*", AclOperation.WRITE,
                       AclPermissionType.ALLOW)  # fmt: skip
    with pytest.raises(rdkafka.KafkaException, match="WRITE has no meaning on GROUP"):
        admin.create_acls([wrong])[wrong].result(30)

    def run(*arguments):
        done = CliRunner().invoke(app, ["acl", *arguments, "--cluster", cluster_address])
        assert done.exit_code == 0, done.output
        return done.output

    run("add", "--principal", "User:anna", "--operation", "write", "--topic", "raw-", "--prefixed", "--deny")
    assert "raw-" in run("list") and "DENY" in run("list", "--topic", "raw-1")
    assert "User:ben" in run("list", "--principal", "User:ben") and "anna" not in run("list", "--principal", "User:ben")
    with (
        Admin(cluster=cluster_address) as ours,
        kafka_admin(gateway, "admin") as theirs,
    ):
        assert ours.describe_acls(EVERYTHING) == theirs.describe_acls(EVERYTHING)
        [found], _ = ours.describe_acls(
            ACLFilter("User:ben", None, ACLOperation.ANY, ACLPermissionType.ANY, EVERYTHING.resource_pattern)
        )
        assert ours.create_acls([found]) == theirs.create_acls([found]) == {"succeeded": [found], "failed": []}
        [(_, deleted, _)] = theirs.delete_acls([EVERYTHING])
        assert len(deleted) == 2 and ours.describe_acls(EVERYTHING)[0] == []
        for call in (lambda: ours.describe_acls(None), lambda: ours.delete_acls(["orders"])):
            with pytest.raises(IllegalArgumentError, match="expected an ACLFilter object"):
                call()
        ours.create_acls([found])
    assert "Removed 1 ACLs" in run("remove", "--topic", "o", "--prefixed")
    both = ("--operation", "describe", "--topic", "raw-", "--on-cluster", "--prefixed")
    assert "Added 2 ACLs" in run("add", "--principal", "User:anna", *both)
    assert "Removed 2 ACLs" in run("remove", *both), "the cluster has no prefix"
    recorded = {(each.who, each.action, each.target, each.outcome) for each in read_changes(cluster)}
    assert ("User:admin", "DeleteAcls", "topic prefix o", "succeeded") in recorded
    assert ("User:admin", "CreateAcls", "group g", "failed") in recorded


@pytest.mark.on_sqlite
def test_parts_of_responses(cluster, gateway):
    add_acls(cluster.store, [
        on_topic("anna", Operation.READ, "orders"),
        on_topic("anna", Operation.DESCRIBE_CONFIGS, "orders"),
        acl("anna", Operation.READ, ResourceType.GROUP, "g"),
    ])  # fmt: skip
    for group in ("g", "h"):
        consumer = Consumer("orders", "secret", bootstrap_servers=str(cluster.store.address), group_id=group,
                            auto_offset_reset="earliest", consumer_timeout_ms=0)  # fmt: skip
        consumer.poll(0)
        consumer.commit()
        consumer.close()
    ids = {name: topic.topic_id for name, topic in described(gateway, "admin", None).items()}
    assert set(described(gateway, "anna", None)) == {"orders"}
    by_name = described(gateway, "anna", ["orders", "secret", "new"])
    assert {name: each.error_code for name, each in by_name.items()} == {
        "orders": 0, "secret": TOPIC_REFUSED, "new": TOPIC_REFUSED,
    }  # fmt: skip
    with connect(gateway, "anna") as connection:
        topic = FetchRequest.FetchTopic
        partition = topic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        wanted = [topic(topic_id=ids[name], partitions=[partition]) for name in ("orders", "secret")]
        fetched = connection.exchange(FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1000, topics=wanted), 13)
        assert {each.topic_id: each.partitions[0].error_code for each in fetched.responses} == {
            ids["orders"]: 0, ids["secret"]: TOPIC_REFUSED,
        }  # fmt: skip
        groups = connection.exchange(ListGroupsRequest(states_filter=[], types_filter=[]), 5).groups
        assert [each.group_id for each in groups] == ["g"]
        of = OffsetFetchRequest.OffsetFetchRequestGroup
        named = of.OffsetFetchRequestTopics(name="secret", partition_indexes=[0])
        fetched = connection.exchange(
            OffsetFetchRequest(groups=[of(group_id="g", topics=None), of(group_id="h", topics=None)]), 8
        )
        assert {each.group_id: (each.error_code, [topic.name for topic in each.topics]) for each in fetched.groups} == {
            "g": (0, ["orders"]), "h": (GROUP_REFUSED, []),
        }  # fmt: skip
        [group] = connection.exchange(OffsetFetchRequest(groups=[of(group_id="g", topics=[named])]), 8).groups
        assert [each.error_code for each in group.topics[0].partitions] == [TOPIC_REFUSED]
        resource = DescribeConfigsRequest.DescribeConfigsResource
        found = connection.exchange(
            DescribeConfigsRequest(resources=[
                resource(resource_type=2, resource_name="orders", configuration_keys=None),
                resource(resource_type=2, resource_name="secret", configuration_keys=None),
                resource(resource_type=4, resource_name="", configuration_keys=None),
            ]), 4,
        )  # fmt: skip
        assert {(each.resource_name, each.error_code) for each in found.results} == {
            ("orders", 0), ("secret", TOPIC_REFUSED), ("", CLUSTER_REFUSED),
        }  # fmt: skip
        idempotent = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        assert connection.exchange(idempotent, 4).error_code == CLUSTER_REFUSED
    with connect(gateway, "admin") as connection:
        request = MetadataRequest(topics=None, include_topic_authorized_operations=True,
                                  include_cluster_authorized_operations=True)  # fmt: skip
        everything = set(map(int, OPERATIONS[ResourceType.TOPIC]))
        assert all(set(each.authorized_operations) == everything for each in connection.exchange(request, 10).topics)
    with kafka_admin(gateway, "admin") as admin:
        admin.create_acls([kafka_acl(on_topic("ben", Operation.WRITE, "orders"))])
    with connect(gateway, "ben") as connection:
        assert connection.exchange(idempotent, 4).error_code == 0, "WRITE on any topic is enough (KIP-679)"


@pytest.mark.on_sqlite
def test_share_sessions_need_the_right_to_read_at_each_request(cluster, cluster_address, gateway, produce):
    topic = make(cluster, "jobs")
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    produce().send("jobs", b"x").get()
    may_read = on_topic("anna", Operation.READ, "jobs")
    add_acls(cluster.store, [may_read, acl("anna", Operation.READ, ResourceType.GROUP, "workers")])
    with connect(gateway, "anna") as connection:
        member = WireShareMember(connection, topic)
        member.join()
        assert member.acquire() == [(0, 0, 1)]
        remove_acls(cluster.store, [AclFilter(ResourceType.TOPIC, "jobs")])

        def is_refused():  # a gateway keeps ACLs for a second
            code = member.acknowledge((0, 0, [ACCEPT]))
            assert code in (0, INVALID_RECORD_STATE, TOPIC_REFUSED)
            return code == TOPIC_REFUSED

        wait_until(is_refused)


@pytest.mark.on_sqlite
@pytest.mark.parametrize("transactional_id", [None, "id"])
def test_refused_produce_without_acknowledgement_closes_the_connection(cluster, gateway, transactional_id):
    """Its response would be taken for that of the next request."""
    add_acls(cluster.store, [on_topic("anna", Operation.WRITE, "orders")])
    for names in (["secret"], ["secret", "orders"]):
        request = produce_request(dict.fromkeys(names, b""), acks=0, transactional_id=transactional_id)
        with connect(gateway, "anna") as connection:
            connection.send(request, 7)
            assert connection.is_closed()


def test_producer_id_belongs_to_the_principal_that_got_it(cluster, gateway):
    """Another one could take the sequence of the next record, or fence the producer: the record would be lost."""
    add_acls(cluster.store, [on_topic(user, Operation.WRITE, "orders") for user in ("anna", "ben")])
    with connect(gateway, "anna") as anna, connect(gateway, "ben") as ben:
        producer_id = anna.exchange(InitProducerIdRequest(None, 1000), 1).producer_id
        for epoch in (0, 1):
            assert send(ben, b"ben", producer_id, epoch) == INVALID_PRODUCER_ID_MAPPING
        assert send(anna, b"anna", producer_id, 0) == 0
        assert send(anna, b"anna", producer_id, 0) == 0, "a repetition"
    assert topic_values(cluster, "orders") == [b"anna"]


def send(connection, value, producer_id, epoch):
    return produced(connection, "orders", transactional_batch(value, producer_id, epoch, 0, flag=0)).error_code


def described(gateway, user, names):
    topics = (
        None if names is None else [MetadataRequest.MetadataRequestTopic(topic_id=None, name=name) for name in names]
    )
    with connect(gateway, user) as connection:
        found = connection.exchange(MetadataRequest(topics=topics, allow_auto_topic_creation=True), 12).topics
    return {each.name: each for each in found}


def test_without_acls_a_gateway_neither_shows_nor_changes_them(tmp_path):
    with (
        Cluster.init(str(tmp_path / "cluster")),
        GatewayProcess(tmp_path, str(tmp_path / "cluster")) as gateway,
        kafka.KafkaAdminClient(bootstrap_servers=gateway.address) as admin,
        pytest.raises(SecurityDisabledError),
    ):
        admin.describe_acls(EVERYTHING)


def test_everyone_may_use_what_has_no_acl(tmp_path):
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        make(cluster, "open", 1)
        make(cluster, "closed", 1)
        put_users(cluster, ["anna"])
        add_acls(cluster.store, [on_topic("ben", Operation.READ, "closed")])
        options = [*ACL_OPTIONS, "--allow-everyone-if-no-acl-found"]
        with GatewayProcess(tmp_path, str(tmp_path / "cluster"), *options) as gateway:
            assert set(described(gateway, "anna", None)) == {"open"}


def test_rows_of_acls(cluster):
    one, two = on_topic("anna", Operation.READ, "a"), on_topic("anna", Operation.READ, "b")
    add_acls(cluster.store, [one, two, one])
    add_acls(cluster.store, [one])
    assert read_acls(cluster.store) == [one, two]
    for bad in (on_topic("anna", Operation.READ, "x" * 250), on_topic("a\0", Operation.READ, "x"),
                acl("a", Operation.CREATE, ResourceType.CLUSTER, "other")):  # fmt: skip
        with pytest.raises(IllegalArgumentError):
            add_acls(cluster.store, [bad])
    assert remove_acls(cluster.store, [AclFilter(resource_name="a"), AclFilter()]) == [[one], [one, two]]
    assert read_acls(cluster.store) == []
    assert CLUSTER_NAME == "kafka-cluster"
