"""Damaged record batches: the decoder of many records against the one of a few, each batch alone and beside others.

The decoder of a few records is the model: it reads one field after the other. A batch must get the same outcome from
both, whatever its neighbours are, and a damaged neighbour must not change it.
"""

import random
import struct
import sys
import time
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_log.errors import InvalidRecordError, MessageSizeTooLargeError, SparkLogError
from spark_log.log.records.kafka_batch import decode as decoding
from spark_log.log.records.kafka_batch.decode import FEW, DecodedBatch, DecodingLimits, decode, each_alone
from spark_log.log.records.kafka_batch.encode import encode
from spark_log.log.records.kafka_batch.few_records import decode_few
from spark_log.log.records.kafka_batch.header import HEADER_BYTES, read_header
from spark_log.log.records.kafka_batch.varint import varint
from tests.support.kafka_batches import MUTATIONS, RECORDS, damaged, decoded, rows_of, stored, with_checksum

BYTES = (0x00, 0x01, 0x02, 0x7F, 0x80, 0xFF)
"""Values that a byte of a batch gets, besides itself with one bit flipped."""
COUNTS = [1, FEW, FEW + 1, 1_000]
_BASE_TIMESTAMP, _MAX_TIMESTAMP = 27, 35


def batch_of(count):
    """Records with and without key, value and headers; lengths of one byte and of two."""
    rows = [
        (
            1_000 + 70 * number,
            None if number % 5 == 3 else b"k" * (number % 3),
            None if number % 7 == 5 else b"v" * (70 if number % 11 == 4 else number % 4),
            [("h" * (item + 1), None if item == 1 else b"w") for item in range(number % 4)],
        )
        for number in range(count)
    ]
    return encode(stored(rows), base_offset=0, last_offset=count - 1, leader_epoch=0)


def model(batch):
    """The outcome of a batch without header faults, record by record."""
    body = memoryview(batch)[HEADER_BYTES:], read_header(memoryview(batch))
    return outcome(decode_few([body], sys.maxsize)[0])


def outcome(found):
    """The type of an error, or the records; timestamps as integers, because Python's datetime cannot have them all."""
    records = found.records if isinstance(found, DecodedBatch) else found
    if isinstance(records, SparkLogError):
        return type(records)
    return records.set_column(3, "timestamp", records.column("timestamp").cast(pa.int64()))


def mutants(batch, positions, bytes_max):
    """The batch with one byte changed: for each position at most `bytes_max` other bytes, a seeded choice."""
    choice = random.Random(len(batch))
    for at in positions:
        others = sorted({*BYTES, batch[at] ^ 1, batch[at] ^ 0x80} - {batch[at]})
        for byte in choice.sample(others, min(bytes_max, len(others))):
            changed = bytearray(batch)
            changed[at] = byte
            yield with_checksum(changed)


def assert_as_the_model(batches):
    """Many batches decoded together, beside a good one that has more than a few records."""
    neighbour = batch_of(FEW + 1)
    found = decode([*batches, neighbour])
    assert outcome(found[-1]) == model(neighbour)
    for batch, each in zip(batches, found, strict=False):
        assert outcome(each) == model(batch), batch.hex()


WIDE = pytest.mark.parametrize("wide", [False, pytest.param(True, marks=pytest.mark.long)])


