"""Passes the cluster's address from the driver process that plans a batch write to the one that commits it.

Spark pickles one writer object for both the executors and the commit. The address (and a password in it) must not reach
the executors, so it is not in the object but in a file that only this user of this host can read.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from spark_log import clock
from spark_log.config import ClusterSettings
from spark_log.errors import SparkLogError
from spark_log.ids import WriteId

_KEPT_MS = 7 * ClusterSettings().spark_write_id_lease_ms
"""Files are kept longer than a write id lives. After that, clean-up may have deleted the id: a commit is refused."""


def leave(write_id: WriteId, address: str) -> None:
    """Keep `address` for the commit of the write."""
    folder = _folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise SparkLogError(f"{folder} belongs to another user; set TMPDIR to a folder of your own")
    for left in folder.iterdir():  # left by drivers that were killed
        with contextlib.suppress(FileNotFoundError):
            if clock.wall_ms() - left.stat().st_mtime * 1000 > _KEPT_MS:
                left.unlink()
    descriptor = os.open(folder / write_id, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(address)


def take(write_id: WriteId) -> str:
    """Return the address that `leave` stored for the write."""
    try:
        return (_folder() / write_id).read_text()
    except FileNotFoundError:
        raise SparkLogError(
            f"write {write_id}: {_folder()} no longer says which cluster it was for; was it cleaned while the job ran?"
        ) from None


def forget(write_id: WriteId) -> None:
    with contextlib.suppress(FileNotFoundError):
        (_folder() / write_id).unlink()


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"spark-log-writes-{os.getuid()}"
