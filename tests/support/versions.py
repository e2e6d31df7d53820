"""Processes of other versions of spark-log, on a cluster that this version uses too."""

import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_log.metadata import tables as t
from spark_log.metadata.connections.schema_fence import number_of
from tests.support.next_revision import REPOSITORY, next_revision, oldest_revision, write_next_version
from tests.support.python_process import PythonProcess

_DEFINITIONS = "spark_log/metadata/tables/__init__.py"
_WAIT_S = 120.0


@dataclass(frozen=True)
class Version:
    """`path` has the package spark_log, of this revision of the metadata store, which processes of the revision
    `oldest` and later may use too.
    """

    path: Path
    revision: int
    oldest: int

    def start(self, log: Path, *arguments: str) -> "VersionProcess":
        """Start `python ARGUMENTS` with this version; its output goes to `log`."""
        if self.path == REPOSITORY:
            with log.open("ab") as output:
                forked = PythonProcess(*arguments, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)
            return VersionProcess(forked, log)
        environment = {**os.environ, "PYTHONPATH": f"{self.path}{os.pathsep}{REPOSITORY}", "PYTHONUNBUFFERED": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process compiles the package
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env=environment, cwd=log.parent, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        return VersionProcess(process, log)

    def run(self, log: Path, *arguments: str) -> str:
        """Run `python ARGUMENTS` to its end; returns the output."""
        process = self.start(log, *arguments)
        assert process.wait() == 0, process.output
        return process.output


class VersionProcess:
    """A process of a version. A context manager, which kills it at exit."""

    def __init__(self, process: "subprocess.Popen[Any]", log: Path) -> None:
        self._process, self._log = process, log

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, text: str) -> None:
        """Wait until the output has `text`."""
        deadline = time.monotonic() + _WAIT_S
        while text not in self.output:
            assert self.running, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.01)

    def wait(self) -> int:
        """Wait for the end; returns the exit code."""
        return self._process.wait(timeout=_WAIT_S)

    def end_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=_WAIT_S)

    def end(self) -> int:
        """Send SIGTERM; returns the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def __enter__(self) -> "VersionProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.end_input()


def this_version() -> Version:
    return Version(REPOSITORY, number_of(t.SCHEMA_REVISION), number_of(t.OLDEST_REVISION))


def next_version(folder: Path, *, additive: bool) -> Version:
    """This version with one more migration."""
    path = write_next_version(folder / "next", additive=additive)
    return Version(path, number_of(next_revision()), number_of(oldest_revision(additive)))


def previous_version(folder: Path) -> Version | None:
    """The version of the commit before the last one; None without a history."""
    commits = _git("rev-list", "--skip=1", "--max-count=1", "HEAD").split()
    return _version(folder, commits[0]) if commits else None


def earlier_version(folder: Path) -> Version | None:
    """The version of the newest commit with an earlier revision of the store; None without such a history."""
    for commit in _git("rev-list", "HEAD", "--", _DEFINITIONS).split():
        for candidate in (commit, *_git("rev-list", "--max-count=1", f"{commit}^").split()):
            if _revision_of(candidate) < number_of(t.SCHEMA_REVISION):
                return _version(folder, candidate)
    return None


def _version(folder: Path, commit: str) -> Version:
    archive = subprocess.run(["git", "archive", commit, "spark_log"], cwd=REPOSITORY, capture_output=True, check=True)
    path = folder / commit
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        for member in _regular(tar):
            tar.extract(member, path)
    return Version(path, _revision_of(commit), 0)


def _regular(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    return (member for member in tar if member.isreg())


def _revision_of(commit: str) -> int:
    found = re.search(r'^SCHEMA_REVISION = "(.*)"$', _git("show", f"{commit}:{_DEFINITIONS}"), re.MULTILINE)
    return number_of(found[1]) if found else 0


def _git(*arguments: str) -> str:
    """The output of git; empty if it fails, as in a copy of the tree without its history."""
    try:
        done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout
