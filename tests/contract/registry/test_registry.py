"""The schema registry on both stores: subjects, versions, ids, compatibility and deletion."""

import itertools
import json

import pytest

from spark_log import Registry
from spark_log.cluster.topics import find_topic
from spark_log.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    RetriableError,
    SchemaRegistryError,
)
from spark_log.log.columns.types import to_ddl
from spark_log.registry import rows
from spark_log.registry.protobuf_schemas import serialized
from spark_log.registry.schemas import SchemaText
from tests.support.python_process import PythonProcess
from tests.support.schemas import BREAKING, COUNT, COUNT_TOO, ITEM, ONE, PROTO, TWO, avro
from tests.support.topics import make


@pytest.fixture
def registry(cluster):
    return Registry(cluster)


def refused(code, call, *arguments, **keywords):
    with pytest.raises(SchemaRegistryError) as raised:
        call(*arguments, **keywords)
    assert raised.value.error_code == code


def test_versions_and_ids(registry):
    first, second = registry.register("a", ONE), registry.register("a", TWO)
    assert [(each.version, each.id) for each in (first, second)] == [(1, 1), (2, 2)]
    spaced = json.dumps(json.loads(ONE), indent=2, sort_keys=True)
    assert registry.register("a", spaced) == first, "the same schema, written in another way"
    assert registry.register("b", TWO).id == 2, "one id under all subjects"
    assert registry.subjects() == ["a", "b"] and registry.subjects("b") == ["b"]
    assert registry.versions("a") == [1, 2] and registry.latest("a") == second
    assert registry.lookup("a", ONE) == first == registry.version("a", 1)
    assert registry.schema(2).text == TWO and registry.subjects_of(2) == [("a", 2), ("b", 1)]
    refused(40401, registry.versions, "c")
    refused(40402, registry.version, "a", 3)
    refused(40403, registry.schema, 3)
    refused(40403, registry.lookup, "b", ONE)
    refused(42202, registry.version, "a", 0)
    refused(42208, registry.register, "a\n", ONE)
    for text, type_ in (("{", "AVRO"), ('"strin"', "AVRO"), ("[]", "JSON"), ("message", "PROTOBUF"), (ONE, "XML")):
        with pytest.raises(InvalidSchemaError):
            registry.register("c", text, type_)
    assert registry.register("c", '"string"').id == 3


def test_deleted_versions_and_ids_are_not_used_again(registry):
    registry.set_compatibility("NONE")
    for text in (ONE, TWO, BREAKING):
        registry.register("a", text)
    refused(40407, registry.delete_version, "a", 2, permanent=True)
    assert registry.delete_version("a", 2) == 2 and registry.versions("a") == [1, 3]
    refused(40406, registry.delete_version, "a", 2)
    refused(40402, registry.version, "a", 2)
    assert registry.version("a", 2, deleted=True).id == 2 and registry.schema(2).text == TWO
    assert registry.register("a", TWO)[:2] == ("a", 4) and registry.version("a", 4).id == 2
    refused(40405, registry.delete_subject, "a", permanent=True)
    assert registry.delete_subject("a") == [1, 3, 4]
    refused(40404, registry.delete_subject, "a")
    assert registry.subjects() == [] and registry.subjects(deleted=True) == ["a"]
    assert registry.delete_subject("a", permanent=True) == [1, 2, 3, 4]
    refused(40401, registry.delete_subject, "a")
    refused(40403, registry.schema, 3)
    assert registry.register("b", avro(ITEM, name="Other")).id == 4
    assert registry.register("b", BREAKING).id == 3, "the same schema gets its id again"


def test_references(registry):
    registry.register("line", avro(("n", "int"), name="shop.Line"))
    text = avro(("lines", {"type": "array", "items": "shop.Line"}))
    with pytest.raises(InvalidSchemaError):
        registry.register("order", text)
    refused(40401, registry.register, "order", text, "AVRO", [("shop.Line", "lines", 1)])
    order = registry.register("order", text, "AVRO", [("shop.Line", "line", 1)])
    assert registry.schema(order.id).references == (("shop.Line", "line", 1),)
    assert registry.referring_ids("line", 1) == [order.id]
    refused(42206, registry.delete_subject, "line")
    wider = avro(("lines", {"type": "array", "items": "shop.Line"}), COUNT)
    assert registry.register("order", wider, "AVRO", [("shop.Line", "line", 1)]).version == 2


