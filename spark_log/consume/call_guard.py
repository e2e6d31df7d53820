"""What every call of a consumer has in common: whose errors it raises, and who may make it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from spark_log.errors import IllegalStateError
from spark_log.kafka_errors import kafka_errors

if TYPE_CHECKING:
    from threading import RLock

P = ParamSpec("P")
R = TypeVar("R")


class Guarded:
    """A client that one thread at a time may use."""

    lock: "RLock"

    def check_open(self) -> None:
        """IllegalStateError if it is closed."""
        raise NotImplementedError


S = TypeVar("S", bound=Guarded)


def translated(method: Callable[P, R]) -> Callable[P, R]:
    """What the method raises of our errors is kafka-python's too."""
    return kafka_errors()(method)


def alone(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """As `translated`; and IllegalStateError while another thread is inside such a method, or after `close`."""

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
    """Seconds; TypeError, ValueError for what is not a time."""
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int | float):
        raise TypeError(f"timeout_ms must be a number, got {timeout_ms!r}")
    if not timeout_ms >= 0:
        raise ValueError(f"Timeout must not be negative, got {timeout_ms!r}")
    return timeout_ms / 1000


def record_count(max_records: object) -> int:
    """A number of records; TypeError, ValueError for what is none."""
    if isinstance(max_records, bool) or not isinstance(max_records, int):
        raise TypeError(f"max_records must be an integer, got {max_records!r}")
    if max_records <= 0:
        raise ValueError(f"max_records must be positive, got {max_records!r}")
    return max_records
