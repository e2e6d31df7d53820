"""The inline tails that are due to be sealed."""

import pytest

from spark_log.config import TopicConfig
from spark_log.maintenance.rewrite.tail_seal import Tail, due_tails

NOW_MS = 10_000_000


def tail(partition, age_ms, size=10):
    return Tail(partition, size, NOW_MS - age_ms)


def partitions(tails, ahead_ms=0, **configs):
    return [each.partition for each in due_tails(tails, TopicConfig(**configs), NOW_MS, ahead_ms)]


@pytest.mark.parametrize(
    ("lag_ms", "age_ms", "due"),
    [
        (60_000, 0, False),
        (60_000, 53_999, False),
        (60_000, 54_000, True),
        (60_000, -1, True),  # the clock was set back
        (0, 0, True),
        (-1, 3_600_000, False),
    ],
)
def test_tail_is_due_after_nine_tenths_of_the_lag(lag_ms, age_ms, due):
    assert partitions([tail(0, age_ms)], delta_max_lag_ms=lag_ms) == [0] * due


def test_time_until_the_next_check_counts():
    assert partitions([tail(0, 53_500)], ahead_ms=499) == []
    assert partitions([tail(0, 53_500)], ahead_ms=500) == [0]


def test_all_tails_are_due_with_the_oldest():
    assert partitions([tail(0, 0), tail(1, 60_000), tail(2, 5)]) == [0, 1, 2]


def test_segment_ms_and_size_make_single_tails_due():
    tails = [tail(0, 0), tail(1, 1_000), tail(2, 0, size=1_000)]
    assert partitions(tails, segment_ms=1_000, inline_tail_bytes=1_000) == [1, 2]
