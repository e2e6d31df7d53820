"""Finds where share groups begin in partitions that they read for the first time (share.auto.offset.reset)."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topic
from spark_log.config import GroupConfig
from spark_log.config.group_configs import duration_ms
from spark_log.groups.share import rows
from spark_log.groups.share.rules import Window
from spark_log.log.partitions.partition_rows import Key
from spark_log.log.segments.timed_offsets import offsets_for_times
from spark_log.metadata.prepared import in_list
from spark_log.metadata.sql_columns import PARTITION
from spark_log.metadata.store_clock import StoreClock


@dataclass(frozen=True)
class Start:
    """Where the group begins in a partition, and the leader epoch in which this was found."""

    offset: int
    leader_epoch: int


def insert_starts(connection: sa.Connection, group_id: str, starts: Mapping[Key, Start], now: StoreClock) -> None:
    """Make the rows of partitions that the group reads for the first time. The group's row is locked."""
    new = [
        rows.ShareRow(group_id, key, Window(start.offset, start.offset), start.leader_epoch)
        for key, start in sorted(starts.items(), key=lambda each: each[0])
    ]
    rows.insert_rows(connection, new, now)


def find_starts(
    cluster: Cluster,
    group_id: str,
    names: Mapping[int, str],
    missing: Set[Key],
    config: GroupConfig,
    now: StoreClock,
) -> dict[Key, Start]:
    """Find where the group begins in partitions that it reads for the first time (share.auto.offset.reset). `names` has
    the names of their topics. A partition of a topic that the group reads already begins at its log start offset.
    """
    if not missing:
        return {}

    def read(connection: sa.Connection) -> tuple[dict[Key, tuple[int, int, int]], set[int]]:
        query = sa.select(
            PARTITION.topic_id, PARTITION.partition, PARTITION.log_start_offset, PARTITION.high_watermark,
            PARTITION.leader_epoch,
        ).where(in_list(PARTITION.topic_id, sorted(names)))  # fmt: skip
        positions = {(row[0], row[1]): (row[2], row[3], row[4]) for row in connection.execute(query)}
        return positions, {topic_id for topic_id, _ in rows.partitions_of(connection, group_id, names)}

    positions, read_before = cluster.store.read(read)
    policy = config.share_auto_offset_reset
    back_ms = duration_ms(policy)
    times: dict[Key, int | None] = {}
    if back_ms is not None:
        since_ms = now.wall_ms - back_ms
        for topic_id in sorted({key[0] for key in missing} - read_before):
            topic = cluster.store.read(lambda connection: find_topic(connection, names[topic_id]))  # noqa: B023
            numbers = {number: since_ms for at, number in missing if at == topic_id}
            offsets = offsets_for_times(cluster, topic, numbers)
            times.update({(topic_id, number): offset for number, offset in offsets.items()})
    starts = {}
    for key in missing:
        if key not in positions:
            continue
        log_start, high_watermark, leader_epoch = positions[key]
        if key[0] in read_before or policy == "earliest":
            offset: int | None = log_start  # a partition that is added later is read from its beginning
        elif policy == "latest":
            offset = high_watermark
        else:
            offset = times.get(key)
        starts[key] = Start(high_watermark if offset is None else offset, leader_epoch)
    return starts
