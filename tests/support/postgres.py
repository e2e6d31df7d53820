"""A real PostgreSQL for the tests: its own data folder, a free loopback port, durable as in production.

`PostgresPair` is a primary and its synchronous standby.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import sqlalchemy as sa

from spark_log.metadata import store_schema
from tests.support.server_processes import free_port
from tests.support.waiting import wait_until

USER = "spark_log"


class PostgresNotInstalledError(Exception):
    """There is no `initdb` on this machine."""


def find_programs() -> Path:
    """Folder of `initdb` and `postgres`, the newest version where there are several."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = str(debian[-1]) if debian else shutil.which("initdb")
    if found is None:
        raise PostgresNotInstalledError("no initdb found: install Debian's package postgresql (`make postgres`)")
    return Path(found).resolve().parent


class PostgresServer:
    """One server process. PostgreSQL refuses root, so under root it runs as an unprivileged user.

    `kill` and `start` on the same data folder are a crash and a recovery. `standby_of`: the data folder is a copy of
    this running server's, and `start` makes it a standby of that server, until `promote`. `base_backup`: the data
    folder is a copy of this one, which `base_backup` made.
    """

    def __init__(self, standby_of: "PostgresServer | None" = None, base_backup: Path | None = None) -> None:
        self._programs = find_programs()
        self._root = Path(tempfile.mkdtemp(prefix="spark-log-pg-"))
        self._data = self._root / "data"
        user = server_user()
        self._uid = None if user is None else user.pw_uid
        self._gid = None if user is None else user.pw_gid
        self._numbers = count(1)
        self._template: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        if self._uid is not None and self._gid is not None:
            os.chown(self._root, self._uid, self._gid)
        if base_backup is not None:
            self._run("cp", "-a", str(base_backup), str(self._data))
            return
        if standby_of is not None:
            self._copy(standby_of.address, self._data, "-R")
            return
        initdb = [self._programs / "initdb", "-D", self._data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C"]
        self._run(*map(str, initdb), "--no-instructions")

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def address(self) -> str:
        """libpq's address of the server."""
        return f"host=127.0.0.1 port={self.port} user={USER}"

    @property
    def data(self) -> Path:
        """The data folder."""
        return self._data

    @property
    def log(self) -> str:
        return (self._root / "log").read_text(errors="replace")

    def start(self, timeout_s: float = 60.0, **more: str | int) -> None:
        """Start and wait until the server accepts connections. `more` are its settings; fsync and synchronous_commit
        are on.
        """
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self._root,
            "max_connections": 100,
            "autovacuum": "off",  # it would visit one of the databases of ended tests several times a second
            "dynamic_shared_memory_type": "mmap",  # in the data folder, so that a killed server leaves nothing behind
            "fsync": "on",
            "full_page_writes": "on",
            "synchronous_commit": "on",
            **more,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", str(self._data), *options],
                stdout=log,
                stderr=log,
                cwd=self._root,
                user=self._uid,
                group=self._gid,
            )
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log[-4000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Shut down; open connections are closed."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Crash: every server process ends at once, and the next start recovers from the write-ahead log."""
        self._end(signal.SIGQUIT)

    def back_up(self) -> None:
        """Keep a copy of the data folder, for `restore`. The server must be stopped."""
        self._run("rm", "-rf", f"{self._data}-backup")
        self._run("cp", "-a", str(self._data), f"{self._data}-backup")

    def restore(self) -> None:
        """Start on the backup instead of the data folder, as in a recovery by an operator: a new timeline begins."""
        self._run("rm", "-rf", str(self._data))
        self._run("cp", "-a", f"{self._data}-backup", str(self._data))
        self._run("touch", f"{self._data}/recovery.signal")
        self._run("sh", "-c", f"echo \"restore_command = 'false'\" >> {self._data}/postgresql.auto.conf")
        self.start()
        self._wait_for_the_end_of_recovery()

    def base_backup(self) -> Path:
        """Copy the data folder of the running server with pg_basebackup, and return the copy's path."""
        copy = self._root / "base"
        self._copy(self.address, copy)
        return copy

    def _copy(self, address: str, folder: Path, *options: str) -> None:
        self._run(str(self._programs / "pg_basebackup"), "-D", str(folder), "-d", address, "-c", "fast", *options)

    def lose(self) -> None:
        """Kill the server and delete its data folder; base backup and archive stay."""
        self.kill()
        self._run("rm", "-rf", str(self._data))

    def archive_settings(self) -> dict[str, str]:
        """Settings for `start` with which the server archives its write-ahead log in the folder `archive`."""
        self._run("mkdir", "-p", str(self.archive))
        return {"archive_mode": "on", "archive_command": f"cp %p {self.archive}/%f"}

    @property
    def archive(self) -> Path:
        """The folder of the archived write-ahead log."""
        return self._root / "archive"

    def archive_until_now(self) -> str:
        """Wait until the write-ahead log of all commits so far is in the archive; returns the present time."""
        now = self.query("SELECT clock_timestamp()")
        self.execute("CREATE TABLE IF NOT EXISTS later (); COMMENT ON TABLE later IS 'a commit at which recovery ends'")
        last = self.query("SELECT pg_walfile_name(pg_switch_wal())")
        archived = "SELECT coalesce(last_archived_wal, '') FROM pg_stat_archiver"
        wait_until(lambda: (self.archive / last).exists() and last <= self.query(archived))
        return now

    def recover(self, archive: Path, until: str) -> None:
        """Start on a base backup, apply the archived write-ahead log up to this time, and end recovery there."""
        self._run("touch", f"{self._data}/recovery.signal")
        self.start(restore_command=f"cp {archive}/%f %p", recovery_target_time=until, recovery_target_action="promote")
        self._wait_for_the_end_of_recovery()

    def _wait_for_the_end_of_recovery(self) -> None:
        wait_until(lambda: self.query("SELECT pg_is_in_recovery()") == "f")

    def demote(self) -> None:
        """Restart as a standby that accepts only reads, until `SELECT pg_promote()`."""
        self.stop()
        self._run("touch", f"{self._data}/standby.signal")
        self.start()

    def promote(self) -> None:
        """Make a standby a primary, as a failover does; its writes need no standby any more."""
        self.execute("SELECT pg_promote()")
        self.require_standby(False)

    def require_standby(self, required: bool = True) -> None:
        """Let commits wait for a standby, or not, from now on."""
        names = "*" if required else ""
        self.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self.execute("SELECT pg_reload_conf()")
        wait_until(lambda: self.query("SHOW synchronous_standby_names") == names)

    def freeze(self) -> None:
        """Stop every process of the server as a frozen machine does: its sockets stay open, and nothing answers."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server continue."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)  # first: then it starts no more processes
        for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), number)

    def remove(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def create_database(self) -> str:
        """URL of a new, empty database."""
        return self._create_database("template1")

    def create_prepared_database(self) -> str:
        """URL of a new database with the tables of a metadata store, without a cluster: for a faster `Cluster.init`."""
        if self._template is None:
            url = self.create_database()
            engine = sa.create_engine(url)
            with engine.begin() as connection:
                store_schema.create(connection)
            engine.dispose()  # CREATE DATABASE needs a template without connections
            self._template = url.rpartition("/")[2]
        return self._create_database(self._template)

    def create_copy(self, url: str) -> str:
        """URL of a copy of a database without connections, as of a dump that was restored on this server."""
        return self._create_database(url.rpartition("/")[2])

    def _create_database(self, template: str) -> str:
        name = f"db{next(self._numbers)}"
        with psycopg.connect(f"{self.address} dbname=postgres", autocommit=True) as session:
            # in memory, where fsync costs nothing, copying files is faster than logging them (from version 15)
            copies = self._root.is_relative_to("/dev/shm") and session.info.server_version >= 150_000
            strategy = "STRATEGY FILE_COPY" if copies else ""
            session.execute(f"CREATE DATABASE {name} TEMPLATE {template} {strategy}".encode())
        return self.url(name)

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/{database}"

    def execute(self, sql: str, database: str = "postgres") -> None:
        self.query(sql, database)

    def query(self, sql: str, database: str = "postgres") -> str:
        """The output of psql, without headings."""
        address = ["-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", database]
        return self._run(str(self._programs / "psql"), *address, "-qAt", "-v", "ON_ERROR_STOP=1", "-c", sql).strip()

    def _answers(self) -> bool:
        ready = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.wait(timeout=60)
        self._process = None

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=self._root, check=False, user=self._uid, group=self._gid
        )
        if done.returncode != 0:
            raise RuntimeError(f"{Path(command[0]).name} failed:\n{done.stdout}{done.stderr}")
        return done.stdout


def server_user() -> pwd.struct_passwd | None:
    """The user that runs the server; None for the current user."""
    if os.geteuid() != 0:
        return None
    users = {user.pw_name: user for user in pwd.getpwall()}
    return users.get("postgres") or users["nobody"]


class PostgresPair:
    """A commit on the primary waits for the standby. `promote` makes the standby the new primary."""

    def __init__(self) -> None:
        self.primary = PostgresServer()
        self.primary.start()
        self.standby = PostgresServer(standby_of=self.primary)
        self.standby.start()
        self._require_standby()

    def address(self, database_url: str) -> str:
        """The URL of a database of the primary, with both hosts."""
        database = database_url.rpartition("/")[2]
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return f"postgresql+psycopg://{USER}@{hosts}/{database}"

    def _require_standby(self) -> None:
        self.primary.require_standby()
        wait_until(self.has_standby)

    def has_standby(self) -> bool:
        """Whether the primary has a synchronous standby that is connected."""
        return self.primary.query("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == "1"

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby. A new synchronous standby starts at the killed server's port."""
        killed, self.primary = self.primary, self.standby
        killed.kill()
        killed.remove()
        self.primary.promote()
        self.standby = PostgresServer(standby_of=self.primary)
        self.standby.port = killed.port
        self.standby.start()
        self._require_standby()

    def remove(self) -> None:
        for server in (self.primary, self.standby):
            server.kill()
            server.remove()


@contextmanager
def postgres_pair() -> Iterator[PostgresPair]:
    pair = PostgresPair()
    try:
        yield pair
    finally:
        pair.remove()
