"""An object store that refuses requests, answers late, or not at all: each record is stored once or not, and errors
name the cause.

(General tests of log dirs, and merge, compaction, erase, retention and transactions on object storage, are the tests
with `also_on_s3`.)
"""

import json
import random
from contextlib import closing, suppress
from uuid import uuid4

import pytest
from pyiceberg.table import StaticTable

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir
from spark_log.errors import StorageUnavailableError, StoreChangedError
from spark_log.log.log import Records
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables import delta_table
from spark_log.tables.current import open_current
from spark_log.tables.iceberg.metadata_files import newest_version
from spark_log.tables.publication import publish
from spark_log.tables.verification import verify
from tests.support.records import keyed, read_all, table
from tests.support.s3 import S3Proxy, give_up_at_once
from tests.support.stores import change, count_rows
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole, by_deltalake, location_of
from tests.support.topics import append

pytestmark = pytest.mark.delta

FILES = {"inline.max.bytes": "0"}


@pytest.fixture
def proxy(s3_server):
    proxy = S3Proxy(s3_server.host)
    proxy.start()
    yield proxy
    proxy.stop()


@pytest.fixture
def cluster(s3_server, proxy, tmp_path):
    """A cluster whose log dir is reached through the proxy."""
    uri = s3_server.uri(uuid4().hex, proxy.host)
    with Cluster.init(str(tmp_path / "cluster"), log_dir=uri) as cluster:
        yield cluster


def segment_files(cluster, topic):
    [info] = cluster.log_dirs().values()
    return list(cluster.log_dir(info).list_files(f"{topic.folder}/_segments"))


def everything_is_right(cluster, log, topic, values):
    """Each value is stored once, in files that are complete, named and published."""
    publish(cluster, topic)
    assert [value for _, _, value in read_all(log, topic)] == values
    assert_delta_is_the_log(cluster)
    assert_replicas_are_whole(cluster)


@pytest.mark.slow
def test_one_bad_response_is_retried(cluster, log, proxy):
    topic = create_topic(cluster, "t", configs=FILES)
    faults = [
        ("refuse", "PUT", "_segments"),
        ("lose the answer", "PUT", "_segments"),
        ("lose the answer", "POST", "_segments"),
        ("late", "POST", "_segments"),
        ("cut the answer", "GET", "_segments"),
        ("refuse", "PUT", "_delta_log"),
        ("lose the answer", "PUT", "_delta_log"),
        ("cut the answer", "GET", "_delta_log"),
    ]
    for number, (fault, method, part) in enumerate(faults):
        proxy.times(1, fault, method, part)
        append(log, topic, f"{number}")
        assert len(read_all(log, topic)) == number + 1
        assert len(proxy.seen) == number + 1, (fault, method, part)
    everything_is_right(cluster, log, topic, [f"{number}" for number in range(len(faults))])
    assert len(segment_files(cluster, topic)) == len(faults)


def test_a_commit_opens_the_delta_table_only_without_obstore(cluster, log, monkeypatch):
    topic, opened = create_topic(cluster, "t", configs=FILES), []

    def open_table(*arguments, **options):
        opened.append(arguments)
        return delta_table.open_table(*arguments, **options)

    monkeypatch.setattr("spark_log.tables.publication.open_table", open_table)
    for value in ("a", "b", "c"):
        append(log, topic, value)
    assert len(opened) == 1
    with monkeypatch.context() as patch:
        patch.setattr("spark_log.cluster.log_dir.can_create", lambda _uri: False)
        append(log, topic, "d")
        assert len(opened) == 2
    monkeypatch.setattr("spark_log.cluster.files.object_puts._process", -1)  # as in a forked child
    append(log, topic, "e")
    assert len(opened) == 3, "another way leads to the table"
    everything_is_right(cluster, log, topic, ["a", "b", "c", "d", "e"])


