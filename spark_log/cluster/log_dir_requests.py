"""Requests to log dirs, in threads of their own: a mount that hangs (NFS) or an object store may never answer."""

import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from spark_log import clock
from spark_log.process import start_thread

T = TypeVar("T")

ANSWER_S_MAX = 5.0
"""The time that a caller waits for the answers of all log dirs together; one that takes longer does not answer. It is
shorter than controller.lease.ms, because a client that acts as the controller does not renew its lease.
"""

_ASK_AGAIN_S = 60.0


class _Request(NamedTuple):
    """A request in a thread. After monotonic time `until_s` it counts as hanging, and another one may begin."""

    answer: "Future[Any]"
    until_s: float
    pause_s: float


_unanswered: dict[tuple[str, Hashable], _Request] = {}
_lock = threading.Lock()


def _forget_threads_of_parent() -> None:
    global _lock
    _lock = threading.Lock()
    _unanswered.clear()


os.register_at_fork(after_in_child=_forget_threads_of_parent)


def send_request(name: str, question: Hashable, work: Callable[[], T]) -> "Future[T]":
    """Call `work` in a thread with this name, and return its answer, or that of an earlier call with the same name and
    question for which a thread still waits.

    A mount that hangs blocks daemon threads of its own: one at first, one more after a minute, and so on after twice
    the time, because the mount may have been replaced, but the threads of the old one still hang.
    """
    key = name, question
    now_s = clock.monotonic_s()
    with _lock:
        earlier = _unanswered.get(key)
        if earlier is not None and now_s < earlier.until_s:
            return earlier.answer
        pause_s = _ASK_AGAIN_S if earlier is None else 2 * earlier.pause_s
        mine = _unanswered[key] = _Request(Future(), now_s + pause_s, pause_s)

    def run() -> None:
        try:
            mine.answer.set_result(work())
        except BaseException as error:
            mine.answer.set_exception(error)
        finally:
            with _lock:
                if _unanswered.get(key) is mine:
                    del _unanswered[key]

    if start_thread(run, name) is None:
        run()  # an append at the exit of the program still finds the replica that can lead
    return mine.answer
