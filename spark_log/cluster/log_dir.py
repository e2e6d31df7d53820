"""A log dir is a folder or bucket that holds segment files. All file access goes through LogDir.

Used on the driver and on executors; does not use the metadata store.
"""

import contextlib
import json
import os
import re
import uuid as uuids
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark_log import clock
from spark_log.cluster.files.disk_calls import Use
from spark_log.cluster.files.log_dir_folder import LogDirFolder
from spark_log.cluster.files.new_file import LocalFile, NewFile, RemoteCopy, RemoteFile, create_whole, fsync, make_root
from spark_log.cluster.files.object_puts import can_create, create_object, object_store_options
from spark_log.errors import CorruptRecordError, LogDirMismatchError, StorageUnavailableError, UnsafePathError, redact
from spark_log.ids import HOME, BrokerId, LogDirId, StoreId

ANSWER_S_MAX = 5.0
"""The time that a check waits for the answers of all log dirs together; a slower one counts as not answering. It is
shorter than controller.lease.ms, because a client that acts as the controller does not renew its lease.
"""

MARKER = "spark_log_dir.json"
"""The marker file of the home store. Each data store has its own, because it decides in which state a log dir comes
back.
"""
_MARKER = re.compile(r"spark_log_dir(-[0-9]+)?\.json")
_MARKER_TEMPORARY = re.compile(rf"\.{_MARKER.pattern}(-[0-9a-f]+)?\.tmp")
_BEAT = re.compile(r"\.?store-[0-9]+\.beat(-[0-9a-f]+)?(\.tmp)?")
"""A beat of a store (`promotion`), or its temporary file."""
_TRIAL = ".spark_log_trial"
_TABLE_LOGS = {"_delta_log", "_current", "metadata"}
"""The folders in a topic's folder that have the logs of its Delta, current-state and Iceberg tables."""
_TRIAL_BYTES_MAX = 64 * 1024 * 1024
_TRIAL_MS_MAX = 3_600_000
_BLOCK_BYTES = 4 * 1024 * 1024
_TOPIC_LENGTH_MAX = 240
"""The characters of a topic's name in the name of its folder, which file systems limit to 255 bytes."""
_SEGMENT_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}/_segments/[0-9]{1,10}/[A-Za-z0-9][A-Za-z0-9-]{0,80}\.parquet")


def _is_of_log_dir(name: str) -> bool:
    """Whether a name in the folder of a log dir is of a marker, a beat or a trial file."""
    return any(each.fullmatch(name) for each in (_MARKER, _MARKER_TEMPORARY, _BEAT)) or _TRIAL in name


@dataclass(frozen=True)
class Marker:
    """The identity of a log dir, stored in it. It must equal the identity in the metadata store.

    `counter` grows each time the log dir is marked online again.
    """

    cluster_id: str
    broker_id: int
    uuid: str
    counter: int


@dataclass(frozen=True)
class LogDirInfo:
    """The location of a log dir and the id that it must have, for executors."""

    log_dir_id: LogDirId
    broker_id: BrokerId
    uri: str
    uuid: str
    store_id: StoreId = HOME
    """The store whose marker has this uuid."""

    def __repr__(self) -> str:
        return f"LogDirInfo(log_dir_id={self.log_dir_id}, broker_id={self.broker_id}, uri={redact(self.uri)!r})"


def marker_name(store_id: StoreId) -> str:
    """Return the name of the marker file of a store."""
    return MARKER if store_id == HOME else MARKER.replace(".", f"-{store_id}.")


def topic_folder(topic: str, uuid: str) -> str:
    """Return the folder of a topic in every log dir, which is also the location of its Delta table there."""
    return f"{topic[:_TOPIC_LENGTH_MAX]}-{uuid[:8]}"


def is_topic_folder(name: str, topic: str) -> bool:
    """Whether a folder is of a topic with this name, or with one that begins with the same 240 characters."""
    stem, _, suffix = name.rpartition("-")
    return stem == topic[:_TOPIC_LENGTH_MAX] and re.fullmatch("[0-9a-f]{8}", suffix) is not None


def segment_path(folder: str, partition: int, name: str) -> str:
    """Return a segment file's path in its log dir. Raises UnsafePathError if the parts do not form such a path."""
    path = f"{folder}/_segments/{partition}/{name}"
    if not _SEGMENT_NAME.fullmatch(path) or folder in (".", ".."):
        raise UnsafePathError(
            f"segment path {path!r}: not of the form <topic folder>/_segments/<partition>/<file>.parquet"
        )
    return path


