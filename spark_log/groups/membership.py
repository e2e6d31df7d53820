"""Manages a consumer's membership in a group: it joins, sends heartbeats, commits with fencing, and leaves."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import sqlalchemy as sa
from kafka.structs import OffsetAndMetadata

from spark_log.cluster.cluster import Cluster
from spark_log.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    SparkLogError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from spark_log.groups.assignors import known_assignors
from spark_log.groups.committed_offsets import check_commits, refuse_unknown, write_commits
from spark_log.groups.committers import check_committer
from spark_log.groups.consumer.heartbeat import ConsumerHeartbeat
from spark_log.groups.consumer.rules import JOINING, LEAVING, LEAVING_FOR_A_WHILE, NO_PARTITIONS, Assignment
from spark_log.groups.consumer.service import consumer_heartbeat, leave_consumer
from spark_log.groups.group_names import check_group_id, check_instance_id, check_session_timeout, new_member_id
from spark_log.groups.heartbeat_batches import Heartbeat, answer_heartbeats, renew_sessions
from spark_log.groups.identity import Identity
from spark_log.ids import TopicPartition
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS

_NOT_JOINED = -1
"""The generation of a consumer that is not a member."""


@dataclass(frozen=True)
class MemberSettings:
    """The settings with which a member joins."""

    client_id: str
    host: str
    instance_id: str | None
    """group.instance.id of a static member."""
    session_timeout_ms: int
    """Milliseconds without a heartbeat, by the store's clock, that end the membership."""
    rebalance_timeout_ms: int
    """Milliseconds in which the member must give up partitions: Kafka's max.poll.interval.ms."""


class Membership(ABC):
    """The membership of one consumer in a group. Threads may share it. It runs one heartbeat, commit or leave at once.

    It joins with its first heartbeat, and again with the first one after its session was lost. Members communicate
    through the store only.
    """

    def __init__(self, cluster: Cluster, group_id: str, settings: MemberSettings) -> None:
        """Raises InvalidGroupIdError, InvalidSessionTimeoutError, or InvalidConfigurationError (instance id)."""
        self.group_id = check_group_id(group_id)
        self.settings = settings
        self.member_id = ""
        """Empty while the consumer is not a member."""
        self.generation = _NOT_JOINED
        """The generation of its assignment, which is the member epoch in the consumer protocol; -1 before it joins."""
        self._new_id = ""
        """The member id of a join that has not succeeded yet, or empty. The next join repeats it, because one that
        failed may have been written."""
        check_session_timeout(settings.session_timeout_ms, cluster.store.settings)
        check_instance_id(settings.instance_id)
        self._store = cluster.store
        self._turn = threading.RLock()
        self._fenced: FencedInstanceIdError | None = None

    def heartbeat(self, topics: Collection[str], owned: Collection[TopicPartition]) -> Assignment:
        """Join if necessary, report the subscription and the owned partitions, and return the assignment.

        `owned` are all partitions that the member has at this moment and has not revoked. Raises UnknownMemberIdError
        if the session is lost, and all owned partitions with it; the next call joins again. Raises
        FencedInstanceIdError if another member has taken over the instance id; every later call raises it too. Raises
        InconsistentGroupProtocolError or GroupMaxSizeReachedError if the member cannot join, and AssignorFailedError if
        a custom assignor fails.
        """
        with self._turn, self._session(lost=True):
            return self._heartbeat(frozenset(topics), frozenset(owned))

    @abstractmethod
    def keep_alive(self) -> bool:
        """Renew the session from a background thread. Returns True if `heartbeat` should be called soon.

        This does not wait for a heartbeat that runs in another thread.
        """

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> None:
        """Commit next offsets to read. Only a live member may commit, in the generation of its assignment. While the
        store does not answer, heartbeats wait too: at most `timeout_ms`.

        Raises IllegalGenerationError (also if one of the partitions has been assigned to another member since),
        UnknownMemberIdError, FencedInstanceIdError, IllegalArgumentError, OffsetMetadataTooLargeError, or
        RebalanceInProgressError in a classic group; then nothing is committed. Raises UnknownTopicOrPartitionError if
        partitions do not exist; all others are committed.
        """
        commits = check_commits(offsets, self._store.settings)
        with self._turn, self._session(lost=False):
            me, generation = self._identity(), self.generation

            def body(connection: sa.Connection) -> list[TopicPartition]:
                now = check_committer(self._store, connection, me, generation, commits)
                return write_commits(connection, now, self.group_id, commits)

            try:
                unknown = self._store.transact(body, timeout_ms=timeout_ms)
            except StaleMemberEpochError as error:
                raise IllegalGenerationError(str(error)) from error
        refuse_unknown(unknown)

    def leave(self) -> None:
        """Leave the group, so that other members take over at once. A static member stays until its session ends."""
        with self._turn:
            me, generation = self._identity(), self.generation
            me = replace(me, member_id=me.member_id or self._new_id)  # a join may have succeeded without an answer
            self._forget()
            self._new_id = ""
            if me.member_id:
                with contextlib.suppress(SparkLogError):  # the session ends by itself then
                    self._leave(me, generation)

    @abstractmethod
    def _heartbeat(self, topics: frozenset[str], owned: frozenset[TopicPartition]) -> Assignment: ...

    @abstractmethod
    def _leave(self, me: Identity, generation: int) -> None: ...

    @contextlib.contextmanager
    def _session(self, *, lost: bool) -> Iterator[None]:
        """Record that an error has ended the session. With `lost`, UnknownMemberIdError ends the membership too;
        without it, the next heartbeat raises the error again, and then ends the membership.
        """
        if self._fenced is not None:
            raise self._fenced
        try:
            yield
        except FencedInstanceIdError as error:
            self._fenced = error
            self._forget()
            raise
        except UnknownMemberIdError:
            if lost:
                self._forget()
            raise

    def _forget(self) -> None:
        self.member_id, self.generation = "", _NOT_JOINED

    def _identity(self) -> Identity:
        s = self.settings
        return Identity(self.group_id, self.member_id, s.instance_id, s.client_id, s.host, s.session_timeout_ms)


