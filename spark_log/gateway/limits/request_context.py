"""Facts about the request that the current task answers."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from time import thread_time
from typing import ParamSpec, TypeVar

from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.limits.request_memory import RequestMemory

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


@dataclass(frozen=True)
class RequestContext:
    """`lane`, `client` and `name` say whose threads its blocking calls use (see `Bulkheads`).

    `memory` is None for calls of the gateway itself. `cpu` is None while CPU time is not measured, which quota
    request_percentage limits.
    """

    lane: Lane = Lane.OWN
    client: str = ""
    name: str | None = None
    memory: RequestMemory | None = None
    cpu: CpuTime | None = None


request_context: ContextVar[RequestContext] = ContextVar("request_context", default=RequestContext())  # noqa: B039
