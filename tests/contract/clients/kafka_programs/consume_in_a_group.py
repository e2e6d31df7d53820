"""A consumer in a group, with manual commits and a rebalance listener."""

import json

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import CommitFailedError

producer = KafkaProducer(bootstrap_servers="localhost:9092", value_serializer=lambda m: json.dumps(m).encode("ascii"))
for number in range(20):
    producer.send("group-orders", {"number": number})
producer.flush()
producer.close()


class Listener(ConsumerRebalanceListener):
    assigned, revoked = [], []

    def on_partitions_revoked(self, revoked):
        self.revoked.extend(revoked)

    def on_partitions_assigned(self, assigned):
        self.assigned.extend(assigned)


settings = {
    "bootstrap_servers": ["localhost:9092"],
    "group_id": "by-hand",
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "value_deserializer": lambda m: json.loads(m.decode("ascii")),
    "consumer_timeout_ms": 500,
    "session_timeout_ms": 10_000,
    "heartbeat_interval_ms": 1_000,
    "partition_assignment_strategy": [RoundRobinPartitionAssignor],
}
consumer = KafkaConsumer(**settings)
consumer.subscribe(["group-orders"], listener=Listener())
seen = []
for message in consumer:
    assert isinstance(message, ConsumerRecord)
    seen.append(message.value["number"])
    tp = TopicPartition(message.topic, message.partition)
    try:
        consumer.commit({tp: OffsetAndMetadata(message.offset + 1, None)})
    except CommitFailedError:
        raise
    if len(seen) == 12:
        break
assert seen == list(range(12))
tp = TopicPartition("group-orders", 0)
assert consumer.committed(tp) == 12
assert consumer.committed(tp, metadata=True).offset == 12
assert Listener.assigned == [tp]
assert consumer.subscription() == {"group-orders"} and consumer.assignment() == {tp}
consumer.close()
assert Listener.revoked == [tp]

answers = []
with_callback = KafkaConsumer("group-orders", **settings)
batch = with_callback.poll(timeout_ms=5_000, max_records=3)
assert [record.value["number"] for record in batch[tp]] == [12, 13, 14]
with_callback.commit_async(callback=lambda offsets, response: answers.append((offsets, response)))
with_callback.commit_async({tp: OffsetAndMetadata(14, "", -1)})
rest = [record.value["number"] for record in with_callback]
assert rest == [15, 16, 17, 18, 19]
with_callback.commit()
with_callback.close(autocommit=False)
assert len(answers) == 1 and not isinstance(answers[0][1], Exception)
