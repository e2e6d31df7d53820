"""Reads the version of a table: the end offsets of the read, and the gaps and truncations at that time."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from spark_log.cluster.topics import Topic, find_topic
from spark_log.ids import OffsetRange, StoreId, TopicPartition
from spark_log.log.partitions.replication_rules import Truncation
from spark_log.log.partitions.truncations import read_truncations
from spark_log.log.reader import LogReader, RangesToRead, ReadPlan
from spark_log.log.segments import plan as planner
from spark_log.metadata.sql_columns import SEGMENT

# Built once, because building such a statement takes longer than running it.
_GAPS = (
    sa.select(sa.func.sum(SEGMENT.end_offset - SEGMENT.base_offset - SEGMENT.record_count))
    .where(SEGMENT.topic_id == sa.bindparam("topic_id"), SEGMENT.partition == sa.bindparam("number"))
    .where(SEGMENT.base_offset < sa.bindparam("before"), SEGMENT.end_offset > sa.bindparam("after"))
)
"""Counts the offsets of a range whose records compaction or erasing has removed. As long as the segments of the range
are not deleted, the count only grows, so equal counts at two times mean that no record was removed in between.
"""


@dataclass(frozen=True)
class PartitionVersion:
    """A partition of the topic with the offsets [start, end). `gaps` is the number of these without a record.

    While start, gaps and truncations stay the same, no record below `end` has been removed from the log.
    """

    start: int
    end: int
    gaps: int
    truncations: tuple[Truncation, ...] = ()
    """Truncations below `end`, in the order of their epochs."""

    def continues(self, before: "PartitionVersion") -> bool:
        """Whether no election has truncated a record below `before.end` since `before`."""
        return self.end >= before.end and before.truncations == tuple(
            each for each in self.truncations if each.start_offset < before.end
        )


@dataclass(frozen=True)
class TableVersion:
    """The state of a topic when `Table` reads it. Equal versions have the same rows."""

    topic_uuid: str
    partitions: Mapping[int, PartitionVersion]

    @property
    def records(self) -> int:
        """The number of the log's records in this version. The table has at most as many rows."""
        return sum(each.end - each.start - each.gaps for each in self.partitions.values())

    def diverges_from(self, before: "TableVersion") -> bool:
        """Whether records of the earlier version `before` were truncated by an election, or deleted with the topic."""
        return self.topic_uuid != before.topic_uuid or not all(
            each.continues(before.partitions[number])
            for number, each in self.partitions.items()
            if number in before.partitions
        )

    def since(self, base: "TableVersion") -> dict[int, OffsetRange] | None:
        """Return the offsets that were appended after `base`, or None if `base` and these do not make up this version.

        They do if the log below the end of `base` is unchanged and no record after it has been removed. Otherwise a
        tombstone that compaction has removed would be missed.
        """
        if self.diverges_from(base) or not base.partitions.keys() <= self.partitions.keys():
            return None
        new: dict[int, OffsetRange] = {}
        for number, each in self.partitions.items():
            before = base.partitions.get(number, PartitionVersion(0, 0, 0))
            if each.start != before.start or each.gaps != before.gaps:
                return None
            if each.end > before.end:
                new[number] = OffsetRange(before.end, each.end)
        return new

    def as_text(self) -> str:
        partitions: dict[str, list[Any]] = {}
        for number, each in sorted(self.partitions.items()):
            truncations = [[truncation.leader_epoch, truncation.start_offset] for truncation in each.truncations]
            partitions[str(number)] = [each.start, each.end, each.gaps, *([truncations] if truncations else [])]
        return json.dumps({"version": 1, "topic": self.topic_uuid, "partitions": partitions})

    @classmethod
    def from_text(cls, text: str) -> "TableVersion":
        """Parse the result of `as_text`. Raises ValueError, KeyError or TypeError for any other text."""
        fields = json.loads(text)
        if fields["version"] != 1:
            raise ValueError(f"version {fields['version']!r}, expected 1")
        partitions: dict[int, PartitionVersion] = {}
        for number, (start, end, gaps, *rest) in fields["partitions"].items():
            truncations = tuple(Truncation(int(epoch), int(offset)) for epoch, offset in (rest[0] if rest else ()))
            partitions[int(number)] = PartitionVersion(int(start), int(end), int(gaps), truncations)
        return cls(str(fields["topic"]), partitions)


def read_version(log: LogReader, name: str, at: TableVersion | None = None) -> TableVersion:
    """Return the version of a topic up to the high watermarks, or up to the end offsets of `at`.

    It equals `at` if all records of `at` still exist. Raises UnknownTopicOrPartitionError.
    """
    topic, version = log.cluster.store.read(lambda connection: _read_version(connection, name, at))
    if topic.store_id != log.cluster.store_id:  # this store does not have its partitions
        return read_version(log.at(topic.store_id), name, at)
    return version


class _GoneError(Exception):
    """Records of the version have been removed from the log."""


class _ElsewhereError(Exception):
    """The topic is in another store."""

    def __init__(self, store_id: StoreId) -> None:
        self.store_id = store_id


def plan_at(log: LogReader, name: str, version: TableVersion, ranges: Mapping[int, OffsetRange]) -> ReadPlan | None:
    """Return the plan that reads ranges of the topic at `version`, or None if records of the version have been removed.

    The version is checked and the plan is made in one snapshot. Raises UnknownTopicOrPartitionError.
    """

    def wanted(connection: sa.Connection) -> RangesToRead:
        topic, now = _read_version(connection, name, version)
        if topic.store_id != log.cluster.store_id:
            raise _ElsewhereError(topic.store_id)
        if now != version:
            raise _GoneError
        return RangesToRead({name: topic}, {TopicPartition(name, number): found for number, found in ranges.items()})

    try:
        return log.plan_in_snapshot(wanted)
    except _ElsewhereError as elsewhere:
        return plan_at(log.at(elsewhere.store_id), name, version, ranges)
    except _GoneError:
        return None


def _read_version(connection: sa.Connection, name: str, at: TableVersion | None) -> tuple[Topic, TableVersion]:
    topic = find_topic(connection, name)
    positions = planner.positions(connection, [topic])
    ranges: dict[int, OffsetRange] = {}
    for partition in range(topic.partition_count) if at is None else at.partitions:
        start, watermark = positions.get(TopicPartition(name, partition), (0, 0))
        end = watermark if at is None else min(watermark, at.partitions[partition].end)
        ranges[partition] = OffsetRange(start, max(start, end))
    truncations = read_truncations(connection, [(topic.topic_id, partition) for partition in ranges])
    partitions: dict[int, PartitionVersion] = {}
    for partition, (start, end) in ranges.items():
        parameters = {"topic_id": topic.topic_id, "number": partition, "before": end, "after": start}
        gaps = int(connection.execute(_GAPS, parameters).scalar() or 0)
        # `at` has the truncations below its own end, since the log may be shorter now
        below = end if at is None else at.partitions[partition].end
        found = tuple(each for each in truncations.get((topic.topic_id, partition), ()) if each.start_offset < below)
        partitions[partition] = PartitionVersion(start, end, gaps, found)
    return topic, TableVersion(topic.uuid, partitions)
