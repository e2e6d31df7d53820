"""Reads the state of share groups in their partitions: offsets, lag, and the numbers of records by state."""

from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.ids import TopicId, TopicPartition
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PARTITION, SHARE_PARTITION, TOPIC


@dataclass(frozen=True)
class SharePartition:
    """A partition of a share group: log_start <= start <= next, and in_flight + available + archiving = unfinished."""

    group: str
    topic: str
    topic_id: TopicId
    partition: int
    start: int
    """The first unfinished offset (Kafka's SPSO), at least the log start offset."""
    next: int
    """The first offset that was never acquired."""
    log_start: int
    high_watermark: int
    leader_epoch: int
    in_flight: int
    """The number of records that members have acquired. Locks that have ended count until the next poll."""
    available: int
    """The number of records that were acquired before, and wait for their next delivery."""
    delayed: int
    archiving: int
    """The number of records that wait for their dead letter."""
    lock_timeouts: int
    dead_letters: int
    expired: int
    """The number of unfinished records that retention has removed. Like `lock_timeouts` and `dead_letters`, a total."""

    @property
    def unfinished(self) -> int:
        return self.in_flight + self.available + self.archiving

    @property
    def lag(self) -> int:
        """The number of records that are not finished, without those that are archiving, as in Kafka (KIP-1226)."""
        new = max(0, self.high_watermark - self.next)
        # after retention or an unclean election, the counts are too large until the next poll
        return min(new + self.in_flight + self.available + self.delayed, self.high_watermark - self.log_start)

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


_SAME = (PARTITION.topic_id == SHARE_PARTITION.topic_id) & (PARTITION.partition == SHARE_PARTITION.partition)
_PARTITIONS = (
    sa.select(
        SHARE_PARTITION.group_id, TOPIC.name, SHARE_PARTITION.topic_id, SHARE_PARTITION.partition,
        SHARE_PARTITION.start_offset, SHARE_PARTITION.next_offset, PARTITION.log_start_offset,
        PARTITION.high_watermark, PARTITION.leader_epoch, SHARE_PARTITION.unfinished, SHARE_PARTITION.available,
        SHARE_PARTITION.delayed, SHARE_PARTITION.archiving, SHARE_PARTITION.lock_timeouts,
        SHARE_PARTITION.dead_letters, SHARE_PARTITION.expired,
    )
    .select_from(t.share_partition.join(t.topic, TOPIC.topic_id == SHARE_PARTITION.topic_id).join(t.partition, _SAME))
    .order_by(SHARE_PARTITION.group_id, TOPIC.name, SHARE_PARTITION.partition)
)  # fmt: skip


def share_partitions(connection: sa.Connection, group_id: str | None = None) -> list[SharePartition]:
    """Return the partitions of a group, or of all groups, in order."""
    query = _PARTITIONS if group_id is None else _PARTITIONS.where(SHARE_PARTITION.group_id == group_id)
    partitions = []
    for row in connection.execute(query).all():
        group, topic, topic_id, number, start, following, log_start, end, epoch, unfinished, available, *rest = row
        delayed, archiving, *totals = rest
        partitions.append(
            SharePartition(
                group, topic, topic_id, number, max(start, log_start), max(following, log_start), log_start, end,
                epoch, unfinished - available - archiving, available, delayed, archiving, *totals,
            )
        )  # fmt: skip
    return partitions
