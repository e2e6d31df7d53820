"""A consumer's membership in a group: joining, heartbeats, fenced commits, leaving."""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import sqlalchemy as sa
from kafka.structs import OffsetAndMetadata

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.config import ClusterSettings
from spark_log.errors import FencedInstanceIdError, SparkLogError, UnknownMemberIdError
from spark_log.failpoints import failpoint
from spark_log.groups import rows
from spark_log.groups.assignment import AssignorSpec, notify_assignor, resolve_assignors, user_data
from spark_log.groups.committed_offsets import check_commits, refuse_unknown, write_commits
from spark_log.groups.consumer_protocol.operations import stale_epoch
from spark_log.groups.group_names import check_group_id, check_instance_id, check_session_timeout
from spark_log.groups.member_operations import (
    HeartbeatResponse,
    Identity,
    check_live,
    heartbeat_group,
    join_group,
    leave_group,
    renew,
)
from spark_log.groups.opaque.opaque_operations import check_opaque_committer
from spark_log.groups.rules import NO_PARTITIONS, Assignment, Group, HeartbeatRequest, Partitions, check_commit
from spark_log.groups.stored_values import Subscription
from spark_log.groups.target_assignment import refresh_targets
from spark_log.ids import TopicPartition
from spark_log.metadata.store import Attempt, Store, StoreClock

logger = logging.getLogger(__name__)

_PATIENCE_S = 0.3
"""Time for which a member waits for the target of another member's change before it computes it itself."""

_CLIENT_ID_LENGTH_MAX = 200
"""Maximum length of the client id in a member id, which is stored in 249 characters."""


@dataclass(frozen=True)
class MemberSettings:
    """The settings with which a member joins."""

    client_id: str
    host: str
    instance_id: str | None
    """group.instance.id of a static member."""
    session_timeout_ms: int
    """Time without a heartbeat, by the store's clock, that ends its membership."""
    assignors: tuple[AssignorSpec, ...]
    """In order of preference: kafka-python's, custom ones of that interface, or class paths `pkg.module.Class`."""


