"""Answers heartbeats of all connections together: those that arrive while the store is read share the next read.

The store decides each answer. If every commit is noticed at once (SQLite), an answer is reused until something is
committed or a session of the group ends.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from spark_log.config.values import can_be_stored
from spark_log.errors import UnknownMemberIdError
from spark_log.gateway.limits.shared_calls import SharedCalls
from spark_log.groups.batch_rows import MEMBERS_MAX
from spark_log.groups.heartbeat_batches import UNCHANGED, Heartbeat, HeartbeatAnswer, answer_heartbeats, renew_sessions
from spark_log.metadata.store import Store


class Heartbeats:
    """Answers heartbeats that have no news. Used by one event loop."""

    def __init__(self, store: Store, call: Callable[..., Awaitable[Any]]) -> None:
        """`call` runs a function in a thread."""
        self._store, self._call_in_thread = store, call
        self._reads = SharedCalls(self._read, MEMBERS_MAX)
        self._renewals = SharedCalls(self._renew, MEMBERS_MAX)
        self._version = -1
        self._valid_until_ms: dict[Heartbeat, int] = {}
        """The time of the store's lease clock until which a heartbeat changes nothing, at `_version` of the store."""

    async def answer(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Keep the session alive, unless the heartbeat must be handled alone. Raises UnknownMemberIdError,
        FencedInstanceIdError and MetadataStoreUnavailableError.
        """
        if self._store.changes.exact and self._is_known(heartbeat):
            return UNCHANGED
        if not all(map(can_be_stored, (heartbeat.group_id, heartbeat.member_id, heartbeat.instance_id or ""))):
            raise UnknownMemberIdError("names with characters that cannot be stored")  # a read would fail for all
        answer = await self._read_of(heartbeat)
        if answer.renewal_due and not await self._renewals.submit(heartbeat):
            answer = await self._read_of(heartbeat)
        if answer.error is not None:
            raise answer.error
        return answer

    async def _read_of(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Return the answer. A heartbeat whose member has much data in the store comes after those that have arrived
        meanwhile.
        """
        while (answer := await self._reads.submit(heartbeat)).later:
            pass
        return answer

    def _is_known(self, heartbeat: Heartbeat) -> bool:
        version = self._store.changes.current()
        if version != self._version:
            self._version = version
            self._valid_until_ms.clear()
            return False
        until_ms = self._valid_until_ms.get(heartbeat)
        return until_ms is not None and self._store.now().lease_ms < until_ms

    async def _read(self, heartbeats: Sequence[Heartbeat]) -> Sequence[HeartbeatAnswer]:
        version = self._version  # before the read: a later commit changes it
        answers: Sequence[HeartbeatAnswer] = await self._call_in_thread(answer_heartbeats, self._store, heartbeats)
        if self._store.changes.exact and version == self._version:
            for heartbeat, answer in zip(heartbeats, answers, strict=True):
                if answer.error is None and not (answer.rejoin or answer.alone or answer.later):
                    self._valid_until_ms[heartbeat] = answer.valid_until_ms
        return answers

    async def _renew(self, heartbeats: Sequence[Heartbeat]) -> Sequence[bool]:
        renewed: Sequence[bool] = await self._call_in_thread(renew_sessions, self._store, heartbeats)
        return renewed
