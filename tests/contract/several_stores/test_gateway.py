"""Kafka clients of a gateway on a cluster whose data store `east` is on a server of its own."""

import time
import uuid

import confluent_kafka
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import InvalidReplicationAssignmentError
from kafka.protocol.admin import (
    DeleteTopicsRequest,
    DescribeTopicPartitionsRequest,
    ElectionType,
    ListPartitionReassignmentsRequest,
)
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import MetadataRequest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.stores import add_store
from spark_log.cluster.topics import find_topics
from spark_log.gateway.protocol.schemas import ShareGroupHeartbeatRequest
from spark_log.replication.controller.topic_moves import move_topic
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.gateway_wire import WireConnection
from tests.support.postgres_proxy import PostgresProxy
from tests.support.server_processes import GatewayProcess
from tests.support.topics import stored
from tests.support.waiting import LIMIT_S

EAST = 1
NONE, UNKNOWN, LEADER_NOT_AVAILABLE, INVALID_REQUEST, NOT_NEEDED = 0, 3, 5, 42, 84
LONG_S = 60.0
"""Far more than a request for topics of home takes, and less than a call on a frozen store."""

pytestmark = pytest.mark.xdist_group("several-stores-gateway")


@pytest.fixture(scope="module")
def proxy(postgres_server):
    """The way to `east`."""
    with PostgresProxy(postgres_server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def stores(postgres_server, proxy, tmp_path_factory):
    log_dir = str(tmp_path_factory.mktemp("stores") / "log-dir")
    with Cluster.init(postgres_server.create_prepared_database(), log_dir=log_dir) as cluster:
        add_store(cluster, "east", proxy.address(postgres_server.create_prepared_database()))
        alter_settings(cluster, {"topic.default.store": "east"})
        yield cluster


@pytest.fixture(scope="module")
def gateway(stores, tmp_path_factory):
    folder, address = tmp_path_factory.mktemp("gateway"), stores.store.address.with_password
    with GatewayProcess(folder, address, "--no-auto-create-topics") as gateway:
        yield gateway
    assert "Traceback" not in gateway.output


@pytest.fixture
def topics(stores):
    """The names of a new topic of home, and of one with two partitions in `east`."""
    number = uuid.uuid4().hex[:8]
    near, far = f"near-{number}", f"far-{number}"
    create_topic(stores, near, store="home")
    create_topic(stores, far, 2, store="east")
    return near, far


def delivered(producer, records):
    """Send (topic, partition, value) with librdkafka; return the (topic, partition, offset) of each, or its error."""
    reports = {}
    for number, (topic, partition, value) in enumerate(records):

        def report(error, message, number=number):
            reports[number] = error or (message.topic(), message.partition(), message.offset())

        producer.produce(topic, value, partition=partition, on_delivery=report)
    assert producer.flush(30) == 0
    return [reports[number] for number in range(len(records))]


def appended_meanwhile(producer, topic, value):
    """Send a record while others wait, and return its offset."""
    offsets = []
    producer.produce(topic, value, partition=0, on_delivery=lambda error, message: offsets.append(message.offset()))
    until_s = time.monotonic() + LONG_S
    while not offsets and time.monotonic() < until_s:
        producer.poll(0.1)
    return offsets


def leaders(connection, topics):
    """The error codes of the partitions of each topic in Metadata."""
    names = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    answer = connection.exchange(MetadataRequest(topics=names, allow_auto_topic_creation=False), 8)
    return {topic.name: [each.error_code for each in topic.partitions] for topic in answer.topics}


def latest(topics):
    kind = ListOffsetsRequest.ListOffsetsTopic
    partition = kind.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    names = [kind(name=name, partitions=[partition]) for name in topics]
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=names)


def fetch(topics):
    kind = FetchRequest.FetchTopic
    partition = kind.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100_000)
    names = [kind(topic=name, partitions=[partition]) for name in topics]
    return FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1_000_000, isolation_level=0, session_id=0,
        session_epoch=-1, topics=names, forgotten_topics_data=[],
    )  # fmt: skip


