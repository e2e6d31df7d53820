"""CPU time of a request, which quota request_percentage limits."""

from collections.abc import Callable
from contextvars import ContextVar
from time import thread_time
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class CpuTime:
    """CPU seconds of the threads that work for a request. Its calls run one after the other."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def measure(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call it, and add the CPU time of this thread."""
        began_s = thread_time()
        try:
            return function(*arguments, **keywords)
        finally:
            self.seconds += thread_time() - began_s


cpu_of_request: ContextVar[CpuTime | None] = ContextVar("cpu_of_request", default=None)
"""Of the request that the current task answers; None while it is not measured."""