class ConsumerMembership(Membership):
    """A membership by the consumer protocol (KIP-848). A member that finds the target assignment stale computes it."""

    def __init__(self, cluster: Cluster, group_id: str, settings: MemberSettings, assignors: Collection[str]) -> None:
        """Create a membership. `assignors` are names of `known_assignors`, in order of preference."""
        super().__init__(cluster, group_id, settings)
        self._assignors = tuple(assignors)
        self._complete = False

    def keep_alive(self) -> bool:
        me, epoch = self._identity(), self.generation
        if not me.member_id:
            return True
        heartbeat = Heartbeat(me.group_id, me.member_id, me.instance_id, epoch, me.member_id)
        [answer] = answer_heartbeats(self._store, [heartbeat])
        if answer.renewal_due and renew_sessions(self._store, [heartbeat]) == [False]:
            return True
        return answer.alone or answer.error is not None or not self._complete

    def _heartbeat(self, topics: frozenset[str], owned: frozenset[TopicPartition]) -> Assignment:
        me, epoch = self._identity(), None if self.generation == JOINING else self.generation
        if not me.member_id:
            self._new_id = self._new_id or new_member_id(me.client_id)
            me, epoch, owned = replace(me, member_id=self._new_id), JOINING, NO_PARTITIONS
        heartbeat = ConsumerHeartbeat(
            me, me.member_id, epoch, rebalance_timeout_ms=self.settings.rebalance_timeout_ms, names=topics,
            owned=owned, assignors=self._assignors, replaces=True,
        )  # fmt: skip
        try:
            answer = consumer_heartbeat(self._store, heartbeat, known_assignors())
        except (FencedMemberEpochError, GroupIdNotFoundError) as error:  # the session ended, and perhaps the group too
            if epoch == JOINING:  # it is a share group
                raise
            raise UnknownMemberIdError(f"group {self.group_id!r}: {error}") from error
        self._new_id = ""
        self.member_id, self.generation, self._complete = me.member_id, answer.epoch, answer.complete
        partitions = owned if answer.partitions is None else answer.partitions
        return Assignment(answer.epoch, partitions, answer.complete)

    def _leave(self, me: Identity, generation: int) -> None:
        epoch = LEAVING if me.instance_id is None else LEAVING_FOR_A_WHILE
        leave_consumer(self._store, ConsumerHeartbeat(me, me.member_id, epoch), known_assignors())
