"""Checks whether this user can read and write a log dir, and whether the log dir has space. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from spark_log.facts.doctor import limits
from spark_log.facts.doctor.findings import Finding, error, or_ok, warning
from spark_log.text import bytes_of, duration_of

LOG_DIR = "log dir"

_DAY_S = 86_400


@dataclass(frozen=True)
class LogDirFacts:
    """The facts of a log dir. `read_failure` and `write_failure` are the errors of reading and writing, or None.
    `write_ms` is the median time of a small forced write. `clock_ahead_ms` is how far the clock of its file system is
    ahead of this machine's. `free` and `size` are bytes of a local disk, and `free_inodes` its free inodes; None if
    they are not known. `deleted_bytes` is the size of deleted files that processes of this machine keep open. `grows`
    is in bytes per second, None if there is no history.
    """

    log_dir_id: int
    broker_id: int
    location: str
    local: bool
    read_failure: str | None = None
    write_failure: str | None = None
    write_ms: float | None = None
    clock_ahead_ms: float | None = None
    free: int | None = None
    size: int | None = None
    free_inodes: int | None = None
    deleted_bytes: int = 0
    grows: float | None = None

    @property
    def name(self) -> str:
        return f"log dir {self.log_dir_id} of broker {self.broker_id} ({self.location})"


def check_log_dir(facts: LogDirFacts) -> list[Finding]:
    return or_ok(_problems(facts), LOG_DIR, f"{facts.name}: {', '.join(_measured(facts))}")


def _measured(facts: LogDirFacts) -> Iterator[str]:
    yield "readable and writable"
    if facts.write_ms is not None:
        yield f"a small {'forced write' if facts.local else 'object'} takes {facts.write_ms:.1f} ms"
    if facts.free is not None and facts.size:
        yield f"{bytes_of(facts.free)} free of {bytes_of(facts.size)}"
    lasts_s = _lasts_s(facts)
    if lasts_s is not None:
        yield f"for at least {duration_of(int(lasts_s * 1000))} at the rate of the last day"


def _problems(facts: LogDirFacts) -> Iterator[Finding]:
    if facts.read_failure is not None:
        yield error(
            LOG_DIR,
            f"{facts.name} cannot be read: {facts.read_failure}",
            "mount the disk or correct the permissions; the controller takes it back by itself. A lost disk: replace it"
            " by an empty folder, and replicas are copied again (docs/guides/replication.md)",
        )
        return
    full = facts.free is not None and facts.size and facts.free < limits.FREE_SHARE_EMPTY * facts.size
    if facts.write_failure is not None and not full:
        yield error(
            LOG_DIR,
            f"{facts.name} cannot be written: {facts.write_failure}",
            "look at `findmnt -T FOLDER` and `dmesg`: a disk with errors becomes read-only; `mount -o remount,rw`, or"
            " give this user the folder (chown)",
        )
    yield from _space_problems(facts)
    slow_ms = limits.LOCAL_WRITE_MS_MAX if facts.local else limits.OBJECT_WRITE_MS_MAX
    if facts.write_ms is not None and facts.write_ms > slow_ms:
        yield warning(
            LOG_DIR,
            f"{facts.name}: a small forced write takes {facts.write_ms:.0f} ms (median), above {slow_ms} ms",
            "look for other users of the disk (`iostat -x 1`), or move replicas to a faster one (`spark-log partition"
            " reassign`)",
        )
    if abs(facts.clock_ahead_ms or 0) > limits.LOG_DIR_CLOCK_SKEW_MS_MAX:
        yield warning(
            LOG_DIR,
            f"{facts.name}: the clock of its file system differs by {facts.clock_ahead_ms:.0f} ms from this machine's",
            "run an NTP client on the file server and on this machine (`timedatectl set-ntp true`)",
        )


_FREE_SPACE = (
    "free space there, or lower retention.ms or retention.bytes of topics, shorten their file.delete.delay.ms, and run"
    " `spark-log maintenance`, whose report says what is freed now and later"
)


def _space_problems(facts: LogDirFacts) -> Iterator[Finding]:
    if facts.free is not None and facts.size:
        share, lasts_s = facts.free / facts.size, _lasts_s(facts)
        seen = f"{facts.name} has {bytes_of(facts.free)} free of {bytes_of(facts.size)} ({share:.0%})"
        if lasts_s is not None and lasts_s < limits.DISK_LASTS_DAYS_MIN * _DAY_S:
            seen += f", enough for {duration_of(int(lasts_s * 1000))} at the rate of the last day"
        if share < limits.FREE_SHARE_EMPTY:
            yield error(LOG_DIR, f"{seen}: appends fail", _FREE_SPACE)
        elif share < limits.FREE_SHARE_LOW or (lasts_s or _DAY_S * 365) < limits.DISK_LASTS_DAYS_MIN * _DAY_S:
            yield warning(LOG_DIR, seen, _FREE_SPACE)
    if facts.free_inodes is not None and facts.free_inodes < 1_000:
        yield error(
            LOG_DIR,
            f"{facts.name} has {facts.free_inodes:,} free inodes",
            "run `spark-log maintenance merge`, which replaces small files by large ones, and delete other files there",
        )
    if facts.deleted_bytes > limits.DELETED_BYTES_MAX:
        yield warning(
            LOG_DIR,
            f"{facts.name}: processes keep {bytes_of(facts.deleted_bytes)} of deleted files open",
            "`lsof +L1` lists them; the space is free when those processes close the files or end",
        )


def _lasts_s(facts: LogDirFacts) -> float | None:
    """Return the least time until the disk is full. A log dir has each record at most once, so it grows no faster than
    the log.
    """
    return facts.free / facts.grows if facts.free is not None and facts.grows else None
