"""Holds facts about the request that the current task answers."""

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
    """Counts CPU seconds of the threads that work for a request. The calls of `measure` do not overlap."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def measure(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call the function, and add the CPU time that this thread uses for it."""
        began_s = thread_time()
        try:
            return function(*arguments, **keywords)
        finally:
            self.seconds += thread_time() - began_s


@dataclass(frozen=True)
class RequestContext:
    """The limits that apply to a request. Its blocking calls use threads of `lane`, `client` and `name` (`Bulkheads`).

    `memory` is None for calls of the gateway itself. `cpu` is None if no quota request_percentage limits the client:
    then CPU time is not measured.
    """

    lane: Lane = Lane.OWN
    client: str = ""
    name: str | None = None
    memory: RequestMemory | None = None
    cpu: CpuTime | None = None


request_context: ContextVar[RequestContext] = ContextVar("request_context", default=RequestContext())  # noqa: B039
