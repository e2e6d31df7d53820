"""The append transaction: offsets, repetitions, outcomes of partitions, what is forced to disk."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa

from spark_log.errors import (
    CheckpointMismatchError,
    OutOfOrderSequenceNumberError,
    ProducerFencedError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
    WriteIdExpiredError,
)
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.append.append_transaction import AppendRequest, run_append_transaction
from spark_log.log.append.encoding import Encoding, blob_batch, encode_inline
from spark_log.log.append.rules import (
    Appended,
    Rejected,
)
from spark_log.log.append.sequence_rules import ProducerSequence
from spark_log.log.append.spark_batch_rules import TRANSACTED, SparkBatch
from spark_log.log.append.spark_batches import append_once_hook
from spark_log.log.append.write_ids import register, release, renew
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import (
    commit_tokens,
)
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import alter_configs, create_topic
from tests.support.records import LARGE, SMALL_BLOBS, read_all, table
from tests.support.stores import change, rows_of, topics_view
from tests.support.topics import find


def producer(cluster, epoch=0):
    """A producer id that the cluster knows, with this epoch."""
    values = {"transactional_id": None, "epoch": epoch, "last_used_ms": 0, "transaction_timeout_ms": 0}
    insert = t.producer.insert().returning(t.producer.c.producer_id).values(values)
    return cluster.store.transact(lambda connection: connection.execute(insert).scalar_one())


def test_appended_records_are_read_in_order_with_dense_offsets(cluster, log):
    topic = create_topic(cluster, "t", 2, configs={**SMALL_BLOBS, "delta.max.lag.ms": "-1"})
    assert log.append(topic, [Records(0, table("a", "b")), Records(1, table("x")), Records(0, table("c"))]) == [
        Appended(0, 2),
        Appended(0, 1),
        Appended(2, 3),
    ]
    large = ["large" + LARGE, "larger" + LARGE]
    assert log.append(topic, [Records(0, table(*large)), Records(1, table("y"))]) == [Appended(3, 5), Appended(1, 2)]
    expected = [(0, 0, "a"), (0, 1, "b"), (0, 2, "c"), (0, 3, large[0]), (0, 4, large[1]), (1, 0, "x"), (1, 1, "y")]
    assert read_all(log, topic) == expected
    assert log.append(topic, [Records(0, table("d"))]) == [Appended(5, 6)]
    assert log.seal(topic, [0, 1]) == 3, "in partition 0 a file lies between two runs"
    assert read_all(log, topic) == [*expected[:5], (0, 5, "d"), *expected[5:]]
    assert log.seal(topic, [0, 1]) == 0


def test_all_fields_of_a_record_are_read_back(cluster, log):
    topic = create_topic(cluster, "t")
    headers = [("h", b"1"), ("h", None), ("", b"")]
    sent = table("v", key=b"k\0", headers=headers, timestamp_ms=1_234_567_890_123)
    for _ in range(2):
        log.append(topic, [Records(0, sent)])
    log.seal(topic, [0])
    log.append(topic, [Records(0, sent)])
    for offset, row in enumerate(
        r for b in log.read({TopicPartition("t", 0): OffsetRange(0, 3)}) for r in b.to_pylist()
    ):
        assert (row["key"], row["value"], row["topic"], row["offset"]) == (b"k\0", b"v", "t", offset)
        assert [(h["key"], h["value"]) for h in row["headers"]] == headers
        assert (row["timestamp"].timestamp(), row["timestampType"]) == (1_234_567_890.123, 0)


def test_empty_batches_and_unknown_partitions_are_refused_without_side_effects(cluster, log):
    topic = create_topic(cluster, "t", configs=SMALL_BLOBS)
    (refused,) = log.append(topic, [Records(0, table())])
    assert isinstance(refused, Rejected)
    for partition in (1, -1, 2**31 - 1):
        (refused,) = log.append(topic, [Records(partition, table("x"))])
        assert isinstance(refused.error, UnknownTopicOrPartitionError)
        with pytest.raises(UnknownTopicOrPartitionError, match=f"t-{partition}"):
            log.append(topic, [Records(partition, table(LARGE))])
    assert log.append(topic, [Records(0, table("a"))]) == [Appended(0, 1)]
    assert log.append(topic, [Records(0, table("b"))]) == [Appended(1, 2)]
    assert read_all(log, topic) == [(0, 0, "a"), (0, 1, "b")]


def test_a_repeated_producer_batch_returns_the_first_offsets(cluster, log):
    topic = create_topic(cluster, "t", 2)
    who = producer(cluster)

    def send(partition, first, *values, epoch=0):
        sequence = ProducerSequence(who, epoch, first)
        (outcome,) = log.append(topic, [Records(partition, table(*values), sequence)])
        return outcome

    assert send(0, 0, "a", "b") == Appended(0, 2)
    log.append(topic, [Records(0, table("somebody else"))])
    assert send(0, 0, "a", "b") == Appended(0, 2, duplicate=True)
    assert send(0, 2, "c") == Appended(3, 4)
    log.seal(topic, [0])
    assert send(0, 0, "a", "b") == Appended(0, 2, duplicate=True), "sealing does not forget"
    assert send(1, 0, "x") == Appended(0, 1), "each partition counts for itself"
    assert isinstance(send(0, 4, "e").error, OutOfOrderSequenceNumberError)
    assert isinstance(send(1, 0, "x", epoch=-1).error, ProducerFencedError)

    assert isinstance(send(0, 3, "d", epoch=1).error, UnknownProducerIdError)
    assert send(0, 0, "d", epoch=1) == Appended(4, 5)
    assert isinstance(send(0, 3, "zombie").error, ProducerFencedError)
    assert send(1, 1, "y") == Appended(1, 2), "each partition has its own epoch"
    who = 10**9
    assert isinstance(send(0, 0, "nobody").error, UnknownProducerIdError)
    assert [value for _, _, value in read_all(log, topic)] == ["a", "b", "somebody else", "c", "d", "x", "y"]


def test_several_batches_of_a_producer_in_one_flush(cluster, log):
    topic = create_topic(cluster, "t")
    who = producer(cluster)
    flush = [Records(0, table(f"{n}"), ProducerSequence(who, 0, n)) for n in range(7)]
    assert log.append(topic, flush) == [Appended(n, n + 1) for n in range(7)]
    repeated = log.append(topic, [*flush[2:], *flush[2:]])
    assert repeated == [Appended(n, n + 1, duplicate=True) for n in (2, 3, 4, 5, 6)] * 2
    with topics_view(cluster).store.snapshot() as connection:
        assert len(connection.execute(sa.select(t.producer_batch)).all()) == 5


def test_each_partition_has_its_own_outcome_unless_the_request_is_atomic(cluster, log):
    topic = create_topic(cluster, "t", 2)
    encoding = Encoding.of(topic)
    blob = encode_inline(table("x"), encoding)

    def request(atomic):
        names = [uuid.uuid4().hex for _ in range(3)]
        batches = [
            blob_batch(topic.topic_id, partition, name, blob.facts, encoding)
            for partition, name in zip((0, 9, 1), names, strict=True)
        ]
        return AppendRequest(batches, dict.fromkeys(names, blob.data), atomic=atomic)

    before = rows_of(cluster)
    outcomes = run_append_transaction(topics_view(cluster).store, request(atomic=True)).outcomes
    assert isinstance(outcomes[1], Rejected)
    assert rows_of(cluster) == before, "nothing of it"
    outcomes = run_append_transaction(topics_view(cluster).store, request(atomic=False)).outcomes
    assert [type(outcome) for outcome in outcomes] == [Appended, Rejected, Appended]
    assert read_all(log, topic) == [(0, 0, "x"), (1, 0, "x")]


def test_a_file_whose_write_id_was_removed_is_not_appended(cluster, log):
    topic = create_topic(cluster, "t", configs={"inline.max.bytes": "0"})
    log.append(topic, [Records(0, table("a"))])
    change(cluster, t.write_id.delete())
    with pytest.raises(WriteIdExpiredError):
        log.append(topic, [Records(0, table("b"))])
    assert read_all(log, topic) == [(0, 0, "a")]
    another = ClientLog(cluster)
    assert another.append(topic, [Records(0, table("c"))]) == [Appended(1, 2)]
    another.close()


def test_a_write_id_is_registered_renewed_and_released(cluster):
    write_id = register(cluster.store, "a test", 1_000)
    assert renew(cluster.store, write_id, 60_000)
    release(cluster.store, write_id)
    assert not renew(cluster.store, write_id, 60_000)


def spark_write(cluster, topic, batch, *values):
    encoding = Encoding.of(topic)
    blob = encode_inline(table(*values), encoding)
    name = uuid.uuid4().hex
    request = AppendRequest(
        [blob_batch(topic.topic_id, 0, name, blob.facts, encoding)],
        {name: blob.data},
        atomic=True,
        hooks=[append_once_hook(batch, [topic.topic_id])],
    )
    return run_append_transaction(topics_view(cluster).store, request)


def test_a_spark_batch_is_appended_once_and_a_copied_checkpoint_is_an_error(cluster, log):
    topic = create_topic(cluster, "t")
    first = SparkBatch("stream:q", "t", 0, 1, "aa", strict=True)
    assert not spark_write(cluster, topic, first, "a").committed_before
    assert spark_write(cluster, topic, first, "a").committed_before
    second = replace(first, version=1, fingerprint="bb")
    assert not spark_write(cluster, topic, second, "b").committed_before
    for other in (replace(second, fingerprint="cc"), replace(second, record_count=2), first):
        before = rows_of(cluster)
        with pytest.raises(CheckpointMismatchError, match="stream:q"):
            spark_write(cluster, topic, other, "c")
        assert rows_of(cluster) == before
    assert read_all(log, topic) == [(0, 0, "a"), (0, 1, "b")]


def test_a_batch_that_was_written_to_other_outputs_of_its_query_is_an_error(cluster, log):
    """After the batch in progress the outputs may change."""
    topic = create_topic(cluster, "t")
    sink = SparkBatch("stream:q", "t", 5, 1, "aa", strict=True)
    assert not spark_write(cluster, topic, sink, "a").committed_before
    transaction = replace(sink, target=TRANSACTED)
    rolled_back = ", or its checkpoint was rolled back or copied"
    for batch, cause in ((transaction, ""), (replace(transaction, version=4), rolled_back)):
        expected = rf"have changed{cause}, and batch 5 was written to the former outputs \(topic 't'\)"
        with pytest.raises(CheckpointMismatchError, match=expected):
            spark_write(cluster, topic, batch, "a")
    assert not spark_write(cluster, topic, replace(transaction, version=6), "b").committed_before
    for target in ("t", ""):
        with pytest.raises(CheckpointMismatchError, match="Run the query with its former outputs until it has ended"):
            spark_write(cluster, topic, replace(sink, version=6, target=target), "b")
    assert not spark_write(cluster, topic, replace(sink, application="stream:other", target="x"), "c").committed_before
    for target in ("x", "y"):  # as Delta: txnAppId and txnVersion are of one table
        spark_write(cluster, topic, replace(sink, application="txn:a", target=target, strict=False), target)
    assert [value for _, _, value in read_all(log, topic)] == ["a", "b", "c", "x", "y"]


def test_a_transaction_that_an_earlier_release_recorded_is_known_and_the_next_one_is_new(cluster):
    """It had target "" and no topic, and the migration from v8 made a row of each topic too."""
    batch = SparkBatch("stream:q", TRANSACTED, 3, 1, "oaa", strict=True)
    facts = {"application": "stream:q", "target": "", "version": 3, "record_count": 1, "fingerprint": "oaa"}
    rows = [{**facts, "topic_id": topic_id, "committed_ms": 1} for topic_id in (0, 7)]
    cluster.store.transact(lambda connection: connection.execute(t.spark_batch.insert(), rows))

    def is_new(batch, *topic_ids):
        hook = append_once_hook(batch, topic_ids)
        return cluster.store.transact(lambda connection: hook(connection, cluster.store.clock(connection)))

    following = replace(batch, version=4)
    assert [is_new(each) for each in (batch, following, following)] == [False, True, False]
    for other in (batch, replace(following, target="")):
        with pytest.raises(CheckpointMismatchError):
            is_new(other, 7)


def test_the_same_first_spark_batch_from_two_drivers_at_once_is_appended_once(cluster, log):
    topic = create_topic(cluster, "t")
    outcomes = []
    start = threading.Barrier(4)

    def write(number):
        start.wait(timeout=60)
        for version in range(10):
            batch = SparkBatch(f"stream:{version}", "t", 0, 1, "aa", strict=True)
            outcomes.append(spark_write(cluster, topic, batch, f"{version}").committed_before)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert (outcomes.count(False), outcomes.count(True)) == (10, 30)
    assert sorted(value for _, _, value in read_all(log, topic)) == [f"{version}" for version in range(10)]


def recovery_point(cluster):
    return topics_view(cluster).store.read(lambda c: c.execute(sa.select(t.partition.c.recovery_point)).scalar_one())


def test_flush_messages_limits_the_unforced_records(cluster, log, monkeypatch):
    topic = create_topic(cluster, "t", configs={"flush.messages": "10"})
    unforced = []

    def watch(connection, token, answered, *, durable, always):
        commit(connection, token, answered, durable=durable, always=always)
        if not durable:
            unforced.append(token)

    commit = commit_tokens.commit
    monkeypatch.setattr(commit_tokens, "commit", watch)
    for count in (4, 5):
        log.append(topic, [Records(0, table(*"x" * count))])
        assert recovery_point(cluster) == 0
    log.append(topic, [Records(0, table("x"))])
    assert recovery_point(cluster) == 10, "ten records: forced to disk"
    log.append(topic, [Records(0, table("x"))])
    assert recovery_point(cluster) == 10
    assert len(unforced) == (0 if cluster.store.sqlite else 4)
    alter_configs(cluster, "t", {"flush.messages": None})
    log.append(find(cluster, "t"), [Records(0, table("x"))])
    assert recovery_point(cluster) == 12, "by default every append is on disk when it is acknowledged"
    if cluster.store.sqlite:
        with topics_view(cluster).store.snapshot() as connection:
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2, "FULL again"
