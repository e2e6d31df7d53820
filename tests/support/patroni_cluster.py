"""Three PostgreSQL nodes that Patroni manages, and their etcd, on loopback ports."""

import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import yaml

from tests.support.postgres import PostgresNotInstalledError, find_programs, server_user
from tests.support.python_process import REPOSITORY
from tests.support.server_processes import free_port

CONFIGURATION = REPOSITORY / "conf" / "patroni.yml"
SCOPE = "log"
USER, PASSWORD, SUPERUSER_PASSWORD = "spark_log", "log-password", "superuser-password"
NODES = ("db1", "db2", "db3")
_HEALTHY = {"leader": "running"}
"""The state of a healthy member by role; of a standby it is streaming."""
_START_S_MAX = 300.0
"""On a busy machine the copies of the first node alone take a minute."""
_HEALTHY_S_MAX = 90.0


class PatroniNotInstalledError(Exception):
    """A program of the cluster is missing on this machine."""


def check_programs() -> None:
    """Raise PatroniNotInstalledError if a program is missing."""
    try:
        find_programs()
    except PostgresNotInstalledError as error:
        raise PatroniNotInstalledError(str(error)) from None
    if shutil.which("etcd") is None:
        raise PatroniNotInstalledError("no etcd found: install Debian's package etcd-server (`make etcd`)")
    if importlib.util.find_spec("patroni") is None:
        raise PatroniNotInstalledError("no Patroni found: pip install 'patroni[etcd3]' (`make venv`)")


class PatroniNode:
    """One machine: Patroni, and the PostgreSQL that it starts."""

    def __init__(self, cluster: "PatroniCluster", name: str) -> None:
        self.name, self._cluster = name, cluster
        self.port, self.rest_port = free_port(), free_port()
        self._root = cluster.folder(name)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped: list[psutil.Process] = []
        self.configuration = self._root / "patroni.yml"
        self.configuration.write_text(yaml.safe_dump(self._filled()))

    def _filled(self) -> dict[str, Any]:
        """conf/patroni.yml with the values of this node."""
        template = string.Template(CONFIGURATION.read_text())
        values = {
            "SCOPE": SCOPE, "NODE": self.name, "HOST": "127.0.0.1", "PORT": self.port, "REST_PORT": self.rest_port,
            "ETCD_HOSTS": f"127.0.0.1:{self._cluster.etcd_port}", "NETWORK": "127.0.0.0/8", "SOCKET_DIR": self._root,
            "DATA_DIR": self._root / "data", "BIN_DIR": find_programs(), "SUPERUSER_PASSWORD": SUPERUSER_PASSWORD,
            "REPLICATION_PASSWORD": "replicator-password",
        }  # fmt: skip
        configuration: dict[str, Any] = yaml.safe_load(template.substitute(values))
        # in the data folder, so that a killed server leaves nothing behind
        configuration["postgresql"]["parameters"]["dynamic_shared_memory_type"] = "mmap"
        return configuration

    def start(self) -> None:
        command = [sys.executable, "-m", "patroni", str(self.configuration)]
        self._process = self._cluster.start_program(command, self._root)

    def kill_server(self) -> None:
        """Kill PostgreSQL with all its processes; Patroni goes on."""
        _stop_all(servers := self._servers())
        _signal(servers, signal.SIGKILL)

    def kill(self) -> None:
        """Kill all processes, as a machine without power ends."""
        _stop_all(processes := self._processes())
        _signal(processes, signal.SIGKILL)
        if self._process is not None:
            self._process.wait(timeout=60)
            self._process = None

    def end(self) -> None:
        """End Patroni, then PostgreSQL so that it removes its shared memory."""
        self.resume()
        servers = self._servers()
        _signal([process for process in self._processes() if process not in servers], signal.SIGKILL)
        _signal(servers[:1], signal.SIGQUIT)
        psutil.wait_procs(servers, timeout=60)
        if self._process is not None:
            self._process.wait(timeout=60)

    def freeze(self) -> None:
        """Stop all processes: sockets stay open, and nothing answers."""
        self._stopped = self._processes()
        _stop_all(self._stopped)

    def resume(self) -> None:
        """Let a frozen node continue."""
        _signal(self._stopped, signal.SIGCONT)
        self._stopped = []

    @property
    def serves_without_etcd(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.rest_port}/patroni", timeout=10) as answer:
            state: dict[str, Any] = json.load(answer)
        return state["role"] in ("primary", "master") and state.get("failsafe_mode_is_active", False)

    def members(self) -> list[dict[str, Any]] | None:
        """The members of the cluster as this node knows them; None if it does not answer."""
        if self._process is None or self._stopped:
            return None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.rest_port}/cluster", timeout=2) as answer:
                members: list[dict[str, Any]] = json.load(answer)["members"]
        except (OSError, ValueError):
            return None
        return members

    def _processes(self) -> list[psutil.Process]:
        """Patroni first, which starts the others, then the server before its children."""
        own: list[psutil.Process] = []
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                patroni = psutil.Process(self._process.pid)
                own = [patroni, *patroni.children(recursive=True)]
        return list(dict.fromkeys([*own, *self._servers()]))

    def _servers(self) -> list[psutil.Process]:
        try:
            pid = int((self._root / "data" / "postmaster.pid").read_text().split("\n")[0])
            server = psutil.Process(pid)
            if server.cwd() != str(self._root / "data"):  # the number of a process that has ended
                return []
            return [server, *server.children(recursive=True)]
        except (OSError, ValueError, psutil.Error):
            return []


def _stop_all(processes: list[psutil.Process]) -> None:
    """Stop them before any of them is killed, since each would end the others in its own way."""
    _signal(processes, signal.SIGSTOP)


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


