"""A function remembers the values that were used last, up to a size."""

import pytest

from spark_log import clock
from spark_log.remembered import BoundedDict, Cached, Remembered


def test_the_values_that_were_used_last_are_remembered_up_to_a_size() -> None:
    calls: list[str] = []

    def double(text: str, times: int) -> str:
        calls.append(text)
        return text * times

    remembered = Remembered(double, lambda value, *_: len(value), 10)
    assert [remembered(text, 2) for text in ("aa", "bb", "aa")] == ["aaaa", "bbbb", "aaaa"]
    assert calls == ["aa", "bb"]
    remembered("cc", 2)  # with it, the values have 12 characters: "bb" was used longest ago
    remembered("aa", 2)
    remembered("bb", 2)
    assert calls == ["aa", "bb", "cc", "bb"]
    assert remembered("x" * 6, 2) == "x" * 12, "a value above the limit is returned all the same"
    remembered("x" * 6, 2)
    assert calls[-2:] == ["bb", "x" * 6], "and remembered until the next one"
    remembered("bb", 2)
    remembered("x" * 6, 2)
    assert calls[-2:] == ["bb", "x" * 6]
    remembered.forget()
    remembered("x" * 6, 2)
    assert calls[-1] == "x" * 6 and len(calls) == 8


def test_the_entries_that_were_set_last_are_kept() -> None:
    latest: BoundedDict[str, int] = BoundedDict(2)
    latest["a"] = 1
    latest.setdefault("b", 2)
    latest["a"] = 3
    latest.setdefault("c", 4)
    assert latest == {"a": 3, "c": 4}


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
