"""Which state of a table: the offsets up to which its topic was read, and marks of what had been compacted and cut off
by then.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from spark_log.cluster.topics import Topic, find_topic
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.log import Log
from spark_log.log.reader import ReadPlan, Wanted
from spark_log.partitions.replication import Truncation
from spark_log.partitions.truncations import read_truncations
from spark_log.segments import plan as planner
from spark_log.segments.gaps import count_gaps


@dataclass(frozen=True)
class Mark:
    """A partition of the topic: offsets [start, end), of which `gaps` have no record any more.

    While start, gaps and truncations stay the same, nothing below `end` has been taken out of the log.
    """

    start: int
    end: int
    gaps: int
    truncations: tuple[Truncation, ...] = ()
    """Those below `end`, in the order of their epochs."""

    def continues(self, before: "Mark") -> bool:
        """Whether no election has cut off a record below `before.end` since then."""
        return self.end >= before.end and before.truncations == tuple(
            each for each in self.truncations if each.start_offset < before.end
        )


@dataclass(frozen=True)
class TableVersion:
    """What `Table` knows of its topic at one time; equal versions are the same rows."""

    topic_uuid: str
    marks: Mapping[int, Mark]

    @property
    def records(self) -> int:
        """Records of the log below the marks: at least as many as the table has rows."""
        return sum(mark.end - mark.start - mark.gaps for mark in self.marks.values())

    def diverges_from(self, before: "TableVersion") -> bool:
        """Whether records of an earlier version were lost: by an unclean election, or with a topic of that name."""
        return self.topic_uuid != before.topic_uuid or not all(
            mark.continues(before.marks[partition])
            for partition, mark in self.marks.items()
            if partition in before.marks
        )

    def since(self, base: "TableVersion") -> dict[int, OffsetRange] | None:
        """The records that made this version out of `base`; None if that cannot be said.

        It can while the log below `base` is what it was, and nothing has been taken out of what came since: a tombstone
        that was compacted away would be missed.
        """
        if self.diverges_from(base) or not base.marks.keys() <= self.marks.keys():
            return None
        new: dict[int, OffsetRange] = {}
        for partition, mark in self.marks.items():
            before = base.marks.get(partition, Mark(0, 0, 0))
            if mark.start != before.start or mark.gaps != before.gaps:
                return None
            if mark.end > before.end:
                new[partition] = OffsetRange(before.end, mark.end)
        return new

    def as_text(self) -> str:
        marks: dict[str, list[Any]] = {}
        for number, mark in sorted(self.marks.items()):
            cuts = [[each.leader_epoch, each.start_offset] for each in mark.truncations]
            marks[str(number)] = [mark.start, mark.end, mark.gaps, *([cuts] if cuts else [])]
        return json.dumps({"version": 1, "topic": self.topic_uuid, "partitions": marks})

    @classmethod
    def from_text(cls, text: str) -> "TableVersion":
        """ValueError, KeyError or TypeError for anything that `as_text` did not write."""
        found = json.loads(text)
        if found["version"] != 1:
            raise ValueError(f"version {found['version']!r}, expected 1")
        marks: dict[int, Mark] = {}
        for number, (start, end, gaps, *cuts) in found["partitions"].items():
            truncations = tuple(Truncation(int(epoch), int(offset)) for epoch, offset in (cuts[0] if cuts else ()))
            marks[int(number)] = Mark(int(start), int(end), int(gaps), truncations)
        return cls(str(found["topic"]), marks)


def look(log: Log, name: str, at: TableVersion | None = None) -> tuple[Topic, TableVersion]:
    """The topic as it is now: up to its high watermarks, or up to where `at` ends. UnknownTopicOrPartitionError.

    Equal to `at` if all records of that version are still there.
    """
    return log.cluster.store.read(lambda connection: _look(connection, name, at))


class _GoneError(Exception):
    """Records of the version are not there any more."""


def plan_at(log: Log, name: str, version: TableVersion, ranges: Mapping[int, OffsetRange]) -> ReadPlan | None:
    """The plan of ranges of the topic at `version`, None if records of that version are gone: one snapshot for both.

    UnknownTopicOrPartitionError.
    """

    def wanted(connection: sa.Connection) -> Wanted:
        topic, now = _look(connection, name, version)
        if now != version:
            raise _GoneError
        return Wanted({name: topic}, {TopicPartition(name, number): found for number, found in ranges.items()})

    try:
        return log.plan_found(wanted)
    except _GoneError:
        return None


def _look(connection: sa.Connection, name: str, at: TableVersion | None) -> tuple[Topic, TableVersion]:
    topic = find_topic(connection, name)
    positions = planner.positions(connection, [topic])
    ranges: dict[int, OffsetRange] = {}
    for partition in range(topic.partition_count) if at is None else at.marks:
        start, watermark = positions.get(TopicPartition(name, partition), (0, 0))
        end = watermark if at is None else min(watermark, at.marks[partition].end)
        ranges[partition] = OffsetRange(start, max(start, end))
    gaps = count_gaps(connection, topic, ranges)
    truncations = read_truncations(connection, [(topic.topic_id, partition) for partition in ranges])
    marks: dict[int, Mark] = {}
    for partition, (start, end) in ranges.items():
        # of an older version those below its own end: it may be that the log does not reach it any more
        below = end if at is None else at.marks[partition].end
        cuts = tuple(each for each in truncations.get((topic.topic_id, partition), ()) if each.start_offset < below)
        marks[partition] = Mark(start, end, gaps[partition], cuts)
    return topic, TableVersion(topic.uuid, marks)
