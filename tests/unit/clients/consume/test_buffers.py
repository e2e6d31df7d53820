"""Buffers return every record once and in order, stay within their limits, read nothing twice, and are fair."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from spark_log.clients.consume.buffers import STREAMS_MAX, Buffers, Limits, Stream

BYTES_PER_ROW = 8
EPOCH = 3
PLENTY = Limits(1 << 30, 1 << 30)


def batches_of(sizes, first=0):
    """Batches that share no buffers, with dense offsets."""
    for size in sizes:
        yield pa.record_batch({"offset": pa.array(range(first, first + size), pa.int64())}), EPOCH
        first += size


def stream(sizes, first=0, source=None):
    return Stream(first, first + sum(sizes), EPOCH, source or batches_of(sizes, first))


def unreadable_stream():
    """Three records can be read, and the next three cannot."""

    def source():
        yield from batches_of([3])
        raise OSError("unreadable")

    return stream([3, 3], source=source())


def partition(number):
    return TopicPartition("t", number)


@given(
    layouts=st.lists(st.lists(st.integers(1, 5), max_size=5), min_size=1, max_size=4),
    rows_max=st.none() | st.integers(1, 7),
    total=st.integers(1, 200),
    per_partition=st.integers(1, 100),
)
def test_buffers_return_each_record_once_in_order_within_the_limits(layouts, rows_max, total, per_partition):
    buffers = Buffers(Limits(total, per_partition))
    names = [partition(number) for number in range(len(layouts))]
    for name, sizes in zip(names, layouts, strict=True):
        buffers.add(name, stream(sizes))
    positions = dict.fromkeys(names, 0)
    seen = {name: [] for name in names}
    largest = 5 * BYTES_PER_ROW
    for _ in range(1 + sum(map(sum, layouts))):
        taken = buffers.take(names, rows_max)
        if not taken:
            break
        rows = sum(batch.num_rows for _, batch, _ in taken)
        assert rows_max is None or rows <= rows_max
        assert buffers.held_bytes <= total + largest
        assert rows * BYTES_PER_ROW < total + 2 * largest
        for name, batch, epoch in taken:
            assert epoch == EPOCH
            seen[name] += batch.column("offset").to_pylist()
            positions[name] = seen[name][-1] + 1
    for name, sizes in zip(names, layouts, strict=True):
        assert seen[name] == list(range(sum(sizes)))
    assert buffers.settle(positions) == {}
    assert not any(name in buffers for name in names)


def test_partitions_take_turns():
    buffers = Buffers(PLENTY)
    for number in range(3):
        buffers.add(partition(number), stream([100]))
    order = [[name.partition for name, _, _ in buffers.take([partition(n) for n in range(3)], 10)] for _ in range(6)]
    assert order == [[0], [1], [2], [0], [1], [2]]


def test_take_reads_no_batch_early():
    pulled = []

    def source():
        for batch in batches_of([10, 10, 10]):
            pulled.append(batch)
            yield batch

    buffers = Buffers(Limits(1, 1))
    buffers.add(partition(0), stream([10, 10, 10], source=source()))
    for polls, batches in ((10, 1), (10, 2), (10, 3)):
        for _ in range(polls):
            buffers.take([partition(0)], 1)
        assert len(pulled) == batches


def test_paused_partition_keeps_its_records_and_does_not_block_others():
    buffers = Buffers(Limits(10, 10))  # less than one batch
    buffers.add(partition(0), stream([50]))
    buffers.add(partition(1), stream([50]))
    assert buffers.take([partition(0)], 5)
    held = buffers.held_bytes
    for _ in range(10):
        [(name, batch, _)] = buffers.take([partition(1)], 5)
        assert name == partition(1) and batch.num_rows == 5
    [(_, batch, _)] = buffers.take([partition(0)], 5)
    assert batch.column("offset").to_pylist() == list(range(5, 10))
    assert held <= 50 * BYTES_PER_ROW


def test_moved_position_drops_the_stream():
    buffers = Buffers(PLENTY)
    buffers.add(partition(0), stream([50]))
    buffers.take([partition(0)], 5)
    assert buffers.settle({partition(0): 5}) == {}
    assert partition(0) in buffers
    assert buffers.settle({partition(0): 4}) == {}
    assert partition(0) not in buffers


def test_stream_that_ends_with_a_gap_is_returned_by_settle():
    buffers = Buffers(PLENTY)
    gap = Stream(0, 9, EPOCH, batches_of([2]))
    buffers.add(partition(0), gap)
    buffers.take([partition(0)], None)
    assert buffers.settle({partition(0): 2}) == {partition(0): gap}


def test_read_error_is_raised_after_earlier_records_and_drops_the_stream():
    buffers = Buffers(PLENTY)
    buffers.add(partition(0), unreadable_stream())
    buffers.add(partition(1), stream([4]))
    [(_, batch, _)] = buffers.take([partition(0), partition(1)], None)
    assert batch.num_rows == 3
    with pytest.raises(OSError, match="unreadable"):
        buffers.take([partition(0), partition(1)], None)
    assert partition(0) not in buffers
    [(name, batch, _)] = buffers.take([partition(0), partition(1)], None)
    assert (name, batch.num_rows) == (partition(1), 4)


@pytest.mark.parametrize("positions", [{}, {0: 1}])
def test_a_read_error_of_a_partition_that_was_revoked_or_moved_is_not_raised(positions):
    buffers = Buffers(PLENTY)
    buffers.add(partition(0), unreadable_stream())
    buffers.add(partition(1), stream([4]))
    assert len(buffers.take([partition(0)], None)) == 1
    buffers.settle({partition(number): position for number, position in positions.items()})
    [(name, _, _)] = buffers.take([partition(1)], None)
    assert name == partition(1)


def test_a_read_error_of_a_dropped_partition_is_not_raised_at_the_same_position_of_another_topic_of_its_name():
    buffers = Buffers(PLENTY)
    buffers.add(partition(0), unreadable_stream())
    assert len(buffers.take([partition(0)], None)) == 1
    buffers.drop(partition(0))
    buffers.settle({partition(0): 3})
    buffers.add(partition(0), stream([4], first=3))
    [(_, batch, _)] = buffers.take([partition(0)], None)
    assert batch.num_rows == 4


def test_new_stream_above_the_limit_replaces_an_idle_one():
    buffers = Buffers(PLENTY)
    for number in range(STREAMS_MAX):
        buffers.add(partition(number), stream([2]))
    buffers.take([partition(0)], 1)
    buffers.add(partition(STREAMS_MAX), stream([2]))
    assert partition(STREAMS_MAX) in buffers
    assert partition(0) in buffers  # it has a buffered record
    assert partition(1) not in buffers