class GroupMember:
    """One consumer's place in a group. Safe to share between threads; one heartbeat or commit runs at a time.

    It joins with its first heartbeat, and again with the first one after its session was lost. Members communicate
    through the store only: the member that changes the group computes the target assignment; if it dies, a member that
    finds the target stale for a while computes it.
    """

    def __init__(
        self, cluster: Cluster, group_id: str, settings: MemberSettings, *, limits: ClusterSettings | None = None
    ) -> None:
        """Raises InvalidGroupIdError, InvalidSessionTimeoutError, InvalidConfigurationError (instance id, assignor)."""
        self.group_id = check_group_id(group_id)
        self.settings = settings
        self.member_id = ""
        """Empty while it is not joined."""
        self.generation = -1
        """The generation of its last heartbeat response; -1 while it is not joined."""
        self._limits = limits
        check_session_timeout(settings.session_timeout_ms, limits or cluster.store.settings)
        check_instance_id(settings.instance_id)
        self._store = cluster.store
        self._assignors = resolve_assignors(settings.assignors)
        self._turn = threading.RLock()
        self._number = 0
        self._fenced: FencedInstanceIdError | None = None
        self._assignment: Assignment | None = None
        self._stale_since: tuple[int, float] = (-1, 0.0)

    def heartbeat(self, topics: Collection[str], owned: Collection[TopicPartition]) -> Assignment:
        """Join if necessary, report subscription and owned partitions, and get the assignment.

        `owned` are all partitions that the member has at this moment and has not revoked. Raises UnknownMemberIdError:
        the session is lost, and with it everything owned; the next call joins again. FencedInstanceIdError: another
        member has taken over this instance id, for good. InconsistentGroupProtocolError: the member has not joined.
        AssignorFailedError: the target cannot be computed; owned partitions stay owned.
        """
        wanted, held = frozenset(topics), frozenset(owned)
        with self._turn, self._session(lost=True):
            due = False
            if not self.member_id:
                joined = self._join(wanted)
                held, due = NO_PARTITIONS, joined.due
            response = None if due else self._beat(wanted, held)
            if response is None or response.due or self._stale_for_long(response.group):
                failpoint("group.changed")
                refresh_targets(self._store, self.group_id, self._assignors)
                response = self._beat(wanted, held)
            return self._accept(response)

    def keep_alive(self) -> bool:
        """Renew the session, from a background thread. True: something changed, call `heartbeat` soon.

        Does not wait for a heartbeat under way in another thread.
        """
        me, assignment = self._identity(), self._assignment
        if not me.member_id or assignment is None:
            return True
        return renew(self._store, me, assignment.generation) or not assignment.complete

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit next offsets to read. Only a live member may commit, in the generation of its last heartbeat response.

        Raises IllegalGenerationError (also if one of the partitions has been assigned to another member since),
        UnknownMemberIdError, FencedInstanceIdError, IllegalArgumentError, OffsetMetadataTooLargeError; then nothing is
        committed. UnknownTopicOrPartitionError names partitions that do not exist; all others are committed.
        """
        commits = check_commits(offsets, self._limits or self._store.settings)
        with self._turn, self._session(lost=False):
            me, generation = self._identity(), self.generation

            def body(connection: sa.Connection, _attempt: Attempt) -> list[TopicPartition]:
                now = check_committer(self._store, connection, me, generation, commits)
                return write_commits(connection, now, self.group_id, commits)

            unknown = self._store.transact(body)
        refuse_unknown(unknown)

    def leave(self) -> None:
        """Leave the group, so that other members take over at once. A static member stays until its session ends."""
        with self._turn:
            me = self._identity()
            self._forget()
            if me.member_id and me.instance_id is None and leave_group(self._store, me):
                failpoint("group.changed")
                with contextlib.suppress(SparkLogError):  # the remaining members compute the target themselves
                    refresh_targets(self._store, self.group_id, self._assignors)

    def _join(self, topics: frozenset[str]) -> HeartbeatResponse:
        new_id = f"{self.settings.client_id[:_CLIENT_ID_LENGTH_MAX]}-{uuid.uuid4()}"
        joined = join_group(self._store, replace(self._identity(), member_id=new_id), self._subscription(topics))
        self.member_id, self._number, self._assignment = new_id, 0, None
        return joined

    def _beat(self, topics: frozenset[str], owned: Partitions) -> HeartbeatResponse:
        self._number += 1
        response = heartbeat_group(
            self._store, self._identity(), self._subscription(topics), HeartbeatRequest(self._number, topics, owned)
        )
        if response.announce:
            failpoint("group.assigned")
        return response

    def _accept(self, response: HeartbeatResponse) -> Assignment:
        assignment, before = response.assignment, self._assignment
        self._assignment, self.generation = assignment, assignment.generation
        assignor = self._assignors.get(response.assignor)
        if assignor is not None and (before is None or replace(before, complete=assignment.complete) != assignment):
            try:
                notify_assignor(assignor, assignment.partitions, assignment.generation)
            except Exception:
                logger.exception("group %r: on_assignment of assignor %r failed", self.group_id, response.assignor)
        return assignment

    def _stale_for_long(self, group: Group) -> bool:
        """Whether the target of another member's change has been missing for so long that its author may have died."""
        if not group.stale:
            return False
        now_s = clock.monotonic_s()
        if self._stale_since[0] != group.generation:
            self._stale_since = (group.generation, now_s)
        return now_s - self._stale_since[1] >= _PATIENCE_S

    @contextlib.contextmanager
    def _session(self, *, lost: bool) -> Iterator[None]:
        """Record how a session ended. With `lost` the caller reports the loss; otherwise the next heartbeat does."""
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
        self.member_id, self.generation, self._assignment = "", -1, None

    def _identity(self) -> Identity:
        s = self.settings
        return Identity(self.group_id, self.member_id, s.instance_id, s.client_id, s.host, s.session_timeout_ms)

    def _subscription(self, topics: frozenset[str]) -> Subscription:
        data = tuple((name, user_data(assignor, topics)) for name, assignor in self._assignors.items())
        return Subscription(topics, data)


def check_committer(
    store: Store,
    connection: sa.Connection,
    me: Identity,
    generation: int,
    partitions: Collection[TopicPartition],
    *,
    lock: bool = True,
    transactional: bool = False,
) -> StoreClock:
    """Check that the member may commit these partitions in this transaction, which then holds the group's lock.

    Raises UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError; outside of transactions also
    RebalanceInProgressError for a member of an opaque group, StaleMemberEpochError for one of the consumer protocol.
    """
    try:
        row, now = check_live(store, connection, me, lock=lock)
    except UnknownMemberIdError:
        now = store.clock(connection)
        check_opaque_committer(
            connection, now, me.group_id, me.member_id, me.instance_id, generation, transactional=transactional
        )
        return now
    others = rows.assigned_to_others(connection, me.group_id, me.member_id, partitions)
    if row.epochs is not None and not transactional and (others or generation != row.member.generation):
        raise stale_epoch(row, generation, others)
    check_commit(me.group_id, row.member.generation, generation, others)
    return now
