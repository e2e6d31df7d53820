"""Disks that are full, lose their power or have damaged files.

- `mounted` and `fill_disk`: small file systems that tests can fill.
- `StoredFile` and `DAMAGES`: damage to segment files without notice to the log, in local log dirs or object storage.
- `Disk` and `Unforced`: machines that lose their power. Data that was not forced to disk is lost.
- `Recorder`: a disk that loses its power between any two steps of a process, without root: a record of the fsyncs.

The recorder's model: a file's bytes are on disk as they were at its last fsync, a folder's names as they were at its
own. Later changes are lost, cut off in the middle, or zeros, with or without the new names. All files that were not
forced have the same fate at once, so mixtures of fates are not tried. SQLite's own fsyncs cannot be seen from Python,
so its documentation is trusted: a commit with synchronous=FULL forces the write-ahead log, one with less does not, and
the database file is only written in checkpoints, which force it.
"""

import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from pyarrow import BufferReader, fs

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDirInfo, segment_path
from spark_log.cluster.topics import Topic
from spark_log.log.records.segment_footer import TRAILER_BYTES, footer_length
from spark_log.log.segments.slices import Slice
from spark_log.maintenance.client_log import ClientLog
from tests.support.postgres import PostgresServer
from tests.support.records import ranges_of

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system, which takes root")


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[None]:
    """Mounts a small file system at `folder`."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_disk(folder: Path) -> Path:
    """Fill the file system of `folder`; remove the returned file to free the space."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


_VALUE = 3
"""Number of the column."""


class StoredFile:
    """A segment's file in one log dir, accessed directly in its storage."""

    def __init__(self, info: LogDirInfo, piece: Slice) -> None:
        self._fs, root = fs.FileSystem.from_uri(info.uri)
        self.name = piece.name
        self.broker_id = info.broker_id
        self._path = f"{root}/{segment_path(piece.folder, piece.partition, piece.name)}"

    def __repr__(self) -> str:
        return f"StoredFile({self._path!r})"

    def read(self) -> bytes | None:
        """The content; None if the file does not exist."""
        try:
            with self._fs.open_input_file(self._path) as file:
                content: bytes = file.read()
        except FileNotFoundError:
            return None
        return content

    def write(self, content: bytes | None) -> None:
        """Replace the content; None removes the file."""
        if self.read() is not None:
            self._fs.delete_file(self._path)  # never in place: a reader may have it mapped into memory
        if content is not None:
            with self._fs.open_output_stream(self._path) as file:
                file.write(content)

    def damage(self, kind: str) -> None:
        content = self.read()
        assert content is not None
        self.write(DAMAGES[kind](content))


def flipped_in_page(content: bytes, column: int = _VALUE) -> bytes:
    """The content with one bit flipped in the middle of the column's pages, in the last row group; unchanged without
    records.
    """
    metadata = pq.read_metadata(BufferReader(content))
    if not metadata.num_row_groups:
        return content
    chunk = metadata.row_group(metadata.num_row_groups - 1).column(column)
    return _flipped(content, chunk.data_page_offset + chunk.total_compressed_size * 3 // 4)


def _flipped(content: bytes, at: int) -> bytes:
    turned = bytearray(content)
    turned[at] ^= 1 << random.Random(at).randrange(8)
    return bytes(turned)


def flipped_in_name(content: bytes, column: str = "value") -> bytes:
    """The content with one bit flipped in the column's name in the footer: Parquet readers see another column."""
    footer = len(content) - TRAILER_BYTES - footer_length(content[-TRAILER_BYTES:], "")
    at = content.index(bytes([len(column)]) + column.encode(), footer) + 1
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]  # not the bit that only changes the case


DAMAGES: Mapping[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda content: None,
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "longer": lambda content: content + b"\0",
    "zeroed": lambda content: bytes(len(content)),
    "bit in a page": flipped_in_page,
    "bit in the footer": lambda content: _flipped(content, len(content) - 100),
    "bit in a column's name": flipped_in_name,
}


def replicas_of(cluster: Cluster, log: ClientLog, topic: Topic, rack: str | None = None) -> list[list[StoredFile]]:
    """The files of each segment of the topic, in the order in which a reader in `rack` tries them."""
    infos = cluster.log_dirs()
    slices: Sequence[Slice] = log.plan(ranges_of(log, topic), rack=rack).slices
    return [[StoredFile(infos[log_dir_id], piece) for log_dir_id in piece.log_dir_ids] for piece in slices]


_CAN_MOUNT = os.geteuid() == 0 and Path("/dev/loop-control").exists() and shutil.which("mkfs.ext4") is not None

needs_a_disk = pytest.mark.skipif(not _CAN_MOUNT, reason="mounts a disk of its own: takes root, loop devices, ext4")


class Disk:
    """An ext4 file system in an image file. The image holds what the kernel has written to the "device"; data that
    programs have written without forcing it is in memory only.
    """

    def __init__(self, image: Path, folder: Path) -> None:
        self.image, self.folder = image, folder

    @classmethod
    def make(cls, image: Path, folder: Path) -> "Disk":
        with image.open("wb") as file:
            file.truncate(32 * 1024 * 1024)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        return cls(image, folder)

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Path]:
        self.folder.mkdir()
        subprocess.run(["mount", "-o", "loop", str(self.image), str(self.folder)], check=True)
        try:
            yield self.folder
        finally:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)

    def after_a_power_cut(self, image: Path, folder: Path) -> "Disk":
        """The disk after a power cut at this moment; the next mount replays its journal."""
        shutil.copyfile(self.image, image)
        return Disk(image, folder)


class Unforced:
    """A PostgreSQL whose write-ahead log reaches the disk by forced commits only: its log writer is stopped."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        writer = "FROM pg_stat_activity WHERE backend_type = 'walwriter'"
        while not (pid := server.query(f"SELECT pid {writer}")):  # a server accepts connections before it has one
            time.sleep(0.01)
        self._writer = int(pid)
        while True:  # not during its work, when it holds a lock that every commit needs
            os.kill(self._writer, signal.SIGSTOP)
            while not self._stands_still():
                pass
            if server.query(f"SELECT wait_event_type {writer}") == "Activity":
                return
            os.kill(self._writer, signal.SIGCONT)

    def _stands_still(self) -> bool:
        state = Path(f"/proc/{self._writer}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "T"

    def cut_the_power(self) -> None:
        """Lose everything in memory; the server restarts and recovers from its disk."""
        os.kill(self._writer, signal.SIGKILL)
        self._server.kill()
        self._server.start()


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
