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
from spark_log.groups.heartbeat_batches import UNCHANGED, Beat, BeatAnswer, answer_beats, renew_sessions
from spark_log.metadata.store import Store


class Heartbeats:
    """Answers heartbeats that have no news. Used by one event loop."""

    def __init__(self, store: Store, call: Callable[..., Awaitable[Any]]) -> None:
        """`call` runs a function in a thread."""
        self._store, self._call_in_thread = store, call
        self._reads = SharedCalls(self._read, MEMBERS_MAX)
        self._renewals = SharedCalls(self._renew, MEMBERS_MAX)
        self._version = -1
        self._valid_until_ms: dict[Beat, int] = {}
        """The time of the store's lease clock until which a heartbeat changes nothing, at `_version` of the store."""

    async def answer(self, beat: Beat) -> BeatAnswer:
        """Keep the session alive, unless the heartbeat must be handled alone. Raises UnknownMemberIdError,
        FencedInstanceIdError and MetadataStoreUnavailableError.
        """
        if self._store.changes.exact and self._is_known(beat):
            return UNCHANGED
        if not all(map(can_be_stored, (beat.group_id, beat.member_id, beat.instance_id or ""))):
            raise UnknownMemberIdError("names with characters that cannot be stored")  # nor read, beside others
        answer = await self._read_of(beat)
        if answer.renewal_due and not await self._renewals.submit(beat):
            answer = await self._read_of(beat)
        if answer.error is not None:
            raise answer.error
        return answer

    async def _read_of(self, beat: Beat) -> BeatAnswer:
        """One whose member has much in the store comes after those that have arrived meanwhile."""
        while (answer := await self._reads.submit(beat)).later:
            pass
        return answer

    def _is_known(self, beat: Beat) -> bool:
        version = self._store.changes.current()
        if version != self._version:
            self._version = version
            self._valid_until_ms.clear()
            return False
        until_ms = self._valid_until_ms.get(beat)
        return until_ms is not None and self._store.now().lease_ms < until_ms

    async def _read(self, beats: Sequence[Beat]) -> Sequence[BeatAnswer]:
        version = self._version  # of before the read: a commit since then changes it
        answers: Sequence[BeatAnswer] = await self._call_in_thread(answer_beats, self._store, beats)
        if self._store.changes.exact and version == self._version:
            for beat, answer in zip(beats, answers, strict=True):
                if answer.error is None and not (answer.rejoin or answer.alone or answer.later):
                    self._valid_until_ms[beat] = answer.valid_until_ms
        return answers

    async def _renew(self, beats: Sequence[Beat]) -> Sequence[bool]:
        renewed: Sequence[bool] = await self._call_in_thread(renew_sessions, self._store, beats)
        return renewed
