"""Creates files durably: a file is invisible under its name until it is whole and forced to disk."""

import contextlib
import os
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol

from pyarrow import fs

from spark_log.cluster.files.disk_calls import DiskCalls, Use
from spark_log.errors import SparkLogError, WriteIdExpiredError, redact, storage_error
from spark_log.failpoints import failpoint
from spark_log.process import begin_or_run
from spark_log.remembered import BoundedDict

_WRITE_BYTES = 4 * 1024 * 1024
_IN_MEMORY_BYTES_MAX = 16 * 1024 * 1024
_UPLOAD_BYTES = 4 * 1024 * 1024


class NewFile(Protocol):
    """A file that is being written. It gets its name with `commit`; `abort` deletes it."""

    def write(self, data: Any, /) -> int: ...
    def commit(self) -> None: ...
    def begin_commit(self) -> Callable[[], None]:
        """Begin to commit. The function that is returned waits for the end."""
        ...

    def abort(self) -> None: ...


class LocalFile:
    """Creates a file by: durable folders -> temp file -> fsync -> rename -> fsync the folder.

    `suffix` is part of the name of the temporary file. A file without it is treated as one of a write id: when the
    write id expires, clean-up may delete the temporary file, and `commit` raises WriteIdExpiredError. Other
    failures of `write` and `commit` raise StorageUnavailableError, and the errors of `check`, which is called before
    anything is made.

    Threads make the calls (DiskCalls): one that was left does not rename the file, and deletes it.
    """

    def __init__(self, path: Path, root: Path, suffix: str = "", check: Callable[[], object] = lambda: None) -> None:
        self._path, self._root, self._of_write_id, self._check = path, root, not suffix, check
        self._temporary = path.with_name(f".{path.name}{suffix}.tmp")
        self._file: IO[bytes] | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = self._bytes = 0
        self._failure: SparkLogError | None = None
        self._calls = DiskCalls(str(root), Use.WRITES, self._delete)

    def write(self, data: Any) -> int:
        self._waiting.append(bytes(data))
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= _WRITE_BYTES:
            self._calls.run(self._write, self._bytes + self._waiting_bytes)
        return len(data)

    def _write(self) -> IO[bytes]:
        if self._failure is not None:  # a later block must not follow bytes that are missing
            raise self._failure
        if self._file is None:
            self._check()
        blocks, self._waiting = self._waiting, []
        self._bytes += self._waiting_bytes
        self._waiting_bytes = 0
        try:
            if self._file is None:
                make_folders(self._path.parent, self._root)
                # no buffer: a forked child would write it too when it ends
                self._file = open(self._temporary, "xb", buffering=0)  # noqa: SIM115 - closed by commit or abort
            for block in blocks:
                left = memoryview(block)
                while left:
                    left = left[self._file.write(left) :]
        except OSError as error:
            self._failure = storage_error(f"{self._path} cannot be written: {error}; nothing was appended", error)
            raise self._failure from error
        return self._file

    def commit(self) -> None:
        self.begin_commit()()

    def begin_commit(self) -> Callable[[], None]:
        try:
            commit = self._calls.begin(self._commit, self._bytes + self._waiting_bytes)
        except SparkLogError:
            self.abort()
            raise

        def end() -> None:
            try:
                commit()
            except SparkLogError:
                self.abort()
                raise
            failpoint("file.renamed")

        return end

    def _commit(self) -> None:
        file = self._write()
        try:
            failpoint("file.temporary-written")
            os.fsync(file.fileno())
            file.close()
            if self._calls.left:
                return
            os.rename(self._temporary, self._path)
            fsync(self._path.parent)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self._of_write_id and self._root.exists():
                raise WriteIdExpiredError(
                    f"{self._path} was deleted while it was written, because its write id has expired; "
                    "nothing was appended"
                ) from error
            raise storage_error(f"{self._path} cannot be written: {error}; nothing was appended", error) from error

    def abort(self) -> None:
        if not self._calls.leave() and self._file is not None:
            with contextlib.suppress(SparkLogError):
                self._calls.run(self._delete)

    def _delete(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                self._temporary.unlink()


def create_whole(path: Path, root: Path, data: bytes, check: Callable[[], object]) -> bool:
    """Create a file: `check` -> temp file -> fsync -> link, which never replaces a file -> fsync the folder.

    Returns False if the file exists already. Raises StorageUnavailableError after the limit of DiskCalls; if the link
    hangs, the file may be created later.
    """
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex[:12]}.tmp")
    calls = DiskCalls(str(root), Use.WRITES)

    def create() -> bool:
        check()
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if not calls.left:
                os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        fsync(path.parent)
        return True

    return calls.run(create, len(data))


