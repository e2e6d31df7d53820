"""Warnings of records that are older than retention.ms: on every write path, once, and correct."""

import logging

import pyarrow as pa
import pytest

from spark_log import clock
from spark_log.log.append.append_transaction import AppendRequest
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.maintenance import run_tasks
from spark_log.maintenance.removal import expired_records
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.datasource.write.write_commit import append_whole, commit_log
from tests.support.records import table
from tests.support.stores import also_on_two_stores
from tests.support.topics import append

OLD_MS = 1_388_534_400_000
"""2014-01-01."""
HOUR_MS = 3_600_000
NEXT_RUN = "retention deletes such records at its next run"


@pytest.fixture
def warnings(caplog):
    """The warnings since the last call."""

    def take():
        found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        caplog.clear()
        return found

    return take


def count_expiring(cluster, topic):
    """Number of records that the next run of retention deletes from a topic."""
    return sum(report.before.records for report in run_tasks(cluster, ["retention"], topics=[topic], dry_run=True))


@also_on_two_stores
def test_a_producer_warns_once_a_topic(cluster, produce, warnings):
    for name in ("sent", "tables", "transacted", "young", "kept", "stamped", "compacted"):
        configs = {
            "kept": {"retention.ms": "-1"},
            "stamped": {"message.timestamp.type": "LogAppendTime"},
            "compacted": {"cleanup.policy": "compact"},
        }
        create_topic(cluster, name, configs=configs.get(name, {}))
    producer = produce()
    for _ in range(3):
        producer.send("sent", b"old", timestamp_ms=OLD_MS).get(timeout=60)
    [said] = warnings()
    assert said.startswith(
        "topic 'sent': 1 record of 2014-01-01, older than retention.ms=604800000 (7 days): " + NEXT_RUN
    )
    assert said.endswith("`spark-log topic alter sent --config retention.ms=-1`, or write without timestamps")
    times = pa.array([OLD_MS, OLD_MS + 48 * HOUR_MS], pa.timestamp("ms", "UTC"))
    rows = pa.table({"value": ["a", "b"], "timestamp": times})
    for _ in range(2):
        producer.send_table("tables", rows).get(timeout=60)
    [said] = warnings()
    assert said.startswith("topic 'tables': 2 records from 2014-01-01 to 2014-01-03, ")
    producer.send("young", b"now").get(timeout=60)
    for name in ("kept", "stamped", "compacted"):
        producer.send(name, b"old", key=b"k", timestamp_ms=OLD_MS).get(timeout=60)
    assert warnings() == []

    transactional = produce(transactional_id="t")
    transactional.init_transactions()
    for _ in range(2):
        transactional.begin_transaction()
        transactional.send("transacted", b"old", timestamp_ms=OLD_MS)
        transactional.commit_transaction()
    [said] = warnings()
    assert said.startswith("topic 'transacted': 1 record")
    assert [count_expiring(cluster, name) for name in ("sent", "tables", "transacted")] == [3, 4, 2], "as was said"


def test_the_warning_counts_the_records_that_retention_deletes(cluster, log):
    topic = create_topic(cluster, "t", 3)
    now_ms = clock.wall_ms()
    mixed = table("old", "young").set_column(
        3, "timestamp", pa.array([OLD_MS * 1000, now_ms * 1000], pa.int64()).cast(table("x").column("timestamp").type)
    )
    log.append(topic, [Records(0, mixed)])
    assert log.take_expired() == []
    assert count_expiring(cluster, "t") == 0, "a segment goes by its largest timestamp"

    append(log, topic, "old", "older", partition=0, timestamp_ms=OLD_MS)
    [behind] = log.take_expired()
    assert (behind.records, behind.at_next_run) == (2, False)
    assert "retention deletes such records as soon as the younger records before them have expired" in str(behind)
    assert count_expiring(cluster, "t") == 0


def test_the_first_micro_batch_with_expired_records_warns(cluster, log, warnings):
    topic = create_topic(cluster, "t")

    def commit(timestamp_ms, micro_batch=True):
        records = Records(0, table("a", timestamp_ms=timestamp_ms))
        written = log.at(topic.store_id).write_batches([(topic, records)])
        with commit_log(cluster.of(topic), micro_batch=micro_batch) as log_of_commit:
            append_whole(log_of_commit, AppendRequest(written.batches, written.blobs))
        return len(warnings())

    now_ms = clock.wall_ms()
    assert [commit(time_ms) for time_ms in (OLD_MS, OLD_MS, now_ms, OLD_MS, OLD_MS)] == [1, 0, 0, 1, 0]
    assert commit(OLD_MS, micro_batch=False) == 1


def test_an_error_after_the_commit_does_not_fail_the_append(cluster, log, monkeypatch, caplog):
    topic = create_topic(cluster, "t")
    monkeypatch.setattr(expired_records, "expired_batches", lambda *_: 1 / 0)
    assert log.append(topic, [Records(0, table("a"))]) == [Appended(0, 1)]
    assert "work after an append has failed" in caplog.text