class LogDir(LogDirFolder):
    """A log dir, opened by its URI (`file:///…` for a local folder). It raises the errors of LogDirFolder."""

    def __init__(self, uri: str, store_id: StoreId = HOME) -> None:
        """The marker file is that of the store `store_id`."""
        super().__init__(uri)
        self._marker = marker_name(store_id)
        self._verified: tuple[str, tuple[int, int] | None] | None = None
        """The verified id of the log dir, with device and inode of its folder at that time."""

    def __repr__(self) -> str:
        return f"LogDir({redact(self.uri)!r})"

    def create(self, relative: str) -> NewFile:
        """Begin a file that does not exist yet.

        Raises StorageUnavailableError if an object store cannot be written. A folder is written later: then a log dir
        that was unmounted or swapped since it was verified raises LogDirMismatchError.
        """
        if self.local:
            return self._local_file(relative)
        with self._storage_errors(relative):
            return RemoteFile(self._fs, self._path(relative))

    def replace(self, relative: str) -> NewFile:
        """Begin a copy of a file that the metadata names. Its commit replaces an existing file.

        Several processes may do so at once, since each writes the same bytes under a temporary name of its own.
        """
        if self.local:
            return self._local_file(relative, f"-{uuids.uuid4().hex[:12]}")
        return RemoteCopy(self._fs, self._path(relative))

    def _local_file(self, relative: str, suffix: str = "") -> LocalFile:
        return LocalFile(Path(self._path(relative)), Path(self._root), suffix, self._check_of(relative))

    def _check_of(self, relative: str) -> Callable[[], None]:
        """Return the check before a file is written: for symbolic links, and for a folder that was swapped."""

        def check() -> None:
            self._resolve(relative)
            self._verify_again()

        return check

    @property
    def creates_whole(self) -> bool:
        """Whether `create_whole` works here: in folders, and in S3 with the package obstore."""
        return self.local or can_create(self.uri)

    @property
    def storage_options(self) -> dict[str, str]:
        """Return deltalake's storage options."""
        return {} if self.local else object_store_options(self.uri)

    def create_whole(self, relative: str, data: bytes) -> bool:
        """Create a file with this content, durably. Returns False if it exists: only one of several processes succeeds.

        The log dir must be one that `creates_whole`, and a local folder must exist. In an object store whose answer is
        lost, the object may exist although this method raised StorageUnavailableError, or returned False; and a folder
        that hangs may get the file after this method raised StorageUnavailableError.
        """
        if not self.local:
            return create_object(self.uri, relative, data)
        with self._storage_errors(relative):
            return create_whole(Path(self._path(relative)), Path(self._root), data, self._check_of(relative))

    def read_blocks(self, relative: str) -> Generator[memoryview, None, None]:
        """Yield a file's bytes from first to last. Each block is valid until the next one is requested.

        Raises CorruptRecordError if there is no such file, StorageUnavailableError if it cannot be read.
        """
        path = self._resolve(relative)
        with self._storage_errors(relative):
            try:
                # not buffered by Arrow or Python, which saves one copy of every byte
                file = open(path, "rb", buffering=0) if self.local else self._fs.open_input_stream(path)  # noqa: SIM115
            except FileNotFoundError as error:
                self._verify_again()
                raise CorruptRecordError(f"segment {self.location(relative)} is missing") from error
            with file:
                buffer = memoryview(bytearray(_BLOCK_BYTES))
                while count := file.readinto(buffer):
                    yield buffer[:count]

    def read(self, relative: str) -> bytes:
        """Return the content of a small file. Raises the errors of `read_blocks`."""
        return b"".join(map(bytes, self.read_blocks(relative)))

    def put(self, relative: str, content: bytes) -> None:
        """Write a small file. An existing file is replaced."""
        file = self.replace(relative)
        file.write(content)
        file.commit()

    def open(self, relative: str) -> Any:
        """Return an argument for pyarrow.parquet: a checked local path, or an open file of the object store.

        Raises CorruptRecordError if there is no such file, StorageUnavailableError if it cannot be opened.
        """
        path = self._resolve(relative)
        if self.local:
            if not os.path.isfile(path):
                self._verify_again()
                raise CorruptRecordError(f"segment {self.location(relative)} is missing")
            return path
        try:
            return self._fs.open_input_file(path)
        except FileNotFoundError as error:
            raise CorruptRecordError(f"segment {self.location(relative)} is missing") from error
        except OSError as error:
            raise StorageUnavailableError(
                redact(f"segment {self.location(relative)} cannot be read: {error}")
            ) from error

    def touch(self, relative: str) -> None:
        """Set the time of the last change of a small file, if it exists, to the present. An object is written again."""
        if self.local:
            with self._storage_errors(relative), contextlib.suppress(FileNotFoundError):
                self.in_time(Use.WRITES, lambda: os.utime(self._resolve(relative)))
            return
        with contextlib.suppress(CorruptRecordError):  # it is missing
            self.put(relative, self.read(relative))

    def sync(self, relative: str, *, ancestors: bool = False) -> None:
        """Force a file that another process wrote, and its folder, to disk. Object stores do that themselves.

        With `ancestors`, all folders above it are forced too: the process that made them may have been killed first.
        """
        if self.local:
            path, root = Path(self._path(relative)), Path(self._root)

            def force() -> None:
                self._resolve(relative)
                fsync(path)
                for folder in path.parents:
                    fsync(folder)
                    if not ancestors or folder == root:
                        break

            with self._storage_errors(relative):
                self.in_time(Use.WRITES, force)

    def read_marker(self) -> Marker | None:
        """Read the marker file. Returns None if there is none. Raises LogDirMismatchError if it is not valid."""
        return self._read_marker(self._marker)

    def markers(self) -> list[Marker]:
        """Return the markers of all stores. Raises LogDirMismatchError if one of them is not valid."""
        names = [name for name in self.names() if _MARKER.fullmatch(name)]
        return [marker for name in names if (marker := self._read_marker(name)) is not None]

    def marked_stores(self) -> set[StoreId]:
        """Return the numbers of the stores whose marker files are here."""
        markers = [match for name in self.names() if (match := _MARKER.fullmatch(name))]
        return {StoreId(int(match[1][1:])) if match[1] else HOME for match in markers}

    def delete_marker(self) -> None:
        """Remove the marker of a store that has left the cluster."""
        self.delete(self._marker)

    def _read_marker(self, name: str) -> Marker | None:
        with self._storage_errors(name):
            try:
                with self._fs.open_input_file(f"{self._root}/{name}") as file:
                    content = file.read()
            except FileNotFoundError:
                return None
        try:
            return Marker(**json.loads(content))
        except (ValueError, TypeError) as error:
            raise LogDirMismatchError(f"log dir {redact(self.uri)}: its {name} is not readable: {error}") from error

    def write_marker(self, marker: Marker) -> None:
        with self._storage_errors(self._marker):
            if self.local:
                make_root(Path(self._root))
                for temporary in Path(self._root).glob(f".{self._marker}*.tmp"):  # left by a killed process
                    temporary.unlink(missing_ok=True)
        file = self.replace(self._marker)
        with self._storage_errors(self._marker):
            file.write(json.dumps(asdict(marker)).encode())
            file.commit()

    def empty(self) -> bool:
        """Whether the log dir has no files or folders besides markers and trial files, or does not exist."""
        return all(_is_of_log_dir(name) for name in self.names())

    def has_only_tables(self) -> bool:
        """Whether the log dir has no files or folders besides the logs of tables, markers and trial files.

        A commit to a table makes the folders that it lacks. So a process that publishes a topic while the folder of its
        log dir is deleted may leave such logs there, in which there are no records.
        """
        others = [entry for entry in self.entries() if not _is_of_log_dir(entry.name)]
        return all(entry.folder and set(self.names(entry.path)) <= _TABLE_LOGS for entry in others)

    def try_writing(self, size: int) -> int:
        """Write `size` bytes (1 byte to 64 MiB) to a trial file, force it to disk, and remove it. Returns the time at
        which it was written, in ms since 1970 by the clock of the file system; 0 if that is not known.

        Raises StorageUnavailableError if that fails, or takes too long.
        """
        for entry in self.entries():  # of processes that were killed
            if entry.path.startswith(_TRIAL) and clock.wall_ms() - entry.modified_ms > _TRIAL_MS_MAX:
                self.delete(entry.path)
        path = f"{_TRIAL}-{uuids.uuid4().hex[:12]}"
        file = self.create(path)
        try:
            with self._storage_errors(path):
                block = os.urandom(1 << 20)  # a file system could compress other bytes
                for start in range(0, max(1, min(size, _TRIAL_BYTES_MAX)), len(block)):
                    file.write(block[: min(len(block), size - start) or 1])
                file.commit()
                [written] = self._fs.get_file_info([self._resolve(path)])
        except BaseException:
            file.abort()
            raise
        self.delete(path)
        return (written.mtime_ns or 0) // 1_000_000

    def verify(self, uuid: str) -> None:
        """Raise LogDirMismatchError unless the marker has this uuid, which the metadata store has for the log dir, and
        StorageUnavailableError if it cannot be read, or a local folder hangs.
        """
        self.in_time(Use.READS, lambda: self.verify_now(uuid))

    def verify_now(self, uuid: str) -> None:
        """Do what `verify` does, without its limit, for a caller that has one of its own."""
        marker = self.read_marker()
        if marker is None:
            raise LogDirMismatchError(
                f"log dir {redact(self.uri)} has no {self._marker}: it is empty, not mounted on this host, or was"
                " never made"
            )
        if marker.uuid != uuid:
            raise LogDirMismatchError(
                f"log dir {redact(self.uri)} is {marker.uuid}, but the metadata expects {uuid}: swapped?"
            )
        if self.local:
            self._verified = uuid, self._identity()

    def _verify_again(self) -> None:
        """Verify again if the folder was unmounted or swapped, so that no file is written to the wrong one."""
        if self._verified is not None and self._verified[1] != self._identity():
            self.verify_now(self._verified[0])

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._root)
        except OSError:
            return None
        return found.st_dev, found.st_ino


def open_log_dir(info: LogDirInfo) -> LogDir:
    """Open the log dir and verify its id. Runs on executors too.

    Raises LogDirMismatchError if the id differs, StorageUnavailableError if the log dir cannot be read, or hangs.
    """
    directory = LogDir(info.uri, info.store_id)
    directory.verify(info.uuid)
    return directory
