"""Manages the membership of a consumer in its group: sends heartbeats, and applies new assignments.

Rebalances are cooperative: only the partitions that move are revoked; the others are read without a pause. Custom
assignors that are not cooperative are the exception: each rebalance revokes all partitions. The steps are all inside
`poll`:

    heartbeat response without partition P    ->  commit (automatic), on_partitions_revoked({P}), P is dropped
    the next heartbeat reports this           ->  another member may get P
    heartbeat response with partition Q       ->  on_partitions_assigned({Q}), Q is read from its committed offset

Commits of P are accepted until the heartbeat that reports its revocation. The loss of the session drops all partitions
and calls on_partitions_lost.
"""

import asyncio
import inspect
import logging
import socket
from collections.abc import Callable, Collection
from typing import Any

from kafka.errors import KafkaError
from kafka.structs import MemberState, TopicPartition

from spark_log import clock, ids
from spark_log.clients.consume.background import Background
from spark_log.clients.consume.consumer_settings import ConsumerSettings
from spark_log.clients.consume.offset_commits import Offsets
from spark_log.clients.consume.subscription import Move, Subscription, move_of
from spark_log.cluster.cluster import Cluster
from spark_log.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    IllegalGenerationError,
    UnknownMemberIdError,
)
from spark_log.groups.assignors import is_custom, resolve_assignors
from spark_log.groups.membership import ConsumerMembership, MemberSettings, Membership
from spark_log.groups.transacted_offsets import GroupMetadata

logger = logging.getLogger(__name__)

_AGAIN_S = 0.05
"""Minimum time between two checks of the group while the store changes."""


def new_member(cluster: Cluster, settings: ConsumerSettings) -> Membership:
    """Return a membership by the consumer protocol. If an assignor is custom, the membership is by the classic
    protocol, in which a member runs the assignor.
    """
    assert settings.group_id is not None
    member_settings = MemberSettings(
        client_id=settings.client_id,
        host=socket.gethostname(),
        instance_id=settings.group_instance_id,
        session_timeout_ms=settings.session_timeout_ms,
        rebalance_timeout_ms=settings.max_poll_interval_ms,
    )
    assignors = resolve_assignors(settings.partition_assignment_strategy)
    if any(map(is_custom, assignors.values())):
        from spark_log.groups.custom_assignor_membership import ClassicMembership  # few consumers need it

        return ClassicMembership(cluster, settings.group_id, member_settings, assignors)
    return ConsumerMembership(cluster, settings.group_id, member_settings, list(assignors))


