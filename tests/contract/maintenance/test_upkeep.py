"""Sealing by age, flush.ms, the upkeep of Delta tables, and the schedule of the coordinator."""

import os
from pathlib import Path

import pytest
import sqlalchemy as sa
from deltalake import DeltaTable, write_deltalake

from spark_log import clock
from spark_log.config import ClusterSettings
from spark_log.maintenance import run_tasks
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.maintenance.rewrite.segment_merge import BACKGROUND_GROWTH, runs_of
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PARTITION, SEGMENT
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.tables.checkpoints import COMMITS_MAX
from spark_log.tables.publication import delta_tables
from tests.support.stores import change, topics_view
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole, shape
from tests.support.topics import append, dense_rows, make
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite, pytest.mark.on_data_store]


FILES = {"inline_max_bytes": "0", "retention_ms": "-1"}


def run(cluster, *tasks, topics=None):
    return list(run_tasks(cluster, tasks, topics=topics))


def append_files(log, topic, *numbers, partition=0):
    """A file of three records for each number."""
    for number in numbers:
        append(log, topic, *(f"{number}-{index}" for index in range(3)), partition=partition, key=b"k")


def make_older(cluster, topic, by_ms):
    """Age the topic's records by `by_ms`, as if they had been appended earlier."""
    older = t.segment.update().where(SEGMENT.topic_id == topic.topic_id).values(appended_ms=SEGMENT.appended_ms - by_ms)
    change(cluster, older)


def test_tails_are_sealed_by_age_and_overlong_tails_at_once(cluster, log):
    old = make(cluster, "old", segment_ms="60000", delta_max_lag_ms="-1")
    young = make(cluster, "young", segment_ms="60000", delta_max_lag_ms="-1")
    left = make(cluster, "left", segment_ms="600000", delta_max_lag_ms="-1")
    for name in ("old", "young", "left"):
        append(log, name, "a")
        append(log, name, "b")
    make_older(cluster, old, 60_000)
    make_older(cluster, left, 60_000)
    assert [report.topic for report in run(cluster, "seal")] == ["old"]
    assert shape(cluster, old) == [(0, 2)]
    assert shape(cluster, young) == shape(cluster, left) == [(0, 1, "blob"), (1, 2, "blob")]
    alter_configs(cluster, "left", {"inline.tail.bytes": "1"})  # as if it had not been sealed when it reached its limit
    (report,) = run(cluster, "seal")
    assert (report.topic, report.before.files, report.after.files, report.after.records) == ("left", 2, 1, 2)
    append(log, "old", "c")
    assert run(cluster, "seal") == [], "a tail's age is that of its first blob"
    assert [row["value"] for row in dense_rows(log, "old")] == [b"a", b"b", b"c"]
    assert_delta_is_the_log(cluster)


def test_unforced_data_is_forced_by_flush_ms(cluster, log):
    slow = make(cluster, "slow", flush_messages="1000", flush_ms="60000", delta_max_lag_ms="-1")
    make(cluster, "never", flush_messages="1000")
    make(cluster, "always")
    for name in ("slow", "never", "always"):
        append(log, name, "a", "b")

    def recovery_points():
        query = sa.select(t.topic.c.name, PARTITION.recovery_point).join(
            t.topic, t.topic.c.topic_id == PARTITION.topic_id
        )
        return topics_view(cluster).store.read(lambda connection: dict(map(tuple, connection.execute(query))))

    assert recovery_points() == {"slow": 0, "never": 0, "always": 2}
    assert run(cluster, "flush") == []
    make_older(cluster, slow, 60_000)
    (report,) = run(cluster, "flush")
    assert (report.topic, report.partitions) == ("slow", 1)
    assert recovery_points() == {"slow": 2, "never": 0, "always": 2}
    append(log, "slow", "c")
    assert run(cluster, "flush") == [], "the age is that of the first record that was not forced"
    alter_configs(cluster, "never", {"flush.messages": "1"})
    assert [report.topic for report in run(cluster, "flush")] == ["never"]


def test_delta_tables_are_healed_checkpointed_and_freed_of_old_log_files(cluster, log, monkeypatch):
    forced, real_fsync = [], os.fsync

    def fsync(descriptor):
        forced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    topic = make(cluster, "t", **FILES)
    append_files(log, topic, *range(COMMITS_MAX - 2))
    (location,) = delta_tables(cluster, topic).values()
    folder = Path(location, "_delta_log")
    assert run(cluster, "delta") == [], "a table that is right, and quick to open"

    foreign = DeltaTable(location).to_pyarrow_table().slice(0, 1)
    write_deltalake(location, foreign, mode="append")
    (report,) = run(cluster, "delta")
    assert report.notes == ("updated the Delta table", f"checkpoint at version {COMMITS_MAX}")
    assert_delta_is_the_log(cluster)
    assert (folder / f"{COMMITS_MAX:020d}.checkpoint.parquet").exists()
    assert {f"{COMMITS_MAX:020d}.checkpoint.parquet", "_last_checkpoint"} <= set(forced)

    append_files(log, topic, *range(COMMITS_MAX))
    long_ago_s = clock.wall_ms() / 1000 - 40 * 86_400
    for path in folder.glob("*"):
        if path.name[:20].isdigit() and int(path.name[:20]) <= COMMITS_MAX + 2:
            os.utime(path, (long_ago_s, long_ago_s))
    (report,) = run(cluster, "delta")
    assert report.notes == (f"checkpoint at version {2 * COMMITS_MAX}",)
    assert report.after.files < report.before.files
    assert not (folder / f"{3:020d}.json").exists()
    assert_delta_is_the_log(cluster)
    for version in (COMMITS_MAX + 1, COMMITS_MAX + 5, 2 * COMMITS_MAX):
        found = DeltaTable(location, version=version).to_pyarrow_table().num_rows
        assert found == 3 * (version - 2), "what is younger than the log's retention, and what it is read from, stays"
    append_files(log, topic, 99)
    assert_delta_is_the_log(cluster)


def test_the_coordinator_runs_the_tasks_on_its_schedule(cluster, log):
    """At the same time as a manual run of the same tasks: only one swap of a file succeeds."""
    topic = make(cluster, "t", segment_ms="1", inline_tail_bytes="100000", retention_ms="-1")
    for number in range(10):
        append(log, topic, f"{number}")
        while shape(cluster, topic)[-1][2:] == ("blob",):  # by PostgreSQL's clock it may be younger than a millisecond
            run(cluster, "seal")
    # a slow machine may give the loop of the log the time to merge some of these files
    assert not any(each[2:] for each in shape(cluster, topic)), "all are files"

    def is_done():
        runs = topics_view(cluster).store.read(lambda connection: runs_of(connection, topic, 0, BACKGROUND_GROWTH))
        sealed = all(each[2:] != ("blob",) for each in shape(cluster, topic))
        return sealed and not runs and (0, 1) not in shape(cluster, topic)

    settings = ClusterSettings(table_loop_poll_ms=20, log_merge_interval_ms=20)
    with Coordinator(cluster, settings=settings):
        for number in range(10, 30):
            append(log, topic, f"{number}")
            if number % 10 == 5:
                run(cluster, "seal", "merge")
        wait_until(is_done, "the merge of all files", pause_s=0.05)
    assert [row["value"] for row in dense_rows(log, "t")] == [str(number).encode() for number in range(30)]
    run(cluster, "delta")
    assert_delta_is_the_log(cluster)
    assert_replicas_are_whole(cluster)
