"""Ends connections whose server does not answer: a frozen server keeps its sockets open, and a client that waits for
its answer would wait for ever. TCP's own time-outs do not help, since the kernel of the server still acknowledges.

One thread of the process counts how long each message has been waiting. If nothing was received for the time limit
(`store.answer.timeout.ms`), it shuts the socket down. The thread that waits then gets the driver's error of a lost
connection; if the message had a COMMIT, its outcome is asked of the server that answers now (`commit_tokens`).

The time limit is above lock_timeout (`engine`), so a message that waits for a lock is answered in time. A long answer
is not overdue while its parts arrive. Without a limit: the creation and the upgrade of a store, and the deletion of all
rows of a topic (`Store.transact` with `unlimited`).
"""

import contextlib
import os
import socket
import threading
from typing import Protocol

from spark_log import clock
from spark_log.process import start_thread

STEP_S = 0.5
"""How often the thread counts."""

_LAST_DATA_RECEIVED = slice(52, 56)
"""Field tcpi_last_data_recv of Linux's struct tcp_info: milliseconds since data was received."""


class AnswerLimit:
    """The time limit of the connections of one store, which a new value of the setting changes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Waiting(Protocol):
    """A connection that waits for an answer."""

    limit: AnswerLimit
    waited_s: float
    overdue: bool

    def fileno(self) -> int: ...


def begin(connection: Waiting) -> None:
    """The connection has sent a message. Ends with `end`."""
    connection.waited_s = 0.0
    _waiting[id(connection)] = connection
    if _thread is None:
        _start()


def end(connection: Waiting) -> None:
    """The answer is complete, or has failed. If it came at the time limit, the socket may still be shut down: then the
    next message finds a lost connection, and is repeated.
    """
    _waiting.pop(id(connection), None)  # without the lock: it would be taken for each message


def _start() -> None:
    global _thread
    with _lock:
        if _thread is None:
            _thread = start_thread(_watch, "spark-log-answers")


def _watch() -> None:
    while True:
        clock.sleep_s(STEP_S)
        for connection in list(_waiting.values()):
            # steps are counted, not the time: after a pause of this process, answers may be there to be read
            connection.waited_s += STEP_S
            if connection.waited_s > connection.limit.seconds:
                _shut_if_silent(connection)


def _shut_if_silent(connection: Waiting) -> None:
    # any error: a connection that was lost meanwhile has no socket, and the driver says so with its own class
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as end_of_ours:
        silent_s = _silent_s(end_of_ours)
        if silent_s is not None and silent_s < connection.limit.seconds:
            connection.waited_s = silent_s
            return
        connection.overdue = True
        end_of_ours.shutdown(socket.SHUT_RDWR)


def _silent_s(end_of_ours: socket.socket) -> float | None:
    """Seconds since data was received; None for a Unix socket."""
    try:
        info = end_of_ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.stop)
    except OSError:
        return None
    return int.from_bytes(info[_LAST_DATA_RECEIVED], "little") / 1000


_lock = threading.Lock()
_waiting: dict[int, Waiting] = {}
_thread: threading.Thread | None = None


def _forget_parent() -> None:
    """In a forked child: the thread does not exist here, and may have held the lock."""
    global _lock, _thread
    _lock = threading.Lock()
    _waiting.clear()
    _thread = None


os.register_at_fork(after_in_child=_forget_parent)
