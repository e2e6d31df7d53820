"""A topic's current-state table: DuckDB and deltalake read the last record of each key from it, whatever happens to the
files.
"""

import json
import signal
import threading
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable, QueryBuilder

from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.settings import alter_settings
from spark_log.errors import InvalidConfigurationError, InvalidPartitionsError
from spark_log.log.append.write_ids import Writer
from spark_log.maintenance.rewrite import table_schedule
from spark_log.maintenance.rewrite.tail_seal import seal
from spark_log.maintenance.task_list import run_tasks
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import add_partitions, alter_configs
from spark_log.tables.current import open_current
from spark_log.tables.current.clean_up import clean_up
from spark_log.tables.current.cut import cuts
from spark_log.tables.publication import publish, publish_all
from tests.support.python_process import run_process
from tests.support.table_checks import assert_current, assert_delta_is_the_log, by_deltalake, ends_of, location_of
from tests.support.topics import find, make, put

pytestmark = pytest.mark.delta

CONFIGS = {
    "inline_max_bytes": "0",
    "delta_max_lag_ms": "-1",
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0",
    "table_current": "delta",
}
"""Each append writes a file."""


def listed_in(cluster, topic):
    """The files of the log."""
    query = sa.select(t.segment.c.partition, t.segment.c.name).where(t.segment.c.topic_id == topic.topic_id)
    rows = cluster.store.read(lambda connection: connection.execute(query).all())
    return {f"_segments/{partition}/{name}" for partition, name in rows}


PUBLISH = """
import sys
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topic
from spark_log.tables.publication import publish

cluster = Cluster.open(sys.argv[1])
publish(cluster, cluster.store.read(lambda connection: find_topic(connection, "t")))
"""


def check(cluster, topic, **expected):
    """The readers see what the log has, and these values of the keys."""
    publish(cluster, topic)
    rows = assert_current(cluster, topic)
    if expected:
        assert {row[2].decode(): row[3].decode() for row in rows} == expected


@pytest.fixture
def topic(cluster):
    return make(cluster, "t", 1, **CONFIGS)


def test_a_table_follows_updates_and_deletions(cluster, log):
    topic = make(cluster, "t", 2, **CONFIGS)
    put(log, topic, "a", "1")
    put(log, topic, "b", "2")
    put(log, topic, "c", "3", partition=1)
    check(cluster, topic, a="1", b="2", c="3")
    put(log, topic, "a", "4")
    put(log, topic, "b", None)
    check(cluster, topic, a="4", c="3")
    put(log, topic, "b", "5")
    put(log, topic, "c", None, partition=1)
    put(log, topic, "c", None, partition=1)
    check(cluster, topic, a="4", b="5")
    assert_delta_is_the_log(cluster)


@pytest.mark.on_sqlite
def test_a_publisher_that_found_the_topic_before_it_got_the_table_leaves_it_as_it_is(cluster, log):
    """As an erase or a compaction pass that began hours ago."""
    found_before = make(cluster, "t", 1, **CONFIGS | {"table_current": "none"})
    topic = alter_configs(cluster, "t", {"table.current": "delta"})
    put(log, topic, "a", "1")
    check(cluster, topic, a="1")
    publish(cluster, found_before)
    assert {row[2].decode() for row in assert_current(cluster, topic)} == {"a"}


@pytest.mark.on_sqlite
def test_merged_and_compacted_files_show_the_same_rows(cluster, topic, log):
    for key, value in (("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"), ("b", None)):
        put(log, topic, key, value)
    check(cluster, topic, a="3", c="4")
    list(run_tasks(cluster, ["merge"]))
    check(cluster, topic, a="3", c="4")
    put(log, topic, "c", "5")
    list(run_tasks(cluster, ["merge"]))
    check(cluster, topic, a="3", c="5")
    list(run_tasks(cluster, ["compact"], now=True))
    check(cluster, topic, a="3", c="5")
    put(log, topic, "d", "6")
    check(cluster, topic, a="3", c="5", d="6")


