"""Parses the address of a cluster: a folder with a SQLite file, or the URL of a PostgreSQL database."""

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from spark_log.errors import ClusterNotFoundError, InvalidConfigurationError, UnsupportedStoreError, redact

SQLITE_FILE = "metadata.sqlite"
SQLITE_LOCK_FILE = "metadata.lock"
_POSTGRESQL = ("postgresql", "postgresql+psycopg", "postgres")


@dataclass(frozen=True)
class Address:
    """The parsed address of a cluster. `str()` and `repr()` show no password.

    SQLAlchemy opens `url`. `folder` is None for PostgreSQL. With `allow_insecure`, the connection may cross a network
    without verified TLS.
    """

    url: str
    folder: Path | None
    allow_insecure: bool = False

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse `/data/log`, `file:///data/log` or `postgresql+psycopg://user@host/database`.

        PostgreSQL may have several hosts, of which one is the primary:
        `postgresql+psycopg://user@host1:5432,host2:5432/database`, or libpq's lists
        `?host=host1,host2&port=5432,5432`. `url` then has libpq's lists, and connects to the primary only.

        `text` may also be the path of a file whose first line is the address, which keeps a password out of command
        lines. `host:9092` is a folder only if a folder of this name exists.

        Raise InvalidConfigurationError if `text` is not an address.
        """
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            raise InvalidConfigurationError(f"cluster: expected a folder or a postgresql+psycopg:// URL, got {text!r}")
        text = _first_line(text.strip())
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
            place, allow_insecure = _without_flag(rest)
            return cls("postgresql+psycopg://" + _with_lists_of_hosts(place), None, allow_insecure)
        if separator and scheme != "file":
            raise InvalidConfigurationError(
                f"cluster: expected a folder or a postgresql+psycopg:// URL, got {redact(text)!r}"
                " (an object store can hold log dirs, not the metadata)"
            )
        folder = Path(os.path.abspath(unquote(urlsplit(text).path) if separator else os.path.expanduser(text)))
        return cls(f"sqlite:///{folder / SQLITE_FILE}", folder)

    @property
    def without_password(self) -> str:
        """The address for a command that a user can run with the password in PGPASSWORD or ~/.pgpass."""
        return str(self) if self.folder else str(self).replace(":***@", "@", 1)

    @property
    def hosts(self) -> list[tuple[str, str]]:
        """The hosts and ports of an address that names several hosts, else nothing. A port may be empty."""
        query = dict(parse_qsl(urlsplit(self.url).query))
        hosts, ports = query.get("host", "").split(","), query.get("port", "").split(",")
        if len(hosts) < 2 or "hostaddr" in query:
            return []
        return list(zip(hosts, ports if len(ports) == len(hosts) else ports[:1] * len(hosts), strict=True))

    @property
    def connect_timeout_s(self) -> int:
        """How long to wait for one host: the URL's connect_timeout, or 10 s for a single host and 3 s for several."""
        query = dict(parse_qsl(urlsplit(self.url).query))
        text = query.get("connect_timeout", "")
        return int(text) if text.isdecimal() else _CONNECT_S_OF_SEVERAL if _several(query) else _CONNECT_S

    @property
    def with_password(self) -> str:
        """The text that `parse` accepts, for another process or a data source. Never show it: it has the password."""
        if self.folder:
            return str(self.folder)
        flag = f"{'&' if '?' in self.url else '?'}{_ALLOW_INSECURE}=true" if self.allow_insecure else ""
        return self.url + flag

    def __str__(self) -> str:
        return redact(_with_hosts_in_front(self.with_password))

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"


_BROKER = r"(?:[A-Za-z_]+://)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
_BROKERS = re.compile(rf"{_BROKER}(?:\s*,\s*{_BROKER})*,?")
"""A comma-separated list of `host:port` or `PROTOCOL://host:port`."""


def broker_refusal(cluster: str) -> str | None:
    """Return an error message if `cluster` is an address of Kafka brokers, and no folder has this name; else None."""
    if not _BROKERS.fullmatch(cluster) or os.path.isdir(cluster):
        return None
    return (
        f"cluster: {cluster!r} is the address of a Kafka broker. spark-log has no brokers to connect to: give the"
        " folder or the postgresql+psycopg:// URL of a spark-log cluster"
    )


