"""The admin client with the calls of kafka-python 2.0 to 2.3."""

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewPartitions, NewTopic
from kafka.errors import NoError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from kafka.structs import GroupInformation, OffsetAndMetadata, TopicPartition

admin_client = KafkaAdminClient(bootstrap_servers="localhost:9092", client_id="test")
topic_list = [
    NewTopic(name="two.a", num_partitions=2, replication_factor=1, topic_configs={"cleanup.policy": "compact"}),
    NewTopic(name="two.b", num_partitions=1, replication_factor=1),
]
made = admin_client.create_topics(new_topics=topic_list, validate_only=False)
assert made.topic_errors == [("two.a", 0, None), ("two.b", 0, None)]
try:
    admin_client.create_topics(new_topics=topic_list, validate_only=False)
except TopicAlreadyExistsError as error:
    assert "two.a" in str(error)
assert {"two.a", "two.b"} <= set(admin_client.list_topics())
for topic in admin_client.describe_topics(["two.a"]):
    assert topic["topic"] == "two.a" and topic["error_code"] == 0
    assert [(p["partition"], p["leader"], p["replicas"], p["isr"]) for p in topic["partitions"]] == [
        (0, 1, [1], [1]),
        (1, 1, [1], [1]),
    ]
admin_client.create_partitions({"two.b": NewPartitions(total_count=3)})
assert len(admin_client.describe_topics(["two.b"])[0]["partitions"]) == 3
described = admin_client.describe_cluster()
assert described["brokers"][0]["node_id"] == described["controller_id"] == 1 and described["cluster_id"]

resource = ConfigResource(ConfigResourceType.TOPIC, "two.b", configs={"retention.ms": "3600000"})
admin_client.alter_configs([resource])
configs = admin_client.describe_configs(config_resources=[ConfigResource(ConfigResourceType.TOPIC, "two.b")])
assert configs["topic"]["two.b"]["retention.ms"]["value"] == "3600000"
try:
    print(configs[0].resources)
except KeyError as error:
    assert "kafka-python 3" in str(error)

producer = KafkaProducer(bootstrap_servers="localhost:9092")
producer.send("two.b", b"x", partition=0).get(timeout=10)
producer.close()
consumer = KafkaConsumer(
    "two.b", bootstrap_servers="localhost:9092", group_id="readers", auto_offset_reset="earliest", client_id="c"
)
assert consumer.poll(timeout_ms=5000)
consumer.commit()
assert ("readers", "consumer") in admin_client.list_consumer_groups()
[group] = admin_client.describe_consumer_groups(["readers"])
assert isinstance(group, GroupInformation) and group.state == "Stable" and group.group == "readers"
[member] = group.members
assert member.client_id == "c" and member.member_metadata.topics == ["two.b"]
assert member.member_assignment.assignment == [("two.b", [0, 1, 2])]
assert TopicPartition("two.b", 2) in member.member_assignment.partitions()
tp = TopicPartition("two.b", 0)
committed = admin_client.list_consumer_group_offsets("readers")[tp]
assert isinstance(committed, OffsetAndMetadata) and committed.offset == 1
assert admin_client.list_consumer_group_offsets(group_id="readers", partitions=[tp])[tp].offset == 1
[(name, error)] = admin_client.delete_consumer_groups(["readers"])
assert name == "readers" and error is not NoError
consumer.close()
assert admin_client.delete_consumer_groups(group_ids=["readers"]) == [("readers", NoError)]

assert admin_client.delete_records({tp: 1})[tp]["low_watermark"] == 1
admin_client.perform_leader_election(0, {"two.b": [0]})
assert admin_client.delete_topics(topics=["two.a", "two.b"]).topic_error_codes == [("two.a", 0), ("two.b", 0)]
try:
    admin_client.delete_topics(["two.a"])
except UnknownTopicOrPartitionError:
    pass
else:
    raise AssertionError("deleted twice")
admin_client.close()