def epoch_end(connection, name):
    """The error code and the end offset of leader epoch 0 of partition 0."""
    kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition = kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[kind(topic=name, partitions=[partition])])
    [[answer]] = [topic.partitions for topic in connection.exchange(request, 3).topics]
    return answer.error_code, answer.end_offset


def partitions_shown(admin, topics):
    """The replicas of these topics in DescribeLogDirs."""
    [broker] = admin.describe_log_dirs()
    return [
        (topic["name"], each["partition_index"])
        for log_dir in broker["log_dirs"]
        for topic in log_dir["topics"]
        if topic["name"] in topics
        for each in topic["partitions"]
    ]


def reassignments(connection, topics):
    """The error code of ListPartitionReassignments for partition 0 of these topics, or for all partitions."""
    kind = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    names = None if topics is None else [kind(name=name, partition_indexes=[0]) for name in topics]
    return connection.exchange(ListPartitionReassignmentsRequest(timeout_ms=30_000, topics=names), 0).error_code


def page_of(connection, names):
    """The error codes of the partitions of each topic in DescribeTopicPartitions."""
    kind = DescribeTopicPartitionsRequest.TopicRequest
    request = DescribeTopicPartitionsRequest(
        topics=[kind(name=name) for name in names], response_partition_limit=100, cursor=None
    )
    answer = connection.exchange(request, 0)
    return {topic.name: [each.error_code for each in topic.partitions] for topic in answer.topics}


def read_by_group(address, topics, count):
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": topics[0],
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(list(topics))
    values = {}
    try:
        while sum(map(len, values.values())) < count:
            message = consumer.poll(LIMIT_S)
            assert message is not None and message.error() is None, message and message.error()
            values.setdefault((message.topic(), message.partition()), []).append(message.value())
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return values


def test_a_producer_and_a_group_use_topics_of_both_stores(stores, gateway, topics):
    near, far = topics
    places = [(near, 0), (far, 0), (far, 1)]
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, "enable.idempotence": True})
    sent = [(*place, b"%d" % number) for number in range(50) for place in places]
    assert delivered(producer, sent) == [(*place, number) for number in range(50) for place in places]
    assert read_by_group(gateway.address, topics, 150) == {place: [b"%d" % n for n in range(50)] for place in places}
    with KafkaProducer(bootstrap_servers=gateway.address) as plain:  # its request has batches of both stores
        futures = [plain.send(topic, b"x", partition=partition) for topic, partition in places]
        assert [future.get(LIMIT_S).offset for future in futures] == [50, 50, 50]
    partitions = [TopicPartition(*place) for place in places]
    with KafkaConsumer(bootstrap_servers=gateway.address, group_id=near) as consumer:
        assert [consumer.committed(each) for each in partitions] == [50] * 3
        assert consumer.end_offsets(partitions) == dict.fromkeys(partitions, 51)
        first = consumer.offsets_for_times(dict.fromkeys(partitions, 0))
        assert {partition: at.offset for partition, at in first.items()} == dict.fromkeys(partitions, 0)


def test_clients_follow_a_topic_to_another_store(stores, gateway, topics):
    """Also with requests under way: the consumer waits for records at the time of the move."""
    near, _ = topics
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, "enable.idempotence": True})
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": gateway.address, "group.id": near, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([near])
    try:
        for first, store in ((0, "home"), (10, "east"), (20, "home")):
            move_topic(stores, near, store)
            sent = [(near, 0, b"%d" % number) for number in range(first, first + 10)]
            assert delivered(producer, sent) == [(near, 0, number) for number in range(first, first + 10)]
            read = []
            while len(read) < 10:
                message = consumer.poll(30)
                assert message is not None
                if message.error() is None:
                    read.append((message.offset(), message.value()))
            assert read == [(number, b"%d" % number) for number in range(first, first + 10)]
    finally:
        consumer.close()
    assert stored(stores, near) == {0: [f"{number}" for number in range(30)]}


