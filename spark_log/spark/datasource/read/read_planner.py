"""Plans the tasks of a read from its options, on the driver: the only part of reading that uses the metadata store."""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import by_store
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import DataLossError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from spark_log.ids import HOME, OffsetRange, StoreId, TopicId, TopicPartition
from spark_log.log.partitions.lineage import UNKNOWN_EPOCH
from spark_log.log.partitions.partition_rows import Key
from spark_log.log.partitions.replication_rules import Truncation
from spark_log.log.partitions.truncations import read_truncations
from spark_log.log.reader import ReadPlan
from spark_log.log.segments import plan as planner
from spark_log.log.segments.file_pruning import without_excluded
from spark_log.log.segments.slices import Slice
from spark_log.maintenance.client_log import TaskReader
from spark_log.spark.datasource.options.positions import CommittedOffsets, Position, resolve, timestamps_to_look_up
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.datasource.options.topic_choice import AssignPartitions, SubscribePattern, SubscribeTopics
from spark_log.spark.datasource.read.data_loss import resolve_ranges
from spark_log.spark.datasource.read.filters import Pruning, apply
from spark_log.spark.datasource.read.ranges import PartitionRange, check_resolved, pack_tasks, split_ranges
from spark_log.spark.datasource.read.read_task import ReadTask

if TYPE_CHECKING:
    from spark_log.groups.committed_offsets import Commit

logger = logging.getLogger(__name__)

_SEGMENTS_MIN, _SEGMENTS_MAX = 100, 100_000
"""For maxBytesPerTrigger, the partitions share _SEGMENTS_MAX segments to read, but each may have _SEGMENTS_MIN."""


_PAUSE_S = 0.02


@dataclass(frozen=True)
class Available:
    """The topics that a subscription matches now, and [log start offset, high watermark) of their partitions."""

    topics: dict[str, Topic]
    ranges: dict[TopicPartition, OffsetRange]
    epochs: dict[TopicPartition, int] = field(default_factory=dict)
    """Leader epochs of the partitions."""
    truncations: dict[TopicPartition, Sequence[Truncation]] = field(default_factory=dict)
    """Truncations of the partitions whose logs were truncated by elections."""
    commits: "dict[TopicPartition, Commit]" = field(default_factory=dict)
    """Commits of option group.id, if startingOffsets is committed."""

    def include(self, other: "Available") -> None:
        """Add the partitions of topics of another store."""
        self.ranges.update(other.ranges)
        self.epochs.update(other.epochs)
        self.truncations.update(other.truncations)

    def store_ids(self, partitions: Iterable[TopicPartition]) -> list[StoreId]:
        """Return the stores of these partitions."""
        return sorted({self.topics[name].store_id for name in {tp.topic for tp in partitions} if name in self.topics})

    @property
    def topic_ids(self) -> dict[str, TopicId]:
        return {name: topic.topic_id for name, topic in self.topics.items()}

    @property
    def ends(self) -> dict[TopicPartition, int]:
        return {tp: offsets.end for tp, offsets in self.ranges.items()}


