"""Defines the common part of Consumer and ShareConsumer: one call at a time, iteration, and checks of arguments."""

import logging
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from spark_log import clock
from spark_log.clients.consume.background import FORKED
from spark_log.clients.kafka_errors import kafka_errors
from spark_log.errors import IllegalStateError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")


class _Calls(threading.local):
    """The calls of one thread."""

    count = 0
    """Number of running calls, each inside the one before."""
    closing: Callable[[], None] | None = None
    """A close that runs when the outermost call returns."""


class ConsumerBase(Generic[R]):
    """A consumer of records of type R. Methods that are only `translated` may be called by any thread, the others by
    one thread at a time.
    """

    settings: Any
    _polling: Any

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._calls = _Calls()
        self._closed = False
        self._process = os.getpid()
        self._iterator: Iterator[R] | None = None

    def __enter__(self: Self) -> Self:
        return self

    def __iter__(self: Self) -> Self:
        return self

    def __next__(self) -> R:
        """Return the next record. Iteration ends after consumer_timeout_ms without a record, or after `close`."""
        timeout_ms = self.settings.consumer_timeout_ms
        forever = timeout_ms < 0 or math.isinf(timeout_ms)
        deadline_s = math.inf if forever else clock.monotonic_s() + timeout_ms / 1000
        while not self._polling.closed.is_set():
            polls = self._iterator is None
            try:
                if self._iterator is None:
                    self._iterator = self._poll_once(deadline_s)
                record = next(self._iterator, None)
            except IllegalStateError:
                if self._polling.closed.is_set():  # by another thread or a signal handler, while this one waited
                    break
                raise
            if record is not None:
                return record
            self._iterator = None
            if polls and clock.monotonic_s() >= deadline_s:
                raise StopIteration
        raise StopIteration("the consumer is closed")

    def _poll_once(self, deadline_s: float) -> Iterator[R]:
        """Return the records of one poll, which waits until `deadline_s` at most."""
        raise NotImplementedError

    def check_open(self) -> None:
        """Raise IllegalStateError if the consumer is closed, or if a child of the process that opened it calls."""
        if self._closed:
            raise IllegalStateError("the consumer is closed")
        if self._process != os.getpid():
            raise IllegalStateError(FORKED)

    def closes_later(self, close: Callable[[], None]) -> bool:
        """Return whether this thread is in a call. If so, `close` runs when that call returns, because a callback or a
        signal handler may have interrupted the call while it holds a lock that `close` needs.
        """
        if self._calls.count:
            self._calls.closing = self._calls.closing or close
        return self._calls.count > 0

    @contextmanager
    def in_call(self) -> Iterator[None]:
        """Count the block as a call. At the end of the outermost one, run the close that was requested meanwhile.

        An error of this close is only logged: to raise it would lose the result of the call.
        """
        calls = self._calls
        calls.count += 1
        try:
            yield
        finally:
            calls.count -= 1
            if not calls.count:
                closing, calls.closing = calls.closing, None
                if closing is not None:
                    try:
                        closing()
                    except Exception:
                        logger.exception("an error while the consumer was closed")

    @contextmanager
    def after_running_call(self, timeout_s: float) -> Iterator[None]:
        """Wait until the call of another thread returns, and exclude other calls during the block.
        The block counts as a call. Raises IllegalStateError if the other call does not return within `timeout_s`.
        """
        with self.in_call():
            if not self.lock.acquire(timeout=min(max(0.0, timeout_s), threading.TIMEOUT_MAX)):
                raise IllegalStateError("the consumer is in use by another thread, which does not return from poll")
            try:
                yield
            finally:
                self.lock.release()


S = TypeVar("S", bound=ConsumerBase[Any])


def translated(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorate a method that other threads may call too, so that its spark-log errors are also kafka-python's. Raise
    IllegalStateError after `close`: the method would open the cluster again.
    """

    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with kafka_errors(), self.in_call():
            if self._closed:
                raise IllegalStateError("the consumer is closed")
            return method(self, *args, **kwargs)

    return _as(method, call)


def exclusive(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorate a method that one thread at a time may call. It is `translated`, and raises IllegalStateError while
    another thread runs such a method, or after `close`.
    """

    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with kafka_errors(), self.in_call():
            if not self.lock.acquire(blocking=False):
                raise IllegalStateError("the consumer is in use by another thread: it is not safe to share")
            try:
                self.check_open()
                return method(self, *args, **kwargs)
            finally:
                self.lock.release()

    return _as(method, call)


def _as(method: Callable[P, R], call: Callable[P, R]) -> Callable[P, R]:
    """Give `call` the name, the documentation and the signature of `method`."""
    call.__name__, call.__doc__, call.__qualname__ = method.__name__, method.__doc__, method.__qualname__
    call.__wrapped__ = method  # type: ignore[attr-defined]  # for inspect.signature
    return call


def timeout_s(timeout_ms: object) -> float:
    """Convert milliseconds to seconds. Raises TypeError if it is not a number, ValueError if it is negative."""
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int | float):
        raise TypeError(f"timeout_ms must be a number, got {timeout_ms!r}")
    if not timeout_ms >= 0:
        raise ValueError(f"Timeout must not be negative, got {timeout_ms!r}")
    return timeout_ms / 1000


def record_count(max_records: object) -> int:
    """Return the checked number of records. Raises TypeError if it is not an integer, ValueError if it is below 1."""
    if isinstance(max_records, bool) or not isinstance(max_records, int):
        raise TypeError(f"max_records must be an integer, got {max_records!r}")
    if max_records <= 0:
        raise ValueError(f"max_records must be positive, got {max_records!r}")
    return max_records
