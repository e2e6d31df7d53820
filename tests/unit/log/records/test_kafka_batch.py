"""Record batches against kafka-python's encoder and decoder, and on damaged bytes."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from spark_log.errors import CorruptRecordError, InvalidRecordError, InvalidTimestampError, MessageSizeTooLargeError
from spark_log.log.records.kafka_batch.decode import FEW, DecodedBatch, DecodingLimits, decode
from spark_log.log.records.kafka_batch.encode import encode
from spark_log.log.records.kafka_batch.header import HEADER_BYTES, CompressionType
from spark_log.log.records.record_limits import HEADERS_PER_RECORD_MAX
from spark_log.log.records.schema import TimestampType
from tests.support.kafka_batches import (
    MUTATIONS,
    RECORDS,
    decoded,
    no_records,
    rows_of,
    stored,
    with_checksum,
)


def sent(rows, codec=CompressionType.NONE, **ids):
    """A batch as kafka-python encodes it, which has no packages for snappy, lz4 and zstd here."""
    wanted = {"is_transactional": 0, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1, **ids}
    builder = DefaultRecordBatchBuilder(2, int(codec), batch_size=1 << 30, **wanted)
    for number, row in enumerate(rows):
        builder.append(number, *row)
    return bytes(builder.build())


@given(rows=RECORDS, codec=st.sampled_from([CompressionType.NONE, CompressionType.GZIP]))
def test_batches_of_kafka_python_are_decoded(rows, codec):
    found = decoded(sent(rows, codec, producer_id=7, producer_epoch=2, base_sequence=5, is_transactional=1))
    assert rows_of(found.records) == rows
    header = found.header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 5)
    assert (header.is_transactional, header.record_count) == (True, len(rows))
    assert header.compression in (codec, CompressionType.NONE)  # kafka-python leaves what does not become smaller


@given(rows=RECORDS, first=st.integers(0, 2**62), gaps=st.integers(0, 1000))
def test_kafka_python_decodes_our_batches(rows, first, gaps):
    base = max(0, first - gaps)
    batch = encode(stored(rows, first), base_offset=base, last_offset=first + len(rows) + 3, leader_epoch=4)
    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc()
    assert theirs.base_offset == base
    assert theirs.next_offset == first + len(rows) + 4
    found = [(record.timestamp, record.key, record.value, list(record.headers)) for record in theirs]
    assert found == rows
    assert [record.offset for record in DefaultRecordBatch(batch)] == list(range(first, first + len(rows)))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_each_codec_is_decompressed(codec):
    rows = [(1, b"k", b"v" * 500, [])]
    plain = sent(rows)
    sink = pa.BufferOutputStream()
    if codec == "snappy":  # a raw block, as franz-go sends it
        sink.write(pa.compress(plain[HEADER_BYTES:], codec=codec))
    else:
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(plain[HEADER_BYTES:])
    batch = bytearray(plain[:HEADER_BYTES] + sink.getvalue().to_pybytes())
    batch[22] |= CompressionType[codec.upper()]
    assert rows_of(decoded(with_checksum(batch)).records) == rows


@given(batches=st.lists(RECORDS, min_size=1, max_size=8))
@settings(max_examples=30)
def test_batches_are_decoded_together_as_alone(batches):
    found = decode([sent(rows) for rows in batches])
    assert [rows_of(each.records) for each in found] == batches


@pytest.mark.parametrize("count", [1, FEW + 1])
def test_a_bad_batch_fails_alone(count):
    good = [(1_000 + number, b"k", b"v", [("h", b"1")]) for number in range(count)]
    key_not_text = bytearray(sent([*good[:-1], (1_000, b"k", b"v", [("\x7f", b"1")])]))
    key_not_text[key_not_text.rindex(b"\x7f")] = 0xFF
    longer = sent(good) + b"\0"
    wrong_delta = bytearray(sent(good))
    wrong_delta[HEADER_BYTES + 3] = 2  # the offset delta of the first record
    bad = {
        "checksum": (CorruptRecordError, bytes([*sent(good)[:-1], 7])),
        "short": (CorruptRecordError, sent(good)[:-1]),
        "too short": (CorruptRecordError, b"\0" * 10),
        "old format": (InvalidRecordError, b"\0" * 16 + b"\1" + b"\0" * 60),
        "two batches": (InvalidRecordError, sent(good) * 2),
        "key not text": (InvalidRecordError, with_checksum(key_not_text)),
        "bytes after the records": (InvalidRecordError, with_checksum(longer)),
        "offset delta": (InvalidRecordError, with_checksum(wrong_delta)),
        "no records": (InvalidRecordError, encode(no_records(), base_offset=0, last_offset=0, leader_epoch=0)),
        "codec": (InvalidRecordError, with_checksum(changed(sent(good), 22, 7))),
        "control": (InvalidRecordError, with_checksum(changed(sent(good), 22, 0x20))),
        "append time": (InvalidTimestampError, with_checksum(changed(sent(good), 22, 0x08))),
    }
    found = decode([sent(good), *(batch for _, batch in bad.values()), sent(good)])
    assert rows_of(found[0].records) == rows_of(found[-1].records) == good
    assert [type(each) for each in found[1:-1]] == [kind for kind, _ in bad.values()], dict(
        zip(bad, found[1:-1], strict=True)
    )


def changed(batch, at, byte):
    found = bytearray(batch)
    found[at] = byte
    return found


def test_an_empty_batch_moves_consumers_past_a_gap():
    batch = encode(
        no_records(), base_offset=10, last_offset=19, leader_epoch=2, timestamp_type=TimestampType.CREATE_TIME
    )
    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc()
    assert (theirs.base_offset, theirs.next_offset, list(theirs)) == (10, 20, [])


def test_a_record_without_a_time_has_a_null_timestamp():
    for count in (1, FEW + 1):
        assert rows_of(decoded(sent([(-1, None, b"v", [])] * count)).records) == [(None, None, b"v", [])] * count


def test_decompression_is_bounded():
    batch = sent([(1, None, b"\0" * 1_000_000, [])], CompressionType.GZIP)
    assert len(batch) < 2_000
    [found] = decode([batch], DecodingLimits(decompressed_bytes_max=999_999))
    assert isinstance(found, MessageSizeTooLargeError)
    plain = sent([(1, None, b"v", [])])
    snappy = bytearray(plain[:HEADER_BYTES] + b"\xff\xff\xff\xff\x07" + b"abc")  # says that it has 2 GiB
    snappy[22] |= CompressionType.SNAPPY
    [found] = decode([with_checksum(snappy)])
    assert isinstance(found, MessageSizeTooLargeError)


def test_tiny_blocks_of_snappy_count_for_the_time_that_they_take():
    plain = sent([(1, None, b"v" * 5_000, [])])
    blocks = [plain[at : at + 5] for at in range(HEADER_BYTES, len(plain), 5)]
    assert len(blocks) > 1_000
    sized = [bytes([len(block), (len(block) - 1) << 2]) + block for block in blocks]
    body = b"\x82SNAPPY\0" + bytes(8) + b"".join(len(block).to_bytes(4, "big") + block for block in sized)
    batch = bytearray(plain[:HEADER_BYTES] + body)
    batch[22] |= CompressionType.SNAPPY
    [found] = decode([with_checksum(batch)], DecodingLimits(decompressed_bytes_max=2_000_000))
    assert isinstance(found, DecodedBatch)
    [found] = decode([with_checksum(batch)], DecodingLimits(decompressed_bytes_max=1_000_000))
    assert isinstance(found, MessageSizeTooLargeError)


@pytest.mark.parametrize("count", [1, FEW + 1])
def test_a_record_may_have_as_many_headers_as_a_topic_takes(count):
    def rows(headers):
        return [(1, None, b"v", [("h", b"")] * headers)] + [(1, None, b"v", [])] * (count - 1)

    assert rows_of(decoded(sent(rows(HEADERS_PER_RECORD_MAX))).records) == rows(HEADERS_PER_RECORD_MAX)
    [found] = decode([sent(rows(HEADERS_PER_RECORD_MAX + 1))])
    assert isinstance(found, InvalidRecordError)


@given(batch=st.binary(max_size=200), rows=RECORDS, mutations=MUTATIONS)
@settings(max_examples=200)
def test_any_bytes_give_records_or_an_error(batch, rows, mutations):
    changed_anywhere = bytearray(sent(rows))
    for at, byte in mutations:
        changed_anywhere[at % len(changed_anywhere)] = byte
    for each in decode([batch, changed_anywhere, with_checksum(changed_anywhere)]):
        assert isinstance(each, DecodedBatch | CorruptRecordError | InvalidRecordError)
