"""The registry under load: limits of sizes, threads and caches, no work under its lock, a slow external registry."""

import gc
import json
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from threading import Barrier, Event, Semaphore
from time import thread_time
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx2
import pytest
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_log import Registry, clock
from spark_log.cluster.lease import unfenced
from spark_log.config import ClusterSettings
from spark_log.errors import (
    InvalidSchemaError,
    SchemaRegistryUnavailableError,
    TopicAlreadyExistsError,
)
from spark_log.facts.metrics.task_runs import TaskRunBuffer
from spark_log.gateway.registry.server import serving
from spark_log.maintenance import rewrite_tasks, run_tasks, seal_task
from spark_log.maintenance.coordinator.lease_runner import PeriodicTaskContext
from spark_log.maintenance.coordinator.periodic_tasks import coordinator_tasks
from spark_log.registry import external_ids, references, registrations, topic_schemas
from spark_log.registry import rows as registry_rows
from spark_log.registry.external_ids import learn_schemas
from spark_log.registry.protobuf_schemas import _files
from spark_log.registry.schema_types import _hash, _problems, problems, schema_hash
from spark_log.registry.schemas import SchemaText
from spark_log.replication.controller.topic_operations import alter_configs, check_new_topic, create_topic
from tests.support.schemas import ITEM, ONE, PROTO, avro, request
from tests.support.topics import append, make, make_older, tail
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.on_sqlite


def context(topic):
    return SerializationContext(topic, MessageField.VALUE)


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
