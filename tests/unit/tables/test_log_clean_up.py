"""Which files of a Delta log are deleted."""

import re

from hypothesis import given
from hypothesis import strategies as st

from spark_log.config.values import DAY_MS
from spark_log.tables.log_clean_up import expired_files

HOUR_MS, NOW_MS = 3_600_000, 100 * DAY_MS


def commit(version: int) -> str:
    return f"{version:020d}.json"


def checkpoint(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def log(ages_ms: list[int], every: int) -> dict[str, int]:
    """Commits of these ages, the oldest first, with a checkpoint each `every` versions, and checksums of Spark's."""
    files = {"_last_checkpoint": NOW_MS}
    for version, age_ms in enumerate(ages_ms):
        files[commit(version)] = files[f"{version:020d}.crc"] = NOW_MS - age_ms
        if (version + 1) % every == 0:
            files[checkpoint(version)] = NOW_MS - age_ms
    return files


def readable(files: dict[str, int]) -> set[int]:
    """The versions that can be read: a checkpoint or the first commit, and all commits after it."""
    commits = {int(name[:20]) for name in files if re.fullmatch(r"\d{20}\.json", name)}
    found: set[int] = set()
    for version in commits:
        start = max((v for v in range(version, -1, -1) if checkpoint(v) in files), default=None)
        begin = 0 if start is None else start + 1
        if all(each in commits for each in range(begin, version + 1)):
            found.add(version)
    return found


@given(
    gaps_ms=st.lists(st.integers(0, 3 * DAY_MS), min_size=1, max_size=40),
    every=st.integers(1, 8),
    retention_days=st.integers(1, 20),
    commits_max=st.integers(1, 40),
)
def test_kept_versions_stay_readable_after_each_deletion(
    gaps_ms: list[int], every: int, retention_days: int, commits_max: int
) -> None:
    ages_ms = [sum(gaps_ms[at:]) for at in range(len(gaps_ms))]
    files = log(ages_ms, every)
    newest = len(ages_ms) - 1
    kept = {
        version
        for version, age_ms in enumerate(ages_ms)
        if version == newest
        or age_ms <= DAY_MS
        or (age_ms <= retention_days * DAY_MS and version > newest - commits_max)
    }
    expired = expired_files(files, NOW_MS, retention_days * DAY_MS, commits_max)
    assert "_last_checkpoint" not in expired
    for name in expired:
        del files[name]
        assert kept <= readable(files), "also if clean-up ends here"
    assert expired_files(files, NOW_MS, retention_days * DAY_MS, commits_max) == [], "one run is enough"
    oldest = min(kept)
    assert len([v for v in readable(files) if v < oldest]) < every, "nothing else is kept"


def test_a_log_of_many_commits_is_limited_by_their_number_but_for_the_last_day() -> None:
    files = log([each * HOUR_MS for each in range(99, -1, -1)], every=10)  # four days; the newest is version 99
    left = files.keys() - set(expired_files(files, NOW_MS, 30 * DAY_MS, 50))
    assert min(left - {"_last_checkpoint"}) == f"{49:020d}.checkpoint.parquet"
    left = files.keys() - set(expired_files(files, NOW_MS, 30 * DAY_MS, 5))
    assert min(left - {"_last_checkpoint"}) == f"{69:020d}.checkpoint.parquet", "version 75 is a day old"


def test_checksums_go_first_and_the_files_of_a_version_before_those_of_the_next() -> None:
    files = log([10 * DAY_MS] * 4 + [0], every=3)
    assert expired_files(files, NOW_MS, DAY_MS, 100) == [
        name for version in (0, 1) for name in (f"{version:020d}.crc", commit(version))
    ]


def test_one_checkpoint_an_hour_stays() -> None:
    minutes = [each * 60_000 for each in range(299, -1, -1)]
    expired = expired_files(log(minutes, every=10), NOW_MS, 30 * DAY_MS, 30_000)
    assert expired == [], "without a checkpoint at the beginning nothing is deleted"
    files = log([*[2 * DAY_MS] * 10, *minutes], every=10)
    expired = expired_files(files, NOW_MS, DAY_MS, 30_000)
    left = [int(name[:20]) for name in files if name.endswith(".parquet") and name not in expired]
    assert left == [9, 19, 79, 139, 199, 249, 259, 269, 279, 289, 299, 309]


def test_files_without_a_time_are_kept() -> None:
    files = dict.fromkeys(log([10 * DAY_MS] * 20, every=5), 0)
    assert expired_files(files, NOW_MS, DAY_MS, 100) == []


def test_a_commit_of_a_host_whose_clock_was_ahead_expires_with_the_next_one() -> None:
    ages_ms = [each * DAY_MS for each in range(39, -1, -1)]
    expected = expired_files(log(ages_ms, every=5), NOW_MS, 10 * DAY_MS, 100)
    assert expected
    for ahead in ((3,), (3, 4), (38,), (39,), range(40)):
        files = log(ages_ms, every=5)
        files |= {commit(version): NOW_MS + 3_650 * DAY_MS for version in ahead}
        expired = expired_files(files, NOW_MS, 10 * DAY_MS, 100)
        assert expired == ([] if len(ahead) == 40 else expected)
    files = log([each * 60_000 for each in range(299, -1, -1)], every=10)
    of_one_an_hour = expired_files(files, NOW_MS, DAY_MS, 100)
    files |= {checkpoint(9): NOW_MS + DAY_MS}
    assert expired_files(files, NOW_MS, DAY_MS, 100) == of_one_an_hour
