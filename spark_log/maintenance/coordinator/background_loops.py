"""Calls functions repeatedly, each in a thread of its own."""

import logging
import threading
from collections.abc import Callable, Iterable

from spark_log.errors import SparkLogError, UnsupportedVersionError, redact
from spark_log.metadata.store import Store
from spark_log.replication.replicas.followers import Followers

logger = logging.getLogger(__name__)

_AGAIN_S = 1.0
_POLL_S = 0.5
"""How often to look for lagging replicas although nothing was committed: a log dir may have come back."""


class BackgroundLoops:
    """Daemon threads that each call one function until `request_stop`.

    A function returns the seconds to wait before its next call. If it raises, the error is logged, and it is called
    again after a second. A function that blocks, for example on a disk that hangs, does not delay the others. All
    threads end after an UnsupportedVersionError: the store was upgraded for a newer version.
    """

    def __init__(self, name: str) -> None:
        self.stopping = threading.Event()
        self.threads: list[threading.Thread] = []
        self._name = name

    def start(self, name: str, step: Callable[[], float], *, first_after_s: float = 0.0) -> None:
        """Start to call `step`, for the first time after `first_after_s`."""

        def run() -> None:
            self.stopping.wait(first_after_s)
            while not self.stopping.is_set():
                try:
                    pause_s = step()
                except UnsupportedVersionError as error:
                    if not self.stopping.is_set():
                        self.stopping.set()
                        logger.error("%s ends: %s", self._name, redact(str(error)))
                    return
                except (SparkLogError, OSError) as error:
                    logger.warning("%s: %s failed, tried again: %s", self._name, name, redact(str(error)))
                    pause_s = _AGAIN_S
                except Exception:  # a bug
                    logger.exception("%s: %s failed", self._name, name)
                    pause_s = _AGAIN_S
                self.stopping.wait(pause_s)

        thread = threading.Thread(target=run, name=f"{self._name}: {name}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def request_stop(self) -> list[threading.Thread]:
        """Ask the threads to end after the calls that are running; returns the threads."""
        self.stopping.set()
        return list(self.threads)

    def join(self) -> None:
        for thread in self.threads:
            thread.join()


def ended(threads: Iterable[threading.Thread]) -> str | None:
    """Return a sentence that names the threads that have ended, or None if all run."""
    names = sorted(thread.name for thread in threads if not thread.is_alive())
    return f"threads have ended: {', '.join(names)}" if names else None


def follower_step(
    store: Store, followers: Followers, pause_s: float, active: Callable[[], bool] = lambda: True
) -> Callable[[], float]:
    """Return a step that wakes the followers after each commit, and every half second, while `active`.

    `pause_s` is the least time between two steps, even if commits come faster.
    """

    def step() -> float:
        seen = store.changes.current()
        if active():
            followers.wake()
        store.changes.wait(seen, _POLL_S)
        return pause_s

    return step
