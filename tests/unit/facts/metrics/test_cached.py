"""Cached values are read again when they are too old, and seldom if that takes long."""

import pytest

from spark_log import clock
from spark_log.facts.metrics.cached import Cached


@pytest.mark.parametrize(("read_s", "age_s"), [(0.01, 2.0), (0.5, 20 * 0.5)])
def test_facts_are_kept_for_a_multiple_of_the_time_of_their_read(monkeypatch, read_s, age_s):
    now_s, reads = [100.0], iter("abc")
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s[0])

    def read():
        now_s[0] += read_s
        return next(reads)

    cached = Cached(2.0, read, reads_per_age=20)
    assert cached.get() == "a"
    now_s[0] += age_s - 0.001
    assert cached.get() == "a"
    now_s[0] += 0.002
    assert cached.get() == "b"
    cached.forget()
    assert cached.get() == "c"
