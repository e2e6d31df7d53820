"""Facts that requests share are read again when they are too old, and seldom if that takes long."""

import pytest

from spark_log import clock
from spark_log.console.snapshots import READS_PER_AGE, Shared


@pytest.mark.parametrize(("read_s", "age_s"), [(0.01, 2.0), (0.5, READS_PER_AGE * 0.5)])
def test_facts_are_kept_for_a_multiple_of_the_time_of_their_read(monkeypatch, read_s, age_s):
    now_s, reads = [100.0], iter("abc")
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s[0])

    def read():
        now_s[0] += read_s
        return next(reads)

    shared = Shared(2.0, read)
    assert shared.get() == "a"
    now_s[0] += age_s - 0.001
    assert shared.get() == "a"
    now_s[0] += 0.002
    assert shared.get() == "b"
    shared.forget()
    assert shared.get() == "c"