def test_offsets_of_a_topic_that_has_just_been_moved(stores, gateway, topics):
    """A gateway keeps for a second where a topic is; librdkafka resets offsets if it hears that there is none."""
    near, _ = topics
    with WireConnection(gateway.port) as connection:
        for store in ("east", "home", "east"):
            for _ in range(2):
                [[found]] = [topic.partitions for topic in connection.exchange(latest([near]), 5).topics]
                assert (found.error_code, found.offset) == (NONE, 0)
                assert epoch_end(connection, near) == (NONE, 0)
                move_topic(stores, near, store)


def test_a_long_poll_ends_with_an_append_to_a_data_store(gateway, topics):
    near, far = topics
    with KafkaConsumer(bootstrap_servers=gateway.address, fetch_max_wait_ms=20_000) as consumer:
        consumer.assign([TopicPartition(near, 0), TopicPartition(far, 0)])
        consumer.seek_to_beginning()
        assert consumer.poll(300) == {}
        with KafkaProducer(bootstrap_servers=gateway.address) as producer:
            producer.send(far, b"x", partition=0).get(LIMIT_S)
        assert [each.value for records in consumer.poll(LONG_S * 1000).values() for each in records] == [b"x"]


def test_admin_clients_change_topics_of_a_data_store(stores, gateway, topics):
    near, far = topics
    name = f"made-{near}"
    resource = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "6000"})
    partition = TopicPartition(name, 0)
    with KafkaAdminClient(bootstrap_servers=gateway.address) as admin:
        admin.create_topics({name: {"num_partitions": 1}})
        admin.create_partitions({name: 2})
        admin.alter_configs([resource])
        in_east = stores.at(EAST).store.read(find_topics)[name]
        assert (in_east.partition_count, in_east.overrides) == (2, {"retention.ms": "6000"})
        with KafkaProducer(bootstrap_servers=gateway.address, enable_idempotence=True) as producer:
            assert [producer.send(name, b"%d" % n, partition=0).get(LIMIT_S).offset for n in range(3)] == [0, 1, 2]
        assert admin.delete_records({partition: 2})[partition]["low_watermark"] == 2
        [producer] = admin.describe_producers([partition])[partition].active_producers
        assert producer.last_sequence == 2
        [described] = admin.describe_topics([name])
        assert [each["leader_id"] for each in described["partitions"]] == [1, 1]
        assert sorted(partitions_shown(admin, topics)) == [(far, 0), (far, 1), (near, 0)]
        elected = admin.elect_leaders(ElectionType.PREFERRED, {near: [0], name: [0, 9]}, raise_errors=False)
        codes = {
            (topic.topic, each.partition_id): each.error_code
            for topic in elected.replica_election_results
            for each in topic.partition_result
        }
        assert codes == {(near, 0): NOT_NEEDED, (name, 0): NOT_NEEDED, (name, 9): UNKNOWN}
        [refused] = admin.alter_partition_reassignments({partition: [9]}).values()
        assert refused is InvalidReplicationAssignmentError
        assert admin.list_partition_reassignments() == {}
        with WireConnection(gateway.port) as connection:
            assert epoch_end(connection, name) == (NONE, 3)
            assert page_of(connection, [near, name]) == {near: [NONE], name: [NONE, NONE]}
        admin.delete_topics([name])
    assert name not in stores.at(EAST).store.read(find_topics)


def test_transactions_over_several_stores_are_refused(stores, gateway, topics):
    near, far = topics
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, "transactional.id": near})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(near, b"a")
    assert producer.flush(30) == 0
    producer.produce(far, b"b")  # this one is refused: the transaction has a topic of home
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        producer.commit_transaction(30)
    assert refused.value.args[0].txn_requires_abort(), refused.value
    producer.abort_transaction(30)
    producer.begin_transaction()  # it is usable for topics of home
    producer.produce(near, b"c")
    group = confluent_kafka.Consumer({"bootstrap.servers": gateway.address, "group.id": far})
    offsets = [confluent_kafka.TopicPartition(far, 1, 5)]
    producer.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), 30)
    producer.commit_transaction(30)
    [committed] = group.committed([confluent_kafka.TopicPartition(far, 1)], 30)
    group.close()
    assert committed.offset == 5
    assert stored(stores, near) == {0: ["c"]}
    assert "transaction.cross.store=allow" in gateway.output


