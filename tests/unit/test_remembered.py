"""A function remembers the values that were used last, up to a size."""

from spark_log.remembered import BoundedDict, Remembered


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
