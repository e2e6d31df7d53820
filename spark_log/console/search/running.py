"""One running search of a name, such as that of a user: the next one stops the one before."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException


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
    def of(self, name: str, most: int | None = None) -> Iterator[Callable[[], bool]]:
        """Begin a search. Yields whether a later one has begun, which is to stop it.

        `most`: of all names; HTTPException 503 if they run.
        """
        superseded = threading.Event()
        with self._lock:
            if most is not None and len(self._running.keys() - {name}) >= most:
                raise HTTPException(503, f"There are {most} searches at the moment: try again later.")
            if name in self._running:
                self._running[name].set()
            self._running[name] = superseded
        try:
            yield superseded.is_set
        finally:
            with self._lock:
                if self._running.get(name) is superseded:
                    del self._running[name]
