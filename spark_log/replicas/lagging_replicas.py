"""Which replicas are behind."""

from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.brokers import alive_log_dirs
from spark_log.ids import BrokerId, LogDirId
from spark_log.metadata import tables as t
from spark_log.metadata.store import StoreClock

_P, _R = t.partition.c, t.replica.c


@dataclass(frozen=True)
class Lagging:
    """A replica that lacks segments, or has all and is not in sync. `behind` counts offsets.

    `throttle_bytes_per_s` is its reassignment's, for one that is not in sync.
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


def lagging(connection: sa.Connection, now: StoreClock, broker_id: int | None = None) -> list[Lagging]:
    """The replicas of a broker, or of all embedded ones, that are behind and whose log dirs are alive."""
    b, d, m = t.broker.c, t.log_dir.c, t.reassignment.c
    alive = alive_log_dirs(connection, now)
    owners = sa.select(d.log_dir_id).join(t.broker, b.broker_id == d.broker_id)
    owners = owners.where(~b.served if broker_id is None else b.broker_id == broker_id)
    here = [LogDirId(found) for found in connection.execute(owners).scalars() if found in alive]
    query = (
        sa.select(
            t.topic.c.name, _R.topic_id, _R.partition, _R.broker_id,
            (_P.log_end_offset - _R.log_end_offset).label("behind"), _R.in_sync,
            sa.case((~_R.in_sync, m.throttle_bytes_per_s)),
        )
        .join(t.partition, (_P.topic_id == _R.topic_id) & (_P.partition == _R.partition))
        .join(t.topic, t.topic.c.topic_id == _R.topic_id)
        .outerjoin(t.reassignment, (m.topic_id == _R.topic_id) & (m.partition == _R.partition))
        .where(_R.log_dir_id.in_(here), (_R.log_end_offset < _P.log_end_offset) | ~_R.in_sync)
        .order_by(_R.topic_id, _R.partition, _R.broker_id)
    )  # fmt: skip
    return [
        Lagging(topic, topic_id, partition, broker, behind, bool(in_sync), rate)
        for topic, topic_id, partition, broker, behind, in_sync, rate in connection.execute(query)
    ]