class ReadPlanner:
    """Plans reads of one query. It holds an open cluster and stays on the driver."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.cluster = Cluster.open(options.cluster)
        self.log = TaskReader(self.cluster, holder="spark read")

    def close(self) -> None:
        self.log.close()
        self.cluster.close()

    def available(self, *, must_exist: bool = True) -> Available:
        """Return what the subscription matches now. Raises UnknownTopicOrPartitionError if a topic of `subscribe` is
        missing and `must_exist` is set.
        """
        while True:
            available = self.cluster.store.read(lambda connection: self._available(connection, must_exist))
            elsewhere = [topic for topic in available.topics.values() if topic.store_id != HOME]
            # read after the commits, so that no committed offset is beyond the high watermarks
            for store_id, topics in by_store(elsewhere).items():
                there = {topic.name: topic for topic in topics}
                numbers = self._partitions(there)
                found = self.cluster.at(store_id).store.read(partial(_find_partitions, topics=there, numbers=numbers))
                available.include(found)
            if not self._has_moved(elsewhere, available):
                return available

    def _has_moved(self, topics: Sequence[Topic], available: Available) -> bool:
        """Whether a topic without partitions in `available` has moved to another store since `topics` was read."""
        found = {tp.topic for tp in available.ranges}
        missing = {topic.name: topic for topic in topics if topic.name not in found}
        now = self.cluster.store.read(lambda connection: find_topics(connection, missing)) if missing else {}
        return any(topic.store_id != missing[name].store_id for name, topic in now.items())

    def _available(self, connection: sa.Connection, must_exist: bool) -> Available:
        match self.options.subscription:
            case SubscribeTopics(names):
                topics = find_topics(connection, names)
                missing = [name for name in names if name not in topics]
                if missing and must_exist:
                    raise UnknownTopicOrPartitionError(
                        f"topic {missing[0]!r}: unknown topic or partition"
                        f" (make it with `spark-log topic create {missing[0]}`)"
                    )
            case SubscribePattern() as pattern:
                everything = find_topics(connection)
                topics = {name: everything[name] for name in pattern.select(everything)}
            case AssignPartitions(partitions):
                topics = find_topics(connection, {partition.topic for partition in partitions})
        here = {name: topic for name, topic in topics.items() if topic.store_id == HOME}
        available = Available(topics, {}, commits=self._commits(connection, topics))
        available.include(_find_partitions(connection, here, self._partitions(here)))
        return available

    def _partitions(self, topics: Mapping[str, Topic]) -> list[TopicPartition]:
        """Return the partitions of these topics that the subscription names."""
        if isinstance(self.options.subscription, AssignPartitions):
            return [tp for tp in self.options.subscription.partitions if tp.topic in topics]
        return [TopicPartition(name, n) for name, topic in topics.items() for n in range(topic.partition_count)]

    def starting(self, available: Available) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return the offsets where the query starts, and the known leader epochs: those of the group's commits, or else
        those of the partitions. Raises UnknownTopicOrPartitionError and InvalidOptionError.
        """
        position = self.options.starting
        committed = {tp: commit.offset for tp, commit in available.commits.items()}
        epochs = {**available.epochs, **{tp: commit.leader_epoch for tp, commit in available.commits.items()}}
        known = {tp: epoch for tp, epoch in epochs.items() if epoch != UNKNOWN_EPOCH}
        return self.offsets(position, available, starting=True, committed=committed), known

    def offsets(
        self,
        position: Position,
        available: Available,
        *,
        starting: bool,
        committed: Mapping[TopicPartition, int] | None = None,
    ) -> dict[TopicPartition, int]:
        """Return the current offsets of a position. For a position by timestamp, raises UnknownTopicOrPartitionError if
        a topic has been deleted or recreated since `available` was read.
        """
        wanted = timestamps_to_look_up(position, available.ranges)
        found_by_time: dict[TopicPartition, int | None] = {}
        by_topic: dict[str, dict[int, int]] = {}
        for (name, partition), timestamp_ms in wanted.items():
            if TopicPartition(name, partition) in available.ranges:
                by_topic.setdefault(name, {})[partition] = timestamp_ms
        for name, timestamps_ms in by_topic.items():
            offsets = self.log.offsets_for_times(available.topics[name], timestamps_ms, self.options.client_rack)
            # records that were appended after `available` was read do not count
            found_by_time.update(
                (tp, offset)
                for number, offset in offsets.items()
                if offset is not None and offset < available.ranges[tp := TopicPartition(name, number)].end
            )
        strategy = self.options.starting_timestamp_strategy
        return resolve(
            position,
            available.ranges,
            starting=starting,
            strategy=strategy,
            first_offsets=found_by_time,
            committed=committed,
        )

    def _commits(self, connection: sa.Connection, topics: Mapping[str, Topic]) -> "dict[TopicPartition, Commit]":
        """Read the commits in the snapshot of the high watermarks, so that no committed offset is beyond them."""
        if not isinstance(self.options.starting, CommittedOffsets):
            return {}
        from spark_log.groups.committed_offsets import read_commits  # only queries that need it pay for its imports

        assert self.options.group_id is not None
        commits = read_commits(connection, self.options.group_id)
        return {tp: c for tp, c in commits.items() if tp.topic in topics and c.topic_id == topics[tp.topic].topic_id}

    def batch_ranges(self) -> tuple[Available, dict[TopicPartition, OffsetRange]]:
        """Return the ranges of a batch query.

        Raises UnknownTopicOrPartitionError, InvalidOptionError (options that do not match the existing partitions), and
        DataLossError under failOnDataLoss=true.
        """
        while True:
            available = self.available()
            try:
                start, epochs = self.starting(available)
                end = self.offsets(self.options.ending, available, starting=False)
                break
            except UnknownTopicOrPartitionError:
                if self.available().topics == available.topics:
                    raise
                # otherwise a topic has been recreated meanwhile: the query reads the new one
        checked = start
        if isinstance(self.options.starting, CommittedOffsets):  # one beyond the end of its log is a loss, no mistake
            checked = {tp: min(offset, available.ranges[tp].end) for tp, offset in start.items()}
        check_resolved(checked, end)
        resolved = resolve_ranges(
            start,
            end,
            available.ranges,
            fail_on_data_loss=self.options.fail_on_data_loss,
            start_epochs=epochs,
            truncations=available.truncations,
            group_id=self.options.group_id,
        )
        for loss in resolved.losses:
            logger.warning("%s", loss)
        return available, resolved.ranges

    def segments(
        self, available: Available, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, list[tuple[int, int]]]:
        """Return the end offsets and stored bytes of the segments between these offsets; of long ranges only the first.

        A partition that has been deleted meanwhile has none.
        """
        ranges = {
            tp: OffsetRange(max(starts[tp], available.ranges[tp].start), end)
            for tp, end in ends.items()
            if tp in starts and starts[tp] < end
        }
        most = max(_SEGMENTS_MIN, _SEGMENTS_MAX // max(1, len(ranges)))
        slices: list[Slice] = []
        for store_id in available.store_ids(ranges):
            there = {tp: found for tp, found in ranges.items() if available.topics[tp.topic].store_id == store_id}
            plan = partial(planner.plan, topics=available.topics, ranges=there, segments_max=most)
            slices += self.cluster.at(store_id).store.read(plan)
        segments: dict[TopicPartition, list[tuple[int, int]]] = {}
        for piece in slices:
            segments.setdefault(piece.topic_partition, []).append((piece.end, piece.size))
        return segments

    def tasks(
        self,
        available: Available,
        ranges: Mapping[TopicPartition, OffsetRange],
        pruning: Pruning = Pruning(),  # noqa: B008 - frozen
    ) -> list[ReadTask]:
        """Return the tasks that read the ranges.

        Records that retention or the deletion of a topic removes meanwhile are a loss like any other: DataLossError
        under failOnDataLoss=true; otherwise the remaining offsets are read.
        """
        while True:
            try:
                return self._tasks(available, {tp: found for tp, found in ranges.items() if found.size}, pruning)
            except (OffsetOutOfRangeError, UnknownTopicOrPartitionError, DataLossError):
                ranges = self._still_there(available, ranges)
                clock.sleep_s(_PAUSE_S)  # a topic that has just been moved is not found for a moment

    def _still_there(
        self, available: Available, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> dict[TopicPartition, OffsetRange]:
        """Return the part of the ranges that can be read now. Raises DataLossError under failOnDataLoss=true."""
        now = self.available(must_exist=False)
        resolved = resolve_ranges(
            {tp: found.start for tp, found in ranges.items()},
            {tp: found.end for tp, found in ranges.items()},
            now.ranges,
            fail_on_data_loss=self.options.fail_on_data_loss,
            end_topic_ids=available.topic_ids,
            current_topic_ids=now.topic_ids,
            group_id=self.options.group_id,
        )
        for loss in resolved.losses:
            logger.warning("%s", loss)
        return resolved.ranges

    def _tasks(
        self, available: Available, ranges: Mapping[TopicPartition, OffsetRange], pruning: Pruning
    ) -> list[ReadTask]:
        pruned = apply(pruning, ranges)
        pieces = split_ranges(
            pruned,
            min_partitions=self.options.min_partitions,
            max_records_per_partition=self.options.max_records_per_partition,
        )
        if not pieces:
            return []
        packed = pack_tasks(
            pieces,
            tasks_max=max(self.cluster.store.settings.plan_tasks_max, self.options.min_partitions or 0),
            max_records_per_task=self.options.max_records_per_partition,
        )
        plan = self.log.plan(pruned, pruning.times, available.topics, self.options.client_rack)
        if pruning.fields:
            slices: list[Slice] = []
            for store_id in available.store_ids(pruned):
                there = [each for each in plan.slices if available.topics[each.topic].store_id == store_id]
                keep = partial(without_excluded, topics=available.topics, slices=there, filters=pruning.fields)
                slices += self.cluster.at(store_id).store.read(keep)
            plan = ReadPlan(slices, plan.log_dirs)
        return list(_cut(packed, plan, pruning))


def _find_partitions(
    connection: sa.Connection, topics: Mapping[str, Topic], numbers: Sequence[TopicPartition]
) -> Available:
    """Read the present state of these partitions of topics of one store."""
    by_partition = {
        tp: here
        for tp, here in planner.find_positions(connection, numbers).items()
        if here.topic_id == topics[tp.topic].topic_id
    }
    keys: dict[Key, TopicPartition] = {(topics[tp.topic].topic_id, tp.partition): tp for tp in by_partition}
    truncations = read_truncations(connection, keys.keys())
    return Available(
        {},
        {tp: OffsetRange(*by_partition[tp].positions) for tp in numbers if tp in by_partition},
        {tp: here.leader_epoch for tp, here in by_partition.items()},
        {keys[key]: those for key, those in truncations.items()},
    )


def _cut(packed: Iterable[tuple[PartitionRange, ...]], plan: ReadPlan, pruning: Pruning) -> Iterable[ReadTask]:
    slices: dict[TopicPartition, list[Slice]] = {}
    for piece in plan.slices:
        slices.setdefault(piece.topic_partition, []).append(piece)
    ends = {topic_partition: [piece.end for piece in pieces] for topic_partition, pieces in slices.items()}
    for task in packed:
        mine: list[Slice] = []
        for topic_partition, start, end in task:
            pieces = slices.get(topic_partition, [])
            for number in range(bisect_right(ends.get(topic_partition, []), start), len(pieces)):
                piece = pieces[number]
                if piece.start >= end:
                    break
                inside = piece.start >= start and piece.end <= end
                mine.append(piece if inside else piece._replace(start=max(piece.start, start), end=min(piece.end, end)))
        if mine:
            yield ReadTask(mine, plan.log_dirs, pruning.times, pruning.fields)
