"""Programs written for kafka-python run on a spark-log cluster after a change of import and address."""

import importlib
import re
from dataclasses import fields
from pathlib import Path

import kafka
import pytest

import spark_log.clients.kafka
from spark_log import Cluster
from spark_log.clients import client_settings
from spark_log.clients.admin.admin_settings import AdminSettings
from spark_log.clients.consume.consumer_settings import ConsumerSettings
from spark_log.clients.kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from spark_log.clients.kafka.errors import KafkaConfigurationError
from spark_log.clients.produce.producer_settings import ProducerSettings

PROGRAMS = sorted((Path(__file__).parent / "kafka_programs").glob("*.py"))


def moved(program, address):
    """The program's text after the two changes that the README describes."""
    program = re.sub(
        r"^from kafka(\.[\w.]+)? import", r"from spark_log.clients.kafka\1 import", program, flags=re.MULTILINE
    )
    program = re.sub(r"^import kafka$", "import spark_log.clients.kafka as kafka", program, flags=re.MULTILINE)
    return program.replace('"localhost:9092"', repr(address))


@pytest.fixture
def address(tmp_path):
    Cluster.init(str(tmp_path / "log")).close()
    return str(tmp_path / "log")


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_program_runs_with_the_import_and_the_address_changed(path, address):
    exec(compile(moved(path.read_text(), address), str(path), "exec"), {"__name__": "__main__"})


CLIENTS = (KafkaProducer, KafkaConsumer, KafkaAdminClient)
HONOURED = {
    name: {field.name for field in fields(kind)}
    for name, kind in (
        ("KafkaProducer", ProducerSettings),
        ("KafkaConsumer", ConsumerSettings),
        ("KafkaAdminClient", AdminSettings),
    )
}


@pytest.mark.parametrize("client", CLIENTS)
def test_one_error_names_all_refused_settings(client, address):
    refused = {"security_protocol": "SASL_SSL", "sasl_plain_password": "hidden", "socks5_proxy": "socks5://me:hidden@x"}
    with pytest.raises(KafkaConfigurationError) as caught:
        client(bootstrap_servers=["a:9092", "b:9092"], api_version=(2, 0), **refused)
    text = str(caught.value)
    assert "security_protocol='SASL_SSL', sasl_plain_password=... cannot apply" in text
    assert "socks5_proxy=... cannot apply" in text and "'a:9092,b:9092' is the address of a Kafka broker" in text
    assert "hidden" not in text and "api_version" not in text
    with pytest.raises((KafkaConfigurationError, ValueError)) as caught:
        client(bootstrap_servers=address, bootstrap_server="x", request_timeouts_ms=1, sasl_mechanism="PLAIN")
    text = str(caught.value)
    assert "bootstrap_server='x' (did you mean bootstrap_servers?)" in text
    assert "request_timeouts_ms=1 (did you mean request_timeout_ms?)" in text
    assert "sasl_mechanism='PLAIN' cannot apply" in text


@pytest.mark.parametrize("client", CLIENTS)
def test_setting_without_effect_is_logged_once_in_a_process(client, address, caplog, monkeypatch):
    monkeypatch.setattr(client_settings, "_logged", set())
    for _ in range(2):
        client(bootstrap_servers=address, api_version=(2, 0), send_buffer_bytes=1).close()
    assert [record.getMessage() for record in caplog.records] == [
        "api_version=(2, 0) has no effect here: spark-log has no connection to a broker",
        "send_buffer_bytes=1 has no effect here: spark-log has no connection to a broker",
    ]


def test_every_setting_of_kafka_python_is_honoured_without_effect_or_refused():
    for name in ("KafkaProducer", "KafkaConsumer", "KafkaAdminClient"):
        for setting in getattr(kafka, name).DEFAULT_CONFIG.keys() - {"bootstrap_servers"}:
            assert (setting in client_settings.NO_EFFECT) != (setting in client_settings.REFUSED) or (
                setting in HONOURED[name]
            ), (name, setting)


def test_modules_and_names_are_those_of_kafka_python():
    assert {name for name in kafka.__all__ if not hasattr(spark_log.clients.kafka, name)} == set()
    for theirs in (kafka.admin, kafka.errors, kafka.structs, kafka.serializer, kafka.partitioner):
        ours = importlib.import_module(f"spark_log.clients.{theirs.__name__}")
        public = {name for name in vars(theirs) if name[0].isupper()}
        assert {name for name in public if not hasattr(ours, name)} == set()
        clients = {"KafkaAdminClient"}
        assert all(getattr(ours, name) is getattr(theirs, name) for name in public - clients)
    from spark_log.clients.kafka.admin.client import KafkaAdminClient as Admin
    from spark_log.clients.kafka.consumer.group import KafkaConsumer as Consumer
    from spark_log.clients.kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor  # noqa: F401
    from spark_log.clients.kafka.producer.kafka import KafkaProducer as Producer

    assert (Admin, Consumer, Producer) == (KafkaAdminClient, KafkaConsumer, KafkaProducer)
    with pytest.raises(ImportError, match="KafkaClient: there is no connection"):
        from spark_log.clients.kafka import KafkaClient  # noqa: F401
