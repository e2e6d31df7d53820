"""Measures a log dir: whether it can be read and written, how fast, and its space."""

import os
import statistics
from urllib.parse import unquote, urlsplit

from spark_log import clock
from spark_log.cluster.log_dir import LogDirInfo, open_log_dir
from spark_log.errors import SparkLogError, redact
from spark_log.facts.doctor.log_dir_rules import LogDirFacts
from spark_log.facts.doctor.machine import deleted_bytes

WRITES = 5
"""The number of trial writes, whose median is taken."""

_BYTES = 4096


def measure(info: LogDirInfo) -> LogDirFacts:
    """Read the marker of the log dir, write trial files, and read its space."""
    location = redact(info.uri.partition("?")[0])
    local = local_path(info) is not None
    try:
        directory = open_log_dir(info)
    except (SparkLogError, OSError) as error:
        return LogDirFacts(info.log_dir_id, info.broker_id, location, local, read_failure=redact(str(error)))
    failure, times_ms, ahead_ms = None, [], None
    for _ in range(WRITES):
        began_s = clock.monotonic_s()
        try:
            modified_ms = directory.try_writing(_BYTES)
        except (SparkLogError, OSError) as error:
            failure = redact(str(error))
            break
        times_ms.append((clock.monotonic_s() - began_s) * 1000)
        ahead_ms = float(modified_ms - clock.wall_ms()) if modified_ms else None
    free = size = inodes = None
    root = local_path(info)
    if root is not None:
        disk = os.statvfs(root)
        free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        inodes = disk.f_favail if disk.f_files else None
    return LogDirFacts(
        info.log_dir_id,
        info.broker_id,
        location,
        local,
        write_failure=failure,
        write_ms=statistics.median(times_ms) if times_ms else None,
        clock_ahead_ms=ahead_ms,
        free=free,
        size=size,
        free_inodes=inodes,
        deleted_bytes=deleted_bytes(root) if root is not None else 0,
    )


def local_path(info: LogDirInfo) -> str | None:
    """Return the path of a log dir on this machine's file systems, None for an object store."""
    parts = urlsplit(info.uri)
    return unquote(parts.path) if parts.scheme in ("", "file") else None
