"""The registry's REST API: its answers, and Confluent's own serializers and deserializers as its clients."""

import gc
import json
import signal
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from threading import Barrier, Event, Semaphore
from time import thread_time
from types import SimpleNamespace
from urllib.parse import quote, urlsplit

import httpx2
import pytest
import sqlalchemy as sa
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from spark_log import Cluster, Consumer, Registry, clock
from spark_log.cluster.lease import unfenced
from spark_log.config import ClusterSettings
from spark_log.errors import (
    InvalidRecordError,
    InvalidSchemaError,
    SchemaNotFoundError,
    SchemaRegistryUnavailableError,
    TopicAlreadyExistsError,
)
from spark_log.facts.metrics.task_runs import TaskRunBuffer
from spark_log.gateway.registry.server import serving
from spark_log.log.columns import definitions
from spark_log.log.columns.key_and_value import PARTS
from spark_log.log.columns.protobuf.messages import message_class
from spark_log.log.records.schema import read_schema
from spark_log.maintenance import rewrite_tasks, run_tasks, seal_task
from spark_log.maintenance.coordinator.lease_runner import PeriodicTaskContext
from spark_log.maintenance.coordinator.periodic_tasks import coordinator_tasks
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.metadata.store import Store
from spark_log.registry import external_ids, references, registrations, topic_schemas
from spark_log.registry import rows as registry_rows
from spark_log.registry.external_ids import learn_schemas
from spark_log.registry.protobuf_schemas import _files
from spark_log.registry.schema_types import _hash, _problems, problems, schema_hash
from spark_log.registry.schemas import SchemaText
from spark_log.replication.controller.topic_operations import alter_configs, check_new_topic, create_topic
from tests.contract.registry.test_registry import COUNT, ITEM, ONE, PROTO, TWO, avro
from tests.support.python_process import PythonProcess
from tests.support.records import read_rows
from tests.support.schemas import Order, request
from tests.support.topics import append, make, make_older, tail
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.on_sqlite


@pytest.fixture
def url(cluster):
    with serving(cluster, "127.0.0.1", 0) as server:
        yield server.url


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


@pytest.fixture
def elsewhere(tmp_path):
    """Another cluster, whose registry is the external one of the first."""
    with Cluster.init(str(tmp_path / "elsewhere")) as other:
        yield other


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


def external_topic(cluster, url, name, partitions=1, **configs):
    make(
        cluster, name, partitions, value_format="avro", value_framing="confluent", schema_registry_url=url,
        value_schema="registry:orders-value", **configs,
    )  # fmt: skip


def test_a_registry_that_does_not_answer_delays_the_tails_only_that_need_it(cluster, log, elsewhere, monkeypatch):
    tasks = {task.name: task for task in coordinator_tasks()}
    context = PeriodicTaskContext(cluster, ClusterSettings(), unfenced, lambda: False, 1, TaskRunBuffer())
    Registry(elsewhere).register("orders-value", ONE)
    with serving(elsewhere, "127.0.0.1", 0) as server:
        external_topic(cluster, server.url, "orders", 4, delta_max_lag_ms="1000")
    plain = make(cluster, "plain", delta_max_lag_ms="1000")
    monkeypatch.setattr(log._loop, "appended", lambda _: None)
    for partition in range(4):
        append(log, "orders", "\0\0\0\0\1\6tea" if partition == 3 else "\0\0\0\0\x63\6tea", partition=partition)
    append(log, plain, "x")
    make_older(cluster, 600_000)
    asked, find_id = [], external_ids.find_id

    def find(url, number):
        asked.append(number)
        return find_id(url, number)

    monkeypatch.setattr(external_ids, "find_id", find)
    names = [note.split(" ")[0] for note in tasks["maintenance: seal"].run(context)]
    assert tail(cluster) == 3, f"the registry was not asked: {names}"
    with pytest.raises(SchemaRegistryUnavailableError):
        tasks["maintenance: seal records of new schemas"].run(context)
    assert tasks["maintenance: seal"].run(context) == [] and tail(cluster) == 3
    asked.clear()
    monkeypatch.setattr(seal_task, "clock", SimpleNamespace(monotonic_s=lambda: clock.monotonic_s() + 3_600))
    with serving(elsewhere, "127.0.0.1", int(server.url.rpartition(":")[2])):
        tasks["maintenance: seal records of new schemas"].run(context)
    assert tail(cluster) == 0 and asked == [99], "once for all partitions"
    append(log, "orders", "\0\0\0\0\1\6tea")
    make_older(cluster, 600_000)
    tasks["maintenance: seal"].run(context)
    assert tail(cluster) == 0


