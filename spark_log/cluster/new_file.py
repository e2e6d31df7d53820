"""Making files durable: the publish step of a log dir. Invisible under its name, or whole and forced to disk."""

import contextlib
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any, Protocol

from pyarrow import fs

from spark_log.errors import StorageUnavailableError, redact
from spark_log.failpoints import failpoint

_IN_MEMORY_BYTES_MAX = 16 * 1024 * 1024
_UPLOAD_BYTES = 4 * 1024 * 1024


class NewFile(Protocol):
    """A file in the making. Invisible under its name until `commit`; gone after `abort`."""

    def write(self, data: Any, /) -> int: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...


class LocalFile:
    """temp file -> fsync -> rename -> fsync the folder and every ancestor made on the way."""

    def __init__(self, path: Path, root: Path, suffix: str = "") -> None:
        self._path = path
        self._made = make_folders(path.parent, root)
        self._temporary = path.with_name(f".{path.name}{suffix}.tmp")
        self._file = open(self._temporary, "xb", buffering=1 << 20)  # noqa: SIM115 - closed by commit or abort
        _unfinished.add(self)

    def forget_parent(self) -> None:
        """In a forked child: the file is the parent's, and what is in the buffer here must not be written twice."""
        with contextlib.suppress(ValueError), open(os.devnull, "wb") as nowhere:  # ValueError: it is closed
            os.dup2(nowhere.fileno(), self._file.fileno())

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            raise StorageUnavailableError(f"{self._path} cannot be written: {error}; nothing was appended") from error

    def commit(self) -> None:
        try:
            self._file.flush()
            failpoint("file.temporary-written")
            os.fsync(self._file.fileno())
            self._file.close()
            os.rename(self._temporary, self._path)
            for folder in (self._path.parent, *self._made):
                fsync(folder)
        except OSError as error:
            self.abort()
            raise StorageUnavailableError(f"{self._path} cannot be written: {error}; nothing was appended") from error
        failpoint("file.renamed")

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink()


_unfinished: "weakref.WeakSet[LocalFile]" = weakref.WeakSet()


def _forget_files_of_parent() -> None:
    for file in list(_unfinished):
        file.forget_parent()


os.register_at_fork(after_in_child=_forget_files_of_parent)


class RemoteFile:
    """One PUT: an object store shows an object whole or not at all."""

    def __init__(self, file_system: fs.FileSystem, path: str) -> None:
        self._fs, self._path = file_system, path
        if not isinstance(file_system, fs.S3FileSystem | fs.GcsFileSystem | fs.AzureFileSystem):
            file_system.create_dir(path.rpartition("/")[0], recursive=True)
        self._stream = file_system.open_output_stream(path)

    def write(self, data: Any) -> int:
        try:
            return int(self._stream.write(data))
        except OSError as error:
            raise StorageUnavailableError(
                redact(f"{self._path} cannot be written: {error}; nothing was appended")
            ) from error

    def commit(self) -> None:
        try:
            self._stream.close()
        except OSError as error:
            raise StorageUnavailableError(
                redact(f"{self._path} cannot be written: {error}; nothing was appended")
            ) from error
        failpoint("file.renamed")

    def abort(self) -> None:
        # closing is the only way to let go of the upload; the object that this may make is named by nobody
        with contextlib.suppress(OSError):
            self._stream.close()
        with contextlib.suppress(OSError):
            self._fs.delete_file(self._path)


class RemoteCopy:
    """A copy that may take the place of an object: gathered on this host, so that only a complete one is ever sent.

    Giving up an upload that has begun would delete what another process has put there meanwhile.
    """

    def __init__(self, file_system: fs.FileSystem, path: str) -> None:
        self._fs, self._path = file_system, path
        self._gathered = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES_MAX)  # noqa: SIM115 - see commit, abort

    def write(self, data: Any) -> int:
        try:
            return self._gathered.write(data)
        except OSError as error:
            raise StorageUnavailableError(f"the copy of {self._path} cannot be gathered here: {error}") from error

    def commit(self) -> None:
        with self._gathered as gathered:
            gathered.seek(0)
            upload = RemoteFile(self._fs, self._path)
            while block := gathered.read(_UPLOAD_BYTES):
                upload.write(block)
            upload.commit()

    def abort(self) -> None:
        self._gathered.close()


def make_folders(folder: Path, root: Path) -> list[Path]:
    """Make `folder` below an existing `root`; the parents whose entries changed, deepest first."""
    changed: list[Path] = []
    missing = folder
    while missing != root and not missing.exists():
        changed.append(missing.parent)
        missing = missing.parent
    if changed and not root.exists():
        raise FileNotFoundError(f"log dir {root} does not exist on this host")
    folder.mkdir(parents=True, exist_ok=True)
    return changed


def fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
