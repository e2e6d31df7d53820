"""Detects in-sync replicas that lag for longer than replica.lag.time.max.ms, as in Kafka."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from spark_log.log.partitions.partition_rows import Key
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PARTITION, REPLICA

Member = tuple[Key, int]
"""A partition and a broker of its ISR."""


class Ends(NamedTuple):
    """The log end offsets of a lagging replica and of its leader."""

    replica: int
    leader: int


@dataclass(frozen=True)
class _Goal:
    """The leader's log end offset at `since_s`. A replica that reaches `offset` has every record of that time."""

    offset: int
    since_s: float


class LagWatch:
    """Detects late members: those that have not reached the log end offset that the leader had `lag_max_s` ago.

    The time of a member begins with the first observation, by a monotonic clock. So a new LagWatch gives each member
    the full time.
    """

    def __init__(self) -> None:
        self._goals: dict[Member, _Goal] = {}

    def late(self, now_s: float, behind: Mapping[Member, Ends], lag_max_s: float) -> set[Member]:
        """Return the members that are late at `now_s`. `behind` has all members whose LEO is below their leader's."""
        goals: dict[Member, _Goal] = {}
        for member, ends in behind.items():
            goal = self._goals.get(member)
            if goal is None or ends.replica >= goal.offset:
                goal = _Goal(ends.leader, now_s)
            goals[member] = goal
        self._goals = goals
        return {member for member, goal in goals.items() if now_s - goal.since_s > lag_max_s}


def read_lagging_members(connection: sa.Connection) -> dict[Member, Ends]:
    """Return the ISR members whose log end offset is below the leader's."""
    query = (
        sa.select(
            REPLICA.topic_id, REPLICA.partition, REPLICA.broker_id, REPLICA.log_end_offset, PARTITION.log_end_offset
        )
        .join(t.partition, (PARTITION.topic_id == REPLICA.topic_id) & (PARTITION.partition == REPLICA.partition))
        .where(REPLICA.in_sync, REPLICA.log_end_offset < PARTITION.log_end_offset)
    )
    return {
        ((topic_id, partition), broker_id): Ends(replica, leader)
        for topic_id, partition, broker_id, replica, leader in connection.execute(query)
    }
