"""Checks who may read and change the files of a cluster, and which files wait for their deletion. Pure."""

import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_log.facts.doctor import limits
from spark_log.facts.doctor.findings import Finding, note, ok, or_ok, warning
from spark_log.text import bytes_of, count_of, duration_of

PERMISSIONS, CLEAN_UP = "permissions", "clean-up"


@dataclass(frozen=True)
class FileMode:
    """A file or folder, its permission bits, and whether it has secrets: passwords or credentials."""

    path: str
    mode: int
    secret: bool


@dataclass(frozen=True)
class RetiredFiles:
    """Files that the metadata no longer refers to. `overdue_ms` is the longest time for which the deletion of one has
    been due, 0 if none is.
    """

    files: int
    overdue: int
    overdue_ms: int


def check_modes(files: Sequence[FileMode]) -> list[Finding]:
    return or_ok(_mode_problems(files), PERMISSIONS, f"no other user can change {count_of(len(files), 'file')}")


def _mode_problems(files: Sequence[FileMode]) -> Iterator[Finding]:
    for file in files:
        if file.mode & stat.S_IWOTH and not file.mode & stat.S_ISVTX:
            yield warning(PERMISSIONS, f"every user of this machine can change {file.path}", f"chmod o-w '{file.path}'")
        if file.secret and file.mode & stat.S_IROTH:
            yield warning(
                PERMISSIONS,
                f"every user of this machine can read the secrets in {file.path}",
                f"chmod o-r '{file.path}'",
            )


def check_retired(retired: RetiredFiles) -> Finding:
    seen = f"{count_of(retired.files, 'replaced file')} wait for file.delete.delay.ms"
    if retired.overdue_ms <= limits.RETIRED_OVERDUE_MS_MAX:
        return ok(CLEAN_UP, seen)
    return warning(
        CLEAN_UP,
        f"{seen}; {retired.overdue:,} should have been deleted, the oldest {duration_of(retired.overdue_ms)} ago",
        "run `spark-log maintenance files`, and a coordinator (`spark-log coordinator`), which does so on a schedule",
    )


def check_unnamed(files: int, size: int, stores_away: Sequence[str] = ()) -> Finding:
    """Check the segment files older than a day that the metadata does not name. `stores_away` do not answer, so the
    files of their topics are not known.
    """
    unknown = f"not known for topics of store {', '.join(stores_away)}, which does not answer"
    if not files and stores_away:
        return note("unnamed files", unknown, "see the findings of the store")
    if not files:
        return ok("unnamed files", "the store names every segment file that is older than a day")
    return note(
        "unnamed files",
        f"{count_of(files, 'segment file')} ({bytes_of(size)}) that the store does not name: of killed writers, or"
        f" newer than a restored store{f'; {unknown}' if stores_away else ''}",
        "after a restore look at `spark-log store unnamed-files`; otherwise `spark-log maintenance files` deletes them",
    )