def committed_values(gateway, name, partitions=1):
    """The values that a reader of committed records finds in a topic."""
    places = [TopicPartition(name, number) for number in range(partitions)]
    with KafkaConsumer(bootstrap_servers=gateway.address, isolation_level="read_committed") as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(places)
        found = []
        while any(consumer.position(place) < end for place, end in ends.items()):
            found += [record.value for records in consumer.poll(1_000).values() for record in records]
    return sorted(found)


def test_transactions_on_a_data_store(stores, gateway, topics):
    """Each client sends its next sequences after an abort."""
    _, far = topics
    client = confluent_kafka.Producer({"bootstrap.servers": gateway.address, "transactional.id": far})
    client.init_transactions(30)
    for number in range(4):
        client.begin_transaction()
        for partition in (0, 1):
            client.produce(far, b"%d" % number, partition=partition)
        assert client.flush(30) == 0
        client.abort_transaction(30) if number == 1 else client.commit_transaction(30)
    with KafkaProducer(bootstrap_servers=gateway.address, transactional_id=f"{far}-2") as python:
        python.init_transactions()
        for number in range(4, 7):
            python.begin_transaction()
            python.send(far, b"%d" % number, partition=0).get(LIMIT_S)
            python.abort_transaction() if number == 5 else python.commit_transaction()
    assert committed_values(gateway, far, 2) == [b"0", b"0", b"2", b"2", b"3", b"3", b"4", b"6"]


def test_share_groups_on_a_data_store_are_refused(gateway, topics):
    _, far = topics
    with WireConnection(gateway.port) as connection:
        heartbeat = ShareGroupHeartbeatRequest(
            group_id="s", member_id="m", member_epoch=0, rack_id=None, subscribed_topic_names=[far]
        )
        assert connection.exchange(heartbeat, 1).error_code == INVALID_REQUEST


def test_topics_of_home_do_not_wait_for_a_lost_store(gateway, proxy, topics):
    """It freezes, so that its sockets stay open and nothing answers."""
    near, far = topics
    places = [(near, 0), (far, 0)]
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, "enable.idempotence": True})
    assert delivered(producer, [(*place, b"0") for place in places]) == [(*place, 0) for place in places]
    reports = []
    with WireConnection(gateway.port, timeout_s=LONG_S) as connection:
        proxy.answers.clear()
        try:
            producer.produce(far, b"1", partition=0, on_delivery=lambda error, message: reports.append(error))
            for number in range(1, 4):  # they are behind the batch of the lost store on one connection
                assert appended_meanwhile(producer, near, b"%d" % number) == [number]
            assert leaders(connection, topics) == {near: [NONE], far: [LEADER_NOT_AVAILABLE] * 2}
            offsets = connection.exchange(latest(topics), 5)
            codes = {
                topic.name: [(each.error_code, each.offset) for each in topic.partitions] for topic in offsets.topics
            }
            assert codes == {near: [(NONE, 4)], far: [(LEADER_NOT_AVAILABLE, -1)]}
            fetched = connection.exchange(fetch(topics), 4)
            records = {topic.topic: [bool(each.records) for each in topic.partitions] for topic in fetched.responses}
            assert records == {near: [True], far: [False]}
            assert page_of(connection, topics) == {near: [NONE], far: [LEADER_NOT_AVAILABLE] * 2}
            assert epoch_end(connection, far) == (LEADER_NOT_AVAILABLE, -1)
            codes = [reassignments(connection, asked) for asked in (None, [near], [far], topics)]
            assert codes == [LEADER_NOT_AVAILABLE, NONE, LEADER_NOT_AVAILABLE, LEADER_NOT_AVAILABLE]
            [deleted] = connection.exchange(DeleteTopicsRequest(topic_names=[far], timeout_ms=30_000), 5).responses
            assert deleted.error_code == LEADER_NOT_AVAILABLE
            assert reports == []  # the client repeats it
        finally:
            proxy.answers.set()
        assert producer.flush(60) == 0
        assert reports == [None]
        while leaders(connection, topics)[far] != [NONE, NONE]:
            pass
        fetched = connection.exchange(fetch(topics), 4)
        assert all(each.records for topic in fetched.responses for each in topic.partitions)
