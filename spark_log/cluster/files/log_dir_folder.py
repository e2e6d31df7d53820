"""Opens the folder or bucket of a log dir, and provides safe paths, listings and deletions."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from stat import S_ISDIR, S_ISREG
from typing import TypeVar

import pyarrow as pa
from pyarrow import fs

from spark_log.cluster.files import disk_calls
from spark_log.cluster.files.disk_calls import DiskCalls, Use
from spark_log.cluster.files.new_file import make_folders
from spark_log.cluster.log_dir_uris import asks_for_region, location_of
from spark_log.errors import InvalidConfigurationError, StorageUnavailableError, UnsafePathError, redact, storage_error

R = TypeVar("R")

_STATUS_BYTES = 100_000
"""The number of bytes that may take as long as the status of a file: 10 ms."""


@dataclass(frozen=True)
class Entry:
    """A file or folder in a log dir. `path` is relative to the log dir."""

    path: str
    folder: bool
    bytes: int
    modified_ms: int
    """The time of the last modification by the file system's clock, 0 if it is unknown (folders of object stores)."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class LogDirFolder:
    """The folder or bucket of a log dir, opened by its URI.

    Raises InvalidConfigurationError for a URI that pyarrow.fs does not accept, and StorageUnavailableError if the log
    dir cannot be opened: the region of an S3 bucket is requested over the network if the URI does not name it.

    Paths are relative to the log dir. A path that leaves it, or crosses a symbolic link, raises UnsafePathError. A disk
    or object store that cannot be read or written raises StorageUnavailableError.

    Local folders are listed by `os`: in names that are not UTF-8, for which pyarrow raises, it replaces the bytes by
    surrogates.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        try:
            self._opened, self._root = fs.FileSystem.from_uri(uri)
        except (pa.ArrowInvalid, ValueError) as error:
            raise InvalidConfigurationError(
                f"log dir: {redact(uri)!r} is not a URI that pyarrow.fs opens: {error}"
            ) from error
        except OSError as error:
            hint = " (name the bucket's region in the URI: ?region=eu-west-1)" if asks_for_region(uri) else ""
            raise StorageUnavailableError(redact(f"log dir {uri!r} cannot be opened{hint}: {error}")) from error
        self._process = os.getpid()
        self.local = isinstance(self._opened, fs.LocalFileSystem)
        if not self.local and "//" in self._root:
            raise InvalidConfigurationError(f"log dir: {redact(uri)!r} has an empty name in its path, between two /")

    @property
    def _fs(self) -> fs.FileSystem:
        """Return the file system. A forked child opens its own, since shared connections could mix up the answers."""
        if self._process != os.getpid():
            self._opened, _ = fs.FileSystem.from_uri(self.uri)
            self._process = os.getpid()
        return self._opened

    def location(self, relative: str) -> str:
        """Return the location of a file for people, Delta and Spark: a local path, or a URI without its query."""
        return location_of(self.uri, relative)

    def exists(self) -> bool:
        """Whether the log dir's folder exists. In an object store every prefix exists."""
        return not self.local or os.path.isdir(self._root)

    def list_files(self, folder: str) -> dict[str, int]:
        """Return the size in bytes of every file below a folder, by path. Empty if there is no such folder. In a local
        folder, symbolic links are left out: no file behind one can be read here.
        """
        if self.local:
            return self._list_local_files(folder)
        found: list[fs.FileInfo] = []
        with self._storage_errors(folder), _if_it_exists():
            selector = fs.FileSelector(self._resolve(folder), allow_not_found=True, recursive=True)
            found = self._fs.get_file_info(selector)
        start = len(self._root.rstrip("/")) + 1
        return {info.path[start:]: info.size for info in found if info.is_file}

    def _list_local_files(self, folder: str) -> dict[str, int]:
        files: dict[str, int] = {}
        folders = [folder]
        while folders:
            parent = folders.pop()
            with self._storage_errors(parent):
                for name, info in _in_local_folder(self._resolve(parent), follow_symlinks=False):
                    if S_ISREG(info.st_mode):
                        files[f"{parent}/{name}"] = info.st_size
                    elif S_ISDIR(info.st_mode):
                        folders.append(f"{parent}/{name}")
        return files

    def entries(self, folder: str = "") -> list[Entry]:
        """List a folder, or the log dir itself, not recursively. Returns no entries if there is no such folder."""
        where = self._resolve(folder) if folder else self._root
        if self.local:
            prefix = f"{folder}/" if folder else ""
            with self._storage_errors(folder or "its folder"):
                return [
                    Entry(prefix + name, not S_ISREG(info.st_mode), info.st_size, info.st_mtime_ns // 1_000_000)
                    for name, info in _in_local_folder(where)
                ]
        infos: list[fs.FileInfo] = []
        with self._storage_errors(folder or "its folder"), _if_it_exists():
            infos = self._fs.get_file_info(fs.FileSelector(where, allow_not_found=True))
        start = len(self._root.rstrip("/")) + 1
        return [
            Entry(info.path[start:], not info.is_file, info.size or 0, (info.mtime_ns or 0) // 1_000_000)
            for info in infos
        ]

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, or in the log dir itself; none if it does not exist. In a local folder it is
        cheaper than `entries`.
        """
        if not self.local:
            return [entry.name for entry in self.entries(folder)]
        with self._storage_errors(folder or "its folder"), _if_it_exists():
            return self.in_time(Use.READS, lambda: os.listdir(self._resolve(folder) if folder else self._root))
        return []

    def sizes(self, relatives: Sequence[str]) -> list[int | None]:
        """Return the size of each file in bytes, None for a file that does not exist."""

        def infos() -> list[fs.FileInfo]:
            return list(self._fs.get_file_info([self._resolve(relative) for relative in relatives]))

        with self._storage_errors("segments"):
            return [info.size for info in self.in_time(Use.READS, infos, _STATUS_BYTES * len(relatives))]

    def delete(self, relative: str) -> None:
        """Remove a file, if it exists. Only clean-up, or its writer before any metadata names it, may call this."""
        with self._storage_errors(relative), contextlib.suppress(FileNotFoundError):
            if self.local:
                os.remove(self._resolve(relative))
            else:
                self._fs.delete_file(self._resolve(relative))

    def delete_empty_folder(self, relative: str) -> None:
        """Remove a folder if it is empty. Object stores have no folders."""
        if self.local:
            with contextlib.suppress(OSError):
                os.rmdir(self._resolve(relative))

    def delete_folder(self, relative: str) -> None:
        """Remove a folder and its contents, if it exists. Only clean-up may call this. Follows no symlink."""
        with self._storage_errors(relative), _if_it_exists():
            self._fs.delete_dir(self._resolve(relative))

    def make_folder(self, relative: str) -> None:
        """Make a folder and force its entry to disk. Object stores have no folders."""
        if self.local:
            with self._storage_errors(relative):
                self.in_time(Use.WRITES, lambda: make_folders(Path(self._resolve(relative)), Path(self._root)))

    def in_time(self, use: Use, call: Callable[[], R], size: int = 0) -> R:
        """Make a call that reads or writes `size` bytes here. In a local folder it has the limit of DiskCalls, which
        raises StorageUnavailableError.
        """
        if not self.local:
            return call()
        return DiskCalls(self.uri if use is Use.READS else self._root, use).run(call, size)

    def check_that_no_call_hangs(self) -> None:
        """Raise StorageUnavailableError if calls into this local folder fail at once, because an earlier one hangs."""
        if self.local and (disk_calls.refuses(self.uri) or disk_calls.refuses(self._root)):
            raise StorageUnavailableError(f"log dir {redact(self.uri)}: an earlier call has not returned yet")

    def hangs(self) -> bool:
        """Whether a call into this local folder was left that has not returned: it may still have its effect."""
        return self.local and (disk_calls.hangs(self.uri) or disk_calls.hangs(self._root))

    def _path(self, relative: str) -> str:
        """Return the path of a file without reading the disk."""
        parts = PurePosixPath(relative)
        if parts.is_absolute() or ".." in parts.parts or "\0" in relative or not parts.parts:
            raise UnsafePathError(f"path {relative!r}: must be relative, inside the log dir")
        return f"{self._root}/{relative}"

    def _resolve(self, relative: str) -> str:
        path = self._path(relative)
        if self.local:
            real_root = os.path.realpath(self._root)
            if os.path.realpath(path) != os.path.join(real_root, *PurePosixPath(relative).parts):
                raise UnsafePathError(f"path {relative!r}: crosses a symbolic link in {self._root}")
        return path

    @contextlib.contextmanager
    def _storage_errors(self, relative: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise storage_error(
                redact(f"log dir {self.uri}: {relative} cannot be written or read: {error}"), error
            ) from error
        except UnicodeError as error:  # pyarrow opens no file with such a name
            raise StorageUnavailableError(redact(f"log dir {self.uri}: {relative!a} is not UTF-8")) from error


def _in_local_folder(folder: str, *, follow_symlinks: bool = True) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the names in a local folder, with the status of each; none if there is no such folder."""
    with _if_it_exists(), os.scandir(folder) as found:
        for each in found:
            try:
                yield each.name, each.stat(follow_symlinks=follow_symlinks)
            except FileNotFoundError:  # it was deleted meanwhile
                continue


@contextlib.contextmanager
def _if_it_exists() -> Iterator[None]:
    """End the block without an error if a file or folder is missing, or cannot exist because its name is too long (a
    topic of an earlier release).
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
            raise
