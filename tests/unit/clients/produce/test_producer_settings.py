import logging

import pytest
from kafka.errors import KafkaConfigurationError
from kafka.partitioner import DefaultPartitioner
from kafka.producer import KafkaProducer
from kafka.serializer import JsonSerializer, Serializer

from spark_log.clients.produce.producer_settings import ProducerSettings, parse, serialize_with

INFINITE = float("inf")


def settings(**given):
    return parse({"cluster": "/c", **given})[1]


def test_defaults_equal_those_of_kafka_python():
    found = settings()
    theirs = KafkaProducer.DEFAULT_CONFIG
    same = [name for name in ProducerSettings.__dataclass_fields__ if name in theirs and name != "partitioner"]
    assert len(same) > 15
    assert {name: getattr(found, name) for name in same} == {name: theirs[name] for name in same}
    assert found.log_acks == "all" and found.enable_idempotence is True


@pytest.mark.parametrize(("acks", "log_acks"), [(0, 0), (1, 1), (-1, "all"), ("all", "all")])
def test_valid_acks(acks, log_acks):
    assert settings(acks=acks).log_acks == log_acks


@pytest.mark.parametrize("acks", ["2", 2, True, False, "1", "0", "-1", "ALL", None, 1.0, -2, [], {}])
def test_invalid_acks_are_refused(acks):
    with pytest.raises(KafkaConfigurationError, match="acks: expected 0, 1, -1 or 'all'"):
        settings(acks=acks)


@pytest.mark.parametrize(
    "given", [{"acks": 1}, {"acks": 0}, {"retries": 0}, {"max_in_flight_requests_per_connection": 6}]
)
def test_conflicts_with_idempotence(given, caplog):
    with caplog.at_level(logging.WARNING):
        assert settings(**given).enable_idempotence is False
    (name,) = given
    assert name in caplog.text
    assert settings(enable_idempotence=False, **given).enable_idempotence is False
    with pytest.raises(KafkaConfigurationError, match=f"enable_idempotence=True is incompatible with {name}"):
        settings(enable_idempotence=True, **given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retries", -1), ("retries", 1.5), ("retries", "3"), ("retries", True), ("linger_ms", -1), ("linger_ms", "5"),
        ("batch_size", -1), ("batch_size", 1.5), ("buffer_memory", 0), ("max_request_size", -1), ("max_block_ms", None),
        ("delivery_timeout_ms", 1), ("request_timeout_ms", 0), ("retry_backoff_ms", -1), ("client_id", 7),
        ("enable_idempotence", "yes"), ("allow_auto_create_topics", 1), ("metrics_enabled", None),
        ("linger_ms", float("nan")),
        ("max_in_flight_requests_per_connection", 0),
    ],
)  # fmt: skip
def test_invalid_value_is_refused_with_its_name(name, value):
    with pytest.raises(KafkaConfigurationError, match=name):
        settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("security_protocol", "SSL"), ("sasl_mechanism", "PLAIN"), ("proxy_url", "socks5://x"), ("kafka_client", int),
    ],
)  # fmt: skip
def test_inapplicable_setting_is_refused_with_its_name(name, value):
    with pytest.raises(KafkaConfigurationError, match=f"{name}=.* cannot apply"):
        settings(**{name: value})


def test_an_unknown_codec_is_a_value_error():
    with pytest.raises(ValueError, match="bzip2"):
        settings(compression_type="bzip2")
    assert settings(compression_type="gzip").compression_type == "gzip"


def test_settings_without_effect_are_accepted():
    settings(compression_type=None, security_protocol="PLAINTEXT", max_in_flight_requests_per_connection=1)
    assert settings(partitioner=DefaultPartitioner()).partitioner is None


def test_unknown_settings_are_value_errors():
    with pytest.raises(ValueError, match="Unrecognized configs: bogus=1"):
        settings(bogus=1)
    with pytest.raises(ValueError, match="group_id"):
        settings(group_id="g")


def test_delivery_timeout_must_include_linger_and_one_request():
    settings(delivery_timeout_ms=30_005, linger_ms=5)
    with pytest.raises(KafkaConfigurationError, match="delivery_timeout_ms=30004 must be at least"):
        settings(delivery_timeout_ms=30_004, linger_ms=5)


def test_all_kinds_of_serializers():
    class Old:
        def serialize(self, topic, value):
            return (topic, value)

    class New(Serializer):
        def serialize(self, topic, headers, data):
            return (topic, headers, data)

    assert serialize_with("value_serializer", None) is None
    assert serialize_with("value_serializer", str.encode)("t", [], "é") == "é".encode()
    assert serialize_with("value_serializer", JsonSerializer())("t", [], {"a": 1}) == b'{"a": 1}'
    assert serialize_with("value_serializer", Old())("t", [], 1) == ("t", 1)
    assert serialize_with("value_serializer", New())("t", [("h", b"")], 1) == ("t", [("h", b"")], 1)
    with pytest.raises(KafkaConfigurationError, match="value_serializer: expected a callable"):
        serialize_with("value_serializer", 7)
