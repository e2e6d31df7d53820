"""Deletes expired files of a Delta log: those below a checkpoint from which every kept version can be read.

deltalake's own clean-up knows only an age. A table that gets a commit every few seconds would keep half a million
commits for 30 days, so the number of commits is limited too. The versions of the last day are kept in any case.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from spark_log.cluster.files.log_dir_folder import Entry
from spark_log.cluster.log_dir import LogDir
from spark_log.config import TopicConfig
from spark_log.config.values import DAY_MS

_FILE = re.compile(r"\.?(\d{20})\.(json|crc|checkpoint\..+)")
_COMMIT = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.parquet")
_HOUR_MS = 3_600_000


def clean_up(log_dir: LogDir, files: Sequence[Entry], config: TopicConfig, now_ms: int) -> list[Entry]:
    """Delete the expired files of the log of a topic's Delta table. `files` are the files of the log, whose newest
    checkpoint must have been forced to disk. Returns the files that are left.

    The files have times of the file system's clock: `now_ms` may differ from it by minutes.
    """
    by_name = {file.name: file for file in files}
    times = {name: file.modified_ms for name, file in by_name.items()}
    for name in expired_files(times, now_ms, config.delta_log_retention_ms, config.delta_log_commits_max):
        log_dir.delete(by_name.pop(name).path)
    return list(by_name.values())


def expired_files(files: Mapping[str, int], now_ms: int, retention_ms: int, commits_max: int) -> list[str]:
    """Return the names of the files to delete, in this order. `files` has the time of each name's last change.

    The versions of the last `retention_ms` stay readable, but at most `commits_max`, and in any case those of the last
    day. Above the checkpoint from which they are read, one checkpoint for each hour stays.
    """
    commits, checkpoints = (
        _dated({name: changed_ms for name, changed_ms in files.items() if pattern.fullmatch(name)}, now_ms)
        for pattern in (_COMMIT, _CHECKPOINT)
    )
    if not commits:
        return []
    newest = max(commits)
    of_period = _oldest_since(commits, now_ms - max(retention_ms, DAY_MS), newest)
    of_last_day = _oldest_since(commits, now_ms - DAY_MS, newest)
    oldest_kept = max(of_period, min(newest - commits_max + 1, of_last_day))
    base = max((version for version in checkpoints if version <= oldest_kept), default=None)
    if base is None:
        return []
    too_many = _more_than_one_an_hour({version: at for version, at in checkpoints.items() if version >= base})
    expired = [
        (version, not name.endswith(".crc"), ".checkpoint." in name, name)
        for name in files
        if (match := _FILE.fullmatch(name))
        and ((version := int(match[1])) < base or (version in too_many and ".checkpoint." in name))
    ]
    return [name for *_, name in sorted(expired)]


def _dated(files: Mapping[str, int], now_ms: int) -> dict[int, int]:
    """Return the time of each version of these files. A time in the future, from a clock that was ahead, is replaced by
    the time of the next version, or for the newest version by the present time.
    """
    times: dict[int, int] = {}
    next_ms = now_ms
    for name in sorted(files, reverse=True):
        if 0 < files[name] <= now_ms:
            next_ms = files[name]
        times[int(name[:20])] = next_ms if files[name] else 0
    return times


def _oldest_since(commits: Mapping[int, int], since_ms: int, newest: int) -> int:
    """Return the oldest version that was written since `since_ms`, or `newest` if there is none. A file without a time
    (0) may have been written at any time.
    """
    return min((version for version, at_ms in commits.items() if at_ms >= since_ms or at_ms == 0), default=newest)


def _more_than_one_an_hour(checkpoints: Mapping[int, int]) -> Collection[int]:
    """Return the versions of the checkpoints that follow the one before them within an hour, without the newest one and
    those of the last hour, which readers may have just listed.
    """
    *older, newest = sorted(checkpoints)
    surplus: list[int] = []
    last_ms: int | None = None
    for version in older:
        at_ms = checkpoints[version]
        if last_ms is not None and at_ms < last_ms + _HOUR_MS and at_ms < checkpoints[newest] - _HOUR_MS:
            surplus.append(version)
        else:
            last_ms = at_ms
    return surplus
