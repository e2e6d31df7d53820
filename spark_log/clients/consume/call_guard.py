"""Decorators and argument checks of a consumer's methods: they translate errors and forbid concurrent calls."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from spark_log.clients.kafka_errors import kafka_errors
from spark_log.errors import IllegalStateError

if TYPE_CHECKING:
    from threading import RLock

P = ParamSpec("P")
R = TypeVar("R")


class Guarded:
    """A client that only one thread at a time may use."""

    lock: "RLock"
    running_calls = 0
    """Number of `exclusive` calls of the thread that holds the lock, of which one is inside another."""
    closing_after_call: Callable[[], None] | None = None

    def check_open(self) -> None:
        """Raise IllegalStateError if it is closed."""
        raise NotImplementedError

    def closes_later(self, close: Callable[[], None]) -> bool:
        """Whether this thread is in a call: then `close` runs when that call returns. A callback or a signal handler
        may have interrupted it anywhere, also while it holds a lock that `close` needs.
        """
        if not self.lock.acquire(blocking=False):
            return False
        try:
            if self.running_calls:
                self.closing_after_call = self.closing_after_call or close
            return self.running_calls > 0
        finally:
            self.lock.release()

    @contextmanager
    def after_running_call(self, timeout_s: float) -> Iterator[None]:
        """Wait until the call of another thread returns, and exclude other calls during the block. Raises
        IllegalStateError if it does not return in time.
        """
        if not self.lock.acquire(timeout=max(0.0, timeout_s)):
            raise IllegalStateError("the consumer is in use by another thread, which does not return from poll")
        try:
            yield
        finally:
            self.lock.release()


S = TypeVar("S", bound=Guarded)


def translated(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method so that its spark-log errors are also kafka-python's."""
    return kafka_errors()(method)


def exclusive(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Translate errors; raise IllegalStateError while another thread runs such a method, or after `close`."""

    def call(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        with kafka_errors():
            if not self.lock.acquire(blocking=False):
                raise IllegalStateError("the consumer is in use by another thread: it is not safe to share")
            closing: Callable[[], None] | None = None
            self.running_calls += 1
            try:
                self.check_open()
                return method(self, *args, **kwargs)
            finally:
                self.running_calls -= 1
                if not self.running_calls:
                    closing, self.closing_after_call = self.closing_after_call, None
                self.lock.release()
                if closing is not None:
                    closing()

    call.__name__, call.__doc__, call.__qualname__ = method.__name__, method.__doc__, method.__qualname__
    call.__wrapped__ = method  # type: ignore[attr-defined]  # for inspect.signature
    return cast(Callable[Concatenate[S, P], R], call)


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