def test_schemas_of_ids_are_read_until_they_are_too_long_together(cluster, log, elsewhere, monkeypatch):
    external = Registry(elsewhere)
    external.register("orders-value", ONE)
    longer = {**json.loads(ONE), "doc": "x" * 1_000}
    ids = {external.register(f"s{number}", json.dumps({**longer, "aliases": [f"A{number}"]})).id for number in range(9)}
    with serving(elsewhere, "127.0.0.1", 0) as server:
        external_topic(cluster, server.url, "orders")
        monkeypatch.setattr(external_ids, "TYPED_COLUMNS_CHARACTERS_MAX", 5_000)
        learnt = learn_schemas(cluster, log.find_topic("orders"), {"value": ids})
    assert len(learnt.columns.of("value").schemas_by_id) == 1 + 4


def test_a_backfill_asks_the_registries_of_several_topics_at_the_same_time(cluster, elsewhere, monkeypatch):
    Registry(elsewhere).register("orders-value", ONE)
    with serving(elsewhere, "127.0.0.1", 0) as server:
        for name in ("a", "b", "c", "d"):
            external_topic(cluster, server.url, name)
    together = Barrier(4)

    def no_answer(*_):
        together.wait(timeout=20)
        raise SchemaRegistryUnavailableError("no answer")

    monkeypatch.setattr(rewrite_tasks, "learn_schemas", no_answer)
    with pytest.raises(SchemaRegistryUnavailableError):
        list(run_tasks(cluster, ["columns"], now=True))


def test_the_name_of_a_reference_is_a_path_and_never_an_option_of_the_compiler(url, tmp_path):
    (tmp_path / "secret").write_text("--password-of-another-user")
    register(url, "imported", PROTO, "PROTOBUF")
    text = 'syntax = "proto3"; message N { string a = 1; }'
    for name in (f"@{tmp_path}/secret", f"--descriptor_set_out={tmp_path}/made", "--version", "-I", "@x.proto"):
        status, answer = register(url, "p", text, "PROTOBUF", [(name, "imported", 1)])
        assert status == 200, (name, answer)
    assert not (tmp_path / "made").exists()
    for name in ("/etc/x.proto", "a/../../x.proto", "a\0b", "a//b", "x" * 300, "\n", "\ud800"):
        status, answer = register(url, "p", text, "PROTOBUF", [(name, "imported", 1)])
        assert (status, answer["error_code"]) == (422, 42201), (name, answer)


def test_large_and_deeply_nested_requests_are_refused(url, monkeypatch):
    monkeypatch.setattr(references, "_DEPTH_MAX", 8)
    union = [json.dumps([{"type": "record", "name": f"{name}{n}", "fields": []} for n in range(800)]) for name in "ab"]
    assert register(url, "union", union[0])[0] == 200
    status, answer = register(url, "union", union[1])
    assert (status, "cannot be compared" in answer["message"]) == (409, True)
    for i in range(10):
        fields = [{"name": "f", "type": f"C{i - 1}" if i else "int"}]
        schema = json.dumps({"type": "record", "name": f"C{i}", "fields": fields})
        status, answer = register(url, f"c{i}", schema, "AVRO", [(f"C{i - 1}", f"c{i - 1}", 1)] if i else [])
    assert (status, "chain" in answer["message"]) == (422, True)
    deep = "[" * 100_000 + "]" * 100_000
    for type_ in ("AVRO", "JSON", "PROTOBUF"):
        assert register(url, "deep", deep, type_)[0] == 422
    assert register(url, "large", f'"{"x" * (1 << 20)}"', "JSON")[0] == 422
    for content, status in ((deep, 400), ("x" * (9 << 20), 413), (iter([b"x" * (1 << 20)] * 9), 413)):
        answer = httpx2.post(f"{url}/subjects/a/versions", content=content, timeout=60)
        assert (answer.status_code, answer.json()["error_code"]) == (status, status)
    assert httpx2.get(f"{url}/schemas/ids/{'9' * 5000}", timeout=60).status_code == 414


