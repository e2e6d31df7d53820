"""Reads, compares and writes a mirror's position in each partition. The target stores it in each append transaction.

The offset is the target's log end offset. The id of the source's topic, and the leader epoch when the records were
looked up, identify the log to which the offset belongs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.topics import Topic
from spark_log.errors import DataLossError, OffsetOutOfRangeError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.append.append_transaction import CommitHook
from spark_log.log.partitions.lineage import diverging_offset
from spark_log.log.partitions.partition_rows import Key, read_partitions
from spark_log.log.partitions.replication_rules import Truncation
from spark_log.log.partitions.truncations import read_truncations
from spark_log.log.segments import plan as planner
from spark_log.log.segments.slices import Positions
from spark_log.metadata import tables as t
from spark_log.metadata.insert import insert_or_replace
from spark_log.metadata.sql_columns import MIRROR_POSITION
from spark_log.metadata.store_clock import StoreClock


@dataclass(frozen=True)
class MirrorPosition:
    """States that the target has the records that the source's partition had below `end_offset` in `leader_epoch`.

    `target_leader_epoch` is the target's leader epoch at that time.
    """

    cluster_id: str
    topic_uuid: str
    leader_epoch: int
    end_offset: int
    target_leader_epoch: int


@dataclass(frozen=True)
class SourcePartition:
    """A partition of the source, read in one snapshot."""

    cluster_id: str
    topic_uuid: str
    positions: Positions
    leader_epoch: int
    truncations: Sequence[Truncation]


@dataclass(frozen=True)
class TargetPartition:
    """A partition of the target, read in one snapshot. `known` is the mirror's position, None before the first copy."""

    log: OffsetRange
    high_watermark: int
    leader_epoch: int
    truncations: Sequence[Truncation]
    known: MirrorPosition | None


@dataclass(frozen=True)
class Comparison:
    """The part of the target that is not known to come from the source.

    The records from offset `unverified_from` on have to be compared. From offset `diverged_from` on, the target has
    other records than the source. None means that there are no such records.
    """

    unverified_from: int | None
    diverged_from: int | None


IDENTICAL = Comparison(None, None)


def compare(name: str, source: SourcePartition, target: TargetPartition) -> Comparison:
    """Compare the mirror's position with both logs.

    Raises DataLossError if the source's topic was deleted and created again, and OffsetOutOfRangeError if something
    else has written to the target.
    """
    position = target.known
    if position is None or position.cluster_id != source.cluster_id:
        return Comparison(0, None)
    if position.topic_uuid != source.topic_uuid:
        raise DataLossError(f"{name}: the source's topic was deleted and created again while it was mirrored")
    truncated = diverging_offset(position.end_offset, position.target_leader_epoch, target.truncations)
    if truncated is None and target.log.end != position.end_offset:
        raise OffsetOutOfRangeError(
            f"{name}: something else has written the offsets [{position.end_offset}, {target.log.end}) to the target"
        )
    copied = position.end_offset if truncated is None else min(truncated, target.log.end)
    diverged = diverging_offset(copied, position.leader_epoch, source.truncations)
    return Comparison(truncated, diverged)


def next_range(
    name: str, source: Positions, target: OffsetRange, *, begun: bool, ahead: bool = False, allow_data_loss: bool
) -> OffsetRange:
    """Return the range of offsets that a partition of the target lacks. `target` is its log start and end.

    `begun` means that the target has had records; `ahead`, that the target may end beyond the source, whose log was
    truncated. Raises OffsetOutOfRangeError if it does without `ahead`. Raises DataLossError if the source has deleted
    records that the target lacks (but a target that has never had a record may begin where the source does).
    """
    end = source.high_watermark
    if target.end > end and not ahead:
        raise OffsetOutOfRangeError(
            f"{name}: the target's log ends at {target.end}, beyond the source's high watermark {end}: something else"
            " has written to it, or the source was deleted and created again"
        )
    if target.end >= source.log_start_offset:
        return OffsetRange(target.end, max(target.end, end))
    if not begun:
        return OffsetRange(source.log_start_offset, end)
    if not allow_data_loss:
        refuse_gap(name, source, target.end)
    return OffsetRange(target.end, end)


def refuse_gap(name: str, source: Positions, target_end: int) -> None:
    """Raise DataLossError if the source has deleted the records that follow the end of the target's log."""
    if target_end < source.log_start_offset:
        raise DataLossError(
            f"{name}: the records with the offsets [{target_end}, {source.log_start_offset}) are gone from the source"
            " and were not copied (--allow-data-loss continues after them)"
        )


def read_source(
    connection: sa.Connection, cluster_id: str, topics: Iterable[Topic]
) -> dict[TopicPartition, SourcePartition]:
    """Return the partitions of topics of the source. Leave out topics that were deleted or created again since they
    were looked up.
    """
    everything = {TopicPartition(topic.name, n): topic for topic in topics for n in range(topic.partition_count)}
    positions = planner.find_positions(connection, everything.keys())
    truncations = read_truncations(connection, [(topic.topic_id, tp.partition) for tp, topic in everything.items()])
    return {
        tp: SourcePartition(
            cluster_id,
            topic.uuid,
            positions[tp].positions,
            positions[tp].leader_epoch,
            truncations.get((topic.topic_id, tp.partition), ()),
        )
        for tp, topic in everything.items()
        if tp in positions and positions[tp].topic_id == topic.topic_id
    }


def read_target(connection: sa.Connection, topic_id: int) -> dict[int, TargetPartition]:
    """Return the partitions of a topic of the target."""
    states = read_partitions(connection, topic_id)
    truncations = read_truncations(connection, states.keys())
    query = sa.select(
        MIRROR_POSITION.partition,
        MIRROR_POSITION.source_cluster_id,
        MIRROR_POSITION.source_topic_uuid,
        MIRROR_POSITION.leader_epoch,
        MIRROR_POSITION.end_offset,
        MIRROR_POSITION.target_leader_epoch,
    ).where(MIRROR_POSITION.topic_id == topic_id)
    positions = {number: MirrorPosition(*position) for number, *position in connection.execute(query)}
    return {
        key[1]: TargetPartition(
            OffsetRange(state.log_start_offset, state.log_end_offset),
            state.high_watermark,
            state.leader_epoch,
            truncations.get(key, ()),
            positions.get(key[1]),
        )
        for key, state in states.items()
    }


def write_positions(connection: sa.Connection, positions: Mapping[Key, MirrorPosition]) -> None:
    """Store the positions, by topic id and partition of the target."""
    rows = [
        {
            "topic_id": topic_id,
            "partition": number,
            "source_cluster_id": position.cluster_id,
            "source_topic_uuid": position.topic_uuid,
            "leader_epoch": position.leader_epoch,
            "end_offset": position.end_offset,
            "target_leader_epoch": position.target_leader_epoch,
        }
        for (topic_id, number), position in sorted(positions.items())
    ]
    insert_or_replace(connection, t.mirror_position, rows)


def save_positions_hook(positions: Mapping[Key, MirrorPosition]) -> CommitHook:
    """Return a hook that stores the positions in the append transaction."""

    def write(connection: sa.Connection, _now: StoreClock) -> bool:
        write_positions(connection, positions)
        return True

    return write