def test_a_table_that_cannot_be_written_leaves_no_intents(cluster, log):
    """Each would hold up merges. In an object store a failed commit may still be made, but not a refused one."""
    topic = create_topic(cluster, "t", configs=FILES)
    append(log, topic, "a")
    [info] = cluster.log_dirs().values()
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", "clustering"]}
    path = f"{topic.folder}/_delta_log/{2:020d}.json"
    assert cluster.log_dir(info).create_whole(path, json.dumps({"protocol": protocol}).encode())
    append(log, topic, "b")
    with pytest.raises(StorageUnavailableError, match="ClusteredTable"):
        publish(cluster, topic)
    assert count_rows(cluster.store, t.publication_intent) == 0


def test_objects_are_created_where_they_are_read(s3_server):
    for prefix in ("a%20b/c", "plus+and=more", "~x/(y)", "team@corp/logs"):
        folder = f"{uuid4().hex}/{prefix}"
        log_dir = LogDir(s3_server.uri(folder))
        assert log_dir.location("t/v1.json") == f"s3://{s3_server.bucket}/{folder}/t/v1.json"
        assert log_dir.create_whole("t/x y/v1.json", b"1") and not log_dir.create_whole("t/x y/v1.json", b"2")
        assert log_dir.sizes(["t/x y/v1.json"]) == [1], prefix


@pytest.mark.slow
def test_an_iceberg_table_has_each_file_once_whatever_a_put_answers(cluster, log, proxy, s3_server):
    topic = create_topic(cluster, "t", configs={**FILES, "table.formats": "delta,iceberg"})
    faults = [
        ("refuse", "PUT", "metadata/v"),
        ("lose the answer", "PUT", "metadata/v"),
        ("lose the answer", "PUT", "metadata/v"),
        ("refuse", "PUT", ".avro"),
        ("lose the answer", "PUT", "version-hint"),
        ("cut the answer", "GET", "metadata/v"),
        ("refuse", "GET", ".avro"),
    ]
    append(log, topic, "0")  # and published; later appends leave the Iceberg table behind
    for number, (fault, method, part) in enumerate(faults, 1):
        append(log, topic, f"{number}")
        proxy.times(1, fault, method, part)
        with suppress(StorageUnavailableError):  # the next publication continues
            publish(cluster, topic)
        proxy.rule = lambda _method, _path: None
        assert [value for *_, value in sorted(by_pyiceberg(cluster, topic, s3_server))] == [
            f"{n}".encode() for n in range(number + 1)
        ], (fault, method, part)
        assert len(proxy.seen) == number, (fault, method, part)
    list(run_tasks(cluster, ["merge", "delta"]))
    assert [each.difference for each in verify(cluster, topic)] == [None, None]


def test_a_current_state_table_shows_each_key_once_whatever_a_put_answers(cluster, log, proxy):
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "table.current": "delta"}
    topic = create_topic(cluster, "t", configs={**FILES, **configs})
    faults = [
        ("refuse", "PUT", "deletion_vector"),
        ("lose the answer", "PUT", "deletion_vector"),
        ("refuse", "PUT", "_current/_delta_log/0"),
        ("lose the answer", "PUT", "_current/_delta_log/0"),
        ("cut the answer", "GET", "_current/_delta_log/0"),
    ]
    for number, (fault, method, part) in enumerate(faults, 1):
        open_current._opened.clear()
        values = [(b"a", b"%d" % number), (b"b", b"0"), (b"b", None)]
        proxy.times(1, fault, method, part)
        log.append(topic, [Records(0, keyed(values))])  # and published
        with suppress(StorageUnavailableError):  # the next publication continues
            publish(cluster, topic)
        proxy.rule = lambda _method, _path: None
        publish(cluster, topic)
        [info] = cluster.log_dirs().values()
        rows = by_deltalake(location_of(cluster, topic), cluster.log_dir(info).storage_options)
        assert [row[2:] for row in rows] == [(b"a", b"%d" % number)], (fault, method, part)
        assert len(proxy.seen) == number, (fault, method, part)
    list(run_tasks(cluster, ["merge", "compact", "delta"], now=True))
    assert [each.difference for each in verify(cluster, topic)] == [None, None]