def test_references_are_limited_in_number_and_in_total_length(url, monkeypatch):
    monkeypatch.setattr(references, "_IMPORTS_MAX", 20)
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    large = json.dumps({**schema, "description": "x" * 1_000_000})
    assert request("POST", f"{url}/subjects/large/versions", {"schema": large, "schemaType": "JSON"})[0] == 200
    assert request("POST", f"{url}/subjects/small/versions", {"schema": ONE})[0] == 200
    for subject, count, status in (("large", 2, 200), ("large", 3, 422), ("small", 20, 200), ("small", 21, 422)):
        named = [{"name": f"n{number}", "subject": subject, "version": 1} for number in range(count)]
        body = {"schema": json.dumps(schema), "schemaType": "JSON", "references": named}
        assert request("POST", f"{url}/subjects/s/versions", body)[0] == status


def test_requests_for_one_version_read_no_text_of_the_others(cluster, monkeypatch):
    registry = Registry(cluster)
    schemas = [json.dumps({"type": "object", "properties": {f"f{number}": {"type": "string"}}}) for number in range(6)]
    for schema in schemas[:5]:
        registry.register("s", schema, "JSON")
    sizes = []
    read = registry_rows.versions_of

    def counted(*args, **options):
        found = read(*args, **options)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(registry_rows, "versions_of", counted)
    assert registry.versions("s") == [1, 2, 3, 4, 5]
    assert registry.version("s", 2).schema.text == schemas[1] and registry.latest("s").version == 5
    assert registry.lookup("s", schemas[2], "JSON").version == 3
    assert not registry.test_compatibility("s", schemas[5], "JSON")
    assert registry.register("s", schemas[5], "JSON").version == 6
    assert registry.delete_version("s", 1) == 1 and registry.delete_subject("s") == [2, 3, 4, 5, 6]
    assert max(sizes) == 1


def test_one_client_does_not_take_all_threads(url, monkeypatch):
    end, begun = Event(), Semaphore(0)

    def subjects(*_arguments, **_options):
        begun.release()
        end.wait(10 * LIMIT_S)
        return []

    monkeypatch.setattr(Registry, "subjects", subjects)

    def get(path, source):
        connection = HTTPConnection(*urlsplit(url).netloc.split(":"), timeout=60, source_address=(source, 0))
        with closing(connection):
            connection.request("GET", path)
            return connection.getresponse().status

    with ThreadPoolExecutor(50) as pool:
        slow = [pool.submit(get, "/subjects", "127.0.0.1") for _ in range(50)]
        try:
            assert all(begun.acquire(timeout=60) for _ in range(10))
            assert get("/schemas/types", "127.0.0.2") == 200
            assert not begun.acquire(timeout=0.2), "further requests of the address wait"
        finally:
            end.set()
        assert {each.result() for each in slow} == {200}


