"""Replicas that lag for longer than replica.lag.time.max.ms, by a clock that the test sets."""

import pytest

from spark_log.replication.controller.isr_lag import Ends, LagWatch

MAX_S = 30.0
FIRST, SECOND = ((1, 0), 2), ((1, 0), 3)


@pytest.fixture
def watch():
    return LagWatch()


def test_one_that_does_not_move_is_late_when_its_time_is_over(watch):
    assert watch.late(0.0, {FIRST: Ends(5, 9)}, MAX_S) == set()
    assert watch.late(30.0, {FIRST: Ends(5, 9)}, MAX_S) == set()
    assert watch.late(30.1, {FIRST: Ends(5, 9)}, MAX_S) == {FIRST}


def test_a_member_that_reaches_the_leaders_earlier_end_gets_new_time(watch):
    watch.late(0.0, {FIRST: Ends(5, 9)}, MAX_S)
    assert watch.late(29.0, {FIRST: Ends(9, 20)}, MAX_S) == set()
    assert watch.late(58.0, {FIRST: Ends(19, 40)}, MAX_S) == set()
    assert watch.late(60.0, {FIRST: Ends(19, 40)}, MAX_S) == {FIRST}, "20 was where the leader was at 29"


def test_one_that_moves_and_never_gets_there_is_late(watch):
    """Kafka's rule: not how much it lacks, but for how long."""
    found = [watch.late(float(now), {FIRST: Ends(now, 100 + now)}, MAX_S) for now in range(32)]
    assert found[-2:] == [set(), {FIRST}]


def test_one_that_has_caught_up_begins_anew(watch):
    watch.late(0.0, {FIRST: Ends(5, 9), SECOND: Ends(5, 9)}, MAX_S)
    watch.late(20.0, {SECOND: Ends(5, 9)}, MAX_S)
    assert watch.late(31.0, {FIRST: Ends(9, 10), SECOND: Ends(5, 9)}, MAX_S) == {SECOND}
