"""A disk that loses its power between any two steps of a process; without root, from a record of the fsyncs.

Modelled: a file's bytes are on disk as they were at its last fsync, a folder's names as they were at its own. Later
changes are lost, cut off in the middle, or zeros, with or without the new names. All files that were not forced have
the same fate at once, so mixtures of fates are not tried. SQLite's own fsyncs cannot be seen from Python, so its
documentation is trusted: a commit with synchronous=FULL forces the write-ahead log, one with less does not, and the
database file is only written in checkpoints, which force it.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

FATES: dict[str, Callable[[bytes], bytes]] = {
    "lost": lambda unforced: b"",
    "cut off": lambda unforced: unforced[: len(unforced) // 2],
    "zeros": lambda unforced: bytes(len(unforced)),
}


@dataclass(frozen=True)
class Left:
    """The state after a power loss: a copy of the folder, the step that it preceded, the acknowledgements so far."""

    folder: Path
    step: str
    fate: str
    told: tuple[Any, ...]


@dataclass
class Recorder:
    """Records the fsyncs of this process below `folder`, and keeps the states after possible power
    losses in `images`.
    """

    folder: Path
    images: Path
    told: list[Any] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    _bytes: dict[int, bytes] = field(default_factory=dict)
    _names: dict[Path, dict[str, int]] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _lock: Any = field(default_factory=threading.RLock)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Watch each fsync, and each commit of an engine that is created from now on."""
        real_fsync: Any = os.fsync
        real_commit: Any = sa.engine.default.DefaultDialect.do_commit

        def fsync(descriptor: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path.is_relative_to(self.folder):
                with self._lock:
                    self.cut_the_power(f"fsync of {path.relative_to(self.folder)}")
                    self._force(path)
            real_fsync(descriptor)

        def do_commit(dialect: Any, connection: Any) -> None:
            with self._lock:
                self.cut_the_power("commit")
                before = self._logs()
                real_commit(dialect, connection)
                if dialect.name == "sqlite" and connection.execute("PRAGMA synchronous").fetchone()[0] >= 2:
                    for path in self._logs() - before:  # a commit that writes nothing forces nothing
                        self._force(path[0])

        patch.setattr(os, "fsync", fsync)
        patch.setattr(sa.engine.default.DefaultDialect, "do_commit", do_commit)

    def _logs(self) -> set[tuple[Path, int]]:
        return {(path, path.stat().st_mtime_ns) for path in self.folder.rglob("metadata.sqlite-wal")}

    def _force(self, path: Path) -> None:
        if path.is_dir():
            self._names[path] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._bytes[path.stat().st_ino] = path.read_bytes()

    def cut_the_power(self, step: str) -> None:
        """Keep the state after a power loss now, once for each fate, unless an equal state is kept already."""
        there = {path.stat().st_ino for path in self.folder.rglob("*")}
        named = {inode for names in self._names.values() for inode in names.values()}
        self._bytes = {inode: data for inode, data in self._bytes.items() if inode in there | named}
        for fate in FATES:
            files = dict(self._files(self.folder, fate))
            digest = hashlib.sha256(repr((sorted(files.items()), self.told)).encode()).hexdigest()
            if digest in self._known:
                continue
            self._known.add(digest)
            image = self.images / str(len(self.left))
            image.mkdir(parents=True)
            for relative, data in files.items():
                target = image / relative
                if data is None:
                    target.mkdir(parents=True, exist_ok=True)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data)
            self.left.append(Left(image, step, fate, tuple(self.told)))

    def _files(self, folder: Path, fate: str) -> Iterator[tuple[str, bytes | None]]:
        """Paths and bytes of the files that are left in a folder; None for a folder."""
        there = {entry.name: entry.inode() for entry in os.scandir(folder)} if folder.exists() else {}
        forced = self._names.get(folder, {})
        sqlite = {name: inode for name, inode in there.items() if name.startswith("metadata.sqlite")}
        names = {name: inode for name, inode in forced.items() if not name.startswith("metadata.sqlite")} | sqlite
        for name, inode in (names if fate == "lost" else there).items():
            path = folder / name
            if name.endswith("-shm"):  # memory, not disk
                continue
            if path.is_dir():
                yield str(path.relative_to(self.folder)), None
                yield from self._files(path, fate)
                continue
            known = self._bytes.get(inode, b"")
            data = path.read_bytes() if there.get(name) == inode else known
            if data != known and name != "metadata.sqlite":
                start = len(known) if data.startswith(known) else 0
                data = (data[:start] or (known if fate == "lost" else b"")) + FATES[fate](data[start:])
            yield str(path.relative_to(self.folder)), data
