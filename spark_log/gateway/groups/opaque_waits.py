"""Members of opaque groups that wait: one task looks at their group for all of them, whenever the store changes.

A member wakes when the group is in another state or generation, when it is no member any more, or after its own time.
So the members that wait cost one small read for each change of the store, however many they are.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from spark_log.errors import SparkLogError
from spark_log.gateway.change_watch import ChangeWatch
from spark_log.gateway.services import Services
from spark_log.groups.opaque.opaque_operations import advance_opaque, mark_of
from spark_log.groups.opaque.rules import State

_LOOK_EVERY_S = 0.02
"""Changes that follow at once are looked at together."""
_LOOK_AGAIN_S = 30.0
"""At the latest."""


@dataclass(frozen=True)
class _Waiting:
    member_id: str
    state: State
    generation: int
    woken: "asyncio.Future[None]"


@dataclass
class _Watch:
    """Of one group. `joined` is set when another member waits: what has changed before may not have woken it."""

    waiting: list[_Waiting] = field(default_factory=list)
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


_watches: "WeakKeyDictionary[ChangeWatch, dict[str, _Watch]]" = WeakKeyDictionary()
"""By group, of each gateway."""


async def wait_for_change(
    services: Services, group_id: str, member_id: str, state: State, generation: int, timeout_s: float
) -> None:
    """Return when the group that the member has seen in this state may have changed for it, or after the time."""
    watches = _watches.setdefault(services.changes, {})
    watch = watches.setdefault(group_id, _Watch())
    me = _Waiting(member_id, state, generation, asyncio.get_running_loop().create_future())
    watch.waiting.append(me)
    watch.joined.set()
    if watch.task is None:
        watch.task = asyncio.create_task(_look(services, group_id, watch))
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(me.woken, timeout_s)
    finally:
        watch.waiting.remove(me)
        if not watch.waiting and watches.get(group_id) is watch:
            del watches[group_id]
            watch.task.cancel()


async def _look(services: Services, group_id: str, watch: _Watch) -> None:
    call, store = services.bulkheads.run_own, services.cluster.store
    while True:
        watch.joined.clear()
        try:
            seen = await call(services.changes.current)
            mark = await call(mark_of, store, group_id)
            if mark is not None and mark.wait_ms == 0:
                await call(advance_opaque, store, group_id)
                await asyncio.sleep(_LOOK_EVERY_S)
                continue
        except SparkLogError:
            mark = None  # the members have the error of their own reads
        for each in watch.waiting:
            if each.woken.done() or (
                mark is not None
                and (mark.state, mark.generation) == (each.state, each.generation)
                and each.member_id in mark.member_ids
            ):
                continue
            each.woken.set_result(None)
        await asyncio.sleep(_LOOK_EVERY_S)
        left_s = _LOOK_AGAIN_S if mark is None or mark.wait_ms is None else mark.wait_ms / 1000
        await _first_of(services.changes.wait(seen, left_s), watch.joined.wait())


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.create_task(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
