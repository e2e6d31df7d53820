"""Decorators and argument checks of a consumer's methods: translation of errors, and the ban on concurrent calls."""

from collections.abc import Callable
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

    def check_open(self) -> None:
        """IllegalStateError if it is closed."""
        raise NotImplementedError


S = TypeVar("S", bound=Guarded)


def translated(method: Callable[P, R]) -> Callable[P, R]:
    """The method's spark-log errors are raised as kafka-python's errors too."""
    return kafka_errors()(method)


def exclusive(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """As `translated`. Also raises IllegalStateError while another thread runs such a method, and after `close`."""

    def call(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        with kafka_errors():
            if not self.lock.acquire(blocking=False):
                raise IllegalStateError("the consumer is in use by another thread: it is not safe to share")
            try:
                self.check_open()
                return method(self, *args, **kwargs)
            finally:
                self.lock.release()

    call.__name__, call.__doc__, call.__qualname__ = method.__name__, method.__doc__, method.__qualname__
    call.__wrapped__ = method  # type: ignore[attr-defined]  # for inspect.signature
    return cast(Callable[Concatenate[S, P], R], call)


def timeout_s(timeout_ms: object) -> float:
    """Milliseconds to seconds. TypeError for a value that is not a number, ValueError for a negative one."""
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int | float):
        raise TypeError(f"timeout_ms must be a number, got {timeout_ms!r}")
    if not timeout_ms >= 0:
        raise ValueError(f"Timeout must not be negative, got {timeout_ms!r}")
    return timeout_ms / 1000


def record_count(max_records: object) -> int:
    """The checked number of records. TypeError for a value that is not an integer, ValueError below 1."""
    if isinstance(max_records, bool) or not isinstance(max_records, int):
        raise TypeError(f"max_records must be an integer, got {max_records!r}")
    if max_records <= 0:
        raise ValueError(f"max_records must be positive, got {max_records!r}")
    return max_records
