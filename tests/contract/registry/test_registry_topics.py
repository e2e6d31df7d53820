"""Topics that follow a subject of the schema registry, and their typed columns."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_log import Registry
from spark_log.cluster.topics import find_topic, list_topics
from spark_log.errors import (
    IncompatibleSchemaError,
    InvalidConfigurationError,
    InvalidSchemaError,
    SchemaNotFoundError,
)
from spark_log.registry import topic_schemas
from spark_log.replication.controller.topic_operations import alter_configs, check_new_topic, create_topic
from tests.support.schemas import COUNT, ITEM, ONE, TWO, avro
from tests.support.topics import make


@pytest.fixture
def registry(cluster):
    return Registry(cluster)


def columns(cluster, name="orders"):
    return cluster.store.read(lambda connection: find_topic(connection, name)).columns


def test_topics_follow_a_subject(cluster, registry):
    registry.register("orders-value", ONE)
    confluent = {"value_format": "avro", "value_framing": "confluent"}
    make(cluster, "orders", value_schema="registry:orders-value", **confluent)
    make(cluster, "fixed", value_schema="registry:orders-value@1", **confluent)
    make(cluster, "plain", value_format="avro", value_schema="registry:orders-value")
    make(cluster, "keyed", **{name.replace("value", "key"): text for name, text in confluent.items()},
         key_schema="registry:orders-value", value_format="json", value_schema="n INT")  # fmt: skip
    registry.register("orders-value", TWO)
    followed, fixed, plain, keyed = (columns(cluster, name) for name in ("orders", "fixed", "plain", "keyed"))
    assert (followed.version, followed.value.fields.names) == (2, ["item", "count"])
    assert (fixed.version, fixed.value.fields.names) == (2, ["item"])
    assert [*followed.value.schemas_by_id] == [*fixed.value.schemas_by_id] == [1, 2] and not plain.value.schemas_by_id
    assert plain.value.schema == TWO
    assert (keyed.version, keyed.key, keyed.value.fields.names) == (2, followed.value, ["n"])

    registry.set_compatibility("NONE")
    other = avro(("item", "long"))
    with pytest.raises(IncompatibleSchemaError, match=r"topic orders follows .*: item: the column is STRING"):
        registry.register("orders-value", other)
    assert registry.versions("orders-value") == [1, 2], "nothing was changed"
    for name, source in {"orders": "value", "plain": "value", "keyed": "key"}.items():
        alter_configs(cluster, name, {f"{source}.schema": "registry:orders-value@2"})
    assert registry.register("orders-value", other).version == 3
    assert columns(cluster) == followed, "the ids of schemas that do not fit the columns are not known"
    alter_configs(cluster, "orders", {"retention.ms": "-1"})
    assert columns(cluster) == followed

    for schema, error in (
        ("registry:orders-value", IncompatibleSchemaError),
        ("registry:nothing", SchemaNotFoundError),
        ("registry:", InvalidConfigurationError),
    ):
        with pytest.raises(error):
            alter_configs(cluster, "orders", {"value.schema": schema})
    with pytest.raises(InvalidConfigurationError, match=r"value\.format=json: version 3"):
        make(cluster, "wrong", value_format="json", value_schema="registry:orders-value")


def test_a_topic_may_name_a_version_that_was_softly_deleted(cluster, registry):
    for schema in (ONE, TWO):
        registry.register("orders-value", schema)
    make(cluster, "fixed", value_format="avro", value_framing="confluent", value_schema="registry:orders-value@1")
    registry.delete_version("orders-value", 1)
    registry.set_compatibility("NONE")
    assert registry.register("orders-value", avro(("item", "long"))).version == 3
    assert columns(cluster, "fixed").value.fields.names == ["item"]
    registry.delete_version("orders-value", 1, permanent=True)
    with pytest.raises(IncompatibleSchemaError, match="topic fixed follows"):
        registry.register("orders-value", avro(("item", "int")))


def test_the_typed_columns_of_a_topic_that_follows_a_subject_do_not_grow_without_limit(cluster, registry, monkeypatch):
    registry.register("s", ONE)
    make(cluster, "orders", value_format="avro", value_framing="confluent", value_schema="registry:s")
    present = cluster.store.read(lambda connection: find_topic(connection, "orders")).typed_columns
    monkeypatch.setattr(topic_schemas, "TYPED_COLUMNS_CHARACTERS_MAX", len(present) + 1000)
    registry.register("s", TWO)
    followed = columns(cluster)
    with pytest.raises(
        IncompatibleSchemaError, match=r"topic orders follows the subject 's': schema: the typed columns"
    ):
        registry.register("s", avro(ITEM, COUNT, ("note", "string", "x" * 1000)))
    assert columns(cluster) == followed and registry.versions("s") == [1, 2], "nothing was changed"

    monkeypatch.setattr(topic_schemas, "TYPED_COLUMNS_CHARACTERS_MAX", 1)
    alter_configs(cluster, "orders", {"retention.ms": "-1"})
    assert registry.delete_version("s", 2) == 2
    assert registry.register("s", TWO).version == 3, "a schema that the topic has does not make its columns longer"
    assert {*columns(cluster).value.schemas_by_id} == {1, 2}


def test_the_typed_columns_of_a_topic_without_a_subject_have_the_same_limit(cluster, monkeypatch):
    make(cluster, "orders", value_format="json", value_schema="item STRING")
    present = columns(cluster)
    monkeypatch.setattr(topic_schemas, "TYPED_COLUMNS_CHARACTERS_MAX", 1_000)
    long = {"value.format": "json", "value.schema": ", ".join(f"f{number} INT" for number in range(100))}
    for change in (
        lambda: create_topic(cluster, "new", configs=long),
        lambda: check_new_topic(cluster, "new", configs=long),
        lambda: alter_configs(cluster, "orders", long),
        lambda: alter_configs(cluster, "orders", long, validate_only=True),
    ):
        with pytest.raises(InvalidSchemaError, match="would have more than 1,000 characters"):
            change()
    assert columns(cluster) == present and [topic.name for topic in list_topics(cluster)] == ["orders"]


def test_topics_that_are_changed_while_versions_are_registered_know_all_of_them(cluster, registry):
    registry.register("s", ONE)
    configs = {"value.format": "avro", "value.framing": "confluent", "value.schema": "registry:s"}
    make(cluster, "plain")

    def register(first):
        for number in range(first, 12, 2):
            registry.register("s", avro(ITEM, *((f"f{n}", ["null", "long"], None) for n in range(number))))

    def change(name):
        for number in range(6):
            create_topic(cluster, f"{name}{number}", configs=configs)
            alter_configs(cluster, "plain", configs if number % 2 else {"retention.ms": f"{number + 1}"})

    with ThreadPoolExecutor() as pool:
        work = [pool.submit(register, 1), pool.submit(register, 2), pool.submit(change, "a"), pool.submit(change, "b")]
        for each in work:
            each.result(timeout=120)
    ids = {registry.version("s", version).id for version in registry.versions("s")}
    topics = list_topics(cluster)
    assert len(topics) == 13
    assert {frozenset(topic.columns.value.schemas_by_id) for topic in topics} == {frozenset(ids)}
