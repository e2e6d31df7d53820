"""Rate limit, minimum, splitting and packing: results as in Spark, and exact coverage of ranges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import InvalidOptionError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.spark.datasource.read.ranges import (
    TASK_OVERHEAD_RECORDS,
    PartitionRange,
    check_resolved,
    pack_tasks,
    split_ranges,
)
from spark_log.spark.datasource.read.rate_limit import byte_limit, rate_limit, should_delay

A, B, C = (TopicPartition("t", number) for number in range(3))
PARTITIONS = st.builds(TopicPartition, st.sampled_from("tu"), st.integers(0, 5))
OFFSET = st.one_of(st.integers(0, 50), st.integers(0, 2**63 - 1))
OFFSETS = st.dictionaries(PARTITIONS, OFFSET, max_size=8)
RANGES = st.dictionaries(PARTITIONS, st.builds(OffsetRange, st.integers(0, 10**6), st.integers(0, 10**6)), max_size=8)


def test_batch_ranges_need_equal_partitions_and_ordered_offsets() -> None:
    assert check_resolved({A: 1, B: 2}, {B: 2, A: 5}) == {A: OffsetRange(1, 5), B: OffsetRange(2, 2)}
    with pytest.raises(InvalidOptionError, match=r"starting offsets topics\[Set\(t-0\)\] and ending .*\[Set\(t-1\)\]"):
        check_resolved({A: 1}, {B: 1})
    with pytest.raises(
        InvalidOptionError,
        match="The resolved start offset 5 is greater than the resolved end offset 4 for topic t partition 1",
    ):
        check_resolved({A: 0, B: 5}, {A: 0, B: 4})


# --- admission ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "sizes", "shares"),
    [
        (10, (50, 50, 0), (5, 5, 0)),
        (10, (90, 9, 1), (9, 1, 1)),  # 9.0, 0.9 -> 1, 0.1 -> 1
        (10, (100, 11, 0), (9, 1, 0)),  # 9.009, 0.99 -> 1
        (15, (100, 11, 0), (13, 1, 0)),  # 13.5, 1.49: floor where >= 1
        (1, (5, 5, 5), (1, 1, 1)),
        (100, (5, 5, 5), (5, 5, 5)),
        (15, (5, 5, 5), (5, 5, 5)),
        (29, (29, 71, 0), (8, 20, 0)),
        (3, (2**62, 2**62, 1), (1, 1, 1)),
        (2**63 - 1, (2**63 - 200, 5, 5), (2**63 - 200, 5, 5)),
    ],
)
def test_rate_limit_is_shared_in_proportion(limit: int, sizes: tuple[int, ...], shares: tuple[int, ...]) -> None:
    start = {A: 100, B: 0, C: 7}
    latest = {tp: start[tp] + size for tp, size in zip(start, sizes, strict=True)}
    assert rate_limit(limit, start, latest) == {tp: start[tp] + share for tp, share in zip(start, shares, strict=True)}


SEGMENTS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 1000)), min_size=1, max_size=6)
"""The records and bytes of the segments of a partition."""


def test_a_batch_has_whole_segments_in_proportion_to_bytes() -> None:
    segments = {A: [(10 * n, 100) for n in range(1, 10)], B: [(5, 100)], C: []}
    start, latest = {A: 0, B: 0, C: 3}, {A: 90, B: 5, C: 3}
    assert byte_limit(1000, start, latest, segments, {}) == (latest, {})
    ends, credit = byte_limit(500, start, latest, segments, {})
    assert (ends, credit) == ({A: 40, B: 0, C: 3}, {A: 50, B: 50})
    ends, credit = byte_limit(500, ends, latest, {A: segments[A][4:], B: segments[B], C: []}, credit)
    assert (ends, credit) == ({A: 80, B: 5, C: 3}, {A: 66}), "the partition with a small share has saved enough"
    assert byte_limit(1, start, latest, segments, {})[0] == {A: 10, B: 0, C: 3}, "one segment at least"
    assert byte_limit(300, start, {**latest, A: 15}, segments, {})[0] == {A: 15, B: 0, C: 3}


def test_a_batch_ends_with_the_last_segment_of_a_list_that_was_cut_off() -> None:
    segments, start, latest = {A: [(10, 100), (20, 100)], B: [(5, 100)]}, {A: 0, B: 0, C: 3}, {A: 900, B: 70, C: 3}
    for limit in (300, 1_000):
        assert byte_limit(limit, start, latest, segments, {}) == ({A: 20, B: 5, C: 3}, {})


@given(st.dictionaries(PARTITIONS, SEGMENTS, min_size=1, max_size=4), st.integers(1, 1500))
def test_batches_of_bytes_end_and_none_is_much_larger_than_the_limit(
    sizes: dict[TopicPartition, list[tuple[int, int]]], limit: int
) -> None:
    left: dict[TopicPartition, list[tuple[int, int]]] = {}
    for tp, found in sizes.items():
        ends = [sum(records for records, _ in found[: n + 1]) for n in range(len(found))]
        left[tp] = [(end, size) for end, (_, size) in zip(ends, found, strict=True)]
    latest = {tp: found[-1][0] for tp, found in left.items()}
    start, credit = dict.fromkeys(left, 0), {}
    while start != latest:
        ends, credit = byte_limit(limit, start, latest, left, credit)
        assert all(start[tp] <= ends[tp] <= latest[tp] for tp in latest) and ends != start
        read = sum(size for tp, found in left.items() for end, size in found if end <= ends[tp])
        assert read <= limit + sum(max(size for _, size in found) for found in sizes.values())
        left = {tp: [(end, size) for end, size in found if end > ends[tp]] for tp, found in left.items()}
        start = ends


def test_rate_limit_ends_unmatched_partitions_at_latest() -> None:
    """Partitions that are new without a start, deleted or recreated: the data-loss rules handle them."""
    assert rate_limit(1, {A: 9, C: 5}, {A: 3, B: 4}) == {A: 3, B: 4}
    assert rate_limit(1, {}, {}) == {}


@given(st.integers(1, 2**63 - 1), OFFSETS, OFFSETS)
def test_rate_limit_is_kept_and_makes_progress(
    limit: int, start: dict[TopicPartition, int], latest: dict[TopicPartition, int]
) -> None:
    ends = rate_limit(limit, start, latest)
    assert ends.keys() == latest.keys()
    taken = {tp: ends[tp] - start[tp] for tp in latest if tp in start and latest[tp] > start[tp]}
    assert all(0 < size <= latest[tp] - start[tp] for tp, size in taken.items())
    assert sum(taken.values()) <= limit + len(taken)
    assert all(ends[tp] == latest[tp] for tp in latest if tp not in taken)


@pytest.mark.parametrize(
    ("end", "now_ms", "last_trigger_ms", "delay"),
    [
        (109, 1_000, None, False),  # the first batch never waits
        (109, 1_000, 900, True),
        (110, 1_000, 900, False),  # enough records
        (109, 1_000, 500, False),  # waited long enough
        (109, 999, 500, True),
        (100, 1_000, 500, False),
    ],
)
def test_batch_waits_below_the_minimum(end: int, now_ms: int, last_trigger_ms: int | None, delay: bool) -> None:
    assert delay is should_delay(
        {A: 100},
        {A: end},
        min_offsets=10,
        max_trigger_delay_ms=500,
        now_ms=now_ms,
        last_trigger_ms=last_trigger_ms,
    )


def test_new_partitions_count_towards_the_minimum() -> None:
    rest = {"min_offsets": 10, "max_trigger_delay_ms": 500, "now_ms": 1, "last_trigger_ms": 0}
    assert should_delay({A: 5, C: 99}, {A: 8, B: 6, C: 0}, **rest) is True
    assert should_delay({A: 5}, {A: 8, B: 7}, **rest) is False


# --- splitting ------------------------------------------------------------------------------------------------------


def cuts(sizes: dict[TopicPartition, int], **options: int) -> list[tuple[int, int, int]]:
    pieces = split_ranges({tp: OffsetRange(0, size) for tp, size in sizes.items()}, **options)
    return [(piece.topic_partition.partition, piece.start, piece.end) for piece in pieces]


def test_split_equals_spark() -> None:
    """Cases of KafkaOffsetRangeCalculatorSuite."""
    assert cuts({A: 5, B: 1}) == [(0, 0, 5), (1, 0, 1)]
    assert cuts({A: 5}, min_partitions=1) == [(0, 0, 5)]
    assert cuts({A: 5}, min_partitions=3) == [(0, 0, 1), (0, 1, 3), (0, 3, 5)]
    assert cuts({A: 5, B: 5, C: 5}, min_partitions=3) == [(0, 0, 5), (1, 0, 5), (2, 0, 5)]
    assert cuts({A: 5, B: 0, C: 5}, min_partitions=1) == [(0, 0, 5), (2, 0, 5)]
    assert cuts({A: 100, B: 1}, min_partitions=3) == [(0, 0, 50), (0, 50, 100), (1, 0, 1)]
    assert cuts({A: 1}, min_partitions=10) == [(0, 0, 1)]
    assert cuts({A: 10_000, B: 1, C: 1}, min_partitions=4) == [(0, 0, 5000), (0, 5000, 10_000), (1, 0, 1), (2, 0, 1)]
    assert cuts({A: 7}, min_partitions=5) == [(0, 0, 1), (0, 1, 2), (0, 2, 3), (0, 3, 5), (0, 5, 7)]
    assert cuts({A: 5, B: 3}, min_partitions=3) == [(0, 0, 2), (0, 2, 5), (1, 0, 3)]  # 1.875 -> 2, 1.125 -> 1
    assert cuts({A: 10, B: 4, C: 4}, min_partitions=5)[:3] == [(0, 0, 3), (0, 3, 6), (0, 6, 10)]  # B, C leave 3 to A
    assert cuts({}, min_partitions=4) == []


def test_split_respects_records_per_partition() -> None:
    assert cuts({A: 10, B: 3}, max_records_per_partition=4) == [(0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 3)]
    assert cuts({A: 8}, max_records_per_partition=4) == [(0, 0, 4), (0, 4, 8)]
    assert cuts({A: 8}, max_records_per_partition=4, min_partitions=4) == [(0, 0, 2), (0, 2, 4), (0, 4, 6), (0, 6, 8)]
    assert cuts({A: 8}, max_records_per_partition=2, min_partitions=2) == [(0, at, at + 2) for at in (0, 2, 4, 6)]


@given(RANGES, st.none() | st.integers(1, 40), st.none() | st.integers(10_000, 2**63 - 1))
def test_pieces_cover_the_ranges_exactly_and_in_order(
    ranges: dict[TopicPartition, OffsetRange], min_partitions: int | None, max_records: int | None
) -> None:
    pieces = split_ranges(ranges, min_partitions=min_partitions, max_records_per_partition=max_records)
    assert pieces == sorted(pieces)
    assert all(piece.size > 0 for piece in pieces)
    assert max_records is None or all(piece.size <= max_records for piece in pieces)
    for tp, (start, end) in ranges.items():
        bounds = [(piece.start, piece.end) for piece in pieces if piece.topic_partition == tp]
        expected_start = start
        for first, last in bounds:
            assert first == expected_start
            expected_start = last
        assert expected_start == max(start, end) if bounds else start >= end
    full = sum(start < end for start, end in ranges.values())
    if min_partitions and not max_records:
        assert len(pieces) >= full
        assert len(pieces) <= max(min_partitions, full) + full


# --- packing --------------------------------------------------------------------------------------------------------


def test_few_pieces_get_one_task_each() -> None:
    pieces = [PartitionRange(A, 5, 9), PartitionRange(A, 0, 5), PartitionRange(B, 0, 1)]
    assert pack_tasks(pieces, tasks_max=3) == [((A, 0, 5),), ((A, 5, 9),), ((B, 0, 1),)]
    assert pack_tasks([], tasks_max=3) == []


def test_many_small_pieces_balance_a_large_one() -> None:
    pieces = [PartitionRange(A, 0, 100_000), *(PartitionRange(B, at, at + 1) for at in range(9))]
    assert pack_tasks(pieces, tasks_max=2) == [tuple(pieces[:1]), tuple(pieces[1:])]


PIECES = st.lists(
    st.builds(
        lambda tp, start, size: PartitionRange(tp, start, start + size), PARTITIONS, OFFSET, st.integers(1, 10**5)
    ),
    max_size=60,
    unique=True,
)


@given(PIECES, st.integers(1, 8), st.none() | st.integers(1, 10**5))
def test_packing(pieces: list[PartitionRange], tasks_max: int, max_records: int | None) -> None:
    tasks = pack_tasks(pieces, tasks_max=tasks_max, max_records_per_task=max_records)
    assert sorted(piece for task in tasks for piece in task) == sorted(pieces)
    assert all(task and list(task) == sorted(task) for task in tasks)
    assert tasks == pack_tasks(reversed(pieces), tasks_max=tasks_max, max_records_per_task=max_records)
    if max_records is None:
        assert len(tasks) == min(tasks_max, len(pieces))
        work = [sum(piece.size + TASK_OVERHEAD_RECORDS for piece in task) for task in tasks]
        assert not work or max(work) - min(work) <= max(piece.size for piece in pieces) + TASK_OVERHEAD_RECORDS
    else:
        assert all(len(task) == 1 or sum(piece.size for piece in task) <= max_records for task in tasks)


def test_ten_thousand_partitions_share_two_hundred_tasks() -> None:
    latest = {TopicPartition(f"topic-{at % 100}", at // 100): 1_000 + at for at in range(10_000)}
    start = dict.fromkeys(latest, 100)
    ends = rate_limit(1_000_000, start, latest)
    assert not should_delay(start, latest, min_offsets=1, max_trigger_delay_ms=9, now_ms=1, last_trigger_ms=0)
    pieces = split_ranges(check_resolved(start, ends))
    tasks = pack_tasks(pieces, tasks_max=200)
    assert len(tasks) == 200
    assert {len(task) for task in tasks} <= set(range(45, 56))
    records = [sum(piece.size for piece in task) for task in tasks]
    assert max(records) < 1.05 * min(records)
