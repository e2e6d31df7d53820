"""The registry's REST API: its answers, and Confluent's own serializers and deserializers as its clients."""

import signal
import threading
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from spark_log import Consumer, Registry
from spark_log.errors import (
    InvalidRecordError,
    SchemaNotFoundError,
    SchemaRegistryUnavailableError,
)
from spark_log.gateway.registry.server import serving
from spark_log.log.columns.key_and_value import PARTS
from spark_log.log.columns.protobuf.messages import message_class
from spark_log.log.records.schema import read_schema
from spark_log.maintenance import run_tasks
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.registry import topic_schemas
from spark_log.replication.controller.topic_operations import alter_configs
from tests.support.python_process import PythonProcess
from tests.support.records import read_rows
from tests.support.schemas import COUNT, ITEM, ONE, PROTO, TWO, Order, avro, request
from tests.support.topics import make

pytestmark = pytest.mark.on_sqlite


@pytest.fixture
def client(url):
    with SchemaRegistryClient({"url": url}) as client:
        yield client


def test_answers_of_the_rest_api(url):
    def check(method, path, body, status, answer):
        found = request(method, url + path, body)
        assert found == (status, answer), (method, path)

    def refused(method, path, body, code):
        status, answer = request(method, url + path, body)
        assert (status, answer["error_code"]) == (int(str(code)[:3]), code) and answer["message"], (method, path)

    one, two = {"schema": ONE}, {"schema": TWO}
    proto = {"schema": PROTO, "schemaType": "PROTOBUF"}
    check("GET", "/subjects", None, 200, [])
    check("GET", "/schemas/types", None, 200, ["AVRO", "JSON", "PROTOBUF"])
    check("POST", "/subjects/a/versions", one, 200, {"id": 1})
    check("POST", "/subjects/a/versions?normalize=True", two, 200, {"id": 2})
    check("POST", f"/subjects/{quote('b/c d', safe='')}/versions", proto, 200, {"id": 3})
    check("GET", "/subjects?subjectPrefix=b", None, 200, ["b/c d"])
    check("GET", "/subjects?offset=1&limit=1", None, 200, ["b/c d"])
    check("GET", "/subjects/a/versions", None, 200, [1, 2])
    latest = {"subject": "a", "version": 2, "id": 2, "schema": TWO}
    check("GET", "/subjects/a/versions/latest", None, 200, latest)
    check("POST", "/subjects/a", two, 200, latest)
    check("GET", "/subjects/a/versions/-1/schema", None, 200, TWO)
    check("GET", "/schemas/ids/1", None, 200, one)
    check("GET", "/schemas/ids/3", None, 200, proto)
    check("GET", "/schemas/ids/2/versions", None, 200, [{"subject": "a", "version": 2}])
    check("GET", "/schemas/ids/3/subjects", None, 200, ["b/c d"])
    check("GET", "/subjects/a/versions/1/referencedby", None, 200, [])
    breaking = {"schema": avro(ITEM, ("price", "double"))}
    check("POST", "/compatibility/subjects/a/versions/latest", breaking, 200, {"is_compatible": False})
    check("POST", "/compatibility/subjects/a/versions", one, 200, {"is_compatible": True})
    status, answer = request("POST", f"{url}/compatibility/subjects/a/versions?verbose=true", breaking)
    assert status == 200 and "price" in answer["messages"][0]
    refused("POST", "/subjects/a/versions", breaking, 409)
    refused("POST", "/subjects/a/versions", {"schema": "{"}, 42201)
    refused("POST", "/subjects/a/versions", {}, 42201)
    refused("POST", "/subjects/a", breaking, 40403)
    refused("POST", "/subjects/z", one, 40401)
    refused("GET", "/subjects/z/versions", None, 40401)
    refused("GET", "/subjects/a/versions/9", None, 40402)
    refused("GET", "/subjects/a/versions/first", None, 42202)
    refused("GET", "/schemas/ids/99", None, 40403)
    refused("GET", "/nothing", None, 404)
    refused("PATCH", "/subjects", None, 405)

    check("GET", "/config", None, 200, {"compatibilityLevel": "BACKWARD"})
    refused("GET", "/config/a", None, 40408)
    check("GET", "/config/a?defaultToGlobal=true", None, 200, {"compatibilityLevel": "BACKWARD"})
    check("PUT", "/config/a", {"compatibility": "none"}, 200, {"compatibility": "NONE"})
    check("POST", "/subjects/a/versions", breaking, 200, {"id": 4})
    check("DELETE", "/config/a", None, 200, {"compatibilityLevel": "NONE"})
    check("PUT", "/config", {"compatibility": "FULL"}, 200, {"compatibility": "FULL"})
    refused("PUT", "/config", {"compatibility": "SIDEWAYS"}, 42203)
    refused("PUT", "/config", {}, 400)
    check("GET", "/mode", None, 200, {"mode": "READWRITE"})
    refused("GET", "/mode/a", None, 40409)
    check("PUT", "/mode/a", {"mode": "READONLY"}, 200, {"mode": "READONLY"})
    refused("DELETE", "/subjects/a", None, 42205)
    check("DELETE", "/mode/a", None, 200, {"mode": "READONLY"})

    check("DELETE", "/subjects/a/versions/2", None, 200, 2)
    check("GET", "/subjects/a/versions?deletedOnly=true", None, 200, [2])
    check("GET", "/subjects/a/versions?deleted=true", None, 200, [1, 2, 3])
    check("DELETE", "/subjects/a", None, 200, [1, 3])
    check("GET", "/subjects", None, 200, ["b/c d"])
    check("GET", "/subjects?deleted=true", None, 200, ["a", "b/c d"])
    check("GET", "/subjects?deletedOnly=true", None, 200, ["a"])
    refused("DELETE", "/subjects/a", None, 40404)
    check("DELETE", "/subjects/a?permanent=true", None, 200, [1, 2, 3])


