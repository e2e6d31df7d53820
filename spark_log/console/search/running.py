"""The searches that run. Of each name, such as that of a user, only the newest search goes on."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException


class RunningSearches:
    """The searches that run, by name. A new search of a name stops the previous one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, threading.Event] = {}

    @property
    def count(self) -> int:
        """The number of names with a running search."""
        with self._lock:
            return len(self._running)

    @contextmanager
    def of(self, name: str, most: int | None = None) -> Iterator[Callable[[], bool]]:
        """Begin a search. Yields a function that returns whether a later search has begun and this one must stop.

        `most` is the maximum number of names with a running search. Raises HTTPException 503 if it is reached.
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