def test_a_softly_deleted_schema_keeps_its_imports(cluster, registry):
    """A topic that follows the subject reads all of its versions, also softly deleted ones."""
    registry.register("common", avro(("n", "int"), name="shop.Common"))
    first = registry.register("orders-value", avro(("c", "shop.Common")), "AVRO", [("shop.Common", "common", 1)])
    make(cluster, "orders", value_format="avro", value_framing="confluent", value_schema="registry:orders-value")
    registry.set_compatibility("NONE")
    registry.register("orders-value", ONE)
    refused(42206, registry.delete_version, "common", 1)
    registry.delete_version("orders-value", 1)
    assert registry.referring_ids("common", 1) == []
    registry.delete_version("common", 1)
    refused(42206, registry.delete_version, "common", 1, permanent=True)
    refused(42206, registry.delete_subject, "common", permanent=True)
    assert registry.register("orders-value", TWO).version == 3
    assert first.id in columns(cluster).value.schemas_by_id
    registry.delete_version("orders-value", 1, permanent=True)
    registry.delete_version("common", 1, permanent=True)
    assert registry.register("orders-value", avro(ITEM, COUNT, COUNT_TOO)).version == 4


def test_a_subject_that_refers_to_itself_can_be_deleted(registry):
    registry.set_compatibility("NONE")
    registry.register("a", avro(("n", "int"), name="shop.Line"))
    second = registry.register("a", avro(("line", "shop.Line")), "AVRO", [("shop.Line", "a", 1)])
    refused(42206, registry.delete_version, "a", 1)
    registry.register("b", avro(("line", "shop.Line")), "AVRO", [("shop.Line", "a", 1)])
    refused(42206, registry.delete_subject, "a")
    registry.delete_subject("b")
    assert registry.delete_subject("a") == [1, 2]
    refused(42206, registry.delete_subject, "a", permanent=True)
    registry.delete_subject("b", permanent=True)
    refused(42206, registry.delete_version, "a", 1, permanent=True)
    assert registry.schema(second.id) == second.schema
    assert registry.delete_subject("a", permanent=True) == [1, 2]


@pytest.mark.on_sqlite
@pytest.mark.parametrize(
    ("type_", "line", "order"),
    [
        ("AVRO", avro(("n", "int"), name="shop.Line"), avro(("line", "shop.Line"), ("other", "shop.Line"))),
        (
            "JSON",
            '{"type": "object", "properties": {"n": {"type": "integer"}}}',
            '{"type": "object", "properties": {"line": {"$ref": "shop.Line"}, "other": {"$ref": "shop.Line"}}}',
        ),
        (
            "PROTOBUF",
            'syntax = "proto3"; message Line { int32 n = 1; }',
            'syntax = "proto3"; import "shop.Line"; message Order { Line line = 1; Line other = 2; }',
        ),
    ],
)
def test_columns_of_a_schema_with_references(cluster, registry, type_, line, order):
    registry.register("line", line, type_)
    registry.register("order", order, type_, [("shop.Line", "line", 1)])
    make(cluster, "orders", value_format=type_.lower(), value_schema="registry:order")
    assert to_ddl(columns(cluster).value.fields) == "line STRUCT<n: BIGINT>, other STRUCT<n: BIGINT>"


@pytest.mark.on_sqlite
@pytest.mark.parametrize(
    ("level", "accepted"),
    [
        ("NONE", [True, True, True]),
        ("BACKWARD", [True, False, True]),
        ("FORWARD", [True, True, False]),
        ("FULL", [True, False, False]),
        ("BACKWARD_TRANSITIVE", [True, False, True]),
        ("FORWARD_TRANSITIVE", [True, True, False]),
        ("FULL_TRANSITIVE", [True, False, False]),
    ],
)
def test_levels_of_compatibility(registry, level, accepted):
    registry.register("a", ONE)
    registry.set_compatibility(level, "a")
    assert registry.compatibility("a") == level and registry.compatibility("b") is None
    assert registry.compatibility() == "BACKWARD"
    empty = json.dumps({"type": "record", "name": "Order", "fields": []})
    assert [not registry.test_compatibility("a", text) for text in (TWO, BREAKING, empty)] == accepted
    if accepted[1]:
        registry.register("a", BREAKING)
    else:
        with pytest.raises(IncompatibleSchemaError, match="price"):
            registry.register("a", BREAKING)


@pytest.mark.on_sqlite
def test_transitive_levels_compare_all_versions(registry):
    number, text = avro(("n", "long")), avro(("n", "string"))
    registry.set_compatibility("NONE", "a")
    registry.register("a", number)
    registry.register("a", text)
    registry.set_compatibility("BACKWARD", "a")
    again = avro(("n", "string"), COUNT)
    assert registry.test_compatibility("a", again) == []
    registry.set_compatibility("BACKWARD_TRANSITIVE", "a")
    assert "version 1" in registry.test_compatibility("a", again)[0]
    assert registry.test_compatibility("a", again, version=2) == []
    refused(42203, registry.set_compatibility, "SIDEWAYS")