def test_any_request_has_an_answer(url):
    """Illegal text, numbers out of range, and bodies of other kinds."""
    for subject in ("%00", "%ED%A0%80", "%0A", "x" * 600, "%25", "..%2F.."):
        for method, path in (("GET", "/versions"), ("GET", "/versions/1"), ("DELETE", ""), ("DELETE", "/versions/1")):
            assert request(method, f"{url}/subjects/{subject}{path}")[0] in (404, 422)
        assert request("POST", f"{url}/subjects/{subject}/versions", {"schema": "x"})[0] in (404, 422)
        assert request("GET", f"{url}/config/{subject}")[0] in (404, 422)
    assert request("PUT", f"{url}/config/%0A", {"compatibility": "NONE"})[0] == 422
    for number in (0, 2**31, 10**30):
        assert request("GET", f"{url}/schemas/ids/{number}")[0] == 404
        assert request("GET", f"{url}/subjects/a/versions/{number}")[0] in (404, 422)
    bodies = [[], 1, "x", None, {"schema": 1}, {"schema": {}}, {"schema": ONE, "references": 1},
              {"schema": ONE, "references": [{}]},
              {"schema": ONE, "references": [{"name": 1, "subject": 2, "version": "x"}]},
              {"schema": ONE, "schemaType": []}, {"schema": '{"type": "\0"}'}, {"schema": "\0"}, {"schema": "\ud800"},
              {"schema": "[" * 100_000}, {"schema": '{"type":"array","items":' * 1000},
              {"schema": "[" * 9, "schemaType": "JSON"},
              {"schema": "\0", "schemaType": "PROTOBUF"}, {"schema": "\ud800", "schemaType": "PROTOBUF"},
              {"schema": "AAAA", "schemaType": "PROTOBUF"}, {"schema": "", "schemaType": "PROTOBUF"}]  # fmt: skip
    for body in bodies:
        for path in ("/subjects/a/versions", "/subjects/a", "/compatibility/subjects/a/versions"):
            status, answer = request("POST", url + path, body)
            assert status in (200, 400, 404, 422), (status, answer, str(body)[:100])
        assert request("PUT", f"{url}/config", body)[0] in (400, 422)
        assert request("PUT", f"{url}/mode/a", body)[0] in (400, 422)


