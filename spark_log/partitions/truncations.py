"""What elections have cut off: the records that acks=1, or an unclean election, lost."""

from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa

from spark_log.metadata import tables as t
from spark_log.metadata.columns import TOPIC, TRUNCATION
from spark_log.metadata.store import Store


@dataclass(frozen=True)
class Loss:
    """The offsets [start_offset, end_offset) held `record_count` records; readers had been shown `seen_count` offsets
    of them. `at` is in UTC.
    """

    topic: str
    partition: int
    leader_epoch: int
    start_offset: int
    end_offset: int
    record_count: int
    seen_count: int
    unclean: bool
    at: str


def list_losses(store: Store) -> list[Loss]:
    """All of topics that still exist, the oldest first."""
    query = sa.select(t.truncation, TOPIC.name).join(t.topic, TOPIC.topic_id == TRUNCATION.topic_id)
    rows = store.read(
        lambda connection: connection.execute(query.order_by(TRUNCATION.at_ms, TOPIC.name, TRUNCATION.partition)).all()
    )
    return [
        Loss(
            row.name,
            row.partition,
            row.leader_epoch,
            row.start_offset,
            row.end_offset,
            row.record_count,
            max(0, min(row.high_watermark, row.end_offset) - row.start_offset),
            row.unclean,
            datetime.fromtimestamp(row.at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        )
        for row in rows
    ]