class PatroniCluster:
    """Invariant between failovers (`wait_until_healthy`): one primary, one synchronous standby, one more standby."""

    def __init__(self, logs: Path) -> None:
        """`logs` is a folder for the output of each program, which stays there."""
        check_programs()
        self._logs = logs
        self._user = server_user()
        self._root = Path(tempfile.mkdtemp(prefix="spark-log-patroni-"))
        self._own(self._root)
        self.etcd_port, self._etcd_peer_port = free_port(), free_port()
        self._etcd: subprocess.Popen[bytes] | None = None
        self.nodes = [PatroniNode(self, name) for name in NODES]
        self.reinitialised: list[str] = []
        """Standbys that had to be copied from the primary, which takes a person."""

    def folder(self, name: str) -> Path:
        folder = self._root / name
        folder.mkdir()
        self._own(folder)
        return folder

    def _own(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)

    def start_program(self, command: list[str], folder: Path) -> "subprocess.Popen[bytes]":
        """Start a program as a user that is not root, which PostgreSQL refuses, in its folder.

        The user may read what root may: the interpreter can be in a folder of root.
        """
        if self._user is not None:
            ids = [f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}", "--clear-groups"]
            command = ["setpriv", *ids, "--inh-caps=+dac_override", "--ambient-caps=+dac_override", *command]
        with (self._logs / f"{folder.name}.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)

    def start(self) -> None:
        """Start etcd and the nodes; returns when the database is there and writes have a synchronous standby."""
        self.folder("etcd")
        self.start_etcd()
        for node in self.nodes:
            node.start()
        self._wait(self._is_healthy, _START_S_MAX)
        primary = self.primary()
        address = f"host=127.0.0.1 port={primary.port} user=postgres password={SUPERUSER_PASSWORD}"
        with psycopg.connect(f"{address} dbname=postgres", autocommit=True) as session:
            session.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'".encode())
            session.execute(f"CREATE DATABASE log OWNER {USER}".encode())

    def start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.etcd_port, self._etcd_peer_port))
        self._etcd = self.start_program(
            ["etcd", "--data-dir", "data", "--listen-client-urls", client, "--advertise-client-urls", client,
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"],
            self._root / "etcd",
        )  # fmt: skip

    def stop_etcd(self) -> None:
        """Stop etcd, and return when the primary serves without it, since it reaches all other nodes."""
        assert self._etcd is not None
        primary = self.primary()
        self._etcd.kill()
        self._etcd.wait(timeout=60)
        self._wait(lambda: primary.serves_without_etcd, 60.0)

    @property
    def address(self) -> str:
        """The cluster address with all hosts, as clients have it."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql+psycopg://{USER}:{PASSWORD}@{hosts}/log"

    def node(self, name: str) -> PatroniNode:
        [node] = [node for node in self.nodes if node.name == name]
        return node

    def roles(self) -> dict[str, str]:
        """The roles of the healthy members by name: leader, sync_standby, replica. A healthy standby streams:
        an old primary that has just been resumed shows as running.
        """
        for node in self.nodes:
            members = node.members()
            if members is not None:
                return {m["name"]: m["role"] for m in members if m.get("state") == _HEALTHY.get(m["role"], "streaming")}
        return {}

    def primary(self) -> PatroniNode:
        [name] = [name for name, role in self.roles().items() if role == "leader"]
        return self.node(name)

    def synchronous_standby(self) -> PatroniNode:
        [name] = [name for name, role in self.roles().items() if role == "sync_standby"]
        return self.node(name)

    def wait_until_healthy(self) -> None:
        """Wait for one primary and two standbys, `_HEALTHY_S_MAX` at most.

        A standby that does not start within this time is copied from the primary, as the guide says: Patroni can run
        pg_rewind before the checkpoint of a new primary ends, and the node then needs a person (its issue 3367).
        """
        try:
            self._wait(self._is_healthy, _HEALTHY_S_MAX)
        except TimeoutError:
            roles = self.roles()
            if sorted(roles.values()) != ["leader", "sync_standby"]:
                raise
            [name] = set(NODES) - set(roles)
            self.reinitialised.append(name)
            self._patronictl("reinit", SCOPE, name, "--force", "--wait")
            self._wait(self._is_healthy, _HEALTHY_S_MAX)

    def _is_healthy(self) -> bool:
        return sorted(self.roles().values()) == ["leader", "replica", "sync_standby"]

    def wait_for_another_primary(self, old: PatroniNode) -> None:
        def replaced() -> bool:
            return any(role == "leader" and name != old.name for name, role in self.roles().items())

        self._wait(replaced, _HEALTHY_S_MAX)

    def switch_over(self) -> None:
        """Let the synchronous standby and the primary change places, by `patronictl switchover`."""
        primary, standby = self.primary(), self.synchronous_standby()
        self._patronictl("switchover", SCOPE, "--force", "--leader", primary.name, "--candidate", standby.name)

    def _patronictl(self, *arguments: str) -> None:
        program = "from patroni.ctl import ctl; ctl()"
        command = [sys.executable, "-c", program, "-c", str(self.nodes[0].configuration), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"patronictl {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the cluster is not as expected, but {self.roles()}; see the logs in {self._logs}")
            time.sleep(0.1)

    def remove(self) -> None:
        for node in self.nodes:
            node.end()
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait(timeout=60)
        shutil.rmtree(self._root, ignore_errors=True)


@contextmanager
def patroni_cluster(logs: Path) -> Iterator[PatroniCluster]:
    cluster = PatroniCluster(logs)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


def shuffled(kinds: list[str], count: int, seed: int) -> list[str]:
    """`count` failovers, each kind equally often, in a random order."""
    chosen = [kinds[number % len(kinds)] for number in range(count)]
    random.Random(seed).shuffle(chosen)
    return chosen