def test_confluents_client(client):
    """The methods of its client that call an address with parameters of their own."""
    schema = Schema(ONE, "AVRO")
    assert client.register_schema("a", schema) == 1
    assert client.lookup_schema("a", schema).version == 1
    assert client.get_subjects() == ["a"] and client.get_versions("a") == [1]
    assert client.get_latest_version("a").schema.schema_str == ONE
    assert client.test_compatibility("a", Schema(TWO, "AVRO")) is True
    assert client.set_compatibility("a", "FULL") == {"compatibility": "FULL"}
    assert client.get_compatibility("a") == "FULL"
    assert [(each.subject, each.version) for each in client.get_schema_versions(1)] == [("a", 1)]
    with pytest.raises(SchemaRegistryError) as raised:
        client.register_schema("a", Schema(avro(ITEM, ("price", "double")), "AVRO"))
    assert (raised.value.http_status_code, raised.value.error_code) == (409, 409)
    assert client.delete_version("a", 1) == 1 and client.delete_subject("a", permanent=True) == [1]


def rows(cluster, log, name):
    """The typed columns of the values of all records: those in files have the present version, and a reader gets them.
    Typed keys equal the values.
    """
    list(run_tasks(cluster, ["seal", "columns"], now=True))
    topic = log.find_topic(name)
    query = sa.select(SEGMENT.columns_version).where(SEGMENT.topic_id == topic.topic_id)
    versions = {*cluster.store.read(lambda connection: connection.execute(query).scalars().all())}
    assert versions == {topic.columns.version}
    schema = read_schema(columns=["offset", *topic.columns.fields.names], typed=topic.columns.fields)
    read = read_rows(log, topic, schema)
    of_key, of_value = (
        [row[part.record] if row[part.error] is None else row[part.error] for row in read if part.record in row]
        for part in PARTS
    )
    assert of_key in ([], of_value)
    return of_value


def context(topic):
    return SerializationContext(topic, MessageField.VALUE)


def test_avro_of_confluents_serializer(cluster, cluster_address, log, client, produce):
    client.register_schema("orders-value", Schema(ONE, "AVRO"))
    make(cluster, "orders", value_format="avro", value_framing="confluent", value_schema="registry:orders-value")
    producer, where = produce(), context("orders")
    producer.send("orders", AvroSerializer(client, ONE)({"item": "tea"}, where)).get(60)
    widened = AvroSerializer(client, TWO)  # registers the second version
    for count in (7, None):
        producer.send("orders", widened({"item": "cup", "count": count}, where)).get(60)
    producer.send("orders", b"\0\0\0\0\x09\6tea").get(60)
    producer.send("orders", b"tea").get(60)
    assert rows(cluster, log, "orders") == [
        {"item": "tea", "count": None},
        {"item": "cup", "count": 7},
        {"item": "cup", "count": None},
        "unknown schema id 9",
        "does not begin with Confluent's framing",
    ]
    read = AvroDeserializer(client)
    with Consumer(
        "orders", cluster=cluster_address, auto_offset_reset="earliest", consumer_timeout_ms=2000
    ) as consumer:
        values = [next(consumer).value for _ in range(3)]
    assert [read(value, where) for value in values] == [
        {"item": "tea"}, {"item": "cup", "count": 7}, {"item": "cup", "count": None},
    ]  # fmt: skip
    registry = Registry(cluster)
    registry.delete_subject("orders-value")
    registry.delete_subject("orders-value", permanent=True)
    for number in range(3, 10):  # the subject begins anew: the ids of old records stay known, and 9 becomes known
        registry.register("orders-value", avro(ITEM, COUNT, *((f"f{n}", "long", 0) for n in range(number))))
    found = rows(cluster, log, "orders")
    assert [row["item"] for row in found[:3]] == ["tea", "cup", "cup"]
    assert found[3].startswith("bytes are missing") or "end" in found[3], "decoded with the schema of id 9"


