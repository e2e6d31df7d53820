"""Merging of segments, on both stores: reads before and after are equal, and streams of tables see a record once."""

import json
import random

import pyarrow as pa
import pytest
import sqlalchemy as sa

from spark_log.cluster.log_dir import LogDir
from spark_log.log.append.write_ids import Writer
from spark_log.log.log import Records
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.erase.erase import erase
from spark_log.maintenance.rewrite.segment_merge import merge
from spark_log.maintenance.rewrite.tail_seal import seal
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import REPLICA
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.replication.replicas.catch_up import catch_up
from spark_log.tables.table_changes import TopicTable
from tests.support.python_process import killed_at, output_of
from tests.support.records import table
from tests.support.replicas import bring_back, copied_segments, take_away, topic_on
from tests.support.s3 import also_on_s3
from tests.support.stores import change, topics_view
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole, shape
from tests.support.topics import append, dense_rows, make

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite, pytest.mark.on_data_store]


FILES = {"inline_max_bytes": "0", "retention_ms": "-1"}


UNSEALED = {"delta_max_lag_ms": "-1", "retention_ms": "-1"}
"""Tails that no append seals because of their age, on a machine where the appends take seconds."""


def run(cluster, *tasks, topics=None):
    return list(run_tasks(cluster, tasks, topics=topics))


def append_files(log, topic, *numbers, partition=0):
    """A file of three records for each number."""
    for number in numbers:
        append(log, topic, *(f"{number}-{index}" for index in range(3)), partition=partition, key=b"k")


def data_changes(cluster, topic, kind):
    """The files in actions of this kind in the Delta log that a stream of the table treats as new or deleted data."""
    [info] = cluster.log_dirs().values()
    log_dir = LogDir(info.uri)
    commits = [path for path in sorted(log_dir.list_files(f"{topic.folder}/_delta_log")) if path.endswith(".json")]
    actions = [
        action[kind]
        for path in commits
        for action in map(json.loads, log_dir.read(path).splitlines())
        if kind in action
    ]
    return [action for action in actions if action["dataChange"]]


@also_on_s3
def test_merged_segments_have_the_records_of_their_inputs(cluster, log):
    topic = make(cluster, "t", 3, **FILES)
    append_files(log, topic, *range(12))
    append_files(log, topic, 0, 1, partition=2)
    other = make(cluster, "other", **FILES)
    append_files(log, other, 0, 1)
    alter_configs(cluster, "t", {"message.timestamp.type": "LogAppendTime"})
    append_files(log, "t", 12, 13, 14)
    before = dense_rows(log, "t")

    (report,) = run(cluster, "merge", topics=["t"])
    assert (report.task, report.topic, report.partitions, report.notes) == ("merge", "t", 2, ())
    assert (report.before.files, report.after.files) == (17, 3)
    assert report.before.records == report.after.records == len(before)
    assert shape(cluster, topic) == [(0, 36), (36, 45)], "one of each timestamp type"
    assert shape(cluster, topic, 2) == [(0, 6)]
    assert shape(cluster, other) == [(0, 3), (3, 6)]
    assert dense_rows(log, "t") == before
    assert_delta_is_the_log(cluster)
    assert_replicas_are_whole(cluster)
    assert len(data_changes(cluster, topic, "add")) == 17, "what was merged is no new data to a Delta stream"
    assert data_changes(cluster, topic, "remove") == []

    assert run(cluster, "merge", topics=["t"]) == [], "there is nothing left to merge"
    append_files(log, "t", 15)
    assert dense_rows(log, "t")[: 15 * 3] == before[: 15 * 3]
    assert_delta_is_the_log(cluster)


def test_no_file_spans_the_end_of_the_published_offsets(cluster, log):
    """A stream of the Delta table would see such a file as old and new data at once."""
    topic = make(cluster, "t", **FILES)
    append_files(log, topic, *range(6))
    change(cluster, t.publication_cursor.update().values(seen_offset=9, high_watermark=9))
    run(cluster, "merge")
    assert shape(cluster, topic) == [(0, 9), (9, 18)]
    change(cluster, t.publication_cursor.update().values(seen_offset=18, high_watermark=18))
    run(cluster, "merge")
    assert shape(cluster, topic) == [(0, 18)]