@pytest.mark.on_sqlite
def test_json_and_protobuf_are_compared_by_their_columns(registry):
    def schema(kind):
        return json.dumps({"type": "object", "properties": {"n": {"type": kind}}})

    registry.register("j", schema("integer"), "JSON")
    with pytest.raises(IncompatibleSchemaError, match="n: the column is STRING, not BIGINT"):
        registry.register("j", schema("string"), "JSON")
    first = registry.register("p", PROTO, "PROTOBUF")
    assert registry.register("p", serialized(SchemaText("PROTOBUF", PROTO)), "PROTOBUF") == first
    registry.register("p", PROTO.replace("at = 2;", "at = 2; int32 n = 3;"), "PROTOBUF")
    for changed, why in (("bytes item = 1", "item: the column is BINARY"), ("string item = 4", "number is 4, not 1")):
        with pytest.raises(IncompatibleSchemaError, match=why):
            registry.register("p", PROTO.replace("string item = 1", changed), "PROTOBUF")
    with pytest.raises(IncompatibleSchemaError, match="AVRO, not PROTOBUF"):
        registry.register("p", ONE)


def test_a_read_only_subject_is_not_changed(registry):
    registry.register("a", ONE)
    registry.set_mode("READONLY")
    assert registry.mode() == "READONLY" and registry.register("a", ONE).id == 1
    refused(42205, registry.register, "a", TWO)
    refused(42205, registry.delete_subject, "a")
    registry.set_mode("READWRITE", "a")
    assert registry.register("a", TWO).id == 2
    refused(42204, registry.set_mode, "READ")


def test_schemas_of_another_registry_are_imported_with_their_ids(registry):
    assert registry.register("a", ONE).id == 1
    refused(42205, registry.register, "b", TWO, id=100, version=7)
    registry.set_mode("IMPORT", "b")
    refused(42205, registry.register, "b", TWO)
    for _ in range(2):
        assert registry.register("b", TWO, id=100, version=7)[:2] == ("b", 7)
    assert registry.register("b", BREAKING, id=50).version == 8
    refused(42207, registry.register, "b", ONE, id=60)
    refused(42207, registry.register, "b", avro(COUNT), id=100)
    refused(42205, registry.register, "b", ONE, id=1, version=7)
    registry.set_mode(None, "b")
    assert registry.register("b", avro(ITEM, COUNT, name="Order")).id == 100
    registry.set_compatibility("NONE")
    assert registry.register("b", avro(COUNT))[1] == 9 and registry.latest("b").id == 101


def test_an_import_with_the_last_id_does_not_end_registration(registry):
    last = 2**31 - 1
    registry.set_compatibility("NONE")
    registry.set_mode("IMPORT", "b")
    registry.register("b", '"int"', id=last)
    assert registry.register("a", ONE).id == 1
    for id_, kind in ((50, "long"), (52, "float"), (last - 2, "double"), (last - 1, "bytes")):
        registry.register("b", json.dumps(kind), id=id_)
    assert registry.register("a", TWO).id == 53 and registry.register("a", BREAKING).id == 54
    registry.delete_subject("a")
    registry.delete_subject("a", permanent=True)
    assert registry.register("a", avro(COUNT)).id == 55, "an id is never used again"
    assert registry.schema(last).text == '"int"' and registry.schema(55).text == avro(COUNT)


PROGRAM = """
import json, sys
from spark_log import Cluster, Registry
sys.stdin.read(1)
with Cluster.open(sys.argv[1]) as cluster:
    registry = Registry(cluster)
    ids = [registry.register("s", text).id for text in json.loads(sys.argv[2])]
    own = registry.register(f"own-{sys.argv[3]}", json.loads(sys.argv[2])[0]).id
print(json.dumps([*ids, own]))
"""


def test_concurrent_processes_get_one_id_for_one_schema(cluster, cluster_address, registry):
    texts = [avro(ITEM, *((f"f{n}", ["null", "long"], None) for n in range(count))) for count in range(6)]
    crowd = [PythonProcess("-c", PROGRAM, cluster_address, json.dumps(texts), n, stdin=-1, stdout=-1) for n in range(8)]
    for process in crowd:
        process.stdin.write(b"x")
        process.stdin.flush()
    answers = {process.communicate(timeout=60)[0] for process in crowd}
    assert {process.returncode for process in crowd} == {0}
    [answer] = answers
    *ids, own = json.loads(answer)
    assert ids == [1, 2, 3, 4, 5, 6] and own == 1
    assert registry.versions("s") == ids and len(registry.subjects()) == 9


@pytest.mark.on_sqlite
def test_a_schema_is_not_compared_in_the_transaction_while_its_subject_keeps_changing(registry, monkeypatch):
    registry.register("s", ONE)
    levels = itertools.cycle(["NONE", "BACKWARD"])
    write = Registry._write

    def write_after_another_client(self, body):
        write(self, lambda connection: rows.set_config(connection, "s", compatibility=next(levels)))
        return write(self, body)

    with monkeypatch.context() as patch:
        patch.setattr(Registry, "_write", write_after_another_client)
        with pytest.raises(RetriableError, match="subject 's': it changed during each"):
            registry.register("s", TWO)
    assert registry.versions("s") == [1]
    assert registry.register("s", TWO).version == 2


def columns(cluster, name="orders"):
    return cluster.store.read(lambda connection: find_topic(connection, name)).columns