def test_a_producer_accepts_values_of_a_schema_that_has_just_been_registered(cluster, client, produce):
    client.register_schema("orders-value", Schema(ONE, "AVRO"))
    make(
        cluster, "orders", value_format="avro", value_framing="confluent", value_schema="registry:orders-value",
        value_bad_records="reject",
    )  # fmt: skip
    producer, where = produce(), context("orders")
    for text in (ONE, TWO, avro(ITEM, COUNT, ("n", "int", 0))):
        value = AvroSerializer(client, text)({"item": "tea"}, where)
        producer.send("orders", value).get(60)
    with pytest.raises(InvalidRecordError, match="unknown schema id 4"):
        producer.send("orders", b"\0\0\0\0\x04\6tea").get(60)


def test_json_of_confluents_serializer(cluster, log, client, produce):
    schema = """{"title": "Order", "type": "object", "properties": {"item": {"type": "string"},
        "at": {"type": "string", "format": "date-time"}, "tags": {"type": "array", "items": {"type": "string"}}}}"""
    write, where = JSONSerializer(schema, client), context("orders")
    value = write({"item": "tea", "at": "2026-11-01T10:00:00Z", "tags": ["x"]}, where)
    make(cluster, "orders", value_format="json", value_framing="confluent", value_schema="registry:orders-value")
    producer = produce()
    producer.send("orders", value).get(60)
    producer.send("orders", b"\0\0\0\0\x01{").get(60)
    [row, reason] = rows(cluster, log, "orders")
    assert (row["item"], row["tags"], row["at"].isoformat()) == ("tea", ["x"], "2026-11-01T10:00:00+00:00")
    assert isinstance(reason, str)
    assert JSONDeserializer(schema, schema_registry_client=client)(value, where)["tags"] == ["x"]


def test_protobuf_of_confluents_serializer(cluster, log, client, produce):
    write, where = ProtobufSerializer(Order, client, {"use.deprecated.format": False}), context("orders")
    value = write(Order(id="o1", tags=["x"], at={"seconds": 5}), where)
    make(
        cluster, "orders", value_format="protobuf", value_framing="confluent",
        value_schema="registry:orders-value#shop.Order",
    )  # fmt: skip
    nested = ProtobufSerializer(Order.Line, client, {"use.deprecated.format": False})
    producer = produce()
    producer.send("orders", value).get(60)
    producer.send("orders", nested(Order.Line(name="l"), where)).get(60)
    [row, reason] = rows(cluster, log, "orders")
    assert (row["id"], row["tags"], row["at"].timestamp()) == ("o1", ["x"], 5)
    assert reason == "its index in Confluent's framing is not that of Protobuf type shop.Order"
    assert ProtobufDeserializer(Order, {"use.deprecated.format": False}, client)(value, where).id == "o1"


def test_a_protobuf_file_that_imports_another(cluster, log, client, produce):
    """Confluent's serializer registers the imported file under a subject of its own, and refers to it."""
    files = FileDescriptorSet()
    text_format.Parse(
        """
        file { name: "shop/money.proto" package: "shop" syntax: "proto3"
            message_type { name: "Money" field { name: "cents" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL } } }
        file { name: "shop/sale.proto" package: "shop" syntax: "proto3" dependency: "shop/money.proto"
            message_type { name: "Sale" field {
                name: "price" number: 1 type: TYPE_MESSAGE type_name: ".shop.Money" label: LABEL_OPTIONAL } } }
        """,
        files,
    )
    sale, where = message_class("shop.Sale", files.SerializeToString()), context("sales")
    value = ProtobufSerializer(sale, client, {"use.deprecated.format": False})(sale(price={"cents": 5}), where)
    assert client.get_subjects() == ["sales-value", "shop/money.proto"]
    make(
        cluster, "sales", value_format="protobuf", value_framing="confluent", value_schema="registry:sales-value"
    )  # fmt: skip
    produce().send("sales", value).get(60)
    assert rows(cluster, log, "sales") == [{"price": {"cents": 5}}]
    assert ProtobufDeserializer(sale, {"use.deprecated.format": False}, client)(value, where).price.cents == 5
    with pytest.raises(SchemaRegistryError, match="references exist"):
        client.delete_subject("shop/money.proto")