@pytest.mark.parametrize("rewrite", ["erase", "columns", "compact"])
def test_a_file_that_a_table_lists_above_a_tail_is_not_new_when_it_is_written_again(cluster, log, rewrite):
    """The tail was sealed, and is not published yet. A stream of the table has seen the file."""
    policy = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"} if rewrite == "compact" else {}
    topic = make(cluster, "t", inline_max_bytes="1000", **UNSEALED, **policy)
    append(log, topic, "tail", key=b"a")
    alter_configs(cluster, "t", {"inline.max.bytes": "0"})
    log.append(log.find_topic("t"), [Records(0, table(*"123").set_column(0, "key", pa.array([b"k", b"l", b"l"])))])
    append(log, "t", *"456", key=b"l")
    run(cluster, "delta")
    view = topics_view(cluster)
    writer = Writer(view.store, "test", 60_000)
    assert seal(view, writer, topic, 0) == 1
    if rewrite == "erase":
        assert erase(cluster, "t", [b"k"]).records == 1
    else:
        if rewrite == "columns":
            alter_configs(cluster, "t", {"value.format": "json", "value.schema": "n BIGINT"})
        [report] = run(cluster, rewrite)
        assert report.before.files
    run(cluster, "delta")
    writer.close()
    assert_delta_is_the_log(cluster)


def test_files_that_a_table_lists_above_a_tail_are_merged_after_the_tail_is_published(cluster, log):
    """The tail was sealed, and is not published, for example since a promotion of the store is not accepted. A stream
    of the table has seen the files above it, and not the records of the tail.
    """
    topic = make(cluster, "t", inline_max_bytes="1000", **UNSEALED)
    append(log, topic, "tail")
    alter_configs(cluster, "t", {"inline.max.bytes": "0"})
    append_files(log, "t", *range(6))
    run(cluster, "delta")
    assert shape(cluster, topic)[:2] == [(0, 1, "blob"), (1, 4)]
    writer = Writer(topics_view(cluster).store, "test", 60_000)
    assert seal(topics_view(cluster), writer, topic, 0) == 1
    sealed = shape(cluster, topic)
    assert list(merge(topics_view(cluster), writer, topic, 0)) == []
    assert shape(cluster, topic) == sealed
    run(cluster, "delta")
    [_] = merge(topics_view(cluster), writer, topic, 0)
    assert shape(cluster, topic) == [(0, 19)]
    run(cluster, "delta")
    writer.close()
    assert_delta_is_the_log(cluster)


def test_a_table_of_an_earlier_release_is_continued(cluster, log, monkeypatch):
    """It has one application id, which names the log dir. A process of that release may publish again."""
    topic = make(cluster, "t", **FILES)
    append_files(log, topic, *range(6))
    earlier = property(lambda table: (table.table_id,))
    for of_release in (earlier, TopicTable.applications, earlier):
        monkeypatch.setattr(TopicTable, "applications", of_release)
        append_files(log, topic, *range(2))
        run(cluster, "delta")
    monkeypatch.undo()
    run(cluster, "merge")
    assert_delta_is_the_log(cluster)


APPEND = """
import sys
from spark_log import Cluster
from spark_log.maintenance.client_log import ClientLog
from tests.support.children import live
from tests.support.topics import append

def work(_):
    with Cluster.open(sys.argv[1]) as cluster:
        log = ClientLog(cluster)
        append(log, log.find_topic("t"), "a", "b", "c", key=b"k")

live(sys.argv[2:], work)
"""


def test_a_stream_sees_each_record_once_when_a_merge_follows_a_publication_that_was_killed(
    cluster, cluster_address, log
):
    topic = make(cluster, "t", **FILES)
    append_files(log, topic, 0)
    output_of(APPEND, cluster_address, "publish.committed", "publish.before-commit", "append.committed")
    run(cluster, "merge")
    run(cluster, "delta")
    assert_delta_is_the_log(cluster)
    append_files(log, topic, 4)
    run(cluster, "merge", "delta")
    assert shape(cluster, topic) == [(0, 15)], "what kept files apart is forgotten"
    assert_delta_is_the_log(cluster)