_ALLOW_INSECURE = "allow_insecure"
_CONNECT_S, _CONNECT_S_OF_SEVERAL = 10, 3
_FOR_WRITING = ("read-write", "primary")
"""Values of libpq's target_session_attrs that no standby satisfies."""
_FILE_BYTES_MAX = 8192
_PLAIN_HOST = re.compile(r"[A-Za-z0-9._:-]+").fullmatch
"""Matches names and IP addresses: not the folder of a socket, and nothing that is encoded."""


def _first_line(text: str) -> str:
    """Return the first line of the file at this path, or the text itself if there is no such file.

    Raise InvalidConfigurationError if the file cannot be read, or its first line is neither a folder nor a URL.
    """
    if "://" in text or not os.path.isfile(os.path.expanduser(text)):
        return text
    try:
        with open(os.path.expanduser(text), encoding="utf-8") as file:
            found = (file.read(_FILE_BYTES_MAX).splitlines() or [""])[0].strip()
    except (OSError, ValueError) as error:  # the content is not shown: it may be a password
        raise InvalidConfigurationError(f"cluster: the file {text} cannot be read as text") from error
    if "://" not in found and not os.path.isabs(found):
        raise InvalidConfigurationError(f"cluster: the first line of the file {text} is neither a folder nor a URL")
    return found


def _without_flag(rest: str) -> tuple[str, bool]:
    """Return the URL without the parameter allow_insecure, and whether the parameter is true.

    Raise InvalidConfigurationError if its value is neither true nor false.
    """
    place, _, query = rest.partition("?")
    parts = [part for part in query.split("&") if part]
    flags = [part.partition("=")[2] for part in parts if part.partition("=")[0] == _ALLOW_INSECURE]
    if any(flag not in ("true", "false") for flag in flags):
        raise InvalidConfigurationError(f"cluster: {_ALLOW_INSECURE} is true or false")
    others = [part for part in parts if part.partition("=")[0] != _ALLOW_INSECURE]
    return place + ("?" + "&".join(others) if others else ""), "true" in flags


def _with_lists_of_hosts(place: str) -> str:
    """Return `place`, the part of the URL after `://`, with several hosts as libpq's lists in its query.

    Raise InvalidConfigurationError for hosts both before the / and in the query, for a port that is not a number, and
    for a target_session_attrs that a standby satisfies.
    """
    before, _, query = place.partition("?")
    authority, slash, database = before.partition("/")
    user, at, hosts = authority.rpartition("@")
    pairs = [part for part in query.split("&") if part]
    repeated = [pair.partition("=")[2] for pair in pairs if pair.startswith("host=")]
    if len(repeated) > 1 and not hosts:  # SQLAlchemy's form of several hosts, which libpq does not know
        hosts = unquote(",".join(repeated))
        pairs = [pair for pair in pairs if not pair.startswith("host=")]
    if "," in hosts:
        if any(pair.partition("=")[0] in ("host", "hostaddr", "port") for pair in pairs):
            raise InvalidConfigurationError("cluster: the hosts are either before the / of the URL, or host= and port=")
        names, ports = zip(*map(_host_and_port, hosts.split(",")), strict=True)
        pairs = [f"host={','.join(names)}", *([f"port={','.join(ports)}"] if any(ports) else []), *pairs]
        authority = user + at
    values = dict(parse_qsl("&".join(pairs)))
    for host in values.get("host", "").split(","):
        if host.count(":") == 1 and not host.startswith("/"):
            raise InvalidConfigurationError(
                f"cluster: host={redact(host)}: the ports are a list of their own, host=HOST,HOST&port=PORT,PORT"
            )
    if _several(values):
        attributes = values.get("target_session_attrs")
        if attributes is None:
            pairs.append("target_session_attrs=read-write")
        elif attributes not in _FOR_WRITING:
            raise InvalidConfigurationError(
                f"cluster: target_session_attrs={attributes}: expected {' or '.join(_FOR_WRITING)}, since a standby"
                " takes no writes"
            )
    return authority + slash + database + ("?" + "&".join(pairs) if pairs else "")


def _with_hosts_in_front(url: str) -> str:
    """Return the URL with libpq's lists of several hosts as `host1:port1,host2:port2`, which a shell takes unquoted.

    This undoes `_with_lists_of_hosts`: `parse` turns the result into the same URL again.
    """
    before, _, query = url.partition("?")
    scheme, _, rest = before.partition("://")
    authority, slash, database = rest.partition("/")
    pairs = [part for part in query.split("&") if part]
    hosts = Address(url, None).hosts
    if not hosts or not authority.endswith("@") or not all(_PLAIN_HOST(host) for host, _ in hosts):
        return url
    names = [(f"[{host}]" if ":" in host else host, port) for host, port in hosts]
    places = ",".join(f"{name}:{port}" if port else name for name, port in names)
    others = [pair for pair in pairs if pair.partition("=")[0] not in ("host", "port")]
    others = [pair for pair in others if pair != "target_session_attrs=read-write"]
    return f"{scheme}://{authority}{places}{slash}{database}" + ("?" + "&".join(others) if others else "")


