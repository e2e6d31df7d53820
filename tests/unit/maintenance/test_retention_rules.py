"""The segments that retention drops, compared with Kafka's three passes, repeated until no more segments are
dropped.
"""

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.config import TopicConfig
from spark_log.maintenance.removal.retention_rules import leaving
from spark_log.maintenance.rewrite.rewrite_plan import Segment

NOW_MS = 1_000
DELETE = frozenset({"delete"})


def segment(base, end, size=10, time_ms=0, appended_ms=0):
    facts = {"min_timestamp_ms": time_ms, "max_timestamp_ms": time_ms, "timestamp_type": 0, "leader_epoch": 0}
    return Segment(base, end, end - base, size, **facts, name="", checksum="", inline=False, appended_ms=appended_ms)


def config(retention_ms=-1, retention_bytes=-1, policy=DELETE):
    return TopicConfig(retention_ms=retention_ms, retention_bytes=retention_bytes, cleanup_policy=policy)


def start_of(segments, settings, log_start=0, high_watermark=None, now_ms=NOW_MS):
    high_watermark = segments[-1].end_offset if high_watermark is None else high_watermark
    total = sum(each.bytes for each in segments)
    gone = leaving(segments, settings, log_start, high_watermark, total, now_ms)
    return max([log_start, *(each.end_offset for each, _ in gone)])


def kafkas(segments, settings, log_start, high_watermark):
    """UnifiedLog.deleteOldSegments: by time, by size, by log start; each stops at the first segment that stays."""
    left = list(segments)

    def pass_over(reason):
        nonlocal left, log_start
        gone = list(takewhile(lambda each: each.end_offset <= high_watermark and reason(each), left))
        left = left[len(gone) :]
        log_start = max([log_start, *(each.end_offset for each in gone)])
        return bool(gone)

    def too_much():
        room = sum(each.bytes for each in left) - settings.retention_bytes

        def reason(each):
            nonlocal room
            room -= each.bytes
            return room >= 0

        return reason

    again = True
    while again:
        again = False
        if "delete" in settings.cleanup_policy and settings.retention_ms != -1:
            times = {e: e.max_timestamp_ms if e.max_timestamp_ms >= 0 else e.appended_ms for e in left}
            again |= pass_over(lambda each, times=times: NOW_MS - times[each] > settings.retention_ms)
        if "delete" in settings.cleanup_policy and settings.retention_bytes != -1:
            again |= pass_over(too_much())
        again |= pass_over(lambda each: each.end_offset <= log_start)
    return log_start


times = st.sampled_from([-1, 0, 499, 500, 501, NOW_MS, NOW_MS + 10**12])


@st.composite
def logs(draw):
    made, offset = [], draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 8))):
        end = offset + draw(st.integers(1, 3))
        made.append(segment(offset, end, draw(st.integers(1, 20)), draw(times), draw(times.filter(lambda t: t >= 0))))
        offset = end
    return made


@given(
    logs(),
    st.sampled_from([-1, 0, 499, 500, 501]),
    st.sampled_from([-1, 0, 1, 10, 20, 40, 10**6]),
    st.sampled_from([DELETE, frozenset({"compact"}), frozenset({"compact", "delete"})]),
    st.data(),
)
def test_result_equals_that_of_repeated_kafka_passes(log, retention_ms, retention_bytes, policy, data):
    high_watermark = data.draw(st.integers(log[0].base_offset, log[-1].end_offset))
    log_start = data.draw(st.integers(0, high_watermark))
    settings = config(retention_ms, retention_bytes, policy)
    found = start_of(log, settings, log_start, high_watermark)
    assert found == kafkas(log, settings, log_start, high_watermark)
    assert log_start <= found <= max(high_watermark, log_start)
    left = [each for each in log if each.end_offset > found]
    assert found == log_start or not left or left[0].base_offset == found, "only whole segments went"
    if left:
        assert start_of(left, settings, found, high_watermark) == found, "another run finds nothing"


LOG = [segment(0, 2, 10, 100), segment(2, 4, 10, 900), segment(4, 6, 10, 100)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (config(), 0),
        (config(retention_ms=899), 2),
        (config(retention_ms=900), 0),
        (config(retention_ms=0), 6),
        (config(retention_bytes=30), 0),
        (config(retention_bytes=21), 0),
        (config(retention_bytes=20), 2),
        (config(retention_bytes=19), 2),
        (config(retention_bytes=0), 6),
        (config(retention_ms=899, retention_bytes=10), 6),
        (config(retention_ms=899, retention_bytes=21), 2),
        (config(retention_ms=0, retention_bytes=0, policy=frozenset({"compact"})), 0),
        (config(retention_ms=899, policy=frozenset({"compact", "delete"})), 2),
    ],
)
def test_limits_of_time_and_size(settings, expected):
    assert start_of(LOG, settings) == expected


def test_future_timestamp_keeps_the_segments_after_it():
    log = [segment(0, 1, time_ms=10**15), segment(1, 2, time_ms=0)]
    assert start_of(log, config(retention_ms=10)) == 0
    assert start_of(log, config(retention_ms=10, retention_bytes=10)) == 2, "not by size: then time goes on"


def test_empty_segment_has_the_age_of_its_last_append():
    log = [segment(0, 5, time_ms=-1, appended_ms=950), segment(5, 6, time_ms=0)]
    assert start_of(log, config(retention_ms=50)) == 0
    assert start_of(log, config(retention_ms=49)) == 6


def test_segments_above_the_high_watermark_stay():
    assert start_of(LOG, config(retention_ms=0), high_watermark=3) == 2
    assert start_of(LOG, config(retention_bytes=0), high_watermark=3) == 2


def test_segments_below_the_log_start_are_dropped_with_any_policy():
    compact = config(policy=frozenset({"compact"}))
    assert start_of(LOG, compact, log_start=4) == 4
    assert start_of(LOG, compact, log_start=5) == 5
    log = [segment(0, 1, time_ms=NOW_MS), segment(1, 2, time_ms=0), segment(2, 3, time_ms=NOW_MS)]
    assert start_of(log, config(retention_ms=10), log_start=1) == 2, "and it holds up nothing"
