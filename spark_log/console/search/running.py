"""One running search of a name, such as that of a user: the next one stops the one before."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class RunningSearches:
    """Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, threading.Event] = {}

    @property
    def count(self) -> int:
        """Searches that run now."""
        with self._lock:
            return len(self._running)

    @contextmanager
    def of(self, name: str) -> Iterator[Callable[[], bool]]:
        """Begin a search. Yields whether a later one has begun, which is to stop it."""
        superseded = threading.Event()
        with self._lock:
            if name in self._running:
                self._running[name].set()
            self._running[name] = superseded
        try:
            yield superseded.is_set
        finally:
            with self._lock:
                if self._running.get(name) is superseded:
                    del self._running[name]
