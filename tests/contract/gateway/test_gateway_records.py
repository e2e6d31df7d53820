"""Record batches that clients send, and what the other clients of the gateway notice of them."""

import asyncio
import contextlib
import gc

import pyarrow as pa
import pytest
from kafka import TopicPartition
from kafka.protocol.consumer import OffsetFetchRequest

from spark_log import Consumer
from spark_log.errors import (
    MetadataStoreUnavailableError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from spark_log.gateway.counters import Counters
from spark_log.gateway.records import record_streams
from spark_log.gateway.records.appender import Appender
from spark_log.gateway.records.batch_checks import SentBatch
from spark_log.gateway.records.record_streams import RecordStreams
from spark_log.gateway.records.topic_cache import TopicCache
from spark_log.gateway.topic_stores import TopicStores
from spark_log.log.records.kafka_batch.decode import FEW, DecodingLimits
from spark_log.log.records.kafka_batch.encode import encode
from spark_log.log.records.kafka_batch.header import HEADER_BYTES
from spark_log.log.records.kafka_batch.varint import varint
from spark_log.log.segments.fetcher import Fetcher
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.erase.erase import erase
from spark_log.maintenance.removal.retention import delete_records
from spark_log.replication.controller.topic_operations import delete_topic
from tests.support.gateway_wire import WireConnection, fetch_request, produce_request
from tests.support.kafka_batches import stored, with_checksum
from tests.support.records import append_keyed, topic_values
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make

pytestmark = pytest.mark.on_sqlite

NONE, UNKNOWN_TOPIC_OR_PARTITION, INVALID_GROUP_ID, INVALID_RECORD = 0, 3, 24, 87


@pytest.fixture
def gateway(cluster, cluster_address, tmp_path):
    make(cluster, "flights", 1)
    with GatewayProcess(tmp_path, cluster_address, "--no-auto-create-topics") as running:
        yield running


def batch(*records, key=None):
    rows = [(1_000, key, value, []) for value in records]
    return encode(stored(rows), base_offset=0, last_offset=len(rows) - 1, leader_epoch=0)


def batch_with_a_wrong_header_length(count):
    """The length of the only header key points before the beginning of the request."""
    bodies = [b"\0\0" + varint(number) + varint(-1) + varint(-1) for number in range(count)]
    bodies = [*(body + varint(0) for body in bodies[:-1]), bodies[-1] + varint(1) + varint(-(2**31)) + varint(0)]
    return with_checksum(batch(*[b""] * count)[:HEADER_BYTES] + b"".join(varint(len(body)) + body for body in bodies))


def produce(connection, batches):
    """The error code of each topic."""
    answer = connection.exchange(produce_request(batches), 7)
    return {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}


@pytest.mark.parametrize("count", [1, FEW + 1])
@pytest.mark.parametrize("topic", ["flights", "missing"])
def test_a_malformed_batch_does_not_affect_the_others_of_its_append(cluster, gateway, count, topic):
    make(cluster, "other", 1)
    with WireConnection(gateway.port) as connection:
        codes = produce(connection, {topic: batch_with_a_wrong_header_length(count), "other": batch(b"v")})
    assert codes == {topic: INVALID_RECORD if topic == "flights" else UNKNOWN_TOPIC_OR_PARTITION, "other": NONE}
    assert (topic_values(cluster, "flights"), topic_values(cluster, "other")) == ([], [b"v"])


def fetch(connection, offset, bytes_max):
    """The bytes of record batches from the offset on: one batch, or more within `bytes_max`."""
    request = fetch_request("flights", offset, max_bytes=bytes_max, min_bytes=1)
    [found] = connection.exchange(request, 4).responses[0].partitions
    assert found.error_code == 0
    return bytes(found.records)


@pytest.mark.delta
def test_a_running_gateway_forgets_erased_records(cluster, gateway):
    with WireConnection(gateway.port) as connection, WireConnection(gateway.port) as another:
        for key, value in ((b"stays", b"one"), (b"gone", b"private-1"), (b"stays", b"two"), (b"gone", b"private-2")):
            assert produce(connection, {"flights": batch(value, key=key)}) == {"flights": NONE}
        assert b"private-1" in fetch(connection, 0, 1_000_000)  # these batches are kept
        assert b"private-1" in fetch(another, 1, 1)  # and the rest is planned
        assert erase(cluster, "flights", [b"gone"], purge=True).purged.files
        for offset in range(4):
            for each in (connection, another):
                records = fetch(each, offset, 1_000_000)
                assert b"private" not in records
                assert records, "an empty batch moves a consumer past the gap"
        assert b"two" in fetch(another, 0, 1_000_000)


@pytest.mark.delta
def test_what_was_read_of_a_partition_is_forgotten_without_another_fetch(cluster):
    topic = make(cluster, "flights", 2)
    log, streams = ClientLog(cluster), RecordStreams(TopicStores(cluster, TopicCache(cluster)))
    for number in range(2):
        append_keyed(log, topic, (b"gone", b"private"), (b"stays", b"1"), partition=number)
        streams.read(topic, number, (0, 0), 0, 2, 1_000_000)
    both = streams.cached_bytes
    streams.forget_rewritten()
    assert streams.cached_bytes == both > 0
    erase(cluster, "flights", [b"gone"], purge=True)
    streams.forget_rewritten()
    assert streams.cached_bytes == 0
    log.close()


def test_a_partition_that_changed_after_its_positions_were_read_is_not_read_as_a_gap(cluster):
    """Without its rows, the plan would look like that of records which compaction has removed: consumers skip these."""
    topic = make(cluster, "flights", 1)
    with contextlib.closing(ClientLog(cluster)) as log:
        append_keyed(log, topic, (b"a", b"1"), (b"b", b"2"))
        streams = RecordStreams(TopicStores(cluster, TopicCache(cluster)))
        with pytest.raises(NotLeaderForPartitionError, match="read it again"):
            streams.read(topic, 0, (0, 1), 0, 2, 1_000_000)  # of a version that an election ended
        delete_records(cluster, {TopicPartition("flights", 0): 1})
        with pytest.raises(OffsetOutOfRangeError, match="offset 0"):
            streams.read(topic, 0, (0, 0), 0, 2, 1_000_000)
        assert len(streams.read(topic, 0, (0, 0), 1, 2, 1_000_000)) == 1
        delete_topic(cluster, "flights")  # or it was moved to another store
        with pytest.raises(NotLeaderForPartitionError, match="moved, deleted"):
            RecordStreams(TopicStores(cluster, TopicCache(cluster))).read(topic, 0, (0, 0), 1, 2, 1_000_000)


def test_a_topic_that_was_deleted_during_a_read_is_forgotten(cluster, monkeypatch):
    topic = make(cluster, "flights", 1)
    streams, open_stream = RecordStreams(TopicStores(cluster, TopicCache(cluster))), record_streams._open

    def delete_first(*arguments):
        stream = open_stream(*arguments)
        delete_topic(cluster, "flights")
        for _ in range(2):
            streams.forget_rewritten()
        return stream

    monkeypatch.setattr(record_streams, "_open", delete_first)
    with contextlib.closing(ClientLog(cluster)) as log:
        append_keyed(log, topic, (b"a", b"1"))
        assert len(streams.read(topic, 0, (0, 0), 0, 1, 1_000_000)) == 1
    streams.forget_rewritten()
    assert streams.cached_bytes == 0


def test_an_append_beside_one_to_a_deleted_topic_is_acknowledged_while_the_store_is_away(cluster, monkeypatch):
    make(cluster, "flights", 1)
    make(cluster, "gone", 1)
    topics = TopicCache(cluster)
    find = topics.find

    def away(names):
        if names := list(names):
            raise MetadataStoreUnavailableError("away")
        return find(names)

    async def outcomes():
        loop = asyncio.get_running_loop()
        appender = Appender(ClientLog(cluster), topics, TopicStores(cluster, topics), loop, Counters())
        sent = [SentBatch("gone", 0, batch(b"v")), SentBatch("flights", 0, batch(b"v"))]
        checked = appender.check(sent, DecodingLimits())
        delete_topic(cluster, "gone")
        monkeypatch.setattr(topics, "find", away)
        appender.start()
        done = await appender.submit("client", "connection", checked, acks="all")
        appender.close()
        await asyncio.to_thread(appender.join)
        return done

    gone, stored = asyncio.run(outcomes())
    assert isinstance(gone.error, UnknownTopicOrPartitionError)
    assert (stored.error, stored.base_offset) == (None, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_an_error_of_all_offsets_is_in_each_partition_where_the_version_has_no_other_place(gateway, version):
    """Without them, version 1 would say that no offset is committed: the client would reset its positions."""
    asked = OffsetFetchRequest.OffsetFetchRequestTopic(name="flights", partition_indexes=[0, 1])
    with WireConnection(gateway.port) as connection:
        answer = connection.exchange(OffsetFetchRequest(group_id="", topics=[asked]), version)
    found = [(p.partition_index, p.committed_offset, p.error_code) for t in answer.topics for p in t.partitions]
    assert found == ([(0, -1, INVALID_GROUP_ID), (1, -1, INVALID_GROUP_ID)] if version == 1 else [])
    assert version == 1 or answer.error_code == INVALID_GROUP_ID


@pytest.fixture
def large_partitions(cluster):
    """Five partitions, each with a segment file of 15 MB."""
    topic = make(cluster, "flights", 5, inline_max_bytes="0")
    log = ClientLog(cluster)
    for number in range(5):
        append_keyed(log, topic, *[(b"k", b"%d" % n * 30_000) for n in range(200)], partition=number)
    log.close()
    return topic


def test_streams_of_many_readers_hold_a_bounded_number_of_bytes(cluster, large_partitions, monkeypatch):
    streams = RecordStreams(TopicStores(cluster, TopicCache(cluster)))
    monkeypatch.setattr(record_streams, "_STREAMS_BYTES", 30_000_000)
    monkeypatch.setattr(record_streams, "_DECODING_BYTES", 15_000_000)
    for number in range(5):
        assert len(streams.read(large_partitions, number, (0, 0), 0, 200, 1)) == 1
        assert 5_000_000 < streams.stream_bytes <= 30_000_000
    monkeypatch.setattr(record_streams, "_STREAMS_BYTES", 1)
    for number in range(2):
        assert len(streams.read(large_partitions, number, (0, 0), 20, 200, 1)) == 1
    assert 5_000_000 < streams.stream_bytes < 20_000_000  # the latest one


def test_streams_that_are_not_kept_leave_memory_at_once(cluster, large_partitions, monkeypatch):
    streams = RecordStreams(TopicStores(cluster, TopicCache(cluster)))
    monkeypatch.setattr(record_streams, "_STREAMS_BYTES", 1)
    gc.collect()
    before = pa.total_allocated_bytes()
    gc.disable()
    try:
        for number in [0, 1, 2, 3, 4] * 2:
            streams.read(large_partitions, number, (0, 0), 20 * number, 200, 1)
            assert pa.total_allocated_bytes() - before <= streams.stream_bytes + 1_000_000
        assert sum(map(len, streams.read(large_partitions, 0, (0, 0), 0, 200, 100_000_000))) > 6_000_000
        streams.read(large_partitions, 4, (0, 0), 0, 200, 100_000_000)
        assert streams.stream_bytes == 0  # both have ended
        assert pa.total_allocated_bytes() - before < 1_000_000
    finally:
        gc.enable()


def test_records_that_are_being_decoded_are_counted_with_those_of_other_streams(cluster, large_partitions, monkeypatch):
    streams, held, read = RecordStreams(TopicStores(cluster, TopicCache(cluster))), [], Fetcher.read

    def read_and_measure(fetcher, slices, schema):
        held.append((streams.stream_bytes, pa.total_allocated_bytes() - before))
        yield from read(fetcher, slices, schema)

    before = pa.total_allocated_bytes()
    monkeypatch.setattr(Fetcher, "read", read_and_measure)
    monkeypatch.setattr(record_streams, "_STREAMS_BYTES", 50_000_000)
    monkeypatch.setattr(record_streams, "_DECODING_BYTES", 30_000_000)
    for number in range(5):
        streams.read(large_partitions, number, (0, 0), 0, 200, 1)
    assert len(held) == 5
    assert all(30_000_000 <= counted <= 50_000_000 for counted, _ in held)
    assert max(allocated for _, allocated in held) < 21_000_000  # one other stream


@pytest.mark.delta
def test_a_consumer_forgets_erased_records_that_it_has_not_returned(cluster, cluster_address):
    topic = make(cluster, "flights", 1)
    log = ClientLog(cluster)
    append_keyed(log, topic, *[(b"gone", b"private")] * 3, (b"stays", b"1"))
    consumer = Consumer(cluster=cluster_address, auto_offset_reset="earliest", max_poll_records=1)
    partition = TopicPartition("flights", 0)
    consumer.assign([partition])
    [[first]] = consumer.poll(30_000).values()
    assert first.value == b"private"
    erase(cluster, "flights", [b"gone"], purge=True)
    [[second]] = consumer.poll(30_000).values()
    assert (second.offset, second.value) == (3, b"1")
    consumer.close()
    log.close()


def test_a_produce_request_without_acknowledgement_is_never_answered(cluster, gateway):
    """After an error its connection is closed, so that the client notices; other requests are answered in order."""
    with WireConnection(gateway.port) as connection:
        send_unacknowledged(connection, {"flights": batch(b"v")})
        assert produce(connection, {"flights": batch(b"w")}) == {"flights": NONE}
        send_unacknowledged(connection, {"missing": batch(b"v")})
        assert connection.is_closed()
    assert topic_values(cluster, "flights") == [b"v", b"w"]


def send_unacknowledged(connection, batches):
    connection.send(produce_request(batches, acks=0), 7)
