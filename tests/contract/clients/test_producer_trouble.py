"""The producer under failures and on close: retries, failed records, and errors of their futures."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor

import kafka.errors
import pyarrow as pa
import pytest
import sqlalchemy as sa

import spark_log.errors
from spark_log import Producer
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from tests.support.stores import change, count_rows
from tests.support.topics import contents, dense_rows
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.on_sqlite

QUICK = {"request_timeout_ms": 500, "delivery_timeout_ms": 1_000, "retry_backoff_ms": 5}


def take_offline(cluster, *partitions):
    """Remove leader and ISR of these partitions, or of all, so that no replica can be elected."""
    for table, values in ((t.partition, {"leader": None}), (t.replica, {"in_sync": False})):
        here = table.c.partition.in_(partitions) if partitions else sa.true()
        change(cluster, table.update().where(here).values(values))


def bring_online(cluster):
    change(cluster, t.replica.update().values(in_sync=True))
    change(cluster, t.partition.update().values(leader=1))


def test_a_failing_partition_does_not_delay_the_others(produce, cluster, log):
    create_topic(cluster, "t", 2)
    take_offline(cluster, 0)
    producer = produce(retry_backoff_ms=500)
    held = [producer.send("t", b"0", partition=0)]
    assert [producer.send("t", b"x", partition=1).get(timeout=LIMIT_S).offset for _ in range(3)] == [0, 1, 2]
    wait_until(lambda: producer.metrics(raw=True)["record-retry-total"] > 0)
    assert not held[0].is_done
    bring_online(cluster)
    held += [producer.send("t", b"%d" % n, partition=0) for n in (1, 2)]  # these could be appended at once
    assert [future.get(timeout=LIMIT_S).offset for future in held] == [0, 1, 2]
    assert contents(log, "t")[0] == [b"0", b"1", b"2"]


def test_partitions_without_a_log_dir_do_not_delay_the_others(produce, cluster, log, tmp_path):
    """Without a back-off one of them is always due."""
    files = create_topic(cluster, "files", 2, configs={"inline.max.bytes": "0"})
    create_topic(cluster, "t")
    producer = produce(retry_backoff_ms=0, linger_ms=60_000)
    producer.send("files", b"0", partition=0)
    producer.flush()
    [folder] = tmp_path.rglob(files.folder)
    segments, elsewhere = folder / "_segments", folder / "elsewhere"
    segments.rename(elsewhere)
    segments.write_text("no folder")
    held = [producer.send("files", b"1", partition=partition) for partition in range(2)]
    sent = producer.send("t", b"x")
    with pytest.raises(kafka.errors.KafkaTimeoutError):
        producer.flush(timeout=0.01)
    assert sent.get(timeout=5).offset == 0
    assert not any(future.is_done for future in held)
    segments.unlink()
    elsewhere.rename(segments)
    producer.flush()
    assert contents(log, "files") == {0: [b"0", b"1"], 1: [b"1"]}


def test_records_expire(produce, cluster, log):
    create_topic(cluster, "t")
    take_offline(cluster)
    producer = produce(**QUICK)
    future = producer.send("t", b"late")
    with pytest.raises(kafka.errors.KafkaTimeoutError, match=r"has passed since send.*no leader"):
        future.get(timeout=LIMIT_S)
    bring_online(cluster)
    assert producer.send("t", b"in time").get(timeout=LIMIT_S).offset == 0
    assert contents(log, "t") == {0: [b"in time"]}


def test_retries_are_counted(produce, cluster):
    create_topic(cluster, "t")
    take_offline(cluster)
    with pytest.raises(kafka.errors.NotLeaderForPartitionError) as raised:
        produce(retries=2, retry_backoff_ms=1).send("t", b"v").get(timeout=LIMIT_S)
    assert isinstance(raised.value, spark_log.errors.NotLeaderForPartitionError)
    with pytest.raises(kafka.errors.NotLeaderForPartitionError):
        produce(retries=0).send("t", b"v").get(timeout=LIMIT_S)


@pytest.mark.parametrize("forgotten", [(t.producer,), (t.producer_batch,), (t.producer, t.producer_batch)], ids=len)
def test_a_producer_whose_id_has_expired_continues(produce, cluster, log, forgotten):
    create_topic(cluster, "t", 2)
    producer = produce(retry_backoff_ms=1)
    for number in range(6):
        if number == 3:
            for table in forgotten:
                change(cluster, table.delete())
        for partition in range(2):
            producer.send("t", b"%d" % number, partition=partition).get(timeout=LIMIT_S)
    assert contents(log, "t") == {p: [b"%d" % n for n in range(6)] for p in range(2)}


def test_an_expired_write_id_is_replaced(produce, cluster, log):
    create_topic(cluster, "t", configs={"inline.max.bytes": "1000"})
    producer = produce(retry_backoff_ms=1)
    values = [os.urandom(3000) for _ in range(4)]
    for number, value in enumerate(values):
        if number == 2:
            change(cluster, t.write_id.delete())
        producer.send("t", value).get(timeout=LIMIT_S)
    assert contents(log, "t") == {0: values}


def test_a_topic_that_is_deleted_and_created_again(produce, cluster, log):
    create_topic(cluster, "t", 2)
    producer = produce(retry_backoff_ms=5)
    producer.send("t", b"old", partition=1).get(timeout=LIMIT_S)
    delete_topic(cluster, "t")
    create_topic(cluster, "t", 2)
    producer.send("t", b"new", partition=1).get(timeout=LIMIT_S)
    producer.send("t", b"newer", partition=1).get(timeout=LIMIT_S)
    assert contents(log, "t") == {1: [b"new", b"newer"]}


def lose_responses(monkeypatch, producer, *lost):
    """Let the producer get an error instead of the responses of its next appends that are `lost`."""
    appended, left = producer._sender._log.append_each, iter(lost)

    def append(*arguments, **options):
        outcomes = appended(*arguments, **options)
        if next(left, False):
            raise spark_log.errors.MetadataStoreUnavailableError("the answer is lost")
        return outcomes

    monkeypatch.setattr(producer._sender._log, "append_each", append)


def test_a_lost_append_response_causes_no_duplicate(produce, cluster, log, monkeypatch):
    """The append commits, but the producer gets an error: the sequence of the batch makes the retry a duplicate."""
    create_topic(cluster, "t", 2)
    producer = produce(retry_backoff_ms=1)
    lose_responses(monkeypatch, producer, True, False, True, True)
    for number in range(4):
        futures = [producer.send("t", b"%d" % number, partition=partition) for partition in range(2)]
        assert [future.get(timeout=LIMIT_S).offset for future in futures] == [number, number]
    assert contents(log, "t") == {p: [b"%d" % n for n in range(4)] for p in range(2)}


def test_records_after_a_failed_append_of_unknown_outcome_are_no_duplicates(produce, cluster, log, monkeypatch):
    create_topic(cluster, "t")
    producer = produce(retries=1, retry_backoff_ms=1, enable_idempotence=True)
    lose_responses(monkeypatch, producer, True, True)
    with pytest.raises(kafka.errors.KafkaConnectionError):
        producer.send("t", b"in doubt").get(timeout=LIMIT_S)
    assert producer.send("t", b"next").get(timeout=LIMIT_S).offset == 1
    assert contents(log, "t") == {0: [b"in doubt", b"next"]}


def test_an_append_that_ends_after_its_records_have_failed_does_not_follow_later_records(
    produce, cluster, log, monkeypatch
):
    """It may run on in a connection that hangs. Its records would be out of order."""
    create_topic(cluster, "t")
    producer = produce(retries=1, retry_backoff_ms=1, enable_idempotence=True)
    assert producer.send("t", b"first").get(timeout=LIMIT_S).offset == 0
    late = []

    def hang(*arguments, **options):
        late.append((arguments, options))
        raise spark_log.errors.MetadataStoreUnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(producer._sender._log, "append_each", hang)
        with pytest.raises(kafka.errors.KafkaConnectionError):
            producer.send("t", b"late").get(timeout=LIMIT_S)
    assert producer.send("t", b"next").get(timeout=LIMIT_S).offset == 1
    arguments, options = late[-1]
    [outcome] = producer._sender._log.append_each(*arguments, **options)
    assert isinstance(outcome.error, spark_log.errors.ProducerFencedError)
    assert producer.send("t", b"last").get(timeout=LIMIT_S).offset == 2
    assert contents(log, "t") == {0: [b"first", b"next", b"last"]}


def test_a_bug_in_an_append_fails_its_records_alone(produce, cluster, log, monkeypatch, caplog):
    create_topic(cluster, "t", 2)
    producer = produce(linger_ms=60_000)
    append = producer._sender._log.append_each

    def broken(items, **options):
        if any(item.partition == 0 for _, item in items):
            raise RuntimeError("a bug")
        return append(items, **options)

    monkeypatch.setattr(producer._sender._log, "append_each", broken)
    bad, good = (producer.send("t", b"v", partition=partition) for partition in range(2))
    with caplog.at_level(logging.ERROR):
        producer.flush(timeout=30)
    assert isinstance(bad.exception, RuntimeError) and good.get().offset == 0
    monkeypatch.undo()
    producer.send("t", b"again", partition=0)
    producer.flush(timeout=30)
    assert contents(log, "t") == {0: [b"again"], 1: [b"v"]}


# -- close ----------------------------------------------------------------------------------------------------


def test_close_sends_buffered_records(produce, log):
    producer = produce(linger_ms=60_000)
    future = producer.send("t", b"v")
    producer.close()
    assert future.value.offset == 0 and not producer._sender.is_alive()
    producer.close()
    for call in (lambda: producer.send("t", b"v"), lambda: producer.send_table("t", pa.table({"value": [b"v"]}))):
        with pytest.raises(kafka.errors.IllegalStateError, match="already closed"):
            call()
    assert contents(log, "t") == {0: [b"v"]}


def test_close_returns_within_its_timeout(produce, cluster, log):
    create_topic(cluster, "t")
    take_offline(cluster)
    producer = produce(retry_backoff_ms=5)
    with pytest.raises(ValueError, match="Invalid timeout"):
        producer.close(timeout=-1)
    future = producer.send("t", b"v")
    with pytest.raises(kafka.errors.KafkaTimeoutError):
        producer.flush(timeout=0.01)
    producer.close(timeout=0.01)
    with pytest.raises(kafka.errors.IllegalStateError, match="closed before the record was stored"):
        future.get(timeout=1)
    producer._sender.join(timeout=30)
    bring_online(cluster)
    assert dense_rows(log, "t") == [] and not producer._sender.is_alive()


def test_a_record_that_the_sender_finds_after_the_timeout_of_close_fails(produce, cluster):
    """The sender may see that the timeout has expired before `close` has failed the record."""
    create_topic(cluster, "t")
    take_offline(cluster)
    producer = produce(retry_backoff_ms=5)
    future = producer.send("t", b"v")
    with pytest.raises(kafka.errors.KafkaTimeoutError):
        producer.flush(timeout=0.01)
    producer._sender.abandon_batches(kafka.errors.IllegalStateError("closed"))
    with pytest.raises(kafka.errors.IllegalStateError, match="closed"):
        future.get(timeout=LIMIT_S)
    assert producer.metrics()["producer-metrics"]["record-send-total"] == 0


def test_many_threads_share_a_producer(produce, cluster, log):
    create_topic(cluster, "t", 3)
    producer = produce(linger_ms=1)
    futures = {}

    def work(name):
        futures[name] = [producer.send("t", b"%d-%d" % (name, n), b"%d" % name) for n in range(200)]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    producer.flush()
    found = contents(log, "t")
    for name, sent in futures.items():
        partition = sent[0].get().partition
        mine = [value for value in found[partition] if value.startswith(b"%d-" % name)]
        assert mine == [b"%d-%d" % (name, n) for n in range(200)]
        assert [found[partition][future.get().offset] for future in sent] == mine


def test_the_rest_of_the_interface(produce, tmp_path):
    with produce(client_id="me", metrics_enabled=False) as producer:
        assert producer.bootstrap_connected() is True
        assert producer.metrics() is None
        assert producer.config["client_id"] == "me" and "me" in str(producer)
        for call in (producer.init_transactions, producer.begin_transaction, producer.commit_transaction):
            with pytest.raises(kafka.errors.IllegalStateError):
                call()
    with pytest.raises(kafka.errors.KafkaConfigurationError) as raised:
        Producer(cluster=tmp_path / "nothing")
    assert isinstance(raised.value, spark_log.errors.ClusterNotFoundError)


def test_all_ready_partitions_of_all_topics_are_in_one_append(produce, cluster):
    for name in ("a", "b"):
        create_topic(cluster, name, 3)
    producer = produce(linger_ms=60_000)
    for name in ("a", "b"):
        for partition in range(3):
            producer.send(name, b"v", partition=partition)
    producer.flush()
    assert producer.metrics(raw=True)["request-total"] == 1
    assert count_rows(cluster.store, t.producer) == 1
