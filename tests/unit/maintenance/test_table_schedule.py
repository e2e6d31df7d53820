"""When tails are sealed: which are due, and when to look again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.config import TopicConfig
from spark_log.maintenance.rewrite.table_schedule import (
    Attempts,
    Tail,
    after_round,
    average_cost_ms,
    deadline_ms,
    due_tails,
    look_after_ms,
    merges_from_s,
    next_look_ms,
    pause_ms,
    retry_after_ms,
    seal_after_ms,
)

NOW_MS = 10_000_000


def tail(partition, age_ms, size=10):
    return Tail(partition, size, NOW_MS - age_ms)


def partitions(tails, cost_ms=0.0, **configs):
    return [each.partition for each in due_tails(tails, TopicConfig(**configs), NOW_MS, cost_ms)]


@pytest.mark.parametrize(
    ("lag_ms", "age_ms", "due"),
    [
        (60_000, 0, False),
        (60_000, 53_999, False),
        (60_000, 54_000, True),
        (60_000, -1, True),  # the clock was set back
        (5_000, 2_999, False),
        (5_000, 3_000, True),
        (0, 0, True),
        (-1, 3_600_000, False),
    ],
)
def test_tail_is_due_before_the_reserved_part_of_the_lag(lag_ms, age_ms, due):
    assert partitions([tail(0, age_ms)], delta_max_lag_ms=lag_ms) == [0] * due


@pytest.mark.parametrize(
    ("lag_ms", "reserved_ms"), [(1_000, 400), (5_000, 2_000), (20_000, 2_000), (60_000, 6_000), (0, 0)]
)
def test_a_part_of_the_lag_is_reserved_for_sealing_and_publication(lag_ms, reserved_ms):
    config = TopicConfig(delta_max_lag_ms=lag_ms)
    assert pause_ms(config) == reserved_ms == lag_ms - seal_after_ms(config)


def test_rounds_of_a_topic_take_at_most_a_tenth_of_the_time():
    assert partitions([tail(0, 19_999)], cost_ms=2_000.0, delta_max_lag_ms=5_000) == []
    assert partitions([tail(0, 20_000)], cost_ms=2_000.0, delta_max_lag_ms=5_000) == [0]
    assert partitions([tail(0, 3_000)], cost_ms=300.0, delta_max_lag_ms=5_000) == [0], "the lag allows more"


def test_the_cost_follows_the_last_rounds():
    assert average_cost_ms(None, 700.0) == 0.0, "the first round opens the table"
    assert average_cost_ms(0.0, 40.0) == 40.0
    assert average_cost_ms(40.0, 80.0) == 50.0


def test_the_deadline_is_that_of_the_oldest_record():
    tails = [tail(0, 5), tail(1, 7)]
    assert deadline_ms(tails, TopicConfig(delta_max_lag_ms=5_000)) == NOW_MS - 7 + 5_000
    assert deadline_ms(tails, TopicConfig(delta_max_lag_ms=-1)) == NOW_MS - 7


def test_all_tails_are_due_with_the_oldest():
    assert partitions([tail(0, 0), tail(1, 60_000), tail(2, 5)]) == [0, 1, 2]


def test_segment_ms_and_size_make_single_tails_due():
    tails = [tail(0, 0), tail(1, 1_000), tail(2, 0, size=1_000)]
    assert partitions(tails, segment_ms=1_000, inline_tail_bytes=1_000) == [1, 2]


@given(
    lag_ms=st.integers(-1, 120_000),
    ages_ms=st.lists(st.integers(0, 200_000), max_size=5),
)
def test_tails_that_are_not_due_are_looked_at_before_their_lag_is_over(lag_ms, ages_ms):
    """In time for delta.max.lag.ms, but at most four times a second."""
    config = TopicConfig(delta_max_lag_ms=lag_ms)
    tails = [tail(number, age_ms) for number, age_ms in enumerate(ages_ms)]
    waiting = [each for each in tails if each not in due_tails(tails, config, NOW_MS)]
    wait_ms = next_look_ms(waiting, config, NOW_MS)
    if not waiting or lag_ms < 0:
        assert wait_ms is None
    else:
        assert wait_ms >= 250
        assert max(ages_ms) + wait_ms <= max(lag_ms, max(ages_ms) + 250)
        later_ms = NOW_MS + wait_ms
        assert due_tails(waiting, config, later_ms), "the look finds work"


def test_failures_are_retried_in_the_time_that_the_lag_leaves_and_then_ever_later():
    config = TopicConfig(delta_max_lag_ms=60_000)
    assert [retry_after_ms(config, failures) for failures in range(5)] == [6_000, 12_000, 24_000, 48_000, 54_000]
    assert retry_after_ms(config, 10**6) == look_after_ms(config) == 54_000
    assert retry_after_ms(TopicConfig(delta_max_lag_ms=100), 0) == 1_000
    assert retry_after_ms(TopicConfig(delta_max_lag_ms=-1), 5) == 5_000
    assert retry_after_ms(config, 0, took_ms=2_000.0) == 20_000
    assert retry_after_ms(config, 0, took_ms=10_000.0) == 60_000, "a server did not answer for 10 s"


def test_rounds_of_a_topic_have_a_distance_that_grows_with_its_failures():
    config = TopicConfig(delta_max_lag_ms=5_000)
    done = after_round(Attempts(0.0), config, now_s=100.0, seconds=0.04, done=True)
    assert done == Attempts(40.0, 0, 101.0)
    failed = after_round(done, config, now_s=200.0, seconds=0.01, done=False)
    assert failed == Attempts(40.0, 1, 202.0), "a failure says nothing about the cost"
    failed = after_round(failed, config, now_s=300.0, seconds=0.01, done=False)
    assert failed == Attempts(40.0, 2, 304.0)
    assert after_round(failed, config, now_s=400.0, seconds=0.08, done=True) == Attempts(50.0, 0, 401.0)


def test_the_loop_of_a_client_merges_for_a_quarter_of_its_time():
    began_s, ended_s = 100.0, 102.5
    assert (ended_s - began_s) / (merges_from_s(ended_s, ended_s - began_s) - began_s) == 0.25
