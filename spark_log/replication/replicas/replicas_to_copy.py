"""Finds the replicas that lack segments, or have all segments and are not in sync."""

from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.brokers import alive_log_dirs
from spark_log.cluster.topics import IS_LIVE
from spark_log.ids import BrokerId
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import BROKER, LOG_DIR, PARTITION, REASSIGNMENT, REPLICA, TOPIC
from spark_log.metadata.store_clock import StoreClock

# The statements are built once, because each poll of each broker runs them.

_LOG_DIRS = sa.select(LOG_DIR.log_dir_id).join(t.broker, BROKER.broker_id == LOG_DIR.broker_id)
_EMBEDDED_LOG_DIRS = _LOG_DIRS.where(~BROKER.served)
_LOG_DIRS_OF_BROKER = _LOG_DIRS.where(BROKER.broker_id == sa.bindparam("of_broker"))
_LAGGING = (
    sa.select(
        TOPIC.name, REPLICA.topic_id, REPLICA.partition, REPLICA.broker_id,
        (PARTITION.log_end_offset - REPLICA.log_end_offset).label("behind"), REPLICA.in_sync,
        sa.case((~REPLICA.in_sync, REASSIGNMENT.throttle_bytes_per_s)),
    )
    .join(t.partition, (PARTITION.topic_id == REPLICA.topic_id) & (PARTITION.partition == REPLICA.partition))
    .join(t.topic, TOPIC.topic_id == REPLICA.topic_id)
    .outerjoin(
        t.reassignment,
        (REASSIGNMENT.topic_id == REPLICA.topic_id) & (REASSIGNMENT.partition == REPLICA.partition),
    )
    .where(
        IS_LIVE,  # for a topic that is being deleted, or moved here, no copies are made
        REPLICA.log_dir_id.in_(sa.bindparam("in_log_dirs", expanding=True)),
        (REPLICA.log_end_offset < PARTITION.log_end_offset) | ~REPLICA.in_sync,
    )
    .order_by(REPLICA.topic_id, REPLICA.partition, REPLICA.broker_id)
)  # fmt: skip


@dataclass(frozen=True)
class LaggingReplica:
    """A replica that lacks segments, or has all segments and is not in sync. `behind` is the number of missing offsets.

    `throttle_bytes_per_s` is that of the partition's reassignment. It is None without one, and for an ISR member.
    """

    topic: str
    topic_id: int
    partition: int
    broker_id: BrokerId
    behind: int
    in_sync: bool
    throttle_bytes_per_s: int | None

    @property
    def key(self) -> tuple[int, int, int]:
        return self.topic_id, self.partition, self.broker_id


def find_lagging_replicas(
    connection: sa.Connection, now: StoreClock, broker_id: int | None = None
) -> list[LaggingReplica]:
    """Return the lagging replicas of a broker, or of all embedded brokers, in log dirs that are alive."""
    alive = alive_log_dirs(connection, now)
    owned = _EMBEDDED_LOG_DIRS if broker_id is None else _LOG_DIRS_OF_BROKER
    parameters = {} if broker_id is None else {"of_broker": broker_id}
    here = [log_dir_id for log_dir_id in connection.execute(owned, parameters).scalars() if log_dir_id in alive]
    found = connection.execute(_LAGGING, {"in_log_dirs": here})
    return [
        LaggingReplica(topic, topic_id, partition, broker, behind, bool(in_sync), rate)
        for topic, topic_id, partition, broker, behind, in_sync, rate in found
    ]
