"""What spark-log does before the interpreter exits: it stops its threads, and closes the producers that are still open.

A daemon thread that is in native code (Arrow, Delta) while the interpreter and its libraries are torn down crashes the
process: SIGABRT or SIGSEGV after the program's last line. So clients that were not closed are stopped before that.

Other threads may still run and register more: sets are copied in one step (`list`), which no thread can interrupt.
"""

import atexit
import concurrent.futures.thread  # noqa: F401  its exit hook runs after ours: our threads may use pools until they end
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Protocol

from spark_log import clock

logger = logging.getLogger(__name__)

EXIT_S_MAX = 30.0
"""The longest time for which the exit of the interpreter waits for threads, in total."""


class Stoppable(Protocol):
    def request_stop(self) -> Iterable[threading.Thread]:
        """Ask the threads to end, without waiting for them; returns them."""
        ...


def stop_at_exit(owner: Stoppable) -> None:
    """Stop the threads of `owner` when the interpreter exits; in the calling process, not in a forked child."""
    _owners.add(weakref.ref(owner, _owners.discard))


class Finalizer:
    """Calls a function once: when `owner` is garbage-collected, or when the interpreter exits, after the program's
    threads have ended.

    `weakref.finalize` promises the same, but calls nothing at exit if another thread makes or drops a finalizer at that
    moment, as SQLAlchemy does when its modules are imported (CPython iterates over its registry in Python).
    """

    def __init__(self, owner: object, function: Callable[..., object], *arguments: object) -> None:
        self._function, self._arguments = function, arguments
        self._owner = weakref.ref(owner, self)
        _finalizers[self] = None

    def __call__(self, _owner: object = None) -> None:
        if self.detach():
            self._function(*self._arguments)

    def detach(self) -> bool:
        """Never call the function. Returns False if it has been called, or was detached before."""
        return _finalizers.pop(self, self) is None


_owners: set[weakref.ref[Stoppable]] = set()
_finalizers: dict[Finalizer, None] = {}


def _stop_all() -> None:
    deadline_s = clock.monotonic_s() + EXIT_S_MAX
    owners = [owner for reference in list(_owners) if (owner := reference()) is not None]
    for thread in [thread for owner in owners for thread in owner.request_stop()]:
        thread.join(max(0.0, deadline_s - clock.monotonic_s()))


def _finalize_all() -> None:
    for finalizer in reversed(list(_finalizers)):
        try:
            finalizer()
        except Exception:
            logger.exception("an object could not be closed at exit")


threading._register_atexit(_stop_all)  # type: ignore[attr-defined]  # atexit comes too late: pools are closed by then
atexit.register(_finalize_all)
os.register_at_fork(after_in_child=_owners.clear)
