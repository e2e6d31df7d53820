"""Wakes waiting members of classic groups: one task checks the groups of all of them whenever the store changes.

A member wakes when its group is in another state or generation, when it has been removed, or after its own timeout. A
change of the store costs one small read in one thread for all groups and members. Members that wake work in the threads
of their own clients. When time alone changes a group, one of its members wakes, and its next request to the store makes
that change.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from spark_log.errors import SparkLogError
from spark_log.gateway.change_watch import ChangeWatch
from spark_log.groups.classic.group import State
from spark_log.groups.classic.service import Mark, marks_of
from spark_log.metadata.store import Store

_PAUSE_S_MIN, _PAUSE_S_MAX, _PAUSE_FACTOR = 0.02, 1.0, 4
"""The pause after a check of groups is `_PAUSE_FACTOR` times as long as the check, within these limits. So changes that
follow each other are checked together, and checks of up to 0.25 s use at most a fifth of a thread.
"""
_LOOK_AGAIN_S = 30.0
"""The longest time until a group is checked again."""
_ADVANCE_S = 1.0
"""How long the member that wakes because of the time has to change its group, before the next one wakes."""
_AGAIN_S = 1.0
"""The pause after an error of the store."""


@dataclass(frozen=True, eq=False)
class _Waiting:
    member_id: str
    state: State
    generation: int
    woken: "asyncio.Future[None]"


@dataclass
class _Group:
    """The waiting members of a group. At `look_at_s` the group is checked even if nothing has changed. It is checked at
    once after another member began to wait, because an earlier change may not have woken that member.
    """

    waiting: list[_Waiting] = field(default_factory=list)
    look_at_s: float = 0.0


class ClassicWaits:
    """The waiting members of classic groups at one gateway. Used by its event loop."""

    def __init__(self, store: Store, changes: ChangeWatch, call: Callable[..., Awaitable[Any]]) -> None:
        """`call` runs a function in a thread."""
        self._store, self._changes, self._call_in_thread = store, changes, call
        self._groups: dict[str, _Group] = {}
        self._joined = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, group_id: str, member_id: str, state: State, generation: int, timeout_s: float) -> None:
        """Return when the group may differ from this state, which the member has seen, or after the timeout."""
        group = self._groups.setdefault(group_id, _Group())
        me = _Waiting(member_id, state, generation, asyncio.get_running_loop().create_future())
        group.waiting.append(me)
        group.look_at_s = 0.0
        self._joined.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(me.woken, timeout_s)
        finally:
            group.waiting.remove(me)
            if not group.waiting:
                del self._groups[group_id]
            if not self._groups and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _run(self) -> None:
        seen: int | None = None
        while True:
            self._joined.clear()
            try:
                before, seen = seen, await self._call_in_thread(self._changes.current)
            except SparkLogError:
                before, seen = seen, None
            now_s = _now_s()
            all_due = seen is None or seen != before
            due = {key: group for key, group in self._groups.items() if all_due or group.look_at_s <= now_s}
            await self._look(due)
            took_s = _now_s() - now_s
            await asyncio.sleep(min(max(_PAUSE_S_MIN, _PAUSE_FACTOR * took_s), _PAUSE_S_MAX))
            next_s = min((group.look_at_s for group in self._groups.values()), default=0.0)
            left_s = max(next_s - _now_s(), 0.0)
            changed = asyncio.sleep(_AGAIN_S) if seen is None else self._changes.wait(seen, left_s)
            await _first_of(changed, self._joined.wait())

    async def _look(self, groups: dict[str, _Group]) -> None:
        for group in groups.values():  # before the read: `wait` sets it to 0 if a member begins to wait during it
            group.look_at_s = _now_s() + _LOOK_AGAIN_S
        keys = [(key, member.member_id) for key, group in groups.items() for member in group.waiting]
        if not keys:
            return
        marks: dict[str, Mark] | None = None
        with contextlib.suppress(SparkLogError):  # the members wake, and get the error of their own reads
            marks = await self._call_in_thread(marks_of, self._store, keys)
        for group_id, group in groups.items():
            mark = None if marks is None else marks.get(group_id)
            waiting = [member for member in group.waiting if not member.woken.done()]
            woken = [member for member in waiting if mark is None or _differs(mark, member)]
            if mark is not None and mark.wait_ms is not None:
                wait_s = mark.wait_ms / 1000
                if wait_s == 0:
                    woken, wait_s = woken or waiting[:1], _ADVANCE_S
                group.look_at_s = min(group.look_at_s, _now_s() + wait_s)
            for member in woken:
                member.woken.set_result(None)


def _differs(mark: Mark, waiting: _Waiting) -> bool:
    """Whether the group has changed for the member."""
    seen = waiting.state, waiting.generation
    return seen != (mark.state, mark.generation) or waiting.member_id not in mark.member_ids


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.create_task(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
