"""Record batches against the encoder and decoder of Java's client, in the JVM of Spark and its Kafka connector."""

from itertools import accumulate, cycle, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.java_gateway import JavaObject

from spark_log.errors import InvalidRecordError, InvalidTimestampError
from spark_log.log.records.kafka_batch.decode import DecodedBatch, decode
from spark_log.log.records.kafka_batch.encode import encode
from spark_log.log.records.kafka_batch.header import CompressionType
from spark_log.log.records.schema import TimestampType
from tests.support.kafka_batches import MUTATIONS, RECORDS, damaged, decoded, no_records, rows_of, stored

LEADER_EPOCH = 4
STEPS = st.lists(st.integers(1, 1000), min_size=1, max_size=4)
"""How far each record's offset is from the one before it, again and again."""


class Java:
    """Record batches of Java's client, as bytes."""

    def __init__(self, gateway):
        self._gateway, self._jvm = gateway, gateway.jvm
        self.records = gateway.jvm.org.apache.kafka.common.record

    def batch(self, rows, *, offsets=None, base_offset=0, **options):
        """A batch with the given rows; `options` are those of `_builder`, and `last_offset`."""
        last_offset = options.pop("last_offset", None)
        builder = self._builder(base_offset, **options)
        for offset, (time, key, value, headers) in zip(offsets or range(len(rows)), rows, strict=True):
            builder.appendWithOffset(offset, time, key, value, self._headers(headers))
        return self._built(builder, last_offset)

    def end_of_a_transaction(self):
        """A control batch, as brokers write them."""
        marker = self.records.EndTransactionMarker(self.records.ControlRecordType.COMMIT, 0)
        return self._bytes(self.records.MemoryRecords.withEndTransactionMarker(7, 2, marker))

    def batch_without_records(self, base_offset, last_offset):
        buffer = self._jvm.java.nio.ByteBuffer.allocate(61)
        kind = self.records.TimestampType.CREATE_TIME
        ids = -1, -1, -1
        self.records.DefaultRecordBatch.writeEmptyHeader(
            buffer, 2, *ids, base_offset, last_offset, LEADER_EPOCH, kind, -1, False, False
        )
        return buffer.array()

    def rows(self, batch):
        """The records, as a consumer reads them."""
        utils = self._jvm.org.apache.kafka.common.utils.Utils
        records = self.records.MemoryRecords.readableRecords(self._jvm.java.nio.ByteBuffer.wrap(batch))
        return [
            (
                record.timestamp(),
                utils.toNullableArray(record.key()),
                utils.toNullableArray(record.value()),
                [(header.key(), header.value()) for header in record.headers()],
            )
            for record in records.records().iterator()
        ]

    def _builder(
        self,
        base_offset,
        *,
        codec=CompressionType.NONE,
        timestamp_type: JavaObject = None,
        append_time=-1,
        producer=(-1, -1, -1),
        transactional=False,
    ):
        compression = self.records.CompressionType.forId(int(codec))
        return self.records.MemoryRecordsBuilder(
            self._jvm.java.nio.ByteBuffer.allocate(1 << 20),
            2,
            self._jvm.org.apache.kafka.common.compress.Compression.of(compression).build(),
            timestamp_type or self.records.TimestampType.CREATE_TIME,
            base_offset,
            append_time,
            *producer,
            transactional,
            False,
            LEADER_EPOCH,
            1 << 20,
        )

    def _headers(self, headers):
        header = self._jvm.org.apache.kafka.common.header
        found = self._gateway.new_array(header.Header, len(headers))
        for number, each in enumerate(headers):
            found[number] = header.internals.RecordHeader(*each)
        return found

    def _built(self, builder, last_offset):
        if last_offset is not None:
            builder.overrideLastOffset(last_offset)
        return self._bytes(builder.build())

    def _bytes(self, records):
        return self._jvm.org.apache.kafka.common.utils.Utils.toArray(records.buffer())


@pytest.fixture(scope="module")
def java(spark):
    return Java(spark.sparkContext._gateway)


def offsets_of(rows, first, steps):
    return list(islice(accumulate(cycle(steps), initial=first), len(rows)))


@pytest.mark.parametrize("codec", CompressionType)
def test_batches_of_java_are_decoded(java, codec):
    @given(rows=RECORDS, transactional=st.booleans())
    @settings(max_examples=8)
    def check(rows, transactional):
        batch = java.batch(rows, codec=codec, producer=(2**40, 2, 5), transactional=transactional)
        found = decoded(batch)
        assert rows_of(found.records) == rows
        header = found.header
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 2, 5)
        assert (header.is_transactional, header.compression) == (transactional, codec)

    check()


def test_only_a_broker_may_write_javas_append_times_and_control_batches(java):
    kind = java.records.TimestampType.LOG_APPEND_TIME
    appended = java.batch([(1_000, b"k", b"v", [])], timestamp_type=kind, append_time=2_000)
    found = decode([appended, java.end_of_a_transaction()])
    assert [type(each) for each in found] == [InvalidTimestampError, InvalidRecordError]


def test_our_batches_are_those_of_java_byte_by_byte(java):
    @given(rows=RECORDS, first=st.integers(0, 2**40), before=st.integers(0, 9), after=st.integers(0, 9), steps=STEPS)
    @settings(max_examples=20)
    def check(rows, first, before, after, steps):
        """With gaps before the first record, between records, and after the last one."""
        offsets = offsets_of(rows, first + before, steps)
        bounds = {"base_offset": first, "last_offset": offsets[-1] + after}
        ours = encode(stored(rows, offsets=offsets), leader_epoch=LEADER_EPOCH, **bounds)
        assert ours == java.batch(rows, offsets=offsets, **bounds)

    check()


def test_java_reads_the_append_time_of_our_batches(java):
    rows = [(2_000, b"k", b"v", [("h", None)])] * 3
    kind, theirs = TimestampType.LOG_APPEND_TIME, java.records.TimestampType.LOG_APPEND_TIME
    ours = encode(stored(rows), base_offset=0, last_offset=2, leader_epoch=LEADER_EPOCH, timestamp_type=kind)
    assert ours == java.batch(rows, timestamp_type=theirs, append_time=2_000)
    assert java.rows(ours) == rows


def test_damaged_records_are_refused_or_mean_what_java_reads(java):
    @given(rows=RECORDS, mutations=MUTATIONS, cut=st.integers(0, 40))
    @settings(max_examples=50)
    def check(rows, mutations, cut):
        batch = damaged(java.batch(rows), mutations, cut)
        [found] = decode([batch])
        if isinstance(found, DecodedBatch):
            ours = [(-1 if time is None else time, *rest) for time, *rest in rows_of(found.records)]
            assert ours == java.rows(batch)

    check()


def test_our_empty_batches_are_those_of_java(java):
    ours = encode(no_records(), base_offset=10, last_offset=19, leader_epoch=LEADER_EPOCH)
    assert ours == java.batch_without_records(10, 19)