def _host_and_port(text: str) -> tuple[str, str]:
    """Split `db:5432` into `db` and `5432`, `[::1]:5432` into `::1` and `5432`. Without a port, it is "".

    Raise InvalidConfigurationError if there is no host, or the port is not a port number.
    """
    text = text.strip()
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536)):
        raise InvalidConfigurationError(
            f"cluster: host {redact(text)!r} of the URL: expected HOST or HOST:PORT, several with commas between them"
        )
    return host, port


def _several(query: Mapping[str, str]) -> bool:
    """Return whether the parameters of the URL name several hosts."""
    return any("," in query.get(name, "") for name in ("host", "hostaddr"))


def check_transport(address: Address, environ: Mapping[str, str] = os.environ) -> None:
    """Raise InvalidConfigurationError if the URL names a remote host without sslmode=verify-full or allow_insecure.

    libpq's environment variables are considered too. The hosts and modes of a service file are known only after
    connecting; `refuse_insecure` then checks them.
    """
    parts = urlsplit(address.url)
    query = parse_qs(parts.query)
    given = parts.netloc.rpartition("@")[2]
    hosts = given.split(",") if given else []
    hosts += [each for name in ("host", "hostaddr") for several in query.get(name, ()) for each in several.split(",")]
    hosts += [environ.get("PGHOSTADDR", ""), "" if hosts else environ.get("PGHOST", "")]
    mode = query.get("sslmode", [environ.get("PGSSLMODE", "")])[0]
    if "service" in query or environ.get("PGSERVICE"):
        return
    for host in hosts:
        refuse_insecure(address, _host(host), mode)


def refuse_insecure(address: Address, host: str, sslmode: str) -> None:
    """Raise InvalidConfigurationError for a connection that others on the network could read or answer."""
    local = not host or host.startswith(("/", "@")) or is_loopback(host)
    if not (local or address.allow_insecure or sslmode == "verify-full"):
        raise InvalidConfigurationError(
            f"cluster: {address} would be reached at {host} with sslmode={sslmode or 'prefer'}, so that others on the"
            " network could read or answer; add sslmode=verify-full (and sslrootcert=FILE), or allow_insecure=true on a"
            " network that is yours alone"
        )


def _host(text: str) -> str:
    """Return `db` for `db:5432`, and `::1` for `[::1]:5432` and for `::1`."""
    text = unquote(text)
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text if text.count(":") > 1 else text.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine can reach the host name or IP address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def cluster_not_found(address: Address) -> ClusterNotFoundError:
    """Return the error for an address that has no cluster. Its message has the command that creates one, or says that
    the metadata store of a cluster is missing.
    """
    folder = address.folder
    if folder and (folder / SQLITE_LOCK_FILE).exists() and not (folder / SQLITE_FILE).exists():
        return ClusterNotFoundError(
            f"no cluster at {address}: its {SQLITE_FILE} is missing, but {SQLITE_LOCK_FILE} shows that there was one."
            " Put the file back, or restore it from a backup (docs/guides/backup.md); `spark-log init` would create"
            " an empty cluster"
        )
    log_dir = "" if address.folder else " --log-dir FOLDER-OR-URI"
    return ClusterNotFoundError(
        f"no cluster at {address}: create one with `spark-log init {address.without_password}{log_dir}`"
    )


_NETWORK_FILE_SYSTEMS = frozenset(
    "9p afs beegfs ceph cifs glusterfs gpfs lustre nfs nfs4 smb3 smbfs vboxsf virtiofs"
    " fuse.ceph-fuse fuse.gcsfuse fuse.geesefs fuse.glusterfs fuse.goofys fuse.juicefs fuse.mount-s3 fuse.rclone"
    " fuse.s3fs fuse.sshfs fuse.vmhgfs-fuse".split()
)
"""Types of file systems. They include those that share a host's folder with its virtual machines."""


def refuse_network_file_system(folder: Path, mounts: str) -> None:
    """Raise UnsupportedStoreError if the folder is on a network file system.

    Such file systems lack the shared memory and the locks that SQLite's write-ahead log needs. `mounts` is the content
    of /proc/mounts.
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
