"""The address of a cluster: a folder with a SQLite file, or the URL of a PostgreSQL database."""

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spark_log.broker_addresses import broker_refusal
from spark_log.errors import ClusterNotFoundError, InvalidConfigurationError, UnsupportedStoreError, redact

SQLITE_FILE = "metadata.sqlite"
_POSTGRESQL = ("postgresql", "postgresql+psycopg", "postgres")


@dataclass(frozen=True)
class Address:
    """A cluster's address, parsed once.

    `url` is what SQLAlchemy opens; `folder` is set for an embedded cluster only. `str()` and `repr()` show no password.
    """

    url: str
    folder: Path | None

    @classmethod
    def parse(cls, text: str) -> "Address":
        """`/data/log`, `file:///data/log` or `postgresql+psycopg://user@host/database`.

        `host:9092` is taken for a folder only if a folder of this name exists.
        """
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            raise InvalidConfigurationError(f"cluster: expected a folder or a postgresql+psycopg:// URL, got {text!r}")
        text = text.strip()
        refusal = broker_refusal(text)
        if refusal is not None:
            raise InvalidConfigurationError(refusal)
        scheme, separator, rest = text.partition("://")
        if separator and scheme in _POSTGRESQL:
            credentials, at, _ = rest.partition("?")[0].rpartition("@")
            if at and ("@" in credentials or "/" in credentials):  # not shown: any part may be the password
                raise InvalidConfigurationError(
                    "cluster: the user name or password in the URL has an @ or a /; write them as %40 and %2F"
                )
            return cls("postgresql+psycopg://" + rest, None)
        if separator and scheme != "file":
            raise InvalidConfigurationError(
                f"cluster: expected a folder or a postgresql+psycopg:// URL, got {redact(text)!r}"
                " (an object store can hold log dirs, not the metadata)"
            )
        folder = Path(os.path.abspath(unquote(urlsplit(text).path) if separator else os.path.expanduser(text)))
        return cls(f"sqlite:///{folder / SQLITE_FILE}", folder)

    @property
    def without_password(self) -> str:
        """For a command that a user can repeat, who gives the password in PGPASSWORD or ~/.pgpass."""
        return str(self) if self.folder else str(self).replace(":***@", "@", 1)

    def __str__(self) -> str:
        return str(self.folder) if self.folder else redact(self.url)

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach the host name or IP address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def cluster_not_found(address: Address) -> ClusterNotFoundError:
    """The error for an address that has no cluster. Its message has the command that creates one."""
    log_dir = "" if address.folder else " --log-dir FOLDER-OR-URI"
    return ClusterNotFoundError(
        f"no cluster at {address}: create one with `spark-log init {address.without_password}{log_dir}`"
    )


_NETWORK_FILE_SYSTEMS = frozenset(
    "9p afs beegfs ceph cifs glusterfs gpfs lustre nfs nfs4 smb3 smbfs vboxsf virtiofs"
    " fuse.ceph-fuse fuse.gcsfuse fuse.geesefs fuse.glusterfs fuse.goofys fuse.juicefs fuse.mount-s3 fuse.rclone"
    " fuse.s3fs fuse.sshfs fuse.vmhgfs-fuse".split()
)
"""Includes file systems that share a host's folder with its virtual machines."""


def refuse_network_file_system(folder: Path, mounts: str) -> None:
    """UnsupportedStoreError on a network file system, which lacks the shared memory and locks that SQLite's WAL needs.

    `mounts` is the content of /proc/mounts.
    """
    best, kind = "", ""
    real = os.path.realpath(folder)
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, fields[2]
    if kind in _NETWORK_FILE_SYSTEMS:
        raise UnsupportedStoreError(
            f"cluster: {folder} is on a network file system ({kind} at {best}), where SQLite can lose or corrupt data;"
            " keep the metadata in PostgreSQL (postgresql+psycopg://…) and only the log dirs there"
        )
