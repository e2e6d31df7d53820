"""A dry run of maintenance reports the work of a run, and changes nothing."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from spark_log import clock
from spark_log.groups.committed_offsets import commit_offsets
from spark_log.ids import TopicPartition
from spark_log.log.append import write_ids
from spark_log.maintenance import TASKS, run_tasks
from spark_log.maintenance.removal.retention import apply_retention
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.transactions.transaction_store import init_producer
from tests.support.replicas import folder_of
from tests.support.topics import append

FILES = {"inline.max.bytes": "0"}
KEPT = {**FILES, "retention.ms": "-1"}
OLD_MS = 1_388_534_400_000
"""2014-01-01."""
DAY_MS = 24 * 60 * 60 * 1000


def everything(cluster):
    """Every row of every table, and every file in the log dirs."""

    def read(connection):
        return {
            table.name: sorted(map(repr, connection.execute(sa.select(table))))
            for table in t.metadata.sorted_tables
            if table.name != "commit_token"  # belongs to a connection, not to the cluster
        }

    folder = folder_of(cluster, 1)
    found = {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in Path(folder).rglob("*")
        if not path.name.startswith("metadata.")
    }
    return cluster.store.read(read), found


def due_work(cluster, log, produce):
    """Work for every task."""
    now_ms = clock.wall_ms()
    expired = create_topic(cluster, "expired", configs=FILES)
    for value in ("a", "b"):
        append(log, expired, value, timestamp_ms=OLD_MS)
    append(log, expired, "young", timestamp_ms=now_ms)
    bounded = create_topic(cluster, "bounded", configs={**KEPT, "retention.bytes": "1"})
    for value in ("a", "b"):
        append(log, bounded, value, timestamp_ms=now_ms)
    compacted = create_topic(
        cluster, "compacted", configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    )
    for value in ("a", "b"):
        append(log, compacted, value, key=b"k")
    small = create_topic(cluster, "small", configs=KEPT)
    for number in range(11):
        append(log, small, f"{number}")
    # its tail is due by segment.ms only: otherwise an append, of any topic, would seal it on a slow machine
    tail = create_topic(cluster, "tail", configs={"retention.ms": "-1", "segment.ms": "1", "delta.max.lag.ms": "-1"})
    append(log, tail, "inline")
    unforced = create_topic(
        cluster, "unforced", configs={"flush.messages": "1000", "flush.ms": "1", "retention.ms": "-1"}
    )
    append(log, unforced, "unforced")
    retired = create_topic(cluster, "retired", configs={**FILES, "retired.file.retention.ms": "0"})
    append(log, retired, "gone", timestamp_ms=OLD_MS)
    append(log, retired, "young", timestamp_ms=now_ms)
    apply_retention(cluster, retired)
    deleted = create_topic(cluster, "deleted", configs=FILES)
    append(log, deleted, "deleted")
    delete_topic(cluster, "deleted")

    producer = produce(transactional_id="slow", transaction_timeout_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("small", b"pending").get(timeout=60)
    init_producer(cluster, "idle", 60_000)
    commit_offsets(cluster.store, "readers", {TopicPartition("small", 0): 1})
    old_id = write_ids.register(cluster.store, "killed", 60_000)
    orphan = folder_of(cluster, 1) / small.folder / "_segments" / "0" / f"{old_id}-0.parquet"
    orphan.write_bytes(b"orphan")

    def age(connection):
        long_ago = now_ms - 400 * DAY_MS
        connection.execute(t.retired_file.update().where(t.retired_file.c.partition.is_(None)).values(retired_ms=0))
        connection.execute(t.transaction.update().values(began_ms=0, until_ms=0))
        idle = t.producer.c.transactional_id == "idle"
        connection.execute(t.producer.update().where(idle).values(last_used_ms=long_ago))
        connection.execute(t.group_offset.update().values(committed_ms=long_ago))
        connection.execute(t.consumer_group.update().values(empty_since_ms=long_ago))
        connection.execute(t.write_id.update().where(t.write_id.c.write_id == old_id).values(until_ms=0))
        silent = {"producer_id": 900, "epoch": 0, "last_used_ms": 0, "transaction_timeout_ms": 0}
        last = {**silent, "producer_id": 901, "last_used_ms": now_ms}  # the last one would not be deleted
        connection.execute(t.producer.insert(), [silent, last])

    cluster.store.transact(age)


@pytest.mark.delta
def test_a_dry_run_reports_the_work_of_a_run_and_changes_nothing(cluster, log, produce):
    due_work(cluster, log, produce)
    before = everything(cluster)
    planned = list(run_tasks(cluster, dry_run=True))
    assert everything(cluster) == before
    assert all(report.dry_run for report in planned)
    assert {report.task for report in planned} == {task.name for task in TASKS if task.every_ms is not None}

    notes = {(report.task, report.topic): "; ".join(report.notes) for report in planned}
    assert notes["retention", "expired"].startswith(
        "retention.ms=604800000 (7 days): newest record of the segments 2014-01-01T00:00:00.000Z; frees 0 B now, "
    )
    assert notes["retention", "bounded"].startswith("retention.bytes=1 (1 B): newest record of the segments 2")
    assert notes["expire", None] == "expired: 1 committed offset, 1 producer, 1 transactional id"
    assert notes["transactions", None] == "aborts slow: its transaction.timeout.ms has passed"
    assert notes["compact", "compacted"].startswith("2 records since the last pass, ")
    assert notes["merge", "small"].startswith("11 files become 1 file; deletes nothing")
    assert notes["seal", "tail"].endswith("bytes of inline tails become files; deletes nothing")
    assert notes["flush", "unforced"] == "deletes nothing"
    assert notes["delta", "small"].startswith("checkpoint at version ")

    for task in ("retention", "files", "expire"):  # the real run deletes exactly the dry run's report
        told = [report for report in planned if report.task == task]
        done = list(run_tasks(cluster, [task]))
        assert [(r.topic, r.partitions, r.before, r.notes) for r in done] == [
            (r.topic, r.partitions, r.before, r.notes) for r in told
        ]
        assert not any(report.dry_run for report in done)


def test_the_unit_of_a_dry_run_is_the_topic(cluster, log):
    for name in ("one", "other"):
        topic = create_topic(cluster, name, 2, configs=FILES)
        append(log, topic, "a", timestamp_ms=OLD_MS)
        append(log, topic, "b", partition=1, timestamp_ms=OLD_MS)
    [report] = run_tasks(cluster, ["retention"], topics=["one"], dry_run=True)
    assert (report.topic, report.partitions, report.before.files, report.before.records) == ("one", 2, 2, 2)
