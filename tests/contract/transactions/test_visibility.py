"""Transactions through the producer's API: visibility, failed sends, calls in the wrong state, settings."""

from concurrent.futures import ThreadPoolExecutor

import kafka.errors
import pyarrow as pa
import pytest
import sqlalchemy as sa
from kafka.errors import IllegalStateError, TransactionAbortedError
from kafka.structs import OffsetAndMetadata, TopicPartition

import spark_log.errors
from spark_log import Admin, Consumer, Producer
from spark_log.clients.produce.future import Written
from spark_log.config import ClusterSettings
from spark_log.errors import (
    TransactionAbortableError,
)
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.metadata import tables as t
from tests.contract.transactions.transaction_state import (
    FILES,
    LARGE,
    NUMBERS,
    commits,
    group,
    nothing_is_pending,
    offsets,
    row_of,
    segment_files,
)
from tests.support.s3 import also_on_s3
from tests.support.topics import contents
from tests.support.waiting import LIMIT_S

# Visibility ---------------------------------------------------------------------------------------------------------


def test_a_transaction_becomes_visible_at_once(cluster, cluster_address, log, topic, begin):
    one, two, mine = topic(2), topic(), group()
    producer = begin()
    futures = [producer.send(one, b"%d" % n, partition=n % 2) for n in range(4)]
    table = producer.send_table(two, pa.table({"value": [b"x", b"y", b"z"]}))
    producer.send_offsets_to_transaction(commits(one, 7), mine)
    producer.flush()
    assert [future.get(timeout=LIMIT_S).offset for future in futures] == [-1] * 4
    parts = [TopicPartition(one, 0), TopicPartition(one, 1), TopicPartition(two, 0)]
    readers = [
        Consumer(cluster=cluster_address, group_id=None, auto_offset_reset="earliest", isolation_level=level)
        for level in ("read_committed", "read_uncommitted")
    ]
    with Admin(cluster=cluster_address) as admin:
        for reader in readers:
            reader.assign(parts)
            assert reader.poll(0) == {} and set(reader.end_offsets(parts).values()) == {0}
        assert {found.offset for found in admin.list_partition_offsets(dict.fromkeys(parts, -1)).values()} == {0}
        assert committed_offsets(cluster.store, mine) == {}

        assert producer.commit_transaction() == [
            Written(parts[0], 0, 2),
            Written(parts[1], 0, 2),
            Written(parts[2], 0, 3),
        ]
        assert [found.offset for found in admin.list_partition_offsets(dict.fromkeys(parts, -1)).values()] == [2, 2, 3]
    assert [future.get().offset for future in futures] == [0, 0, 1, 1]
    assert table.get() == [Written(parts[2], 0, 3)]
    assert committed_offsets(cluster.store, mine) == {parts[0]: 7}
    for reader in readers:
        seen = []
        while len(seen) < 7:  # a poll may return fewer records than max_records
            polled = reader.poll(60_000, max_records=3)
            assert polled, seen
            seen += [record.value for found in polled.values() for record in found]
        assert reader.poll(0) == {}
        reader.close()
        assert sorted(seen) == [b"0", b"1", b"2", b"3", b"x", b"y", b"z"]
    assert contents(log, one) == {0: [b"0", b"2"], 1: [b"1", b"3"]} and contents(log, two) == {0: [b"x", b"y", b"z"]}


def test_a_reader_never_sees_part_of_a_transaction(cluster, topic, begin):
    names, mine = [topic(), topic()], group()
    producer = begin()

    def work():
        for number in range(1, 26):
            for name in names:
                producer.send(name, b"v")
            producer.send_offsets_to_transaction(commits(names[0], number), mine)
            producer.commit_transaction()
            producer.begin_transaction()

    ends = (
        sa.select(t.partition.c.high_watermark, t.partition.c.log_end_offset)
        .join(t.topic, t.topic.c.topic_id == t.partition.c.topic_id)
        .where(t.topic.c.name.in_(names))
    )
    offset = sa.select(t.group_offset.c.committed_offset).where(t.group_offset.c.group_id == mine)
    seen = set()
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        while not working.done():
            with cluster.store.snapshot() as connection:
                committed = connection.execute(offset).scalar_one_or_none() or 0
                assert connection.execute(ends).all() == [(committed, committed)] * 2
                seen.add(committed)
    assert working.result() is None and len(seen) > 1


