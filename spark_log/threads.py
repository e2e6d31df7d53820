"""Threads for work that also goes on while the interpreter exits.

A producer that was not closed appends its records then. Since Python 3.12 no thread can be started at that time, so
each caller of these functions can do the work without a new thread.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def start_thread(work: Callable[[], object], name: str) -> threading.Thread | None:
    """Start a daemon thread; None if the interpreter is exiting and starts none."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        if "interpreter shutdown" not in str(error):
            raise
        return None
    return thread


def in_parallel(work: Callable[[T], R], items: Sequence[T], threads: int, name: str) -> list[R]:
    """The results of `work` for all items, in their order, from at most `threads` threads; the caller's is one of them.

    After an error no further item is begun. It is raised when all threads have ended.
    """
    results: dict[int, R] = {}
    errors: list[BaseException] = []
    numbers = iter(range(len(items)))  # shared: each thread takes the next one

    def run() -> None:
        try:
            for number in numbers:
                results[number] = work(items[number])
        except BaseException as error:
            errors.append(error)
            deque(numbers, maxlen=0)

    helpers = [start_thread(run, name) for _ in range(min(threads, len(items)) - 1)]
    run()
    for helper in helpers:
        if helper is not None:
            helper.join()
    if errors:
        raise errors.pop(0)
    return [results[number] for number in range(len(items))]
