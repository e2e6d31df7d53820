"""Ends connections whose server does not answer.

A frozen server keeps its sockets open, so a client that waits for its answer would wait for ever. TCP's own timeouts do
not help, since the kernel of the server still acknowledges packets.

One thread of the process counts how long each message has been waiting. If nothing was received for the time limit
(`store.answer.timeout.ms`), it shuts the socket down. The waiting thread then gets the driver's error of a lost
connection. If the message had a COMMIT, the client asks the server that answers now for its outcome (`commit_tokens`).

The default time limit is above lock_timeout (`engine`), so that a message that waits for a lock is answered in time. A
long answer is not overdue while its parts arrive. The creation and the upgrade of a store, and the deletion of all rows
of a topic, have no time limit (`Store.transact` with `unlimited`).
"""

import contextlib
import os
import socket
import threading
from typing import Protocol

from spark_log import clock
from spark_log.process import start_thread

STEP_S = 0.5
"""The interval at which the thread counts."""

_LAST_DATA_RECEIVED = slice(52, 56)
"""Bytes of the field tcpi_last_data_recv in Linux's struct tcp_info: milliseconds since data was received."""


class AnswerLimit:
    """The time limit of the connections of one store. It changes when the setting changes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Waiting(Protocol):
    """A connection that waits for an answer."""

    limit: AnswerLimit
    waited_s: float
    overdue: bool

    def fileno(self) -> int: ...


def begin(connection: Waiting) -> None:
    """Begin to count the time of a connection that sends a message. `end` ends it."""
    connection.waited_s = 0.0
    _waiting[id(connection)] = connection
    if _thread is None:
        _start()


def end(connection: Waiting) -> None:
    """Stop counting, because the answer is complete or has failed.

    If the answer arrived just at the time limit, the socket may be shut down nevertheless. The next message then finds
    a lost connection, and is repeated.
    """
    _waiting.pop(id(connection), None)  # without the lock: it would be taken for each message


def _start() -> None:
    global _thread
    with _lock:
        if _thread is None:
            _thread = start_thread(_watch, "spark-log-answers")


def _watch() -> None:
    global _thread
    try:
        while True:
            clock.sleep_s(STEP_S)
            with contextlib.suppress(Exception):  # other threads change the dictionary: the next step counts again
                for connection in list(_waiting.values()):
                    # steps are counted instead of elapsed time: after a pause of this process, unread answers may have
                    # come
                    connection.waited_s += STEP_S
                    if connection.waited_s > connection.limit.seconds:
                        _shut_if_silent(connection)
    finally:
        _thread = None  # the next message starts another one


def _shut_if_silent(connection: Waiting) -> None:
    # any error is suppressed: a connection that was lost meanwhile has no socket, and the driver has its own errors
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as end_of_ours:
        silent_s = _silent_s(end_of_ours)
        if silent_s is not None and silent_s < connection.limit.seconds:
            connection.waited_s = silent_s
            return
        connection.overdue = True
        end_of_ours.shutdown(socket.SHUT_RDWR)


def _silent_s(end_of_ours: socket.socket) -> float | None:
    """Return the seconds since data was received, or None for a Unix socket."""
    try:
        info = end_of_ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.stop)
    except OSError:
        return None
    return int.from_bytes(info[_LAST_DATA_RECEIVED], "little") / 1000


_lock = threading.Lock()
_waiting: dict[int, Waiting] = {}
_thread: threading.Thread | None = None


def _forget_parent() -> None:
    """Reset the state in a forked child: the parent's thread does not exist here, and may have held the lock."""
    global _lock, _thread
    _lock = threading.Lock()
    _waiting.clear()
    _thread = None


os.register_at_fork(after_in_child=_forget_parent)