@also_on_s3
def test_aborted_records_are_never_visible_and_leave_no_gap(cluster, log, topic, begin):
    name, large, mine = topic(), topic(**FILES), group()
    producer = begin()
    for number, end in enumerate([producer.abort_transaction, producer.commit_transaction] * 2):
        producer.send(name, b"%d" % number)
        producer.send(large, LARGE + b"%d" % number).get(timeout=LIMIT_S)
        producer.send_offsets_to_transaction(commits(name, number), mine)
        end()
        producer.begin_transaction()
    assert contents(log, name) == {0: [b"1", b"3"]} and contents(log, large) == {0: [LARGE + b"1", LARGE + b"3"]}
    assert committed_offsets(cluster.store, mine) == {TopicPartition(name, 0): 3}
    assert len(segment_files(cluster, log.find_topic(large))) == 2, "the files of what was aborted are gone"
    assert nothing_is_pending(cluster, producer)


def test_unsent_records_fail_when_the_transaction_is_aborted(log, topic, begin):
    name = topic()
    producer = begin(linger_ms=60_000)
    future = producer.send(name, b"v").add_errback(lambda _: producer.send(name, b"again"))
    producer.abort_transaction()
    with pytest.raises(TransactionAbortedError):
        future.get(timeout=LIMIT_S)
    producer.begin_transaction()
    producer.commit_transaction()
    assert contents(log, name) == {}, "not what an errback sends in the course of the abort either"


def test_empty_transactions_and_transactions_of_offsets_only(cluster, topic, begin):
    name, mine, other = topic(2), group(), group()
    producer = begin()
    assert producer.commit_transaction() == []
    producer.begin_transaction()
    producer.abort_transaction()
    assert row_of(cluster, producer).producer_epoch == 0, "the store was not asked to write anything"
    producer.begin_transaction()
    producer.send_offsets_to_transaction(commits(name, 3), mine)
    producer.send_offsets_to_transaction({TopicPartition(name, 1): OffsetAndMetadata(4, "text", -1)}, mine)
    producer.send_offsets_to_transaction(commits(name, 5), other)
    assert producer.commit_transaction() == []
    assert committed_offsets(cluster.store, mine) == {TopicPartition(name, 0): 3, TopicPartition(name, 1): 4}
    assert committed_offsets(cluster.store, other) == {TopicPartition(name, 0): 5}


def test_threads_send_in_one_transaction(log, topic, begin):
    name = topic(2)
    producer = begin(linger_ms=1)

    def work(number):
        for n in range(100):
            producer.send(name, b"%d-%d" % (number, n), partition=number % 2)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    written = producer.commit_transaction()
    assert sum(each.end_offset - each.base_offset for each in written) == 400
    for partition, values in contents(log, name).items():
        for number in (partition, partition + 2):
            mine = [value for value in values if value.startswith(b"%d-" % number)]
            assert mine == [b"%d-%d" % (number, n) for n in range(100)]


# Failed sends, and calls in the wrong state -------------------------------------------------------------------------