@pytest.mark.on_sqlite
def test_a_file_that_was_replaced_may_be_gone(cluster, topic, log, monkeypatch):
    alter_settings(cluster, {"table.current.cache.bytes": "1"})
    put(log, topic, "old", "0")
    for n in range(8):
        put(log, topic, "a", str(n))
        put(log, topic, "b", str(n))
    publish(cluster, topic)
    segments = Path(location_of(cluster, topic), "..", "_segments", "0")
    before = set(segments.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr("spark_log.maintenance.rewrite.rewrite_loop.try_publish", lambda *_, **__: True)
        list(run_tasks(cluster, ["merge"]))
    merged = [path for path in before if f"_segments/0/{path.name}" not in listed_in(cluster, topic)]
    assert merged
    for path in merged:
        path.unlink()
    check(cluster, topic, old="0", a="7", b="7")


@pytest.mark.on_sqlite
def test_a_new_process_continues_the_table(cluster, topic, log):
    for n in range(40):
        put(log, topic, f"k{n % 7}", str(n))
        if n % 3 == 0:
            publish(cluster, topic)
        if n % 13 == 0:
            list(run_tasks(cluster, ["delta"]))  # writes checkpoints
        open_current._opened.clear()
    check(cluster, topic)
    folder = Path(location_of(cluster, topic))
    assert list(folder.glob("_delta_log/*.checkpoint.parquet"))


def test_the_cut_divides_no_append_of_several_partitions(cluster, log):
    """The records after the cut are in files too, and are shown by the next publication."""
    topic = make(cluster, "t", 2, **{**CONFIGS, "inline_max_bytes": "65536"})
    put(log, topic, "a", "1")
    put(log, topic, "b", "2", partition=1)
    cut = cluster.store.read(lambda connection: cuts(connection, [topic.topic_id]))
    put(log, topic, "a", "3")
    put(log, topic, "b", "4", partition=1)
    writer = Writer(cluster.store, "test", 60_000)
    assert [seal(cluster, writer, topic, partition) for partition in (0, 1)] == [1, 1]
    put(log, topic, "b", "5", partition=1)  # inline, so the present watermarks are no cut
    publish_all(cluster, [topic], cuts=cut)
    assert ends_of(cluster, topic) == {0: 1, 1: 1}
    assert [row[3] for row in assert_current(cluster, topic)] == [b"1", b"2"]
    publish(cluster, topic)  # without a later cut, the table stays where it is
    assert ends_of(cluster, topic) == {0: 1, 1: 1}
    list(run_tasks(cluster, ["merge"]))
    assert [row[3] for row in assert_current(cluster, topic)] == [b"1", b"2"]
    assert seal(cluster, writer, topic, 1) == 1
    check(cluster, topic, a="3", b="5")


@pytest.mark.parametrize("point", ["publish.before-commit", "current.vectors-written", "publish.committed"])
def test_a_killed_publisher_leaves_a_table_that_the_next_one_continues(cluster, topic, cluster_address, log, point):
    put(log, topic, "a", "1")
    publish(cluster, topic)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_log.maintenance.rewrite.table_loop.try_publish", lambda *_, **__: True)
        put(log, topic, "a", "2")
        put(log, topic, "b", "3")
    count = 1 if point.startswith("current") else 2  # the Delta table is published first
    killed = run_process("-c", PUBLISH, cluster_address, failpoint=f"{point}:{count}")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    check(cluster, topic, a="2", b="3")
    put(log, topic, "b", "4")
    check(cluster, topic, a="2", b="4")


@pytest.mark.on_sqlite
def test_a_foreign_commit_is_undone(cluster, topic, log):
    put(log, topic, "a", "1")
    put(log, topic, "a", "2")
    publish(cluster, topic)
    folder = Path(location_of(cluster, topic))
    *_, last = sorted((folder / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in last.read_text().splitlines()]
    hidden = next(action["add"] for action in actions if action.get("add", {}).get("deletionVector"))
    shown = {name: value for name, value in hidden.items() if name != "deletionVector"}
    lines = [{"commitInfo": {"operation": "RESTORE"}}, {"remove": {**hidden, "deletionTimestamp": 1}}, {"add": shown}]
    (folder / "_delta_log" / f"{int(last.stem) + 1:020d}.json").write_text("\n".join(map(json.dumps, lines)))
    put(log, topic, "b", "3")
    check(cluster, topic, a="2", b="3")


@pytest.mark.on_sqlite
def test_a_torn_log_is_written_anew(cluster, topic, log):
    put(log, topic, "a", "1")
    publish(cluster, topic)
    put(log, topic, "a", "2")
    publish(cluster, topic)
    open_current._opened.clear()
    *_, last = sorted(Path(location_of(cluster, topic), "_delta_log").glob("*.json"))
    last.write_bytes(last.read_bytes()[:100])
    put(log, topic, "b", "3")
    check(cluster, topic, a="2", b="3")


def test_a_table_that_is_switched_off_is_empty_and_can_be_switched_on_again(cluster, topic, log):
    put(log, topic, "a", "1")
    publish(cluster, topic)
    publish(cluster, alter_configs(cluster, "t", {"table.current": "none"}))
    assert ends_of(cluster, topic) == {}
    put(log, topic, "a", "2")
    check(cluster, alter_configs(cluster, "t", {"table.current": "delta"}), a="2")


@pytest.mark.on_sqlite
def test_typed_columns_join_the_schema(cluster, topic, log):
    put(log, topic, "a", '{"n": 1}')
    publish(cluster, topic)
    topic = alter_configs(cluster, "t", {"value.format": "json", "value.schema": "n BIGINT"})
    put(log, topic, "a", '{"n": 2}')
    put(log, topic, "b", '{"n": 3}')
    check(cluster, topic, a='{"n": 2}', b='{"n": 3}')
    query = QueryBuilder().register("t", DeltaTable(location_of(cluster, topic)))
    rows = query.execute("SELECT record FROM t ORDER BY offset_delta, base_offset")
    assert pa.RecordBatchReader.from_stream(rows).read_all().column("record").to_pylist() == [{"n": 2}, {"n": 3}]


@pytest.mark.on_sqlite
def test_vectors_that_are_replaced_are_deleted_after_a_day(cluster, topic, log, monkeypatch):
    for n in range(4):
        put(log, topic, "a", str(n))
        publish(cluster, topic)
    [info] = cluster.log_dirs().values()
    log_dir, now_ms = LogDir(info.uri), cluster.store.now().wall_ms
    day_ms = topic.config.file_delete_delay_fresh_ms
    assert len(list(Path(location_of(cluster, topic)).glob("*.bin"))) == 3
    assert clean_up(log_dir, topic, now_ms + day_ms - 60_000) == 0, "readers of earlier versions may be on them"
    assert clean_up(log_dir, topic, now_ms + day_ms + 60_000) == 0, "each file has the vector of another segment"
    list(run_tasks(cluster, ["merge"]))
    publish(cluster, topic)
    assert clean_up(log_dir, topic, now_ms + day_ms + 60_000) == 3
    check(cluster, topic, a="3")


def test_transfers_between_partitions_never_change_the_total(cluster, produce, monkeypatch):
    """Each transfer is a transaction with the new balances of two accounts, in two partitions. The table follows while
    they are made, and each of its versions has whole transfers only.
    """
    monkeypatch.setattr(table_schedule, "PUBLISH_MS", 100)
    monkeypatch.setattr(table_schedule, "_ROUNDS_TAKE_MAX", 1)
    topic = make(cluster, "t", 2, cleanup_policy="compact", delta_max_lag_ms="200", table_current="delta")
    producer = produce(transactional_id="bank")
    producer.init_transactions()
    balances = {0: 100, 1: 100}
    versions, stopped = [], threading.Event()

    def transfer():
        while not stopped.is_set():
            producer.begin_transaction()
            for partition in balances:
                balances[partition] += 1 if partition else -1
                producer.send("t", b"%d" % balances[partition], key=b"account", partition=partition)
            producer.commit_transaction()

    def until(count):
        while len(versions) < count:
            shown = ends_of(cluster, topic)
            if sum(shown.values()) and shown not in versions:
                rows = by_deltalake(location_of(cluster, topic))
                assert sum(int(value) for *_, value in rows) == 200, (shown, rows)
                versions.append(shown)
            stopped.wait(0.02)

    thread = threading.Thread(target=transfer)
    thread.start()
    try:
        until(4)
    finally:
        stopped.set()
        thread.join()


@pytest.mark.on_sqlite
def test_configs_that_a_table_cannot_follow_are_refused(cluster, log):
    for typed in ({}, {"value_format": "protobuf", "value_schema": "x"}):
        with pytest.raises(InvalidConfigurationError, match="json or avro"):
            make(cluster, "e", 1, **CONFIGS, **typed, value_envelope="debezium")
    for lacking in ({"table_current": "none"}, {"value_envelope": "none"}):
        events = {"value_format": "json", "value_schema": "a BIGINT", "value_envelope": "debezium"}
        with pytest.raises(InvalidConfigurationError, match=r"order=sequence: it needs table\.current"):
            make(cluster, "o", 1, **{**CONFIGS, **events, **lacking}, table_current_order="sequence")
    with pytest.raises(InvalidConfigurationError, match="retention would remove"):
        make(cluster, "r", 1, table_current="delta")
    make(cluster, "unlimited", 1, table_current="delta", retention_ms="-1")
    topic = make(cluster, "t", 1, **CONFIGS)
    with pytest.raises(InvalidConfigurationError, match="retention would remove"):
        alter_configs(cluster, "t", {"cleanup.policy": "delete"})
    with pytest.raises(InvalidPartitionsError, match=r"table\.current"):
        add_partitions(cluster, "t", 2)
    assert find(cluster, "t").config == topic.config
