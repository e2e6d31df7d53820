"""Joins a consumer with a custom assignor to a group whose leader assigns (`groups.classic.rules`).

The assignors have the interface of kafka-python's. Unless all its assignors are cooperative, a member gives up all its
partitions before it joins, and has none until the leader has assigned them.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kafka.coordinator.assignors.abstract import RebalanceProtocol
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_log.cluster.cluster import Cluster
from spark_log.errors import IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError
from spark_log.failpoints import failpoint
from spark_log.groups.assignors import Assignor, assign_as_leader
from spark_log.groups.classic import rules
from spark_log.groups.classic.group import ClassicGroup, Joining, State
from spark_log.groups.classic.service import change, change_own, join_classic
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.rules import NO_PARTITIONS, Assignment, Partitions, TopicFacts
from spark_log.groups.consumer_messages import PROTOCOL_TYPE, decode_assignment, decode_subscription
from spark_log.groups.group_names import new_member_id
from spark_log.groups.identity import Identity
from spark_log.groups.membership import MemberSettings, Membership
from spark_log.ids import numbers_by_topic

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Joined:
    """The last JoinGroup: the subscription, and the assignment of its generation, if the leader has sent it."""

    topics: frozenset[str]
    assigned: Partitions | None = None
    watched: frozenset[str] = frozenset()
    """The topics that all members of the group subscribe to. Only the leader has these topics and `facts`, the facts
    that its assignment assumes."""
    facts: Mapping[str, TopicFacts] | None = None


class ClassicMembership(Membership):
    """A membership by the classic protocol. Its assignments are not complete during a rebalance."""

    def __init__(
        self, cluster: Cluster, group_id: str, settings: MemberSettings, assignors: Mapping[str, Assignor]
    ) -> None:
        super().__init__(cluster, group_id, settings)
        self._assignors = assignors
        self._cooperative = all(
            RebalanceProtocol.COOPERATIVE in each.supported_protocols() for each in assignors.values()
        )
        self._joined: _Joined | None = None

    def keep_alive(self) -> bool:
        me, joined = self._identity(), self._joined
        if not me.member_id:
            return True
        try:
            group = change_own(self._store, me.group_id, me.member_id, self._touched).group
        except UnknownMemberIdError:
            return True
        return joined is None or joined.assigned is None or self._must_join(joined, group)

    def _heartbeat(self, topics: frozenset[str], owned: Partitions) -> Assignment:
        if not self.member_id:
            self._joined, owned = None, NO_PARTITIONS
        joined = self._joined
        if joined is not None:
            group = change_own(self._store, self.group_id, self.member_id, self._touched).group
            if joined.topics != topics or self._must_join(joined, group):
                joined = None
        if joined is None:
            if owned and not self._cooperative:
                return Assignment(self.generation, NO_PARTITIONS, complete=False)
            self._joined = None
            self._join(topics, owned)
            self._joined = joined = _Joined(topics)
        if joined.assigned is None:
            self._joined = joined = self._sync(joined)
        if joined is None or joined.assigned is None:
            return Assignment(self.generation, owned if self._cooperative else NO_PARTITIONS, complete=False)
        revoked = owned - joined.assigned
        if revoked:  # the assignors are cooperative: other members get these in the next rebalance
            self._joined = None
        return Assignment(self.generation, joined.assigned, complete=not revoked)

    def _join(self, topics: frozenset[str], owned: Partitions) -> None:
        s = self.settings
        protocols = tuple((name, self._metadata(each, topics, owned)) for name, each in self._assignors.items())
        self._new_id = self._new_id or new_member_id(s.client_id)
        request = Joining(
            self.member_id, self._new_id, s.instance_id, s.client_id, s.host, PROTOCOL_TYPE, protocols,
            s.session_timeout_ms, s.rebalance_timeout_ms,
        )  # fmt: skip
        join_classic(self._store, self.group_id, request)
        self.member_id, self._new_id = request.member_id or request.new_id, ""
        failpoint("group.changed")

    def _metadata(self, assignor: Assignor, topics: frozenset[str], owned: Partitions) -> bytes:
        metadata = assignor.metadata(set(topics))
        if self._cooperative:
            pair = ConsumerProtocolSubscription.TopicPartition
            metadata = ConsumerProtocolSubscription(
                version=1, topics=sorted(metadata.topics), user_data=metadata.user_data or b"",
                owned_partitions=[pair(topic=name, partitions=each) for name, each in numbers_by_topic(owned).items()],
            )  # fmt: skip
        encoded: bytes = metadata.encode()
        return encoded

    def _sync(self, joined: _Joined) -> _Joined | None:
        """Return `joined` with the assignment, or unchanged until the generation has begun and the leader has assigned.
        Return None if the member must join again. As the leader, assign first.

        Raises AssignorFailedError, UnknownMemberIdError, or FencedInstanceIdError.
        """
        me = self._identity()
        group = change(self._store, me.group_id, self._touched).group
        answer = rules.join_answer(group, me.member_id, me.instance_id)
        if answer is None:
            return joined
        if group.state.must_rejoin:
            return None
        self.generation = answer.generation
        assignments: dict[str, bytes] = {}
        if answer.leader == me.member_id:
            messages = [decode_subscription(metadata) for _, _, metadata in answer.members]
            watched = frozenset(topic for message in messages if message is not None for topic in message.topics)
            facts = self._facts(watched)
            joined = replace(joined, watched=watched, facts=facts)
            if group.state is State.COMPLETING:  # otherwise this static member has restarted as leader (KIP-814)
                counts = {topic: each.partition_count for topic, each in facts.items()}
                assignments = assign_as_leader(self._assignors[answer.protocol], answer.members, counts)

        def sync(group: ClassicGroup, now_ms: int) -> ClassicGroup:
            return rules.sync(group, me.member_id, me.instance_id, answer.generation, assignments, now_ms)

        try:
            group = change(self._store, me.group_id, sync).group
        except (RebalanceInProgressError, IllegalGenerationError):
            return None
        failpoint("group.assigned")
        encoded = rules.sync_answer(group, me.member_id)
        if encoded is None:
            return joined
        partitions = decode_assignment(encoded) or NO_PARTITIONS  # the leader may send any bytes
        try:
            if encoded:
                assignment = ConsumerProtocolAssignment.decode(encoded)
                self._assignors[group.protocol].on_assignment(assignment, answer.generation)
        except Exception:
            logger.exception("group %r: on_assignment of assignor %r failed", self.group_id, group.protocol)
        return replace(joined, assigned=partitions)

    def _must_join(self, joined: _Joined, group: ClassicGroup) -> bool:
        """Return whether a rebalance has begun, or this leader must begin one because a topic was created, deleted or
        enlarged. It is False until the member has its assignment.
        """
        if joined.assigned is None:
            return False
        if group.state.must_rejoin or group.generation != self.generation:
            return True
        return joined.facts is not None and joined.facts != self._facts(joined.watched)

    def _facts(self, topics: frozenset[str]) -> dict[str, TopicFacts]:
        return self._store.read(lambda connection: rows.topic_facts(connection, topics))

    def _touched(self, group: ClassicGroup, now_ms: int) -> ClassicGroup:
        """Renew the session. This is a step for `change` and `change_own`."""
        return rules.with_session_renewed(group, self.member_id, self.settings.instance_id, now_ms)

    def _forget(self) -> None:
        super()._forget()
        self._joined = None

    def _leave(self, me: Identity, generation: int) -> None:
        if me.instance_id is None:
            change(self._store, me.group_id, lambda group, now_ms: rules.leave(group, me.member_id, None, now_ms))
