"""Settings have kafka-python's names and defaults; an invalid one is refused with its name and value."""

import math

import pytest
from kafka.consumer.group import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaConfigurationError
from kafka.protocol.consumer import IsolationLevel

from spark_log.clients.client_settings import parse_settings
from spark_log.clients.consume.consumer_settings import ConsumerSettings

OWN_DEFAULTS = {"client_id", "default_offset_commit_callback"}


def parse(**given):
    return parse_settings(
        ConsumerSettings, {"cluster": "/x", **given}, KafkaConsumer.DEFAULT_CONFIG, KafkaConfigurationError
    )


def test_settings_have_the_names_and_defaults_of_kafka_python():
    for name, value in vars(ConsumerSettings()).items():
        assert name in KafkaConsumer.DEFAULT_CONFIG
        assert name in OWN_DEFAULTS or value == KafkaConsumer.DEFAULT_CONFIG[name], name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("auto_offset_reset", "sometimes"),
        ("auto_offset_reset", None),
        ("auto_offset_reset", ""),
        ("max_poll_records", 0),
        ("max_poll_records", 1.5),
        ("max_poll_records", True),
        ("fetch_max_bytes", -1),
        ("fetch_min_bytes", "1"),
        ("consumer_timeout_ms", "soon"),
        ("consumer_timeout_ms", math.nan),
        ("enable_auto_commit", "false"),
        ("group_id", ""),
        ("group_id", 7),
        ("group_instance_id", "a b"),
        ("isolation_level", "dirty"),
        ("value_deserializer", 7),
        ("partition_assignment_strategy", []),
        ("partition_assignment_strategy", ["ranges"]),
        ("partition_assignment_strategy", [int]),
        ("default_offset_commit_callback", "print"),
        ("fetch_max_wait_ms", 30_000),
    ],
)
def test_invalid_value_is_refused_with_its_name(name, value):
    with pytest.raises(KafkaConfigurationError, match=name) as refused:
        parse(**{"group_id": "g", name: value} if name != "group_id" else {name: value})
    assert repr(value) in str(refused.value) or str(value) in str(refused.value)


def test_dependent_settings_are_checked_together():
    with pytest.raises(KafkaConfigurationError, match="group_id"):
        parse(group_instance_id="one")
    with pytest.raises(KafkaConfigurationError, match="heartbeat_interval_ms"):
        parse(group_id="g", heartbeat_interval_ms=10_000, session_timeout_ms=10_000)


@pytest.mark.parametrize(("name", "value"), [("security_protocol", "SSL"), ("groupid", "g")])
def test_inapplicable_or_unknown_setting_is_refused_with_its_name(name, value):
    with pytest.raises(KafkaConfigurationError, match=name):
        parse(**{name: value})


def test_alternative_spellings_are_accepted():
    address, settings = parse(
        auto_offset_reset="smallest",
        isolation_level=IsolationLevel.READ_COMMITTED,
        partition_assignment_strategy=["cooperative-sticky", RangePartitionAssignor, "my.assignors.Mine"],
    )
    assert address == "/x"
    assert settings.auto_offset_reset == "earliest"
    assert settings.partition_assignment_strategy == (
        CooperativeStickyAssignor,
        RangePartitionAssignor,
        "my.assignors.Mine",
    )
