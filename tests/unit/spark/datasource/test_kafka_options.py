"""Options of Kafka that are honoured, ignored or refused, and names that resemble an option."""

import re
from pathlib import Path

import pytest

from spark_log.errors import InvalidOptionError
from spark_log.spark.datasource.options.kafka_options import KAFKA_OPTIONS, Ignored
from spark_log.spark.datasource.options.option_names import OPTIONS, resembled_option
from spark_log.spark.datasource.options.source_options import (
    ReadOptions,
    WriteOptions,
)

BASE = {"cluster": "/c", "subscribe": "t"}


def read(**options: str) -> ReadOptions:
    return read_exactly({**BASE, **options})


def read_exactly(options: dict[str, str], streaming: bool = False) -> ReadOptions:
    return ReadOptions.parse(options, streaming=streaming, environ={})


def write(**options: str) -> WriteOptions:
    return WriteOptions.parse({"cluster": "/c", **options}, streaming=False, environ={})


def refused(options: dict[str, str], message: str, streaming: bool = False) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        read_exactly(options, streaming)
    assert message in str(raised.value)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "option",
    ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit", "interceptor.classes"],
)
def test_unsupported_kafka_options_are_refused(option: str, streaming: bool) -> None:
    refused({**BASE, f"Kafka.{option}": "x"}, f"Kafka option '{option}' is not supported", streaming)


SECURE = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "Kafka.sasl.jaas.config": 'ScramLoginModule required password="hunter2";',
    "kafka.ssl.truststore.location": "/etc/hunter2.jks",
}


@pytest.mark.parametrize("streaming", [False, True])
def test_tls_and_sasl_are_refused_in_one_error_without_secrets(streaming: bool) -> None:
    expected = (
        "Kafka options 'sasl.jaas.config', 'sasl.mechanism', 'security.protocol' (SASL_SSL), 'ssl.truststore.location'"
        " are not supported: spark-log has no connection to a broker. Remove them; the address of the metadata store"
        " carries credentials and TLS (postgresql+psycopg://user:password@host/database?sslmode=verify-full), and each"
        " storage of log dirs has its own."
    )
    for parse, extra in ((ReadOptions.parse, {"subscribe": "t"}), (WriteOptions.parse, {"topic": "t"})):
        with pytest.raises(InvalidOptionError) as raised:
            parse({"kafka.bootstrap.servers": "b:9092", **extra, **SECURE}, streaming=streaming, environ={})
        assert str(raised.value) == expected


def test_plaintext_is_accepted_without_effect() -> None:
    assert read(**{"kafka.security.protocol": " plaintext "}) == read()
    assert write(**{"kafka.security.protocol": "PLAINTEXT"}) == write()


def test_one_error_names_all_refused_options() -> None:
    with pytest.raises(InvalidOptionError) as raised:
        write(**{"kafka.transactional.id": "x", "kafka.partitioner.class": "RoundRobin", "kafka.ssl.key.password": "x"})
    assert all(
        f"'{name}'" in str(raised.value) for name in ("transactional.id", "partitioner.class", "ssl.key.password")
    )
    refused(
        {**BASE, "kafka.key.deserializer": "x", "kafka.enable.auto.commit": "true"},
        "Kafka option 'enable.auto.commit' is not supported. Set the source option 'group.id' to have a query commit"
        " the end offsets of each batch.\nKafka option 'key.deserializer' is not supported as keys",
    )


def test_tuning_options_and_options_of_the_other_side_are_ignored() -> None:
    tuning = {"kafka.linger.ms": "5", "kafka.max.poll.records": "7", "kafka.request.timeout.ms": "1", "kafka.odd": ""}
    producer = {"kafka.transactional.id": "x", "kafka.acks": "7", "kafka.compression.type": "brotli"}
    assert read(**tuning, **producer) == read()
    assert write(**tuning, **{"kafka.auto.offset.reset": "earliest", "kafka.isolation.level": "x"}) == write()


def test_guide_names_every_honoured_or_refused_kafka_option() -> None:
    guide = (Path(__file__).parents[4] / "docs" / "guides" / "from-spark-kafka.md").read_text()
    names = [name for name, decision in KAFKA_OPTIONS.items() if not isinstance(decision, Ignored)]
    assert [name for name in names if f"`{name}`" not in guide] == []


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("startingOffset", "startingOffsets"),
        ("starting_offsets", "startingOffsets"),
        ("subscibe", "subscribe"),
        ("groupId", "group.id"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("kafka.compresion.type", "kafka.compression.type"),
        ("STARTINGOFFSETS", None),
        ("kafka.ssl.truststore.location", None),
        ("kafka.client.id", None),
        ("kafka.retry.backoff.max.ms", None),
        ("path", None),
        ("queryName", None),
        ("mergeSchema", None),
    ],
)
def test_a_name_without_effect_that_resembles_an_option_is_recognized(name: str, option: str | None) -> None:
    assert resembled_option(name) == option


def test_misspelt_names_are_compared_with_every_documented_option() -> None:
    tables = (Path(__file__).parents[4] / "docs" / "reference" / "options.md").read_text().partition("## Options of")[0]
    cells = re.findall(r"^\| (`[^|]*`) \|[^|]*\|.*\|$", tables, re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell) if not name.startswith("kafka.")}
    set_by_functions = {"checkpointLocation", "startingLineage", "transaction"}
    assert {*OPTIONS} - documented == set_by_functions and documented <= {*OPTIONS}
