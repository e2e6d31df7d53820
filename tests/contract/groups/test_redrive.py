"""Redrive of dead letters: each is copied back to its topic once, also if the redrive is killed and repeated."""

import signal
import time

import pytest

from spark_log import AcknowledgeType, ShareConsumer
from spark_log.errors import (
    DataLossError,
    InvalidRecordError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from spark_log.groups.offset_expiry import expire_offsets
from spark_log.groups.share import rows
from spark_log.ids import TopicPartition
from spark_log.maintenance.removal.retention import delete_records
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.spark.streams import redrive as redrive_module
from spark_log.spark.streams.redrive import Redrive
from tests.support.python_process import PythonProcess
from tests.support.replicas import truncate
from tests.support.share_members import finish
from tests.support.stores import change
from tests.support.topics import all_stored, consume_all
from tests.support.waiting import LIMIT_S

LETTERS = {"errors.deadletterqueue.group.enable": "true"}
POINTERS = {"errors.deadletterqueue.copy.record.enable": "false"}
REDRIVE = """
import os, signal, sys
from spark_log import Cluster
from spark_log.spark.streams import redrive

address, kill_after, before_commit = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
redrive._TOGETHER = 2
copies = redrive._Loop.copy
calls = []

def copy(loop, letters, producer):
    copies(loop, letters, producer)
    producer.flush()
    calls.append(letters.num_rows)
    if before_commit and len(calls) == kill_after:
        os.kill(os.getpid(), signal.SIGKILL)

def report(redriven):
    if not before_commit and len(calls) == kill_after:
        os.kill(os.getpid(), signal.SIGKILL)

redrive._Loop.copy = copy
with Cluster.open(address) as cluster, redrive.Redrive(cluster, "dlq.jobs") as letters:
    letters.run(report)
"""


@pytest.fixture
def reject(cluster, cluster_address, produce):
    """A function that sends records to topic `jobs` and rejects them, so that they have letters in `dlq.jobs`."""
    create_topic(cluster, "jobs", partitions=2)
    create_topic(cluster, "dlq.jobs", configs=LETTERS)
    base = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.jobs"}

    def send_and_reject(*values, count=None, **configs):
        cluster.store.transact(lambda connection: rows.save_configs(connection, "workers", {**base, **configs}))
        producer = produce()
        for number, value in enumerate(values):
            headers = [("mine", b"kept")]
            producer.send("jobs", value.encode(), key=b"key", headers=headers, partition=number % 2).get()
        settings = {"group_id": "workers", "share_acknowledgement_mode": "explicit"}
        with ShareConsumer("jobs", cluster=cluster_address, **settings) as consumer:
            finish(consumer, AcknowledgeType.REJECT, len(values) if count is None else count)

    return send_and_reject


@pytest.fixture
def redrive(cluster):
    """A function that redrives `dlq.jobs` once."""

    def run(**options):
        with Redrive(cluster, "dlq.jobs", **options) as letters:
            return letters.run()

    return run


@pytest.mark.on_sqlite
def test_letters_go_back_to_their_partitions_without_their_headers_and_once(cluster, cluster_address, reject, redrive):
    reject("a", "b", "c")
    with Redrive(cluster, "dlq.jobs") as letters:
        assert letters.preview().copied == {"jobs": 3}
    done = redrive()
    assert (done.copied, done.missing) == ({"jobs": 3}, 0)
    copies = [record for record in consume_all(cluster_address, 6, "jobs") if record.offset >= 2 - record.partition]
    assert sorted((copy.partition, copy.value) for copy in copies) == [(0, b"a"), (0, b"c"), (1, b"b")]
    assert {(copy.key, tuple(copy.headers)) for copy in copies} == {(b"key", (("mine", b"kept"),))}
    assert redrive().copied == {}
    with Redrive(cluster, "dlq.jobs") as letters:
        assert letters.preview().copied == {}
    long_ago = {"empty_since_ms": 0}
    change(cluster, t.consumer_group.update().where(t.consumer_group.c.type != "share").values(long_ago))
    change(cluster, t.group_offset.update().values(committed_ms=0))
    assert expire_offsets(cluster.store) == 0
    assert redrive().copied == {}, "also after a week"
    reject("d", count=4)
    assert redrive().copied == {"jobs": 4}, "the group has rejected the copies, too"


@pytest.mark.on_sqlite
def test_a_limit_and_another_topic(cluster, reject, redrive):
    create_topic(cluster, "again")
    reject("a", "b", "c")
    assert redrive(to="again", limit=2).copied == {"again": 2}
    with Redrive(cluster, "dlq.jobs", to="again", limit=2) as letters:
        assert letters.preview().copied == {"again": 1}
    assert redrive(to="again").copied == {"again": 1}
    assert all_stored(cluster, "again") == ["a", "b", "c"]
    assert redrive(to="again", group="other").copied == {"again": 3}, "a group of its own copies all letters"
    with pytest.raises(InvalidRecordError, match="to the same topic"):
        redrive(to="dlq.jobs")
    with pytest.raises(UnknownTopicOrPartitionError):
        redrive(to="nowhere")


@pytest.mark.on_sqlite
def test_a_letter_without_a_copy_is_read_from_its_topic(cluster, cluster_address, reject, redrive):
    reject("a", "b", "c", **POINTERS)
    delete_records(cluster, {TopicPartition("jobs", 1): 1})
    with Redrive(cluster, "dlq.jobs") as letters:
        shown = letters.preview()
    assert (shown.copied, shown.missing) == ({"jobs": 2}, 1)
    with pytest.raises(DataLossError, match="jobs-1@0 is gone"):
        redrive()
    assert len(consume_all(cluster_address, 2, "jobs")) == 2, "nothing was copied"
    done = redrive(skip_missing=True)
    assert (done.copied, done.missing) == ({"jobs": 2}, 1)
    copies = [record for record in consume_all(cluster_address, 4, "jobs") if record.offset >= 2]
    assert sorted(copy.value for copy in copies) == [b"a", b"c"]
    assert copies[0].headers == [("mine", b"kept")]


@pytest.mark.on_sqlite
def test_a_topic_that_was_created_again_has_other_records(cluster, produce, reject, redrive):
    reject("a", **POINTERS)
    delete_topic(cluster, "jobs")
    with pytest.raises(DataLossError, match="jobs-0@0 is gone"):
        redrive()
    create_topic(cluster, "jobs")
    produce().send("jobs", b"another record at the same offset").get()
    with pytest.raises(DataLossError, match="jobs-0@0 is gone"):
        redrive()


@pytest.mark.on_sqlite
def test_records_that_are_not_dead_letters_are_refused(cluster, cluster_address, produce, reject, redrive):
    reject()
    create_topic(cluster, "again")
    produce().send("dlq.jobs", b"mine").get()
    with pytest.raises(InvalidRecordError, match="is not a dead letter"):
        redrive()
    assert redrive(to="again").copied == {"again": 1}
    facts = {"topic": b"jobs", "partition": b"first", "offset": b"0"}
    produce().send("dlq.jobs", b"x", headers=[(f"__dlq.errors.{name}", fact) for name, fact in facts.items()]).get()
    with pytest.raises(InvalidRecordError, match="jobs-0@1 is not a dead letter"):
        redrive()
    reject("a")
    done = redrive(skip_missing=True)
    assert (done.copied, done.missing) == ({"jobs": 1}, 1), "it stops no letter after it"


def is_over_at_limit():
    """Return a callback that ends a redrive which would poll for ever."""
    deadline_s = time.monotonic() + LIMIT_S
    return lambda: time.monotonic() > deadline_s


@pytest.mark.on_sqlite
def test_letters_of_an_aborted_transaction_are_copied_although_more_have_come(cluster, reject, monkeypatch):
    reject("a", "b")
    copy, errors = redrive_module._Loop.copy, [TransactionAbortableError("the transaction has timed out")]

    def fail_once(loop, letters, producer):
        copy(loop, letters, producer)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(redrive_module._Loop, "copy", fail_once)
    with Redrive(cluster, "dlq.jobs", is_over=is_over_at_limit()) as letters:
        reject("c")
        assert letters.run().copied == {"jobs": 2}
        assert letters.is_done()
    assert errors == []
    assert all_stored(cluster, "jobs") == ["a", "a", "b", "b", "c"]


@pytest.mark.on_sqlite
def test_a_redrive_ends_without_the_letters_that_an_election_truncates(cluster, reject):
    reject("a")
    reject("b")
    over = is_over_at_limit()
    with Redrive(cluster, "dlq.jobs", is_over=over) as letters:
        truncate(cluster, "dlq.jobs", 1)
        assert letters.run().copied == {"jobs": 1}
    assert not over(), "it ends by itself"
    assert all_stored(cluster, "jobs") == ["a", "a", "b"]


@pytest.mark.parametrize("before_commit", [True, False])
def test_a_redrive_that_is_killed_and_repeated_copies_each_letter_once(
    cluster, cluster_address, reject, redrive, before_commit
):
    values = [f"job {number}" for number in range(7)]
    reject(*values)
    process = PythonProcess("-c", REDRIVE, cluster_address, 2, before_commit)
    assert process.wait(timeout=60) == -signal.SIGKILL
    change(cluster, t.group_member.update().values(until_ms=0))  # the session of the killed one has ended
    done = redrive()
    assert done.copied == {"jobs": 5 if before_commit else 3}
    assert all_stored(cluster, "jobs") == sorted(values * 2)


def test_two_redrives_at_the_same_time_copy_each_letter_once(cluster, cluster_address, reject, redrive):
    values = [f"job {number}" for number in range(9)]
    reject(*values)
    others = [PythonProcess("-c", REDRIVE, cluster_address, 100, False) for _ in range(2)]
    assert [process.wait(timeout=90) for process in others] == [0, 0]
    assert all_stored(cluster, "jobs") == sorted(values * 2)
    assert redrive().copied == {}
