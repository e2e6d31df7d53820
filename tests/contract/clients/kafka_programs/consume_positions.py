"""A consumer without a group: assign, seek, timestamps, pause, patterns."""

import time

import kafka
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import IllegalStateError, NoOffsetForPartitionError
from kafka.structs import OffsetAndTimestamp, TopicPartition

noon_ms = 1_700_000_000_000
producer = KafkaProducer(bootstrap_servers=["localhost:9092"])
for number in range(10):
    producer.send("seek.a", b"%d" % number, partition=0, timestamp_ms=noon_ms + 1000 * number)
producer.send("seek.b", b"b")
producer.flush()

consumer = KafkaConsumer(bootstrap_servers=["localhost:9092"], group_id=None, auto_offset_reset="earliest")
tp = TopicPartition("seek.a", 0)
consumer.assign([tp])
consumer.seek(tp, 7)
assert [record.value for record in consumer.poll(timeout_ms=5000)[tp]] == [b"7", b"8", b"9"]
consumer.seek_to_beginning(tp)
assert consumer.position(tp) == 0
consumer.seek_to_end()
assert consumer.position(tp) == 10
found = consumer.offsets_for_times({tp: noon_ms + 4500})
assert isinstance(found[tp], OffsetAndTimestamp) and found[tp].offset == 5
assert consumer.beginning_offsets([tp]) == {tp: 0} and consumer.end_offsets([tp]) == {tp: 10}
assert consumer.partitions_for_topic("seek.a") == {0}
assert {"seek.a", "seek.b"} <= consumer.topics()
consumer.pause(tp)
consumer.seek(tp, 0)
assert consumer.paused() == {tp} and consumer.poll(timeout_ms=10) == {}
consumer.resume(tp)
assert next(consumer).value == b"0"
assert consumer.highwater(tp) == 10
try:
    consumer.subscribe(["seek.b"])
except IllegalStateError:
    consumer.unsubscribe()
consumer.subscribe(pattern=r"^seek\..*")
deadline = time.time() + 10
values = set()
while len(values) < 11 and time.time() < deadline:
    for records in consumer.poll(timeout_ms=1000).values():
        values.update(record.value for record in records)
assert values == {*(b"%d" % number for number in range(10)), b"b"}
assert consumer.metrics() and consumer.bootstrap_connected()
consumer.close()

strict = KafkaConsumer(bootstrap_servers=["localhost:9092"], auto_offset_reset="none", group_id="strict")
strict.assign([tp])
try:
    strict.poll(timeout_ms=1000)
except NoOffsetForPartitionError:
    pass
else:
    raise AssertionError("no offset to begin with")
strict.close()
assert issubclass(NoOffsetForPartitionError, kafka.errors.KafkaError)