@pytest.mark.parametrize("task", ["merge", "compact", "erase"])
def test_a_stream_sees_files_above_the_inline_tail_once(cluster, log, task):
    """Delta tables list them before the records below them."""
    policy = "compact" if task == "compact" else "delete"
    topic = make(cluster, "t", inline_max_bytes="3000", cleanup_policy=policy, **UNSEALED)
    large = ["".join(random.Random(seed).choices("0123456789abcdef", k=9_000)) for seed in range(5)]
    append(log, topic, large[0], key=b"a")
    append(log, topic, "small", key=b"b")
    for value in large[1:4] * 2:
        log.append(topic, [Records(0, pa.concat_tables([table(value, key=b"c"), table("other", key=b"d")]))])
    append(log, topic, "small", key=b"d")
    append(log, topic, large[4], key=b"a")
    blob = ("blob",)
    assert [each[2:] for each in shape(cluster, topic)] == [(), blob, *[()] * 6, blob, ()]
    for _ in range(2):
        if task == "erase":
            erase(cluster, "t", [b"c"])
        else:
            run(cluster, task)
        run(cluster, "delta")
        assert_delta_is_the_log(cluster)
        log.seal(topic, [0])
    append(log, topic, large[4], key=b"e")
    run(cluster, "merge", "delta")
    assert_delta_is_the_log(cluster)
    assert len(shape(cluster, topic)) <= 2, "what kept files apart is forgotten"


KILL = "import sys; from spark_log.maintenance import run_tasks; list(run_tasks(sys.argv[1], ['merge']))"


@pytest.mark.parametrize("point", ["merge.file-written", "merge.committed"])
def test_a_killed_merge_loses_nothing(cluster, cluster_address, log, point):
    topic = make(cluster, "t", 2, **FILES)
    append_files(log, topic, *range(4))
    append_files(log, topic, *range(4), partition=1)
    before = dense_rows(log, "t")
    killed_at(f"{point}:2", "-c", KILL, cluster_address)

    assert dense_rows(log, "t") == before
    append_files(log, topic, 4)
    before = dense_rows(log, "t")
    run(cluster, "merge", "delta")
    assert len(shape(cluster, topic)) <= 2, "the rest was merged"
    assert shape(cluster, topic, 1) == [(0, 12)]
    assert dense_rows(log, "t") == before
    assert_delta_is_the_log(cluster)
    assert_replicas_are_whole(cluster)
    assert len(data_changes(cluster, topic, "add")) == 9, "each append once, whatever was merged"
    assert data_changes(cluster, topic, "remove") == []


def test_a_merge_reaches_every_replica_in_sync_and_the_others_later(three_brokers):
    cluster = three_brokers
    topic = topic_on(cluster, "t", [[1, 2, 3]], **FILES)
    log = ClientLog(cluster)
    append_files(log, topic, *range(4))
    take_away(cluster, 3)
    append_files(log, topic, *range(4, 8))
    before = dense_rows(log, "t")

    (report,) = run(cluster, "merge")
    assert (report.before.files, report.after.files) == (8, 2), "what log dir 3 has published, and what it has not"
    query = sa.select(REPLICA.broker_id, REPLICA.log_end_offset).order_by(REPLICA.broker_id)
    found = topics_view(cluster).store.read(lambda connection: connection.execute(query).all())
    assert list(map(tuple, found)) == [(1, 24), (2, 24), (3, 0)], "it is whole up to where the merged range begins"
    assert_replicas_are_whole(cluster)

    bring_back(cluster, 3)
    with copied_segments() as copied:
        catch_up(cluster.of(topic), topic, 0, 3)
    assert len(copied) == 2
    append_files(log, topic, 8)
    assert_replicas_are_whole(cluster)
    in_sync = sa.select(REPLICA.in_sync)
    assert set(topics_view(cluster).store.read(lambda c: c.execute(in_sync).scalars().all())) == {True}
    assert dense_rows(log, "t")[: len(before)] == before
    assert_delta_is_the_log(cluster)
    log.close()