def by_pyiceberg(cluster, topic, s3_server):
    """Rows after a further publication."""
    publish(cluster, topic)
    [info] = cluster.log_dirs().values()
    log_dir = cluster.log_dir(info)
    version = newest_version(log_dir, topic.folder)
    location = f"{log_dir.location(topic.folder)}/metadata/v{version}.metadata.json"
    options = s3_server.storage_options()
    properties = {
        "s3.endpoint": options["AWS_ENDPOINT_URL"],
        "s3.access-key-id": options["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": options["AWS_SECRET_ACCESS_KEY"],
        "s3.region": options["AWS_REGION"],
    }
    rows = StaticTable.from_metadata(location, properties).scan().to_arrow().to_pylist()
    return [(row["partition"], row["base_offset"] + row["offset_delta"], row["value"]) for row in rows]


def test_an_object_store_that_refuses_requests_is_unavailable_and_not_damaged(proxy, s3_server, tmp_path, monkeypatch):
    """Arrow's repetitions are in test_one_bad_response_is_retried."""
    give_up_at_once(monkeypatch)
    uri = s3_server.uri(uuid4().hex, proxy.host)
    with Cluster.init(str(tmp_path / "cluster"), log_dir=uri) as cluster, closing(ClientLog(cluster)) as log:
        check_refusals(cluster, log, proxy)


def check_refusals(cluster, log, proxy):
    topic = create_topic(cluster, "t", configs=FILES)
    append(log, topic, "a")
    proxy.always("refuse", "PUT", "_segments")
    with pytest.raises(StorageUnavailableError, match="cannot be written"):
        append(log, topic, "b")
    proxy.always("refuse", "GET", "_segments")
    with pytest.raises(StorageUnavailableError, match="AWS Error"):
        read_all(log, topic)
    proxy.rule = lambda _method, _path: None
    append(log, topic, "b")
    everything_is_right(cluster, log, topic, ["a", "b"])
    assert len(segment_files(cluster, topic)) == 2


def test_each_record_is_stored_once_after_any_fault_during_maintenance(cluster, log, proxy):
    topic = create_topic(cluster, "t", configs={"inline.max.bytes": "300", "retention.ms": "-1", "segment.ms": "1"})
    dice = random.Random(7)
    proxy.rule = lambda method, _path: dice.choices(
        [None, "refuse", "lose the answer", "cut the answer" if method == "GET" else None], [85, 5, 5, 5]
    )[0]
    values = [f"{n} " + "x" * (n % 2 * 400) for n in range(6)]
    for n, value in enumerate(values):
        append(log, topic, value)
        if n % 3 == 2:
            with suppress(StorageUnavailableError):  # the next run continues
                list(run_tasks(cluster, ["seal", "merge", "delta"]))
    proxy.rule = lambda _method, _path: None
    assert {fault for fault, _ in proxy.seen} == {"refuse", "lose the answer", "cut the answer"}
    everything_is_right(cluster, log, topic, values)


def test_a_restored_store_is_noticed_while_other_threads_run(cluster, log, proxy):
    """The proxy is a thread of this process: a call that held the GIL while it waited would never get its answer."""
    topic = create_topic(cluster, "t", configs=FILES)
    append(log, topic, "a")
    change(cluster, t.segment.delete())
    change(cluster, t.publication.update().values(transaction_version=0, table_version=0))
    change(cluster, t.publication_cursor.delete())
    with pytest.raises(StoreChangedError, match="restored"):
        publish(cluster, topic)


def test_a_plain_http_endpoint_of_the_environment_serves_delta_too(s3_server, s3_uri, tmp_path, monkeypatch, caplog):
    """Only the settings of pyarrow.fs are set: Delta's own AWS_ALLOW_HTTP is not needed."""
    for name, value in s3_server.storage_options().items():
        if name != "AWS_ALLOW_HTTP":
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    caplog.set_level("INFO", "spark_log.tables")
    folder = s3_uri.partition("?")[0].rpartition("@")[2]
    with Cluster.init(str(tmp_path / "cluster"), log_dir=f"s3://{folder}") as cluster:
        log, topic = ClientLog(cluster), create_topic(cluster, "t", configs=FILES)
        for values in (("a", "b"), ("c",), ("d",)):  # the first one opens the table
            log.append(topic, [Records(0, table(*values))])
        log.close()
        assert_delta_is_the_log(cluster)
    assert "not updated" not in caplog.text and "failed" not in caplog.text