def test_a_failed_send_fails_the_commit(log, topic, begin):
    name, compacted = topic(max_message_bytes="1000"), topic(cleanup_policy="compact")
    producer = begin()
    for bad, error in (((compacted, b"no key"), "key"), ((name, b"x" * 2000), "1000")):
        producer.send(name, b"good")
        future = producer.send(*bad)
        with pytest.raises(TransactionAbortableError, match=error):
            producer.commit_transaction()
        assert isinstance(future.exception, spark_log.errors.InvalidRecordError)
        for call in (
            lambda: producer.send(name, b"more"),
            producer.commit_transaction,
            lambda: offsets(producer, name),
        ):
            with pytest.raises(kafka.errors.TransactionAbortableError, match="abort it"):
                call()
        producer.abort_transaction()
        producer.begin_transaction()
    producer.send(name, b"good")
    producer.commit_transaction()
    assert contents(log, name) == {0: [b"good"]} and contents(log, compacted) == {}


def test_a_send_that_raises_fails_the_commit_too(log, topic, begin):
    """Otherwise a record whose error the program ignored would be missing from the committed transaction."""
    name = topic()
    producer = begin(max_request_size=1000)
    table = pa.table({"value": [b"x" * 2000]})
    for send in (lambda: producer.send(name, b"x" * 2000), lambda: producer.send_table(name, table)):
        producer.send(name, b"good")
        with pytest.raises(kafka.errors.MessageSizeTooLargeError):
            send()
        with pytest.raises(TransactionAbortableError, match=r"max_request_size|bytes"):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
    for send in (lambda: producer.send(name, "text"), lambda: producer.send(name)):
        with pytest.raises((TypeError, ValueError)):
            send()
    producer.send(name, b"good")
    producer.commit_transaction()
    assert contents(log, name) == {0: [b"good"]}


def test_calls_in_the_wrong_state_are_refused(produce, topic):
    name, id_ = topic(), f"id{next(NUMBERS)}"
    producer = produce(transactional_id=id_)

    def refused(*calls):
        for call in calls:
            with pytest.raises(IllegalStateError, match="not possible in the state") as raised:
                call()
            assert isinstance(raised.value, spark_log.errors.IllegalStateError)

    ends = producer.commit_transaction, producer.abort_transaction
    sends = lambda: producer.send(name, b"v"), lambda: offsets(producer, name)
    refused(producer.begin_transaction, *sends, *ends)
    producer.init_transactions()
    producer.init_transactions()
    refused(*sends, *ends)
    producer.begin_transaction()
    refused(producer.begin_transaction, producer.init_transactions)
    caught = []

    def in_callback(_):
        for call in (*ends, producer.flush, producer.begin_transaction):
            try:
                call()
            except IllegalStateError as error:
                caught.append(error)

    producer.send(name, b"v").add_callback(in_callback).get(timeout=LIMIT_S)
    producer.commit_transaction()
    assert len(caught) == 4
    for call in (producer.init_transactions, producer.begin_transaction, *ends):
        with pytest.raises(IllegalStateError, match="transactional_id"):
            getattr(produce(), call.__name__)()
    with pytest.raises(TypeError, match="group_metadata"):
        producer.send_offsets_to_transaction(commits(name), 5)
    with pytest.raises(kafka.errors.KafkaError, match="-1"):
        producer.send_offsets_to_transaction(commits(name, -1), "g")


BAD_SETTINGS = [
    {"enable_idempotence": False},
    {"acks": 1},
    {"retries": 0},
    {"transaction_timeout_ms": 0},
    {"transactional_id": ""},
    {"transactional_id": "a\0"},
    {"transactional_id": "\ud800"},
    {"transactional_id": "x" * 250},
    {"transactional_id": 5},
]


def test_settings_that_exclude_transactions_are_refused(cluster_address, produce):
    for settings in BAD_SETTINGS:
        with pytest.raises(kafka.errors.KafkaConfigurationError, match=next(iter(settings))):
            Producer(cluster=cluster_address, **{"transactional_id": "bad", **settings})
    limit = ClusterSettings().transaction_max_timeout_ms
    producer = produce(transactional_id=f"id{next(NUMBERS)}", transaction_timeout_ms=limit + 1)
    with pytest.raises(kafka.errors.InvalidTransactionTimeoutError, match=f"{limit + 1} is above"):
        producer.init_transactions()
