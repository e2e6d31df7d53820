"""Reads the versions of this machine's programs, the modes of a cluster's files, and the size of deleted files."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from spark_log.cluster.store_directory import variable
from spark_log.facts.doctor.file_rules import FileMode
from spark_log.facts.doctor.version_rules import KNOWN_RANGES, Versions
from spark_log.metadata.address import SQLITE_FILE

_JAVA_ANSWER_S_MAX = 5.0


def read_versions() -> Versions:
    packages = {name: found for name in KNOWN_RANGES if (found := _installed(name)) is not None}
    return Versions(own_version(), sys.version_info[:3], packages, _java())


def own_version() -> str:
    return version("spark-log")


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _java() -> int | None:
    """Return the major version of the Java that Spark would start, or None."""
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if program is None:
        return None
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_JAVA_ANSWER_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(found[1]) if found else None


def read_modes(
    address_text: str,
    folder: Path | None,
    log_dirs: Sequence[Path],
    has_users: bool,
    environment: Mapping[str, str] = os.environ,
) -> list[FileMode]:
    """Return the modes of the cluster's local files that exist. `address_text` is the address as the user gave it, and
    may be a file with a password. The database has secrets if the cluster has users.
    """
    files: dict[Path, bool] = dict.fromkeys(log_dirs, False)
    if folder is not None:
        files |= {folder: False, folder / SQLITE_FILE: has_users and _enterable(folder)}
    else:
        files[Path(environment.get("PGPASSFILE") or Path.home() / ".pgpass")] = True
        addresses = [address_text, *(value for name, value in environment.items() if name.startswith(variable("")))]
        named = [environment.get("PGPASSWORD_FILE", ""), *(value for value in addresses if "://" not in value)]
        files |= {Path(os.path.expanduser(name)): True for name in named if name}
    modes = []
    for path, secret in files.items():
        try:
            modes.append(FileMode(str(path), path.stat().st_mode, secret))
        except OSError:  # it does not exist, or its own check says why it cannot be read
            continue
    return modes


def _enterable(folder: Path) -> bool:
    """Return whether other users can reach the files of the folder."""
    try:
        return all(each.stat().st_mode & 0o001 for each in (folder, *folder.parents))
    except OSError:
        return True


def deleted_bytes(root: str) -> int:
    """Return the bytes of deleted files below a folder that processes of this machine keep open. Processes of other
    users count only if this user may see them.
    """
    sizes: dict[tuple[int, int], int] = {}
    for process in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            for name in os.listdir(process):
                with contextlib.suppress(FileNotFoundError):  # the process has closed this file
                    target = os.readlink(process / name)
                    if target.startswith(root.rstrip("/") + "/") and target.endswith(" (deleted)"):
                        file = os.stat(process / name)
                        sizes[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(sizes.values())