def test_a_proto_text_is_served_as_its_descriptor(cluster, client):
    """A Java client registers the text of the file; Confluent's Python client asks for the descriptor."""
    Registry(cluster).register("orders-value", PROTO, "PROTOBUF")
    assert client.get_latest_version("orders-value").schema.schema_str == PROTO
    compiled = client.get_schema(1, fmt="serialized").schema_str
    assert client.register_schema("orders-value", Schema(compiled, "PROTOBUF")) == 1


def test_sigterm_ends_the_server(cluster, cluster_address):
    process = PythonProcess("-m", "spark_log", "registry", "--port", "0", "--cluster", cluster_address, stdout=-1)
    address = process.stdout.readline().decode().split(" at ")[1].split(". ")[0]
    assert request("POST", f"{address}/subjects/a/versions", {"schema": ONE}) == (200, {"id": 1})
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and out.decode().endswith("Stopped.\n")
    assert Registry(cluster).subjects() == ["a"]


def test_a_topic_with_an_external_registry(cluster, log, produce, elsewhere, monkeypatch, under_locks, defined):
    counts = under_locks(lambda: defined.count(threading.get_ident()))
    external, where = Registry(elsewhere), context("orders")
    with serving(elsewhere, "127.0.0.1", 0) as server, SchemaRegistryClient({"url": server.url}) as client:
        port, first = int(server.url.rpartition(":")[2]), AvroSerializer(client, ONE)({"item": "tea"}, where)
        make(
            cluster, "orders", value_format="avro", value_framing="confluent", schema_registry_url=server.url,
            value_schema="registry:orders-value", key_format="avro", key_framing="confluent",
            key_schema="registry:orders-value",
        )  # fmt: skip
        second = AvroSerializer(client, TWO)({"item": "cup", "count": 7}, where)
        other = AvroSerializer(client, avro(ITEM, name="Gift"))({"item": "pen"}, context("gifts"))
    producer = produce()
    for value in (first, second, other, b"\0\0\0\0\x63\6cup"):  # the registry does not answer: appends go on
        producer.send("orders", value, key=value).get(60)
    with pytest.raises(SchemaRegistryUnavailableError):
        list(run_tasks(cluster, ["seal"], now=True))
    with serving(elsewhere, "127.0.0.1", port):
        assert rows(cluster, log, "orders") == [
            {"item": "tea", "count": None},
            {"item": "cup", "count": 7},
            {"item": "pen", "count": None},
            "unknown schema id 99",
        ]
        external.register("orders-value", avro(ITEM, COUNT, ("note", "string", "")))
        assert rows(cluster, log, "orders")[1] == {"item": "cup", "count": 7, "note": None}
        with pytest.raises(SchemaNotFoundError):
            alter_configs(cluster, "orders", {"value.schema": "registry:nothing"})
        external.set_compatibility("NONE")
        external.register("orders-value", avro(("item", "long")))
        assert len(rows(cluster, log, "orders")) == 4, "a version that does not fit the columns changes nothing"
        external.register("orders-value", avro(ITEM, ("inner", {"type": "array", "items": "Order"})))
        assert len(rows(cluster, log, "orders")) == 4, "a version that cannot be columns changes nothing"
        monkeypatch.setattr(topic_schemas, "TYPED_COLUMNS_CHARACTERS_MAX", 1)
        external.register("orders-value", avro(ITEM, COUNT))
        assert len(rows(cluster, log, "orders")) == 4, "versions of too many characters change nothing"
    assert defined and sum(counts) == 0
    alter_configs(cluster, "orders", {"value.bad.records": "reject"})
    with pytest.raises(SchemaRegistryUnavailableError):
        alter_configs(cluster, "orders", {"value.columns": "item"})