def test_comparisons_leave_threads_to_readers(url, monkeypatch):
    end, begun = Event(), Semaphore(0)

    def compare(*_arguments, **_options):
        begun.release()
        end.wait(10 * LIMIT_S)
        return []

    monkeypatch.setattr(Registry, "test_compatibility", compare)
    path = "/compatibility/subjects/s/versions"
    with ThreadPoolExecutor(20) as pool:
        slow = [pool.submit(request, "POST", f"{url}{path}", {"schema": ONE}) for _ in range(20)]
        try:
            assert all(begun.acquire(timeout=60) for _ in range(2))
            assert httpx2.get(f"{url}/subjects", timeout=LIMIT_S).status_code == 200
            assert not begun.acquire(timeout=0.2), "further ones of the address wait"
        finally:
            end.set()
        assert {each.result()[0] for each in slow} == {200}


def test_pages_of_other_sites_reach_nothing(url):
    body = {"content": json.dumps({"schema": '"int"'}), "headers": {"Content-Type": "text/plain"}}
    for name, value in (("Sec-Fetch-Site", "cross-site"), ("Origin", "http://evil.example"), ("Origin", "null")):
        body["headers"] = {name: value}
        assert httpx2.post(f"{url}/subjects/a/versions", **body, timeout=60).status_code == 403
    body["headers"] = {"Host": f"evil.example:{urlsplit(url).port}"}  # a name that was bound to this machine anew
    assert httpx2.post(f"{url}/subjects/a/versions", **body, timeout=60).status_code == 400
    assert httpx2.get(f"{url}/subjects", timeout=60).json() == []
    body["headers"] = {"Origin": url}
    assert httpx2.post(f"{url}/subjects/a/versions", **body, timeout=60).status_code == 200


@pytest.fixture
def under_locks(monkeypatch):
    """A function that returns a list, which gets from then on what `count` counts within each transaction, for which
    other writers wait. `prepare` is called before each one.
    """

    def watch(count, prepare=lambda: None):
        transact, counts = Store.transact, []

        def spied(*arguments, **others):
            prepare()
            before = count()
            try:
                return transact(*arguments, **others)
            finally:
                counts.append(count() - before)

        monkeypatch.setattr(Store, "transact", spied)
        return counts

    return watch


@pytest.fixture
def defined(monkeypatch):
    """A list with the thread of each definition of columns."""
    define, made = definitions.define, []
    monkeypatch.setattr(
        definitions, "define", lambda *given, **named: made.append(threading.get_ident()) or define(*given, **named)
    )
    return made


def test_schemas_are_compared_and_columns_defined_before_the_registry_is_locked(cluster, under_locks, defined):
    _problems.cache_clear()
    topic_schemas._columns_text.forget()
    registry = Registry(cluster)
    registry.register("s", avro(ITEM))
    for name in ("a", "b"):
        make(cluster, name, value_format="avro", value_framing="confluent", value_schema="registry:s")
    defined.clear()
    counts = under_locks(lambda: _problems.cache_info().misses + len(defined))
    for n in range(1, 4):
        fields = [(f"unlike{n}{number}", "int", 0) for number in range(n)]
        registry.register("s", avro(ITEM, *fields))
    assert counts == [0] * 3 and _problems.cache_info().misses == 3
    assert len(defined) == 3, "topics with the same columns share them"


def test_schemas_of_topics_are_parsed_before_the_transaction(cluster, under_locks, defined):
    counts = under_locks(lambda: defined.count(threading.get_ident()))
    Registry(cluster).register("s", avro(ITEM))
    make(cluster, "plain")
    for number, (format_, schema) in enumerate([("json", "a{} INT"), ("avro", "registry:s")]):
        configs = {"value.format": format_, "value.schema": schema.format(0)}
        check_new_topic(cluster, "checked", configs=configs)
        topic_schemas._columns_text.forget()
        create_topic(cluster, f"made{number}", configs=configs)
        topic_schemas._columns_text.forget()
        for validate_only in (True, False):
            configs = {"value.format": format_, "value.schema": schema.format(1 + validate_only)}
            alter_configs(cluster, "plain", configs, validate_only=validate_only, reset=True)
    assert defined and sum(counts) == 0
    with pytest.raises(TopicAlreadyExistsError):  # whatever its schema is
        create_topic(cluster, "plain", configs={"value.format": "json", "value.schema": "a"})