class GroupSide:
    """The membership of one consumer. The background thread calls `keep_alive` and `commit`; the polling thread calls
    the other methods.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        subscription: Subscription,
        background: Background,
        commit_before_revocation: Callable[[], None],
    ) -> None:
        self.member = new_member(cluster, settings)
        self.joined = False
        self.rebalances = 0
        self._cluster = cluster
        self._settings = settings
        self._subscription = subscription
        self._background = background
        self._commit_before_revocation = commit_before_revocation
        self._polled_s = clock.monotonic_s()
        self._alive_s = clock.monotonic_s()
        self.joined_as = ""
        """Member id of the last join."""
        self._topics: frozenset[str] = frozenset()
        self._complete = False
        self._due = True
        self._overdue = False
        self._left = False
        """Whether `leave` was called during the last `poll`: a listener or a signal handler may close the consumer."""
        self._leaving = False
        self._changes_read: int | None = None
        self._asked_s = float("-inf")
        self._background_beats = False

    @property
    def settled(self) -> bool:
        """Whether this is a member, and its assignment is complete and applied."""
        return self.joined and self._complete and not self._due

    def metadata(self) -> GroupMetadata:
        """Return the identity of this member for a transactional producer."""
        state = MemberState.UNJOINED
        if self.joined:
            state = MemberState.STABLE if self.settled else MemberState.REBALANCING
        return GroupMetadata(
            self._settings.group_id,
            self.member.generation if self.joined else -1,
            self.joined_as if self._subscription.automatic else "",
            self._settings.group_instance_id,
            state,
        ).of_topics(self._subscription.topic_ids())

    def poll(self, topics: Collection[str]) -> None:
        """Join or send a heartbeat if that is due, and apply the assignment of the response."""
        self._polled_s = clock.monotonic_s()
        self._left = False
        # the second condition: the membership has ended since the last poll, for example by fencing
        if self._overdue or (self.joined and self.member.member_id != self.joined_as):
            self.lose_session()
        if self._left or not self._is_due(frozenset(topics)):
            return
        self._topics = frozenset(topics)
        self._due = False
        while not self._left:
            self._asked_s = self._polled_s = clock.monotonic_s()  # a listener may have taken long
            self._changes_read = self._cluster.store.changes.current()
            try:
                owned = {ids.TopicPartition(*partition) for partition in self._subscription.partitions}
                answer = self.member.heartbeat(self._topics, owned)
            except UnknownMemberIdError:
                self._due = True
                if not self.joined:
                    raise
                self.lose_session()
                continue
            except FencedInstanceIdError:
                self._due = True
                self.lose_session()
                raise
            except BaseException:
                self._due = True
                raise
            self._alive_s = self._asked_s
            if self._left:  # the heartbeat has joined again
                self.member.leave()
                return
            if self.joined and self.member.member_id != self.joined_as:
                self.lose_session()
                if self._left:
                    return
                self._due = False
            first = not self.joined
            self.joined_as = self.member.member_id
            self.joined = True
            self._complete = answer.complete
            if not self._background_beats:
                self._background.call_every(self._settings.heartbeat_interval_ms / 1000, self.keep_alive)
                self._background_beats = True
            move = move_of(self._subscription.partitions, answer.partitions)
            self._apply(move, first=first)
            if not move.revoked and (not move.added or answer.complete):
                return

    def _is_due(self, topics: frozenset[str]) -> bool:
        if self._due or not self.joined or topics != self._topics:
            return True
        now_s = clock.monotonic_s()
        if now_s - self._alive_s > self._settings.session_timeout_ms / 1000:
            return True  # this process was suspended: other members may own its partitions now
        if now_s - self._asked_s < _AGAIN_S:
            return False
        if not self._complete and now_s - self._asked_s >= self._settings.retry_backoff_ms / 1000:
            return True
        changes = self._cluster.store.changes.current()
        if changes == self._changes_read:
            return False
        self._changes_read, self._asked_s = changes, now_s
        return not self._complete or self.member.keep_alive()

    def time_to_ask_s(self) -> float:
        """Return the maximum time until the next call of `poll`."""
        if self._due or not self.joined:
            return self._settings.retry_backoff_ms / 1000
        if not self._complete or self._cluster.store.changes.current() != self._changes_read:
            return max(0.001, self._asked_s + _AGAIN_S - clock.monotonic_s())
        return self._settings.heartbeat_interval_ms / 1000

    def keep_alive(self) -> None:
        """Send a heartbeat (background thread). After max_poll_interval_ms without a poll, leave the group instead."""
        if not self.joined or self._overdue:
            return
        silent_s = clock.monotonic_s() - self._polled_s
        if silent_s * 1000 > self._settings.max_poll_interval_ms:
            logger.warning(
                "no poll for %.0f s, more than max_poll_interval_ms: leaving group %s until the next one",
                silent_s,
                self._settings.group_id,
            )
            self._overdue = True
            self.member.leave()
            return
        began_s = clock.monotonic_s()
        try:
            self._due = self.member.keep_alive() or self._due
            self._alive_s = began_s
        except (UnknownMemberIdError, FencedInstanceIdError):
            self._due = True  # the heartbeat of the next poll handles the error

    def commit(self, offsets: Offsets) -> None:
        if not self.joined or self._overdue:
            raise CommitFailedError("not a member of the group: the commit is of partitions that others may own")
        try:
            ours = {ids.TopicPartition(*partition): offset for partition, offset in offsets.items()}
            self.member.commit(ours, timeout_ms=self._settings.request_timeout_ms)
        except (UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError):
            self._due = True  # the heartbeat of the next poll handles the error
            raise

    def lose_session(self) -> None:
        """Drop all partitions, without a commit, because the session is lost."""
        self.joined = self._overdue = False
        self._due = True
        lost = set(self._subscription.partitions)
        try:
            if lost:
                self._notify("on_partitions_lost", lost)
        finally:
            self._subscription.apply(Move(frozenset(lost), frozenset()))

    def leave(self) -> None:
        """Drop all partitions and leave. A static member stays in the group until its session ends. The listener may
        call this again, and is not called a second time.
        """
        revoked = frozenset(self._subscription.partitions)
        again, self._leaving = self._leaving, True
        try:
            if revoked and not again:
                mine = self.joined and not self._overdue
                self._notify("on_partitions_revoked" if mine else "on_partitions_lost", set(revoked))
        finally:
            self._leaving = again
            self._subscription.apply(Move(revoked, frozenset()))
            self.joined = False
            self._due = self._left = True
            self.member.leave()

    def _apply(self, move: Move, *, first: bool) -> None:
        """Revoke and assign partitions. If the listener fails, both steps are still done; then its error is raised."""
        failure: Exception | None = None
        if move.revoked or move.added:
            self.rebalances += 1
        if move.revoked:
            self._commit_before_revocation()
            if self._left:  # a commit callback has closed the consumer
                return
            for partition in move.revoked:
                self._subscription.partitions[partition].leaving = True
            try:
                self._notify("on_partitions_revoked", set(move.revoked))
            except Exception as error:
                failure = error
        if not self._left:
            self._subscription.apply(move)
            if move.added or first:
                try:
                    self._notify("on_partitions_assigned", set(move.added))
                except Exception as error:
                    failure = error
        if failure is not None:
            self._due = True
            raise failure

    def _notify(self, method: str, partitions: set[TopicPartition]) -> None:
        listener = self._subscription.listener
        if listener is None:
            return
        try:
            result: Any = getattr(listener, method)(partitions)
            if inspect.isawaitable(result):
                _await(result)
        except Exception as error:
            logger.exception("listener %s failed in %s of %s", listener, method, sorted(partitions))
            raise KafkaError("User rebalance callback throws an error") from error


def _await(result: Any) -> None:
    """Wait for an asynchronous listener. It has an event loop of its own in this thread, because the consumer refuses
    most calls of other threads. An event loop in which `poll` was called waits meanwhile.
    """
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(_awaited(result))
    finally:
        asyncio._set_running_loop(running)


async def _awaited(result: Any) -> None:
    await result
