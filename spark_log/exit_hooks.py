"""Stops the threads of spark-log before the interpreter exits.

A daemon thread that is in native code (Arrow, Delta) while the interpreter and its libraries are torn down crashes the
process: SIGABRT or SIGSEGV after the program's last line. So clients that were not closed are stopped before that.
"""

import concurrent.futures.thread  # noqa: F401  its exit hook runs after ours: our threads may use pools until they end
import os
import threading
import weakref
from collections.abc import Iterable
from typing import Protocol

from spark_log import clock

EXIT_S_MAX = 30.0
"""The longest time for which the exit of the interpreter waits for threads, in total."""


class Stoppable(Protocol):
    def request_stop(self) -> Iterable[threading.Thread]:
        """Ask the threads to end, without waiting for them; returns them."""
        ...


def stop_at_exit(owner: Stoppable) -> None:
    """Stop the threads of `owner` when the interpreter exits; in the calling process, not in a forked child."""
    _owners.add(owner)


_owners: "weakref.WeakSet[Stoppable]" = weakref.WeakSet()


def _stop_all() -> None:
    deadline_s = clock.monotonic_s() + EXIT_S_MAX
    for thread in [thread for owner in list(_owners) for thread in owner.request_stop()]:
        thread.join(max(0.0, deadline_s - clock.monotonic_s()))


threading._register_atexit(_stop_all)  # type: ignore[attr-defined]  # atexit comes too late: pools are closed by then
os.register_at_fork(after_in_child=_owners.clear)