@WIDE
@pytest.mark.parametrize("count", COUNTS)
def test_a_batch_with_a_changed_byte_has_the_outcome_of_the_model(count, wide):
    """All positions and lengths; of a large batch a seeded choice of them, larger if `wide`."""
    batch = batch_of(count)
    positions = [*range(_BASE_TIMESTAMP, _MAX_TIMESTAMP), *range(HEADER_BYTES, len(batch))]
    cuts = range(HEADER_BYTES, len(batch))
    if count > FEW + 1:
        choice, times = random.Random(count), 40 if wide else 1
        positions, cuts = choice.sample(positions, 10 * times), choice.sample(cuts, 5 * times)
    batches = [
        *mutants(batch, positions, len(BYTES) + 2 if wide else 2),
        *(with_checksum(batch[:size]) for size in cuts),
    ]
    # what is shorter is refused by its header, and has no records to compare
    batches = [each for each in batches if (len(each) - HEADER_BYTES) // 6 >= count]
    together = 2_000 if count <= FEW + 1 else 200
    for first in range(0, len(batches), together):
        assert_as_the_model(batches[first : first + together])


def check_mutations(rows, mutations, cut):
    batch = damaged(encode(stored(rows), base_offset=0, last_offset=len(rows) - 1, leader_epoch=0), mutations, cut)
    if (len(batch) - HEADER_BYTES) // 6 >= len(rows):
        assert outcome(decode([batch])[0]) == model(batch)
        assert_as_the_model([batch])


@WIDE
def test_damaged_records_have_the_outcome_of_the_model(wide):
    of_damage = given(rows=RECORDS, mutations=MUTATIONS, cut=st.integers(0, 40))
    settings(max_examples=3_000 if wide else 40)(of_damage(check_mutations))()


_INT64 = st.integers(-(2**63), 2**63 - 1)
_EDGES = [-(2**63), -(2**63) + 1, -(2**62), -(2**56), -(2**53), -1, 0, 2**53, 2**55 - 1, 2**56, 2**62, 2**63 - 1]
_DELTA_EDGES = [-(2**63), -(2**55) - 1, -(2**55), -(2**53), -1, 0, 1, 2**53, 2**55 - 1, 2**55, 2**63 - 1]


def with_times(count, base_ms, delta_ms):
    """`count` records with the timestamp delta."""
    bodies = [record(number, delta_ms) for number in range(count)]
    batch = bytearray(batch_of(count)[:HEADER_BYTES] + b"".join(bodies))
    struct.pack_into(">q", batch, _BASE_TIMESTAMP, base_ms)
    return with_checksum(batch)


def record(number, delta_ms=0, headers=b"\0"):
    body = b"\0" + varint(delta_ms) + varint(number) + varint(1) + b"k" + varint(1) + b"v" + headers
    return varint(len(body)) + body


def check_times(base_ms, delta_ms):
    batches = [with_times(count, base_ms, delta_ms) for count in (1, FEW, FEW + 1)]
    assert_as_the_model(batches)
    alone = [outcome(decode([batch])[0]) for batch in batches]
    assert alone == [model(batch) for batch in batches]
    times = [found if isinstance(found, type) else found.column("timestamp")[-1].as_py() for found in alone]
    assert times[0] == times[1] == times[2]


@pytest.mark.parametrize("base_ms", _EDGES)
def test_timestamps_at_the_edges_mean_the_same_among_few_and_many(base_ms):
    for delta_ms in _DELTA_EDGES:
        check_times(base_ms, delta_ms)


@pytest.mark.long
@given(base_ms=_INT64 | st.sampled_from(_EDGES), delta_ms=_INT64 | st.sampled_from(_DELTA_EDGES))
@settings(max_examples=1_000)
def test_any_timestamps_mean_the_same_among_few_and_many(base_ms, delta_ms):
    check_times(base_ms, delta_ms)


@pytest.mark.parametrize("size", [-1, -2, -(2**31), -(2**54), 2**31, 2**54])
@pytest.mark.parametrize("place", ["key", "value"])
def test_a_header_with_an_impossible_length_is_malformed(place, size):
    pair = varint(size) + b"h" + varint(1) + b"w" if place == "key" else varint(1) + b"h" + varint(size) + b"w"
    for count in COUNTS[:3]:
        bodies = [*(record(number) for number in range(count - 1)), record(count - 1, 0, varint(1) + pair)]
        batch = with_checksum(batch_of(count)[:HEADER_BYTES] + b"".join(bodies))
        assert isinstance(decode([batch])[0], InvalidRecordError)
        assert_as_the_model([batch])


def test_a_header_key_must_be_utf_8():
    for key in (b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xff", "é\0€😀".encode()):
        header = varint(1) + varint(len(key)) + key + varint(-1)
        for count in COUNTS[:3]:
            bodies = [*(record(number) for number in range(count - 1)), record(count - 1, 0, header)]
            assert_as_the_model([with_checksum(batch_of(count)[:HEADER_BYTES] + b"".join(bodies))])


def with_headers(records, headers):
    """A batch whose records have these headers, encoded."""
    bodies = b"".join(record(number, 0, headers) for number in range(records))
    return with_checksum(batch_of(records)[:HEADER_BYTES] + bodies)


def test_a_wrong_header_key_costs_no_more_time_among_many_batches():
    good, wrong = with_headers(40, varint(1) + b"\0\x01"), with_headers(40, varint(1) + b"\x02\xff\x01")

    def cpu_s(batches):
        began_s = time.thread_time()
        found = decode(batches)
        assert sum(isinstance(each, InvalidRecordError) for each in found) == batches.count(wrong)
        return time.thread_time() - began_s

    with_wrong, without = ([*[good] * 2_000, last] for last in (wrong, good))
    assert min(cpu_s(with_wrong) for _ in range(3)) < 3 * min(cpu_s(without) for _ in range(3))


def test_headers_of_a_request_are_limited_because_they_take_more_memory_than_their_bytes():
    batch = with_headers(50, varint(10_000) + b"\0\x01" * 10_000)
    small = with_headers(1_000, varint(2) + b"\0\x01" * 2)
    tracemalloc.start()
    first, second, third, last = decode([batch, batch, batch, small], DecodingLimits(headers_max=1_002_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [type(each) for each in (first, second, last)] == [DecodedBatch] * 3
    assert isinstance(third, MessageSizeTooLargeError)
    assert "1002000 headers" in str(third)
    assert peak < 200_000_000
    assert isinstance(decode([batch] * 3)[2], MessageSizeTooLargeError)


def test_few_records_are_read_one_by_one_even_if_they_are_long_but_not_if_they_have_many_headers(monkeypatch):
    """For ten records of 10 kB array operations take five times as long."""
    long = with_headers(FEW, varint(1) + varint(5) + b"trace" + varint(10_000) + bytes(10_000))
    many = with_headers(2, varint(300) + b"\0\x01" * 300)
    assert [type(*decode([each])) for each in (long, many)] == [DecodedBatch] * 2
    monkeypatch.setattr(decoding, "_Fields", None)  # the array operations fail
    assert [type(*decode([each])) for each in (long, many)] == [DecodedBatch, InvalidRecordError]


def test_an_unexpected_failure_is_the_outcome_of_its_batch_alone():
    def reciprocals(numbers):
        return [1 / number for number in numbers]

    found = each_alone(reciprocals, [1, 0, 4])
    assert (found[0], found[2]) == (1.0, 0.25)
    assert isinstance(found[1], InvalidRecordError)


def test_good_batches_of_each_size_are_decoded():
    for count in COUNTS:
        assert len(rows_of(decoded(batch_of(count)).records)) == count
