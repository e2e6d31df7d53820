"""The rules of compaction: the records that are dropped, and the time at which they are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.config import TopicConfig
from spark_log.maintenance.compaction.rules import (
    Pass,
    cleanable,
    first_dirty_offset,
    has_expired,
    is_due,
    is_last,
    remember,
    tombstone_horizon,
)
from spark_log.maintenance.rewrite.rewrite_plan import Segment


def segment(base, end, *, size=100, at_ms=0, records=None, oldest_ms=None):
    count = end - base if records is None else records
    return Segment(base, end, count, size, at_ms if oldest_ms is None else oldest_ms, at_ms, 0, 0, "n", "", False, 0)


def ends(found):
    return [each.end_offset for each in found]


LOG = [segment(0, 10, at_ms=100), segment(10, 20, at_ms=900), segment(20, 30, at_ms=200)]


@pytest.mark.parametrize(
    ("log_start", "first_dirty", "lag_ms", "expected"),
    [
        (0, 0, 0, [10, 20, 30]),
        (10, 10, 0, [20, 30]),  # left to retention
        (9, 9, 0, [10, 20, 30]),
        (0, 0, 200, [10]),  # no segment after one that is too young, whatever its age
        (0, 0, 100, [10, 20, 30]),  # exactly old enough
        (0, 20, 200, [10, 20, 30]),  # the age of clean segments does not matter
        (0, 15, 200, [10]),  # merged across the first dirty offset
    ],
)
def test_segments_that_a_pass_may_cover(log_start, first_dirty, lag_ms, expected):
    assert ends(cleanable(LOG, log_start, first_dirty, 1000, lag_ms)) == expected


NEVER = TopicConfig(min_cleanable_dirty_ratio=1.0)


@pytest.mark.parametrize(
    ("found", "passes", "config", "due"),
    [
        ([], [], TopicConfig(), False),
        (LOG, [], TopicConfig(), True),
        (LOG, [], NEVER, True),  # all of it is dirty
        (LOG, [Pass(10, 0, 0)], TopicConfig(), True),  # two thirds are dirty
        (LOG, [Pass(20, 0, 0)], TopicConfig(), False),
        (LOG, [Pass(20, 0, 0)], TopicConfig(min_cleanable_dirty_ratio=0.33), True),
        # for a segment that was merged across the first dirty offset, its share counts
        (LOG, [Pass(15, 0, 0)], TopicConfig(), True),
        (LOG, [Pass(16, 0, 0)], TopicConfig(), False),
        (LOG, [Pass(30, 0, 0)], TopicConfig(min_cleanable_dirty_ratio=0.0), False),  # nothing is dirty
        (LOG, [Pass(20, 0, 0)], replace(NEVER, max_compaction_lag_ms=799), True),  # the record of time 200 is older
        (LOG, [Pass(20, 0, 0)], replace(NEVER, max_compaction_lag_ms=800), False),
        (LOG, [Pass(30, 0, 0)], replace(NEVER, max_compaction_lag_ms=1), False),  # only the age of dirty records counts
        ([segment(0, 9, records=0, at_ms=-1)], [Pass(5, 0, 0)], replace(NEVER, max_compaction_lag_ms=1), False),
        (LOG, [Pass(30, 400, 3)], TopicConfig(delete_retention_ms=600), True),  # tombstones have expired
        (LOG, [Pass(30, 401, 3)], TopicConfig(delete_retention_ms=600), False),
        (LOG, [Pass(30, 400, 0)], TopicConfig(delete_retention_ms=600), False),
    ],
)
def test_pass_is_due_by_dirty_ratio_lag_or_tombstones(found, passes, config, due):
    assert is_due(found, first_dirty_offset(passes), passes, 1000, config) is due


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=30), st.integers(0, 70))
def test_last_record_of_each_key_stays_except_expired_tombstones(records, horizon):
    offsets = np.arange(len(records), dtype=np.int64) * 2  # with gaps
    last = {key: offset for offset, (key, _) in zip(offsets.tolist(), records, strict=True)}
    expected = [
        last[key] == offset and not (tombstone and offset < horizon)
        for offset, (key, tombstone) in zip(offsets.tolist(), records, strict=True)
    ]
    tombstones = np.array([tombstone for _, tombstone in records], bool)
    others = [1, 3, 1_000]  # offsets of other units
    kept = is_last(offsets, np.array(sorted([*last.values(), *others]), np.int64))
    assert (kept & ~has_expired(offsets, tombstones, horizon)).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 400)), min_size=1, max_size=120))
def test_few_passes_are_kept_and_tombstones_wait_little_longer(steps):
    """Compared with keeping all passes: never sooner, and at most a sixteenth of delete.retention.ms later."""
    retention_ms = 1_600
    remembered, everything, now_ms, end = [], [], 0, 0
    for offsets, passed_ms in steps:
        now_ms, end = now_ms + passed_ms, end + offsets
        remembered = remember(remembered, Pass(end, now_ms, 1), retention_ms)
        everything.append(Pass(end, now_ms, 1))
        assert first_dirty_offset(remembered) == end
        assert len(remembered) <= 2 * 16 + 4
        assert [each.end_offset for each in remembered] == sorted({each.end_offset for each in remembered})
        for later_ms in (0, 500, 1_600, 1_700, 2_000):
            then = now_ms + later_ms
            horizon = tombstone_horizon(remembered, then, retention_ms)
            assert horizon <= tombstone_horizon(everything, then, retention_ms)
            assert horizon >= tombstone_horizon(everything, then - 100, retention_ms)


def test_pass_with_the_same_end_replaces_the_count_and_keeps_the_time():
    first = remember([], Pass(10, 1_000, 5), 500)
    assert remember(first, Pass(10, 1_200, 2), 500) == [Pass(10, 1_000, 2)]
    assert remember(first, Pass(8, 1_200, 2), 500) == [Pass(10, 1_000, 2)]


def test_clock_set_back_makes_tombstones_wait_longer():
    passes = remember(remember([], Pass(10, 5_000, 1), 500), Pass(20, 1_000, 1), 500)
    assert tombstone_horizon(passes, 1_400, 500) == 0
    assert tombstone_horizon(passes, 1_500, 500) == 20  # everything below it was clean then


def test_a_pass_that_was_recorded_while_the_clock_was_ahead_keeps_no_tombstones_longer():
    hour_ms, retention_ms = 3_600_000, 24 * 3_600_000
    remembered = remember([], Pass(1, 365 * retention_ms, 1), retention_ms)
    for hour in range(1, 31 * 24):
        remembered = remember(remembered, Pass(1 + hour, hour * hour_ms, 1), retention_ms)
    assert tombstone_horizon(remembered, 31 * retention_ms, retention_ms) > 30 * 24 - 24 - 3
