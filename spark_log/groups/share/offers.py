"""Reads the counts and times by which a process decides whether a partition of a share group needs a poll."""

from typing import NamedTuple

import sqlalchemy as sa

from spark_log.groups.share.rows import LogFacts, ShareRow
from spark_log.log.partitions.partition_rows import Key
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import Answer, Prepared
from spark_log.metadata.sql_columns import PARTITION, SHARE_DELAYED, SHARE_PARTITION
from spark_log.metadata.store_clock import StoreClock


class Offer(NamedTuple):
    """The counts and times that decide whether a poll finds records in a partition, as of the last read."""

    next_offset: int
    start_offset: int
    available: int
    unfinished: int
    archiving: int
    delayed: int
    wake_ms: int | None
    due_ms: int | None
    """The first due time of a delayed record (wall clock)."""
    first_delayed: int | None
    """The first offset of a delayed record."""
    clock_epoch: str
    leader_epoch: int
    """The epoch up to which the window follows the log's elections."""
    log: LogFacts


def _first_delayed(column: sa.ColumnElement[int]) -> sa.ColumnElement[int | None]:
    """Return the smallest value of a column of share_delayed for a row of share_partition, NULL without any."""
    same = (
        (SHARE_DELAYED.group_id == SHARE_PARTITION.group_id)
        & (SHARE_DELAYED.topic_id == SHARE_PARTITION.topic_id)
        & (SHARE_DELAYED.partition == SHARE_PARTITION.partition)
    )
    smallest = sa.select(sa.func.min(column)).where(same).scalar_subquery()
    return sa.case((SHARE_PARTITION.delayed > sa.literal_column("0"), smallest))


_ITS_PARTITION = (PARTITION.topic_id == SHARE_PARTITION.topic_id) & (PARTITION.partition == SHARE_PARTITION.partition)
_FIRST_DUE = _first_delayed(SHARE_DELAYED.due_ms)
_FIRST_DELAYED_OFFSET = _first_delayed(SHARE_DELAYED.offset)
_OFFERS = Prepared(
    sa.select(
        SHARE_PARTITION.topic_id, SHARE_PARTITION.partition, SHARE_PARTITION.next_offset, SHARE_PARTITION.start_offset,
        SHARE_PARTITION.available, SHARE_PARTITION.unfinished, SHARE_PARTITION.archiving, SHARE_PARTITION.delayed,
        SHARE_PARTITION.wake_ms, _FIRST_DUE, _FIRST_DELAYED_OFFSET, SHARE_PARTITION.clock_epoch,
        SHARE_PARTITION.leader_epoch,
        PARTITION.log_start_offset, PARTITION.high_watermark, PARTITION.leader_epoch, PARTITION.rewrites,
    )
    .join(t.partition, _ITS_PARTITION)
    .where(SHARE_PARTITION.group_id == sa.bindparam("g"))
)  # fmt: skip


def ask_offers(connection: sa.Connection, group_id: str) -> Answer:
    return _OFFERS.ask(connection, {"g": group_id})


def offers_of(answer: Answer) -> dict[Key, Offer]:
    """Return the offers of all partitions of the group."""
    return {
        (topic_id, partition): Offer._make([*numbers[:11], LogFacts._make(numbers[11:])])
        for topic_id, partition, *numbers in answer.rows()
    }


def offer_of(row: ShareRow, log: LogFacts, now: StoreClock) -> Offer:
    """Return what a row offers, without the times and offsets of delayed records."""
    window = row.window
    return Offer(
        window.next, window.start, window.available, window.unfinished, window.archiving, window.delayed,
        window.wake_ms, None, None, now.clock_epoch, row.leader_epoch, log,
    )  # fmt: skip


def outdated(connection: sa.Connection, now: StoreClock) -> list[tuple[str, Key]]:
    """Return the partitions, in order, in which locks have ended, or retention has removed unfinished records. Delayed
    ones among them may be below the start.
    """
    ended = SHARE_PARTITION.wake_ms.is_not(None) & (
        (SHARE_PARTITION.clock_epoch != now.clock_epoch) | (SHARE_PARTITION.wake_ms <= now.lease_ms)
    )
    removed = (SHARE_PARTITION.start_offset < PARTITION.log_start_offset) & (SHARE_PARTITION.unfinished > 0)
    removed |= _FIRST_DELAYED_OFFSET < PARTITION.log_start_offset
    query = (
        sa.select(SHARE_PARTITION.group_id, SHARE_PARTITION.topic_id, SHARE_PARTITION.partition)
        .join(t.partition, _ITS_PARTITION)
        .where(ended | removed)
        .order_by(SHARE_PARTITION.group_id, SHARE_PARTITION.topic_id, SHARE_PARTITION.partition)
    )
    return [(group_id, (topic_id, partition)) for group_id, topic_id, partition in connection.execute(query)]
