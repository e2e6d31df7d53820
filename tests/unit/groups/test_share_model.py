"""The rules of a share group's partition, beside a model in random histories; each mutation of them is detected."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from spark_log.groups.share import acquisition_rules, rules
from spark_log.groups.share.acquisition_rules import Request, Stretch
from spark_log.groups.share.rules import (
    AVAILABLE,
    Delayed,
    Limits,
    Time,
    Window,
)
from tests.unit.groups.share_model import SharePartition

QUICK = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_window_is_the_dictionary():
    run_state_machine_as_test(SharePartition, settings=QUICK)


@pytest.mark.long
def test_the_window_is_the_dictionary_in_long_histories():
    run_state_machine_as_test(
        SharePartition, settings=settings(max_examples=5_000, stateful_step_count=80, deadline=None)
    )


def test_a_delayed_record_that_was_erased_is_finished_behind_one_that_is_delivered_alone():
    read = Stretch(0, 3, np.array([0, 1]), np.array([1, 2]))
    due = [Delayed(1, 0, 2), Delayed(2, 0, 0)]
    window = Window(0, 3, delayed=2)
    result = acquisition_rules.acquire(window, [read], due, Request("m"), Limits(delivery_count=3), Time(0, 0))
    assert [(r.first, r.end) for r in result.acquired] == [(1, 2)]
    assert result.came_due == (1, 2) and result.window.delayed == 0


# Mutations of the rules, each of which the model detects.


def a_late_acknowledgement_is_accepted(patch):
    patch(rules, "_is_live", lambda r, ack, now: r.lock == ack.lock and r.member == ack.member and r.lock > 0)


def any_lock_is_the_right_one(patch):
    patch(rules, "_is_live", lambda r, ack, now: r.lock > 0 and r.member == ack.member and r.until_ms > now.lease_ms)


def any_member_may_acknowledge(patch):
    patch(rules, "_is_live", lambda r, ack, now: r.lock == ack.lock and r.lock > 0 and r.until_ms > now.lease_ms)


def a_release_lowers_the_count(patch):
    released = rules._released

    def lower(r, limits, now):
        kept = released(r, limits, now)
        return kept if kept is None else kept._replace(deliveries=r.deliveries - 1)

    patch(rules, "_released", lower)


def the_limit_of_deliveries_is_ignored(patch):
    patch(rules, "_released", lambda r, limits, now: r._replace(lock=AVAILABLE, until_ms=0, member=""))


def a_rejected_record_is_available(patch):
    patch(rules, "_archived", lambda r, cause, limits, now: r._replace(lock=AVAILABLE, until_ms=0, member=""))


def locks_never_end(patch):
    patch(rules, "lapse", lambda window, limits, now: rules.Change(window))


def bad_records_are_not_delivered_alone(patch):
    patch(acquisition_rules, "parts", lambda batch, count, limits: None)


def different_neighbours_are_merged(patch):
    def merged(ranges):
        found = []
        for r in ranges:
            if found and found[-1].end == r.first and found[-1].lock == r.lock:
                found[-1] = found[-1]._replace(end=r.end)
            else:
                found.append(r)
        return tuple(found)

    patch(rules, "merged_ranges", merged)


def start_passes_ranges(patch):
    with_ranges = rules.Window.with_ranges
    patch(rules.Window, "with_ranges", lambda window, ranges: replace(with_ranges(window, ranges), start=window.next))


def start_falls_to_a_due_record(patch):
    def with_ranges(window, ranges):
        merged = rules.merged_ranges(ranges)
        return replace(window, ranges=merged, start=merged[0].first if merged else window.next)

    patch(rules.Window, "with_ranges", with_ranges)


def the_limit_of_locks_is_ignored(patch):
    acquire = acquisition_rules.acquire
    patch(acquisition_rules, "acquire", lambda window, readable, due, request, limits, now: acquire(
        window, readable, due, request, replace(limits, record_locks=1_000), now))  # fmt: skip


def the_limit_of_delayed_records_is_ignored(patch):
    acquire = acquisition_rules.acquire
    patch(acquisition_rules, "acquire", lambda window, readable, due, request, limits, now: acquire(
        window, readable, due, request, replace(limits, delayed=1_000), now))  # fmt: skip


def a_lock_number_is_used_again(patch):
    acquire = acquisition_rules.acquire

    def same_lock(window, *others):
        result = acquire(window, *others)
        return replace(result, window=replace(result.window, last_lock=window.last_lock))

    patch(acquisition_rules, "acquire", same_lock)


def an_election_keeps_ranges(patch):
    patch(rules, "truncate", lambda window, offset: window)


def delayed_records_are_acquired_at_once(patch):
    def take(self, stretch, low):
        self._add(stretch, low, len(stretch.offsets), 0, 0)
        return len(stretch.offsets)

    patch(acquisition_rules._Acquisition, "_take_timed", take)


@pytest.mark.parametrize(
    "mutation",
    [
        a_late_acknowledgement_is_accepted,
        any_lock_is_the_right_one,
        any_member_may_acknowledge,
        a_release_lowers_the_count,
        the_limit_of_deliveries_is_ignored,
        a_rejected_record_is_available,
        locks_never_end,
        bad_records_are_not_delivered_alone,
        different_neighbours_are_merged,
        start_passes_ranges,
        start_falls_to_a_due_record,
        the_limit_of_locks_is_ignored,
        the_limit_of_delayed_records_is_ignored,
        a_lock_number_is_used_again,
        an_election_keeps_ranges,
        delayed_records_are_acquired_at_once,
    ],
)
def test_the_model_detects(mutation, monkeypatch):
    mutation(monkeypatch.setattr)
    quiet = settings(max_examples=10_000, stateful_step_count=40, deadline=None, database=None, derandomize=True,
                     report_multiple_bugs=False, phases=[Phase.generate])  # fmt: skip
    with pytest.raises((AssertionError, ValueError, KeyError)):
        run_state_machine_as_test(SharePartition, settings=quiet)


# Kafka's numbers, for records that are delivered often.


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [
        (10, [500, 500, 500, 500, 500, 250, 125, 62, 31, 1]),
        (5, [500, 500, 500, 250, 1]),
        (2, [500, 500]),
    ],
)
def test_deliveries_are_halved(limit, sizes):
    limits = Limits(delivery_count=limit)
    assert [acquisition_rules.parts(500, count, limits) or 500 for count in range(limit)] == sizes