class RemoteFile:
    """Creates an object with one upload: an object store shows an object whole or not at all."""

    def __init__(self, file_system: fs.FileSystem, path: str) -> None:
        self._fs, self._path = file_system, path
        try:
            if not isinstance(file_system, fs.S3FileSystem | fs.GcsFileSystem | fs.AzureFileSystem):
                file_system.create_dir(path.rpartition("/")[0], recursive=True)
            self._stream = file_system.open_output_stream(path)
        except OSError as error:
            raise self._error(error) from error

    def write(self, data: Any) -> int:
        try:
            return int(self._stream.write(data))
        except OSError as error:
            raise self._error(error) from error

    def begin_commit(self) -> Callable[[], None]:
        return begin_or_run(self.commit, "spark-log-upload").result

    def commit(self) -> None:
        try:
            self._stream.close()
        except OSError as error:
            raise self._error(error) from error
        failpoint("file.renamed")

    def abort(self) -> None:
        # only closing ends the upload; no metadata refers to the object that it may create
        with contextlib.suppress(OSError):
            self._stream.close()
        with contextlib.suppress(OSError):
            self._fs.delete_file(self._path)

    def _error(self, error: OSError) -> SparkLogError:
        return storage_error(redact(f"{self._path} cannot be written: {error}; nothing was appended"), error)


class RemoteCopy:
    """A copy that may replace an object. It is collected on this host, so that only a complete copy is uploaded.

    Aborting an upload that had begun would delete an object that another process has written meanwhile.
    """

    def __init__(self, file_system: fs.FileSystem, path: str) -> None:
        self._fs, self._path = file_system, path
        self._gathered = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES_MAX)  # noqa: SIM115 - see commit, abort

    def write(self, data: Any) -> int:
        try:
            return self._gathered.write(data)
        except OSError as error:
            raise storage_error(f"the copy of {self._path} cannot be stored on this host: {error}", error) from error

    def begin_commit(self) -> Callable[[], None]:
        return begin_or_run(self.commit, "spark-log-upload").result

    def commit(self) -> None:
        with self._gathered as gathered:
            gathered.seek(0)
            upload = RemoteFile(self._fs, self._path)
            while block := gathered.read(_UPLOAD_BYTES):
                upload.write(block)
            upload.commit()

    def abort(self) -> None:
        self._gathered.close()


def make_folders(folder: Path, root: Path) -> None:
    """Make `folder` below an existing `root`, durably: the entries of all folders in between are forced to disk.

    Each process does that once, even if the folders exist: the process that made them may have been killed before
    that. Raises FileNotFoundError if there is no `root`.
    """
    with contextlib.suppress(FileNotFoundError):
        if _folder_key(folder) in _durable:
            return
    if not root.exists():
        raise FileNotFoundError(f"log dir {root} does not exist on this host")
    folder.mkdir(parents=True, exist_ok=True)
    if folder != root:
        for parent in folder.parents:
            fsync(parent)
            if parent == root:
                break
    _durable[_folder_key(folder)] = None


def make_root(root: Path) -> None:
    """Make the folder of a log dir or a cluster, and force the entries of new folders to disk."""
    new = [folder for folder in (root, *root.parents) if not folder.exists()]
    root.mkdir(parents=True, exist_ok=True)
    for folder in new:
        fsync(folder.parent)


_durable: BoundedDict[tuple[str, int, int], None] = BoundedDict()


def _folder_key(folder: Path) -> tuple[str, int, int]:
    """Return a key with device and inode: clean-up may delete a folder, and another writer may make it again."""
    status = os.stat(folder)
    return str(folder), status.st_dev, status.st_ino


def fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
