"""Sequences of idempotent Kafka producers pass 2^31 - 1 and begin again at 0."""

import struct

from kafka.protocol.producer.transaction import InitProducerIdRequest

from spark_log import Consumer
from spark_log.log.records.kafka_batch.encode import encode
from spark_log.metadata import tables as t
from tests.support.gateway_wire import WireConnection, produced
from tests.support.kafka_batches import stored, with_checksum
from tests.support.stores import change
from tests.support.topics import make

OUT_OF_ORDER_SEQUENCE_NUMBER = 45
LAST = 2**31 - 1
NOW_MS = 1_790_000_000_000


def batch(producer_id, first_sequence, values):
    rows = [(NOW_MS, None, value, []) for value in values]
    found = bytearray(encode(stored(rows), base_offset=0, last_offset=len(rows) - 1, leader_epoch=0))
    struct.pack_into(">qhi", found, 43, producer_id, 0, first_sequence)
    return with_checksum(found)


def appended(connection, records):
    """Error code and base offset."""
    answer = produced(connection, "flights", records)
    return answer.error_code, answer.base_offset


def test_repetitions_and_gaps_are_noticed_around_the_last_sequence(cluster, gateways):
    make(cluster, "flights", 1)
    with WireConnection(gateways[0].port) as first, WireConnection(gateways[1].port) as second:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
        producer_id = first.exchange(request, 4).producer_id
        assert appended(first, batch(producer_id, 0, [b"0"])) == (0, 0)
        before = t.producer_batch.update().values(first_sequence=LAST - 3, last_sequence=LAST - 3)
        change(cluster, before)  # as after 2^31 - 4 more records
        around = [
            batch(producer_id, LAST - 2, [b"1", b"2"]),  # to LAST - 1
            batch(producer_id, LAST, [b"3", b"4", b"5"]),  # LAST, 0, 1
            batch(producer_id, 2, [b"6"]),
        ]
        offsets = [1, 3, 6]
        assert appended(first, batch(producer_id, LAST - 1, [b"gap"]))[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
        for at, (records, offset) in enumerate(zip(around, offsets, strict=True)):
            gap = batch(producer_id, (LAST - 2, 0, 3)[at], [b"gap"])
            if at:
                assert appended(second, gap)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
            assert appended(first, records) == (0, offset)
            for again in range(at + 1):  # the later ones too, at another gateway, after the wrap
                assert appended(second, around[again]) == (0, offsets[again])
        assert appended(second, batch(producer_id, 4, [b"gap"]))[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
        assert appended(second, batch(producer_id, 3, [b"7", b"8"])) == (0, 7)
    with Consumer("flights", cluster=str(cluster.store.address), auto_offset_reset="earliest",
                  consumer_timeout_ms=0) as consumer:  # fmt: skip
        assert [record.value for record in consumer] == [b"%d" % number for number in range(9)]
