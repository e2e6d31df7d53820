from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2

from spark_log.errors import InvalidRecordError
from spark_log.log.append.partitioner import murmur2, partition_of, partition_of_key, split_by_partition

KEYS = st.lists(st.none() | st.binary(max_size=33), max_size=40)


def test_murmur2_of_the_vectors_in_kafkas_tests() -> None:
    # org.apache.kafka.common.utils.UtilsTest.testMurmur2
    vectors = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert murmur2(pa.array(list(vectors))).astype(np.int32).tolist() == list(vectors.values())


@given(KEYS, st.integers(0, 40), st.sampled_from([pa.binary(), pa.large_binary()]))
@settings(max_examples=150, deadline=None)
def test_murmur2_equals_kafkas(keys: list[bytes | None], cut: int, kind: pa.DataType) -> None:
    expected = [kafka_murmur2(key or b"") for key in keys]
    array = pa.array(keys, kind)
    assert murmur2(array).tolist() == expected
    assert murmur2(array.slice(cut)).tolist() == expected[cut:]
    assert murmur2(pa.chunked_array([array.slice(0, cut), array.slice(cut)], kind)).tolist() == expected


def test_murmur2_of_long_keys_and_of_strings() -> None:
    long = bytes(range(256)) * 1000 + b"abc"
    assert murmur2(pa.array([b"x", long])).tolist() == [kafka_murmur2(b"x"), kafka_murmur2(long)]
    assert murmur2(pa.array(["grün", "rot"])).tolist() == [kafka_murmur2("grün".encode()), kafka_murmur2(b"rot")]


@given(KEYS, st.integers(1, 300), st.integers(0, 1000), st.data())
@settings(max_examples=150, deadline=None)
def test_explicit_partition_precedes_key_precedes_round_robin(
    keys: list[bytes | None], count: int, start: int, data: st.DataObject
) -> None:
    size = len(keys)
    explicit = data.draw(st.lists(st.none() | st.integers(0, count - 1), min_size=size, max_size=size))
    got = partition_of(pa.array(keys, pa.binary()), pa.array(explicit, pa.int32()), count, start)
    assert got.dtype == np.int32 and len(got) == size
    chunks = [
        pa.chunked_array([pa.array(column, kind)]) for column, kind in ((keys, pa.binary()), (explicit, pa.int64()))
    ]
    assert (partition_of(*chunks, count, start) == got).all()
    free = [int(got[i]) for i in range(size) if explicit[i] is None and keys[i] is None]
    for i, key in enumerate(keys):
        if explicit[i] is not None:
            assert got[i] == explicit[i]
        elif key is not None:
            assert got[i] == (kafka_murmur2(key) & 0x7FFFFFFF) % count == partition_of_key(key, count)
    shares = Counter(free)
    if free:
        assert free[0] == start % count
        assert len(shares) == min(count, len(free))
        assert max(shares.values()) - min(shares.values()) <= 1


def test_null_keys_go_in_runs() -> None:
    keys = pa.nulls(10, pa.binary())
    assert partition_of(keys, None, 3, 1).tolist() == [1, 1, 1, 1, 2, 2, 2, 0, 0, 0]
    assert partition_of(keys, None, 3, 1, run_records_min=5).tolist() == [1] * 5 + [2] * 5
    assert partition_of(keys, None, 3, 2, run_records_min=100).tolist() == [2] * 10
    assert partition_of(pa.array([], pa.binary()), None, 3).tolist() == []


@pytest.mark.parametrize("bad", [-1, 4, 1 << 40])
def test_explicit_partition_that_does_not_exist_is_refused(bad: int) -> None:
    keys = pa.array([b"a", None, b"c"])
    with pytest.raises(InvalidRecordError, match=rf"partition: {bad} does not exist, the topic has 4 partitions"):
        partition_of(keys, pa.array([0, None, bad], pa.int64()), 4)
    with pytest.raises(InvalidRecordError, match=f"{bad} does not exist"):
        partition_of(pa.chunked_array([keys]), pa.chunked_array([pa.array([0, None, bad], pa.int64())]), 4)


def test_other_invalid_input_is_refused() -> None:
    keys = pa.array([b"a", b"b"])
    for explicit in (pa.array([True, False]), pa.array([1.0, 2.0]), pa.array(["1", "2"])):
        with pytest.raises(InvalidRecordError, match="unsupported type"):
            partition_of(keys, explicit, 4)
    with pytest.raises(InvalidRecordError, match="1 values for 2"):
        partition_of(keys, pa.array([1], pa.int32()), 4)
    with pytest.raises(InvalidRecordError, match="0 partitions"):
        partition_of(keys, None, 0)
    assert partition_of(keys, pa.nulls(2), 4).tolist() == partition_of(keys, None, 4).tolist()


@given(st.lists(st.integers(0, 5), max_size=60), st.booleans())
@settings(max_examples=100, deadline=None)
def test_split_keeps_the_order(partitions: list[int], in_runs: bool) -> None:
    chosen = sorted(partitions, reverse=True) if in_runs else partitions
    table = pa.table({"value": pa.array([b"%d" % i for i in range(len(chosen))], pa.binary())})
    parts = dict(split_by_partition(table, np.array(chosen, np.int32)))
    assert list(parts) == sorted(set(chosen))
    for partition, rows in parts.items():
        expected = [b"%d" % i for i, p in enumerate(chosen) if p == partition]
        assert rows.column("value").to_pylist() == expected
