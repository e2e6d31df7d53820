"""Forks the Python processes of Spark's driver from a server that has already imported their modules.

On the driver, Spark starts a process for each kind of planning (create a source, plan a read or a write, commit) and
for each start of a streaming query. With a local master, one more forks the workers of tasks. Each process imports
pyspark, pyarrow, SQLAlchemy and spark-log, which takes about a second of CPU time. Under `spark-log-python`, the first
process, which looks up the data sources, forks a server that imports these modules in the background. As soon as the
server has imported them, its forks do the work of the later processes. Such a process passes its arguments,
environment, folder and standard streams to its fork. Then it only waits for the fork and forwards SIGTERM.

A server belongs to one JVM, user and environment, ends with the JVM, and accepts requests of that user only. Without a
server, each process imports the modules itself: on other operating systems than Linux, and in the executors of a
cluster, whose JVM looks up no data sources.
"""

import atexit
import contextlib
import gc
import hashlib
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import FrameType
from typing import NoReturn

_LOOKUP = "pyspark.sql.worker.lookup_data_sources"
_SERVED = ("pyspark.sql.worker.", "pyspark.sql.streaming.", "pyspark.worker")
_IMPORTED = (
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "spark_log.spark.datasource.read.read_planner",
    "spark_log.spark.datasource.source",
    "spark_log.spark.datasource.write.batch_writer",
    "spark_log.spark.datasource.write.stream_writer",
    "spark_log.spark.datasource.write.write_commit",
    "sqlalchemy.dialects.sqlite",
)
_IMPORTED_AFTER_FIRST_FORK = ("pandas", "deltalake")
"""Modules that only tasks and commits need. Spark starts those later, so the first fork does not wait for imports."""
_PER_PROCESS = ("PYSPARK_", "PYTHON_", "SPARK_")
"""Prefixes of variables that Spark sets for one process; their values may differ between a server and its forks."""
_FIXED = ("SPARK_LOG_", "PYSPARK_ENABLE_NAMEDTUPLE_PATCH")
"""Prefixes of variables that modules read when they are imported."""
_MEMORY_LIMITS = ("PYSPARK_EXECUTOR_MEMORY_MB", "PYSPARK_PLANNER_MEMORY_MB")
"""Variables that limit a process's address space. The server's modules would take 0.6 GB of it."""
_THREADS = {"OMP_NUM_THREADS": "1"}
"""A variable that Spark sets for tasks of one core. The server sets it before it imports numpy. Then numpy starts no
threads, which forks would lack.
"""
_CHUNK = 1 << 16
_JEMALLOC = "jemalloc_bg_thd"
"""Name of the thread of Arrow's allocator, which handles forks itself."""
_STATUS = struct.Struct("i")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid

_status: int | None = None
"""Exit code of the program of this process, or None while it runs."""


def take_over(arguments: Sequence[str]) -> list[str] | None:
    """If there is a server, let a fork of it run the module `arguments[0]`, and end this process with its status.

    Returns only in processes that have to run a module. With None, the process runs its own module. In a fork of the
    server, returns the arguments of the requesting process, whose environment, folder and streams the fork has by then.
    """
    is_served = any(name.startswith(_SERVED) for name in arguments[:2]) and not os.environ.keys() & set(_MEMORY_LIMITS)
    if not is_served or sys.platform != "linux":
        return None
    jvm = os.getppid()
    try:
        jvm_ended = os.pidfd_open(jvm)
    except OSError:
        return None  # a kernel that has no pidfd, or the JVM has ended
    try:
        if os.getppid() != jvm:
            return None
        address = _address(jvm)
        with socket.socket(socket.AF_UNIX) as connection:
            if _connect(connection, address) and (fork := _request_fork(connection, arguments)):
                _wait_for_fork(connection, fork)
        if _LOOKUP in arguments and os.fork() == 0:
            return _serve(address, jvm_ended)
        return None
    finally:
        os.close(jvm_ended)


def _address(jvm: int) -> bytes:
    """Return the name of the server's socket in Linux's abstract namespace, where it disappears with the server."""
    with open(f"/proc/{jvm}/stat") as file:
        started = file.read().rpartition(")")[2].split()[19]
    fixed = {
        name: value
        for name, value in {**_THREADS, **os.environ}.items()
        if name.startswith(_FIXED) or not name.startswith(_PER_PROCESS)
    }
    facts = [os.getuid(), jvm, started, sys.executable, os.getcwd(), sorted(fixed.items())]
    return b"\0spark-log-python/" + hashlib.sha256(json.dumps(facts).encode()).hexdigest().encode()


def _connect(connection: socket.socket, address: bytes) -> bool:
    try:
        connection.connect(address)
    except OSError:
        return False
    return _is_same_user(connection)


def _is_same_user(connection: socket.socket) -> bool:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.getuid())


