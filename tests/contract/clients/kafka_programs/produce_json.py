"""A producer of JSON with callbacks, as in many tutorials."""

import json
import logging

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError, NoBrokersAvailable

log = logging.getLogger(__name__)
stored, failed = [], []


def on_send_success(record_metadata):
    stored.append((record_metadata.topic, record_metadata.partition, record_metadata.offset))


def on_send_error(excp, context):
    failed.append((context, excp))


try:
    producer = KafkaProducer(
        bootstrap_servers=["localhost:9092"],
        client_id="tutorial",
        acks="all",
        retries=5,
        linger_ms=5,
        batch_size=32_768,
        buffer_memory=33_554_432,
        compression_type="gzip",
        max_in_flight_requests_per_connection=1,
        key_serializer=str.encode,
        value_serializer=lambda v: json.dumps(v).encode("utf-8"),
    )
except NoBrokersAvailable:
    log.exception("no broker")
    raise

future = producer.send("json-orders", key="alice", value={"item": 1})
try:
    record_metadata = future.get(timeout=60)
except KafkaError:
    log.exception("not stored")
    raise
assert (record_metadata.topic, record_metadata.offset) == ("json-orders", 0)
assert record_metadata.timestamp > 0 and record_metadata.serialized_value_size == len(b'{"item": 1}')

for number in range(10):
    sent = producer.send("json-orders", key="bob", value={"item": number}, headers=[("n", b"%d" % number)])
    sent.add_callback(on_send_success).add_errback(on_send_error, "bob")
producer.flush()
assert len(stored) == 10 and failed == []

producer.send("json-orders", key="big", value={"big": "x" * 900_000}).add_callback(on_send_success)
try:
    producer.send("json-orders", key="big", value={"big": "x" * 2_000_000}).get(timeout=60)
except KafkaError as error:
    assert type(error).__name__ == "MessageSizeTooLargeError"
else:
    raise AssertionError("a record above max_request_size")
assert producer.partitions_for("json-orders") == {0}
assert producer.bootstrap_connected()
assert producer.metrics()["producer-metrics"]
producer.close(timeout=10)
assert issubclass(KafkaTimeoutError, KafkaError)