def test_no_schema_of_a_subject_is_compiled_under_the_lock(cluster, under_locks):
    registry = Registry(cluster)
    registry.set_compatibility("NONE")
    registry.register("p", PROTO, "PROTOBUF")
    registry.register("p", 'syntax = "proto3"; package shop; message Gift { string item = 1; }', "PROTOBUF")
    # as if other subjects had filled the cache
    compiled = under_locks(lambda: _files.cache_info().misses, _files.cache_clear)
    make(cluster, "made", value_format="protobuf", value_framing="confluent", value_schema="registry:p@1#shop.Order")
    alter_configs(cluster, "made", {"value.columns": "item"})
    assert compiled == [0, 0]


def test_nothing_is_parsed_under_the_lock_if_the_caches_have_other_schemas(cluster, under_locks):
    caches = (_hash, _problems)
    registry = Registry(cluster)
    registry.register("s", avro(ITEM))
    registry.set_mode("IMPORT", "copied")
    parsed = under_locks(
        lambda: sum(cache.cache_info().misses for cache in caches), lambda: [cache.cache_clear() for cache in caches]
    )
    assert registry.register("s", avro(ITEM, ("other", "int", 0))).version == 2
    assert registry.register("copied", avro(ITEM, ("third", "int", 0)), id=77).id == 77
    assert parsed == [0, 0]


def test_caches_keep_no_texts_of_schemas():
    tracemalloc.start()
    try:
        for number in range(8):
            schema = json.dumps({"type": "record", "name": "R", "fields": [], "doc": f"{number}" * 1_000_000})
            texts = SchemaText("AVRO", schema, (("I", '{"type": "fixed", "name": "I", "size": 1}'),))
            assert problems(texts, texts) == []
        del schema, texts
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()


def test_comparisons_with_all_versions_are_limited(cluster, monkeypatch):
    monkeypatch.setattr(registrations, "_COMPARED_CHARACTERS_MAX", 2_000)
    registry = Registry(cluster)
    registry.set_compatibility("FULL_TRANSITIVE", "s")
    refused = None
    for number in range(20):
        try:
            registry.register("s", avro(ITEM, *((f"f{each}", "int", 0) for each in range(number))))
        except InvalidSchemaError as error:
            refused = str(error)
    assert "too many" in refused
    registry.set_compatibility("FULL", "s")
    registry.register("s", avro(ITEM, ("other", "int", 0)))
    fields = [{"name": f"f{number}", "type": "int"} for number in range(10_001)]
    with pytest.raises(InvalidSchemaError, match="too many elements"):
        registry.register("wide", json.dumps({"type": "record", "name": "R", "fields": fields}))


def test_a_protobuf_file_is_read_once_for_all_of_its_messages():
    fields = " ".join(f"int32 f{number} = {number};" for number in range(1, 21))
    text = 'syntax = "proto3";' + "".join(f"message M{number} {{ {fields} }}" for number in range(1_000))
    reader, writer = (SchemaText("PROTOBUF", text + end) for end in ("", " "))
    began_s = thread_time()
    assert problems(reader, writer) == []
    assert thread_time() - began_s < 10


def test_long_names_do_not_multiply_with_the_fields_of_a_protobuf_schema():
    fields = " ".join(f"M f{number} = {number};" for number in range(1, 400))
    text = f'syntax = "proto3"; message {"n" * 50_000} {{ message M {{ int32 a = 1; }} {fields} }}'
    with pytest.raises(InvalidSchemaError, match="its descriptor has more than 16,777,216 bytes"):
        schema_hash(SchemaText("PROTOBUF", text), ())


def register(url, subject, schema, type_="AVRO", references=()):
    named = [dict(zip(("name", "subject", "version"), each, strict=True)) for each in references]
    body = {"schema": schema, "schemaType": type_, "references": named}
    answer = httpx2.post(f"{url}/subjects/{subject}/versions", content=json.dumps(body), timeout=60)
    return answer.status_code, answer.json()