def _request_fork(connection: socket.socket, arguments: Sequence[str]) -> int | None:
    """Request a fork that runs `arguments` instead of this process. Return its pid, or None if there is no fork."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until the signal can be forwarded
    request = json.dumps([list(arguments), dict(os.environ), os.getcwd()]).encode()
    try:
        sent = socket.send_fds(connection, [request], [0, 1, 2])
        connection.sendall(request[sent:])
        connection.shutdown(socket.SHUT_WR)
        pid = _receive(connection)
    except OSError:
        pid = None
    if pid is None or pid < 0:  # the server has ended or refused, or its fork ended before it had the arguments
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        return None
    return pid


def _wait_for_fork(connection: socket.socket, pid: int) -> NoReturn:
    fork_ended = _pidfd(pid)
    _close_streams()  # Spark waits for their end: only the fork keeps them open
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    signal.signal(signal.SIGTERM, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    status = _receive(connection)
    if status is None and fork_ended is not None:  # the server has ended; Spark would end the workers of a daemon
        select.select([fork_ended], [], [])
    os._exit(1 if status is None else ~status)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:  # the process has ended, or this one has too many open files
        return None


def _close_streams() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def _receive(connection: socket.socket) -> int | None:
    """Receive the pid of a fork, or ~status once the fork has ended. Return None if the server has ended or refused."""
    data = connection.recv(_STATUS.size, socket.MSG_WAITALL)
    return int(_STATUS.unpack(data)[0]) if len(data) == _STATUS.size else None


def _serve(address: bytes, jvm_ended: int) -> list[str]:
    """Import the modules, then fork for each request. Returns only in a fork, with the arguments that it has to run."""
    atexit.register(end_without_teardown)  # before the handlers of imported modules, so that it runs after them
    try:
        os.setsid()
        _close_streams()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen(64)  # requests wait for the imports: their processes would import the same modules
        for name, value in _THREADS.items():
            os.environ.setdefault(name, value)
        for module in _IMPORTED:
            import_module(module)
        not_imported = list(_IMPORTED_AFTER_FIRST_FORK)
        has_forked = False
        connections: dict[int, tuple[int, socket.socket]] = {}
        while True:
            timeout = 0 if has_forked and not_imported else None
            ready = select.select([jvm_ended, listener.fileno(), *connections], [], [], timeout)[0]
            if jvm_ended in ready:
                break
            if not ready:
                with contextlib.suppress(Exception):  # a process that needs the module reports the error
                    import_module(not_imported.pop(0))
            for ended in connections.keys() & set(ready):
                os.close(ended)
                _report_end(*connections.pop(ended))
            request = _accept(listener) if listener.fileno() in ready else None
            if request is not None:
                gc.freeze()
                pid = _fork()
                if pid == 0:
                    listener.close()
                    for descriptor, (_, other) in connections.items():
                        os.close(descriptor)
                        other.close()
                    return _become(request)
                if pid is None or (fork_ended := _pidfd(pid)) is None:
                    request.close()
                    continue
                connections[fork_ended] = pid, request
                has_forked = True
    except BaseException:  # there is no stream to report to; processes without a server import for themselves
        os._exit(1)
    os._exit(0)


def _fork() -> int | None:
    try:
        return os.fork()
    except OSError:  # a limit of processes or memory: the requesting process imports for itself
        return None


def _accept(listener: socket.socket) -> socket.socket | None:
    with contextlib.suppress(OSError):
        connection = listener.accept()[0]
        if _is_same_user(connection) and not _has_threads():
            return connection
        connection.close()
    return None


def _has_threads() -> bool:
    """Whether an imported module has started a thread. A fork lacks it, and could wait for ever for a lock it held."""
    names = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    return len(names) > 1 + names.count(_JEMALLOC)


def _report_end(pid: int, connection: socket.socket) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with connection, contextlib.suppress(OSError):  # OSError: the requesting process has been killed
        connection.sendall(_STATUS.pack(~(status if status >= 0 else 128 - status)))


def _become(connection: socket.socket) -> list[str]:
    """Take over the streams, environment and folder of the requesting process. Return its arguments."""
    message, descriptors, _, _ = socket.recv_fds(connection, _CHUNK, 3)
    while more := connection.recv(_CHUNK):
        message += more
    arguments, environment, folder = json.loads(message)
    for descriptor, received in enumerate(descriptors):
        os.dup2(received, descriptor)
        os.close(received)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    reseed()
    connection.sendall(_STATUS.pack(os.getpid()))
    connection.close()
    return list(arguments)


def reseed() -> None:
    """Seed numpy's generator in a new fork, so that forks do not repeat each other's random numbers.

    Python's module `random` does this itself.
    """
    if "numpy.random" in sys.modules:
        import_module("numpy.random").seed()


def run_program(program: Callable[[], object]) -> None:
    """Run the program of this process, and store the status with which `end_without_teardown` ends the process."""
    global _status
    try:
        program()
        _status = 0
    except SystemExit as end:
        _status = (end.code or 0) & 0xFF if isinstance(end.code, int | None) else 1
        raise
    except Exception:
        _status = 1
        raise


def end_without_teardown() -> None:
    """End the process at once if its program has ended. As atexit's first handler, this runs last, after all threads.

    The interpreter would take 0.1 s of CPU time to tear down the modules that a fork has inherited.
    """
    if _status is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_status)
