"""Remembers values of functions with a limit of their size or age, and facts about topics with a limit of their number.

A limit of the number of values, as in `functools.lru_cache`, is not enough, because clients choose the texts that such
a function parses, or the server that it reads. Facts about topics have a limit because topics may be deleted.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakSet

from spark_log import clock

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[P, T]):
    """A function that remembers the values that were used last.

    `size_of(value, *arguments)` is the size of a value with its arguments; all sizes together are at most `size_max`. A
    larger value is remembered alone, until the next one. A Remembered cannot be pickled: Spark's tasks have to call a
    plain function around it.
    """

    def __init__(self, function: Callable[P, T], size_of: Callable[..., int], size_max: int) -> None:
        self._function, self._size_of, self._size_max = function, size_of, size_max
        self._lock = threading.Lock()
        self._values: OrderedDict[tuple[object, ...], tuple[T, int]] = OrderedDict()
        self._size = 0
        _every.add(self)

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> T:
        key = arguments, tuple(named.items())
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        value = self._function(*arguments, **named)
        size = self._size_of(value, *arguments, **named)
        with self._lock:
            if key not in self._values:
                self._values[key] = value, size
                self._size += size
                while self._size > self._size_max and len(self._values) > 1:
                    self._size -= self._values.popitem(last=False)[1][1]
        return value

    def forget(self) -> None:
        with self._lock:
            self._values.clear()
            self._size = 0


class BoundedDict(OrderedDict[K, V]):
    """A dictionary with the entries that were set last, at most `entries_max`. Threads may share it."""

    def __init__(self, entries_max: int = 100_000) -> None:
        super().__init__()
        self._entries_max = entries_max

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        with suppress(KeyError):  # another thread has just removed the entry
            self.move_to_end(key)
            if len(self) > self._entries_max:
                self.popitem(last=False)


class Cached(Generic[T]):
    """A cached value. It is read again when it is older than both `age_s_max` and `reads_per_age` times the duration of
    its read.

    Concurrent callers share one read.
    """

    def __init__(self, age_s_max: float, read: Callable[[], T], reads_per_age: float = 0) -> None:
        self._age_s_max, self._read, self._reads_per_age = age_s_max, read, reads_per_age
        self._lock = threading.Lock()
        self._last: tuple[float, T] | None = None
        """The time until which the value is used, and the value."""

    def get(self) -> T:
        with self._lock:
            if self._last is None or clock.monotonic_s() > self._last[0]:
                began_s = clock.monotonic_s()
                value = self._read()
                now_s = clock.monotonic_s()
                self._last = (now_s + max(self._age_s_max, self._reads_per_age * (now_s - began_s)), value)
            return self._last[1]

    def forget(self) -> None:
        with self._lock:
            self._last = None


_every: WeakSet[Remembered[Any, Any]] = WeakSet()


def _forget_threads_of_parent() -> None:
    for each in list(_every):  # a thread that held a lock does not exist in the child
        each._lock = threading.Lock()
        each.forget()


os.register_at_fork(after_in_child=_forget_threads_of_parent)
