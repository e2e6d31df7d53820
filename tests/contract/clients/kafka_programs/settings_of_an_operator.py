"""Clients with the settings that operators have added over the years."""

import json
import socket

import kafka
from kafka.partitioner import DefaultPartitioner
from kafka.serializer import Deserializer, Serializer


class JsonText(Serializer, Deserializer):
    def serialize(self, topic, headers, data):
        return json.dumps(data).encode()

    def deserialize(self, topic, headers, data):
        return json.loads(data)


class OldText(Serializer, Deserializer):
    def serialize(self, topic, value):
        return value.encode()

    def deserialize(self, topic, bytes_):
        return bytes_.decode()


everything = {
    "acks": "all",
    "group_id": "operators",
    "bootstrap_servers": ["localhost:9092"],
    "api_version": (2, 5, 0),
    "api_version_auto_timeout_ms": 10_000,
    "connections_max_idle_ms": 60_000,
    "metadata_max_age_ms": 60_000,
    "receive_buffer_bytes": 65_536,
    "reconnect_backoff_max_ms": 10_000,
    "reconnect_backoff_ms": 500,
    "request_timeout_ms": 20_000,
    "retry_backoff_ms": 200,
    "security_protocol": "PLAINTEXT",
    "send_buffer_bytes": 131_072,
    "sock_chunk_bytes": 4096,
    "socket_options": [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)],
    "ssl_cafile": None,
}


def settings_for(client):
    return {name: value for name, value in everything.items() if name in client.DEFAULT_CONFIG}


producer = kafka.KafkaProducer(
    key_serializer=OldText(),
    metrics_sample_window_ms=1000,
    partitioner=DefaultPartitioner(),
    value_serializer=JsonText(),
    **settings_for(kafka.KafkaProducer),
)
assert producer.config["acks"] == -1 and "group_id" not in producer.config
producer.send("operated", {"a": 1}, "key").get(timeout=60)
producer.close()
consumer = kafka.KafkaConsumer(
    "operated",
    auto_offset_reset="earliest",
    check_crcs=False,
    consumer_timeout_ms=500,
    enable_incremental_fetch_sessions=False,
    key_deserializer=OldText(),
    max_in_flight_requests_per_connection=1,
    value_deserializer=JsonText(),
    **settings_for(kafka.KafkaConsumer),
)
assert consumer.config["group_id"] == "operators"
assert [(record.key, record.value) for record in consumer] == [("key", {"a": 1})]
consumer.close()
admin = kafka.KafkaAdminClient(api_version_auto_timeout_ms=10_000, **settings_for(kafka.KafkaAdminClient))
assert admin.config["bootstrap_servers"]
assert "operated" in admin.list_topics()
admin.close()
