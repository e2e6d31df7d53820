"""Reads of the log: the plan of the segments for a request, in one snapshot, and the records of the segments.

Spark drivers import this module to plan a read. So modules that few reads need are imported in functions.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topic, find_topics
from spark_log.config import ClusterSettings
from spark_log.errors import (
    DataLossError,
    OffsetOutOfRangeError,
    SparkLogError,
    UnknownTopicOrPartitionError,
    redact,
)
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.append.write_ids import Writer
from spark_log.log.segments import plan as planner
from spark_log.log.segments.slices import LogDirs, Positions, Slice, TimestampBounds

logger = logging.getLogger(__name__)

_ALL_TIMES = TimestampBounds()


@dataclass(frozen=True)
class ReadPlan:
    """Slices and the log dirs to read them from, as of one snapshot. Can be pickled; needs no metadata store."""

    slices: Sequence[Slice]
    log_dirs: LogDirs


@dataclass(frozen=True)
class Wanted:
    """The input of a plan, read in the same snapshot as the plan: ranges, and their topics by name."""

    topics: Mapping[str, Topic]
    ranges: Mapping[TopicPartition, OffsetRange]


class LogReader:
    """Reads of a cluster. Safe to share between threads.

    >>> reader = LogReader(Cluster.open("/data/log"))                         # doctest: +SKIP
    >>> reader.read(reader.positions(topic))                                  # doctest: +SKIP
    """

    def __init__(self, cluster: Cluster, *, settings: ClusterSettings | None = None, holder: str = "log") -> None:
        self.cluster = cluster
        self._given = settings
        self._writer = Writer(cluster.store, holder, self.settings.producer_write_id_lease_ms)

    def close(self) -> None:
        self._writer.close()

    @property
    def settings(self) -> ClusterSettings:
        """The given settings, otherwise the cluster's."""
        return self._given or self.cluster.store.settings

    def find_topic(self, name: str) -> Topic:
        """The topic, or UnknownTopicOrPartitionError."""
        return self.cluster.store.read(lambda connection: find_topic(connection, name))

    def positions(self, topic: Topic) -> dict[TopicPartition, Positions]:
        """Log start offset and high watermark by partition. UnknownTopicOrPartitionError if the topic was deleted."""
        found = self.cluster.store.read(lambda connection: planner.positions(connection, [topic]))
        if not found:  # every topic has a partition
            raise UnknownTopicOrPartitionError(f"topic {topic.name!r} was deleted, or made again")
        return found

    def plan(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        times: TimestampBounds = _ALL_TIMES,
        topics: Mapping[str, Topic] | None = None,
        rack: str | None = None,
    ) -> ReadPlan:
        """The slices of the ranges, in one snapshot. Tails that are too long for a plan are sealed first.

        Raises UnknownTopicOrPartitionError, and OffsetOutOfRangeError for a range that is not between log start offset
        and high watermark; `topics` pins topics by their id: DataLossError if one was recreated.
        Replicas in the reader's `rack` are read first.
        """

        def find(connection: sa.Connection) -> Wanted:
            found = find_topics(connection, {name for name, _ in ranges})
            _check_topics(found, ranges, topics)
            here = planner.find_positions(connection, ranges.keys())
            _check_ranges({topic_partition: at.positions for topic_partition, at in here.items()}, ranges)
            return Wanted(found, ranges)

        return self.plan_in_snapshot(find, times, rack)

    def plan_topic(self, name: str, rack: str | None = None) -> ReadPlan:
        """The slices of all readable records of a topic, in one snapshot. UnknownTopicOrPartitionError."""

        def find(connection: sa.Connection) -> Wanted:
            topic = find_topic(connection, name)
            limits = planner.positions(connection, [topic])
            return Wanted({name: topic}, {tp: OffsetRange(*here) for tp, here in limits.items()})

        return self.plan_in_snapshot(find, rack=rack)

    def plan_in_snapshot(
        self, find: Callable[[sa.Connection], Wanted], times: TimestampBounds = _ALL_TIMES, rack: str | None = None
    ) -> ReadPlan:
        """The slices of the ranges that `find` returns, from the same snapshot. `find` runs again after sealing."""
        sealing = True
        while True:
            wanted, slices, too_long = self.cluster.store.read(
                lambda connection: self._find_and_plan(connection, find, times, rack, sealing=sealing)  # noqa: B023
            )
            if not too_long:
                # the log dirs are read after the slices: all that the slices name are among them
                return ReadPlan(slices, self.cluster.log_dirs())
            # tails that another process has sealed, or that cannot be sealed, are planned as they are
            sealing = sum(self._try_seal(wanted.topics[name], partition) for name, partition in too_long) > 0

    def _find_and_plan(
        self,
        connection: sa.Connection,
        find: Callable[[sa.Connection], Wanted],
        times: TimestampBounds,
        rack: str | None,
        *,
        sealing: bool,
    ) -> tuple[Wanted, list[Slice], list[TopicPartition]]:
        """The requested ranges, the slices, and the tails that must be sealed first."""
        wanted = find(connection)
        slices = planner.plan(connection, wanted.topics, wanted.ranges, times, rack=rack)
        too_long = self._too_long(planner.inline_bytes(slices)) if sealing else []
        return wanted, slices if too_long else planner.with_inline_data(connection, slices), too_long

    def read(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        schema: pa.Schema | None = None,
        rack: str | None = None,
        topics: Mapping[str, Topic] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Batches of the records of the ranges, by partition and offset; by default with all columns and headers.

        Raises the errors of `plan`: UnknownTopicOrPartitionError, OffsetOutOfRangeError, and DataLossError with
        `topics`.
        """
        from spark_log.log.records.schema import read_schema
        from spark_log.log.segments.fetcher import Fetcher

        plan = self.plan(ranges, topics=topics, rack=rack)
        return Fetcher(plan.log_dirs).read(plan.slices, schema or read_schema(include_headers=True))

    def offsets_for_times(
        self, topic: Topic, timestamps_ms: Mapping[int, int], rack: str | None = None
    ) -> dict[int, int | None]:
        """The first readable offset of each partition with timestamp >= the given one; None if there is none (KIP-79).

        UnknownTopicOrPartitionError if the topic has been deleted or recreated, or a partition does not exist.
        """
        from spark_log.log.segments.timed_offsets import offsets_for_times

        return offsets_for_times(self.cluster, topic, timestamps_ms, rack)

    def _try_seal(self, topic: Topic, partition: int) -> int:
        """Seal a tail. A failure is logged, not raised: neither a finished append nor a read depends on it."""
        from spark_log.maintenance.rewrite.tail_seal import seal  # few reads need it

        try:
            return seal(self.cluster, self._writer, topic, partition)
        except (SparkLogError, OSError) as error:
            logger.warning("%s-%s: tail not sealed, tried again later: %s", topic.name, partition, redact(str(error)))
            return 0

    def _too_long(self, sizes: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """The longest tails, chosen so that the other tails stay within the limits of a plan."""
        per_task, total = self.settings.plan_inline_bytes_per_task_max, self.settings.plan_inline_bytes_max
        excess = sum(sizes.values()) - total
        chosen: list[TopicPartition] = []
        for partition, size in sorted(sizes.items(), key=lambda item: -item[1]):
            if size <= per_task and excess <= 0:
                break
            chosen.append(partition)
            excess -= size
        return chosen


def _check_topics(
    found: Mapping[str, Topic], ranges: Mapping[TopicPartition, OffsetRange], pinned: Mapping[str, Topic] | None
) -> None:
    for name in {name for name, _ in ranges}:
        if name not in found:
            raise UnknownTopicOrPartitionError(f"topic {name!r}: unknown topic or partition")
        if pinned is not None and found[name].topic_id != pinned[name].topic_id:
            raise DataLossError(
                f"topic {name!r} was deleted and created again: the records that were to be read are lost"
            )


def _check_ranges(limits: Mapping[TopicPartition, Positions], ranges: Mapping[TopicPartition, OffsetRange]) -> None:
    for topic_partition, (start, end) in ranges.items():
        limit = limits.get(topic_partition)
        if limit is None:
            raise UnknownTopicOrPartitionError(f"partition {topic_partition}: unknown topic or partition")
        if start < end and not limit.log_start_offset <= start <= end <= limit.high_watermark:
            raise OffsetOutOfRangeError(
                f"{topic_partition}: offsets [{start}, {end}) are not between the log"
                f" start offset {limit.log_start_offset} and the high watermark {limit.high_watermark}"
            )
