"""Consume, transform, produce: exactly once."""

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError

first = KafkaProducer(bootstrap_servers="localhost:9092")
for number in range(5):
    first.send("copy-in", b"%d" % number)
first.close()

consumer = KafkaConsumer(
    "copy-in",
    bootstrap_servers="localhost:9092",
    group_id="copier",
    auto_offset_reset="earliest",
    enable_auto_commit=False,
    isolation_level="read_committed",
)
producer = KafkaProducer(bootstrap_servers="localhost:9092", transactional_id="copier-1")
producer.init_transactions()
copied = 0
while copied < 5:
    batch = consumer.poll(timeout_ms=1000)
    if not batch:
        continue
    producer.begin_transaction()
    try:
        offsets = {}
        for tp, records in batch.items():
            for record in records:
                producer.send("copy-out", record.value)
            offsets[tp] = OffsetAndMetadata(records[-1].offset + 1, "", -1)
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        producer.commit_transaction()
    except KafkaError:
        producer.abort_transaction()
        raise
    copied += sum(map(len, batch.values()))
assert consumer.committed(TopicPartition("copy-in", 0)) == 5
producer.close()
consumer.close()
out = KafkaConsumer(
    "copy-out", bootstrap_servers="localhost:9092", auto_offset_reset="earliest", consumer_timeout_ms=500
)
assert [record.value for record in out] == [b"0", b"1", b"2", b"3", b"4"]
out.close()
