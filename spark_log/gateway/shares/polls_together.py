"""Runs the polls of all connections together: those that arrive while a transaction runs share the next one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from spark_log.errors import SparkLogError
from spark_log.gateway.limits.bulkheads import CpuTime
from spark_log.gateway.limits.shared_calls import SharedCalls
from spark_log.groups.share.polling import Steps
from spark_log.groups.share.service import Outcome, Poll, run_polls
from spark_log.metadata.store import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")
_TOGETHER_MAX = 64
"""The number of polls in one transaction."""


@dataclass
class _Running(Generic[T]):
    """A request whose steps are being taken."""

    steps: Steps[T]
    cpu: CpuTime | None
    poll: Poll | None = None
    """The next transaction, or None if the next step blocks or the steps have ended."""
    has_begun: bool = False
    is_abandoned: bool = False
    """Whether the client has gone. Transactions that were begun are completed, so that locks are released."""
    results: list[T] = field(default_factory=list)
    error: Exception | None = None

    @property
    def has_ended(self) -> bool:
        return bool(self.results) or self.error is not None

    def go_on_measured(self, outcome: Outcome | None = None) -> None:
        """Go to the next step, and count the CPU time for the request: this thread works for many requests."""
        if self.cpu is None:
            self.go_on(outcome)
        else:
            self.cpu.measure(self.go_on, outcome)

    def go_on(self, outcome: Outcome | None = None) -> None:
        self.has_begun = True
        self._to(lambda: self.steps.send(outcome))

    def fail(self, error: Exception) -> None:
        """Go to the next step after a transaction that has failed."""
        self._to(lambda: self.steps.throw(error))

    def _to(self, advance: Callable[[], Poll | None]) -> None:
        self.poll = None
        try:
            self.poll = advance()
        except StopIteration as end:
            self.results.append(end.value)
        except Exception as error:
            self.error = error


class PollsTogether:
    """Runs one transaction at a time, so that the speed of the store, not the number of clients, limits transactions. A
    step that blocks runs in a thread of its request, and delays no other request. Used by one event loop.
    """

    def __init__(self, store: Store, run_own: Callable[..., Awaitable[Any]]) -> None:
        """`run_own` calls a function in a thread of the gateway."""
        self._store, self._run_own = store, run_own
        self._next = SharedCalls(self._run_all, _TOGETHER_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, steps: Steps[T], call: Callable[..., Awaitable[Any]], cpu: CpuTime | None = None) -> T:
        """Take all steps, and return their result. `call` calls a function in a thread of the request. `cpu` counts the
        request's work in other threads.
        """
        running = _Running(steps, cpu)
        task = asyncio.create_task(self._drive(running, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            running.is_abandoned = True
            raise
        if running.error is not None:
            raise running.error
        [result] = running.results
        return result

    async def _drive(self, running: _Running[Any], call: Callable[..., Awaitable[Any]]) -> None:
        while not running.has_ended:
            needs_poll = running.poll is not None
            if running.is_abandoned and not needs_poll:
                running.steps.close()
                return
            try:
                if needs_poll or not running.has_begun:
                    await self._next.submit(running)
                else:
                    await call(running.go_on)
            except Exception as error:
                running.error = error

    async def _run_all(self, together: Sequence[_Running[Any]]) -> Sequence[None]:
        await self._run_own(self._advance, together)
        return [None] * len(together)

    def _advance(self, together: Sequence[_Running[Any]]) -> None:
        """Begin the requests that have not begun, and run one transaction for all that need one."""
        for running in together:
            if not running.has_begun and not running.is_abandoned:
                running.go_on_measured()
        transacted = [(running, running.poll) for running in together if running.poll is not None]
        if not transacted:
            return
        try:
            outcomes = run_polls(self._store, [poll for _, poll in transacted])
        except Exception as error:
            if isinstance(error, SparkLogError) or len(transacted) == 1:
                for running, _ in transacted:
                    running.fail(error)
            else:
                logger.exception("a transaction of %d polls failed; each runs alone", len(transacted))
                for running, _ in transacted:
                    self._advance([running])
            return
        for (running, _), outcome in zip(transacted, outcomes, strict=True):
            running.go_on_measured(outcome)
