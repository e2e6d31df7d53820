"""Other versions of spark-log: the next one, earlier ones of the history, and processes of them on one cluster.

The next version is the code of this tree with one more migration of the metadata store.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_log.metadata import migrations
from spark_log.metadata import tables as t
from spark_log.metadata.connections.schema_fence import number_of
from tests.support.python_process import REPOSITORY, PythonProcess
from tests.support.server_processes import LoggedProcess
from tests.support.waiting import wait_until

ADD_ZONE = """
    op.add_column("broker", sa.Column("zone", sa.Text(), nullable=False, server_default="none"))
"""


def next_revision() -> str:
    return f"v{number_of(t.SCHEMA_REVISION) + 1}"


def oldest_revision(additive: bool) -> str:
    return t.OLDEST_REVISION if additive else next_revision()


def become_next_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, additive: bool = False, upgrade: str = ADD_ZONE
) -> str:
    """From now on the code of this process is the next version, for each store that it opens. Returns its revision.

    `upgrade` is the body of the migration, which is written to a copy of the migrations in `folder`.
    """
    revision, oldest = next_revision(), oldest_revision(additive)
    copied = folder / "migrations"
    shutil.copytree(migrations.FOLDER, copied)
    _write_migration(copied, additive, upgrade)
    monkeypatch.setattr(migrations, "FOLDER", copied)
    monkeypatch.setattr(t, "SCHEMA_REVISION", revision)
    monkeypatch.setattr(t, "OLDEST_REVISION", oldest)
    return revision


def write_next_version(folder: Path, *, additive: bool) -> Path:
    """Write the package of the next version; returns the folder for PYTHONPATH."""
    package = folder / "spark_log"
    shutil.copytree(REPOSITORY / "spark_log", package, ignore=shutil.ignore_patterns("__pycache__"))
    definitions = package / "metadata" / "tables" / "__init__.py"
    text = definitions.read_text()
    for name, value in (("SCHEMA_REVISION", next_revision()), ("OLDEST_REVISION", oldest_revision(additive))):
        before = f'{name} = "{getattr(t, name)}"'
        assert text.count(before) == 1
        text = text.replace(before, f'{name} = "{value}"')
    definitions.write_text(text)
    _write_migration(package / "metadata" / "migrations", additive, ADD_ZONE)
    return folder


def _write_migration(migrations_folder: Path, additive: bool, upgrade: str) -> None:
    (migrations_folder / "versions" / f"{next_revision()}.py").write_text(
        f"""
import sqlalchemy as sa
from alembic import op

revision = "{next_revision()}"
down_revision = "{t.SCHEMA_REVISION}"
additive = {additive}


def upgrade():
{upgrade}
"""
    )


_DEFINITIONS = "spark_log/metadata/tables/__init__.py"


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


class VersionProcess(LoggedProcess):
    """A process of a version, which has been started. A context manager, which kills it at exit."""

    def __init__(self, process: "subprocess.Popen[Any]", log: Path) -> None:
        self._process, self._log = process, log

    def wait_for(self, text: str) -> None:
        """Wait until the output has `text`."""

        def printed() -> bool:
            assert text in self.output or self.running, self.output
            return text in self.output

        wait_until(printed, f"{text} in {self._log}")

    def end_input(self) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()

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
