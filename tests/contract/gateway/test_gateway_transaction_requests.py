"""Requests of transactions that a gateway refuses, or accepts in part."""

import pytest
import sqlalchemy as sa
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.protocol.producer.transaction import InitProducerIdRequest, TxnOffsetCommitRequest
from kafka.structs import TopicPartition

from spark_log.groups.committed_offsets import committed_offsets
from spark_log.log.append.rules import Appended
from spark_log.log.append.sequence_rules import ProducerSequence
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PRODUCER
from spark_log.transactions.rules import GROUPS_MAX
from tests.support.gateway_wire import WireConnection, WireProducer, call, code_of, produced, transactional_batch
from tests.support.records import table, topic_values
from tests.support.stores import change
from tests.support.topics import make

UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE = 3, 12


INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_TRANSACTION_TIMEOUT = 47, 48, 50


TRANSACTION_ABORTABLE = 120


@pytest.mark.on_sqlite
@pytest.mark.parametrize("transactional", [False, True])
def test_offsets_are_committed_beside_one_with_metadata_that_are_too_large(cluster, gateway, transactional):
    make(cluster, "t", 3)
    with WireConnection(gateway.port) as connection:
        if transactional:
            producer = WireProducer(connection)
            call(connection, producer.add_offsets("g"))
            request, version = producer.commit_offset("t", 1, "g"), 3
            kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition
        else:
            of_topic = OffsetCommitRequest.OffsetCommitRequestTopic
            request, version = OffsetCommitRequest(
                group_id="g", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
                topics=[of_topic(name="t", partitions=[])],
            ), 8  # fmt: skip
            kind = of_topic.OffsetCommitRequestPartition
        request.topics[0].partitions = [
            kind(partition_index=number, committed_offset=number, committed_leader_epoch=-1, committed_metadata=text)
            for number, text in enumerate(("fits", "x" * 5_000, "fits", "of no partition"))
        ]
        if transactional:
            call(connection, request)  # takes the connection's claim, and can be repeated
        [topic] = connection.exchange(request, version).topics
        assert [each.error_code for each in topic.partitions] == [
            0, OFFSET_METADATA_TOO_LARGE, 0, UNKNOWN_TOPIC_OR_PARTITION,
        ]  # fmt: skip
        if transactional:
            assert call(connection, producer.end(commit=True)) == 0
    assert committed_offsets(cluster.store, "g") == {TopicPartition("t", 0): 0, TopicPartition("t", 2): 2}


@pytest.mark.on_sqlite
def test_offsets_of_too_many_groups_are_refused_with_an_error_that_aborts(cluster, gateway):
    """A producer of Java ends after other errors of this request."""
    make(cluster, "t")
    with WireConnection(gateway.port) as connection:
        producer = WireProducer(connection)

        def add(group):
            return call(connection, producer.add_offsets(group)), call(
                connection, producer.commit_offset("t", 1, group)
            )

        assert add("g-0") == (0, 0)
        with cluster.store.snapshot() as there:
            offset = dict(there.execute(sa.select(t.transaction_offset)).mappings().one())
        others = [offset | {"group_id": f"g-{number}"} for number in range(1, GROUPS_MAX)]
        cluster.store.transact(lambda there: there.execute(t.transaction_offset.insert(), others))
        assert [add("late"), add("g-0")] == [(0, TRANSACTION_ABORTABLE), (0, 0)]
        assert call(connection, producer.end(commit=False)) == 0
        assert add("late") == (0, 0)


@pytest.mark.on_sqlite
@pytest.mark.on_data_store
def test_batch_and_request_must_both_belong_to_the_transaction(cluster, gateway):
    make(cluster, "t", 1)
    with WireConnection(gateway.port) as connection:
        producer = WireProducer(connection)
        connection.exchange(producer.add_partitions("t"), 1)
        assert producer.send(connection, "t", b"lost", flag=0).error_code == INVALID_TXN_STATE
        assert producer.send(connection, "t", b"lost", transactional=False).error_code == INVALID_TXN_STATE
        assert producer.send(connection, "t", b"kept").error_code == 0
        connection.exchange(producer.end(commit=True), 1)
    assert topic_values(cluster, "t") == [b"kept"]


def test_no_batch_outside_of_transactions_takes_the_place_of_a_record_that_is_committed(cluster, gateway):
    """A client that names the producer id of another one, with its sequence or with a later epoch."""
    make(cluster, "t", 1)
    with WireConnection(gateway.port) as connection, WireConnection(gateway.port) as stranger:
        producer = WireProducer(connection)
        for number in range(2):
            for epoch in (producer.epoch, producer.epoch + 1):  # before the transaction begins
                assert plain_batch(stranger, producer, epoch, number) == INVALID_TXN_STATE
            assert code_of(connection.exchange(producer.add_partitions("t"), 0)) == 0
            assert producer.send(connection, "t", b"mine-%d" % number).error_code == 0
            for epoch in (producer.epoch, producer.epoch + 1):
                assert plain_batch(stranger, producer, epoch, number) == INVALID_TXN_STATE
            assert code_of(connection.exchange(producer.end(commit=True), 0)) == 0
    assert topic_values(cluster, "t") == [b"mine-0", b"mine-1"]


def plain_batch(connection, producer, epoch, sequence):
    batch = transactional_batch(b"strange", producer.producer_id, epoch, sequence, flag=0)
    return produced(connection, "t", batch).error_code


def test_commit_fails_if_the_log_has_another_batch_with_a_sequence_of_it(cluster, gateway):
    make(cluster, "t", 1)
    with WireConnection(gateway.port) as connection:
        producer = WireProducer(connection)
        assert code_of(connection.exchange(producer.add_partitions("t"), 0)) == 0
        assert producer.send(connection, "t", b"mine").error_code == 0
        append_as_if_it_were_not_transactional(cluster, producer)
        assert code_of(connection.exchange(producer.end(commit=True), 0)) == INVALID_PRODUCER_EPOCH
        assert code_of(connection.exchange(producer.end(commit=False), 0)) == 0
    assert topic_values(cluster, "t") == [b"strange"]


def append_as_if_it_were_not_transactional(cluster, producer):
    """A batch with the producer's first sequence, as clusters accepted it that did not check this."""
    row = t.producer.update().where(PRODUCER.producer_id == producer.producer_id)
    change(cluster, row.values(transactional_id=None))
    log = ClientLog(cluster)
    sequence = ProducerSequence(producer.producer_id, producer.epoch, 0)
    [outcome] = log.append(log.find_topic("t"), [Records(0, table("strange"), sequence)])
    log.close()
    assert isinstance(outcome, Appended)
    change(cluster, row.values(transactional_id=producer.name))


@pytest.mark.on_sqlite
@pytest.mark.parametrize("timeout_ms", [0, -1, 2**31 - 1])
def test_transaction_timeout_must_be_above_0_and_within_the_limit(gateway, timeout_ms):
    with WireConnection(gateway.port) as connection:
        assert connection.exchange(InitProducerIdRequest("id", timeout_ms), 1).error_code == INVALID_TRANSACTION_TIMEOUT
        assert connection.exchange(InitProducerIdRequest(None, timeout_ms), 1).error_code == 0
