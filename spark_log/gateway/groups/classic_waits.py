"""Wakes waiting members of classic groups.

A member wakes when its group is in another state or generation, when it has been removed, or after its own timeout. A
change of the store costs one small read in one thread for all groups and members. Members that wake work in the threads
of their own clients. When a timeout changes a group, one of its members wakes. This member's next transaction in the
store makes the change.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spark_log.gateway.change_watch import ChangeWatch
from spark_log.gateway.shared_watches import News, Pause, SharedWatches
from spark_log.groups.classic.group import State
from spark_log.groups.classic.service import Mark, marks_of
from spark_log.metadata.store import Store

_PAUSE = Pause(s_min=0.02, factor=4.0, s_max=1.0)
"""Changes that follow each other are read together, and reads of up to 0.25 s use at most a fifth of a thread."""
_ALL = "members of classic groups"
"""The only key: one read serves all groups."""
_ADVANCE_MS = 1_000
"""A member that a timeout of the group has woken has this time to change the group, before the next member wakes."""


@dataclass(frozen=True, eq=False)
class WaitingMember:
    """A member that waits until its group differs from the state that it has seen."""

    group_id: str
    member_id: str
    state: State
    generation: int

    def differs(self, mark: Mark) -> bool:
        """Whether the group is in another state than the member has seen, or has lost the member."""
        return (self.state, self.generation) != (mark.state, mark.generation) or self.member_id not in mark.member_ids


class ClassicWaits:
    """The waiting members of classic groups at one gateway. Used by its event loop."""

    def __init__(self, store: Store, changes: ChangeWatch, call: Callable[..., Awaitable[Any]]) -> None:
        """`call` runs a function in a thread."""
        self._store, self._changes, self._call_in_thread = store, changes, call
        self._watches = SharedWatches[str, WaitingMember, bool](changes, self._read, _PAUSE)

    async def wait(self, member: WaitingMember, seen: int, wait_ms: int | None, timeout_s: float) -> None:
        """Return when the group may differ from the state that the member has seen, or after the timeout. `seen` is the
        number of the store's last change before that state was read. After `wait_ms` a timeout changes the group.
        """
        await self._watches.wait(_ALL, member, seen, timeout_s, wait_ms)

    async def _read(self, _key: str, members: Sequence[WaitingMember]) -> News[WaitingMember, bool]:
        news: News[WaitingMember, bool] = await self._call_in_thread(self._look, members)
        return news

    def _look(self, members: Sequence[WaitingMember]) -> News[WaitingMember, bool]:
        change = self._changes.current()
        marks = marks_of(self._store, [(each.group_id, each.member_id) for each in members])
        woken = {each for each in members if (mark := marks.get(each.group_id)) is None or each.differs(mark)}
        told = {each.group_id for each in woken}
        for member in members:
            if member.group_id not in told and marks[member.group_id].wait_ms == 0:
                woken.add(member)
                told.add(member.group_id)
        waits_ms = [mark.wait_ms or _ADVANCE_MS for mark in marks.values() if mark.wait_ms is not None]
        return News(change, lambda member: member in woken or None, min(waits_ms, default=None))
