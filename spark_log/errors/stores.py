"""Errors of metadata stores, log dirs and their files."""

import errno

from spark_log.errors.base import FatalError, RetriableError

_FULL = (errno.ENOSPC, errno.EDQUOT)


class MetadataStoreUnavailableError(RetriableError):
    """The metadata store did not answer in time, or the connection to it was lost.

    Remedy: check that PostgreSQL runs and that this host reaches it, or that no process holds the SQLite file's
    lock; then repeat the call. An append that failed with it is in the log completely or not at all, and a producer
    that repeats it creates no duplicates.
    """


class StorageUnavailableError(RetriableError):
    """A log dir cannot be read or written: the disk is full, the mount is gone, or the object store does not answer.

    Remedy: free space, or restore the mount or the connection; `spark-log broker list` shows which log dirs are
    offline. Nothing was appended.
    """


class DiskFullError(StorageUnavailableError):
    """The disk or the quota of a log dir or of the metadata store is full. A producer tries again for 5 seconds only,
    since a full disk rarely gets room by itself.

    Remedy: free space on that disk; or lower retention.ms or retention.bytes of topics and shorten their
    file.delete.delay.ms, and run `spark-log maintenance`. Nothing was appended.
    """


class ClusterNotFoundError(FatalError):
    """There is no cluster at the address.

    Remedy: check the address; `spark-log init ADDRESS` creates a cluster.
    """


class ClusterAlreadyExistsError(FatalError):
    """A cluster cannot be created where one exists.

    Remedy: open the existing one, or choose another address.
    """


class UnsupportedVersionError(FatalError):
    """A newer spark-log, or one from before the first release, wrote the metadata store; or the called method of
    kafka-python's API does not exist here.

    Remedy: for a newer store, upgrade spark-log on this machine; for an older one, create a new cluster and copy
    the topics. The message says which case it is.
    """


class UnsupportedStoreError(FatalError):
    """The metadata store could lose acknowledged records: SQLite on a network file system, or PostgreSQL with fsync,
    full_page_writes or synchronous_commit off.

    Remedy: move the cluster's folder to a local disk, or switch the setting on.
    """


class MetadataStoreError(FatalError):
    """The metadata store refused a statement: a privilege or a table is missing, its file is damaged, or a value does
    not fit. Or a process was stopped for a day in the middle of a commit, whose outcome is not known any more.

    Remedy: the message holds the database's own text: grant the privilege, or restore the store from a backup.
    Report it if neither applies.
    """


class MetadataConflictError(MetadataStoreError):
    """A row exists already, or another row still refers to it.

    Remedy: repeat the operation, which then sees the other change; report it if it persists.
    """


class StoreChangedError(FatalError):
    """The metadata store is on another PostgreSQL server, in another database, or on another timeline than when it was
    last accepted: it was restored or promoted, and may know less than the log dirs hold. Clean-up of files and
    publication to Delta tables have stopped; appends and reads go on.

    Remedy: compare with `spark-log store status`, then run `spark-log store accept`.
    """


class StoreNotFoundError(FatalError):
    """The cluster has no data store of this name or number.

    Remedy: `spark-log store list` shows the stores; `spark-log store add` adds one.
    """


class CorruptRecordError(FatalError):
    """Stored bytes fail their checksum, are missing, or differ from what the metadata says, and no other replica has
    them intact.

    Remedy: restore the file that the message names from a backup, or continue to read after it.
    """


class UnsafePathError(FatalError):
    """A path in the metadata or in a log dir is absolute, contains `..`, or crosses a symbolic link. Nothing was read
    or written.

    Remedy: remove the symbolic link; otherwise treat the metadata store as tampered with, and restore it.
    """


class SourceUnavailableError(StorageUnavailableError):
    """No replica of records that a mirror copies can be read in the source.

    Remedy: bring a log dir of the topic in the source back; the mirror goes on by itself.
    """


class LogDirMismatchError(FatalError):
    """A log dir's marker file is missing, unreadable, of another cluster, or older than the metadata store expects: the
    folder is empty, not mounted, swapped, or restored.

    Remedy: mount or restore the right folder. If it is lost for good, move the replicas of its broker to others
    (`spark-log partition reassign`).
    """


class DeltaNotInstalledError(FatalError):
    """Delta's JARs are not on Spark's class path, or could not be downloaded and installed.

    Remedy: run `spark-log delta install` on every machine of the Spark cluster, or start Spark with `--packages`.
    """


def storage_error(message: str, error: OSError) -> StorageUnavailableError:
    """Return a StorageUnavailableError with this message. If `error` says that the disk or the quota is full, return a
    DiskFullError, whose message also has the remedy.
    """
    if error.errno not in _FULL:
        return StorageUnavailableError(message)
    return DiskFullError(
        f"{message}. Free space there; or lower retention.ms or retention.bytes of topics and shorten their"
        " file.delete.delay.ms, and run `spark-log maintenance`"
    )
